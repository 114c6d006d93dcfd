//! `cargo xtask gen`: files of the repository that are made from the code, and the check that they are up to date.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use crate::repo;

/// The command that makes the files, as error messages name it.
const COMMAND: &str = "cargo xtask gen";
/// Keeps an object when its release is uninstalled (helm's documentation, "resource-policy").
const KEEP: &str = "helm.sh/resource-policy: keep";

/// What `gen` shall do.
#[derive(Clone, Debug, clap::Args)]
pub struct Gen {
    /// Change nothing; fail if a generated file is missing, out of date or left over.
    #[arg(long)]
    pub check: bool,
}

/// A generated file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generated {
    /// Path from the repository's root.
    pub path: PathBuf,
    /// What is in it.
    pub content: String,
}

/// Directories in which every file is generated: what is in them and not made any more is removed.
const OWNED: [&str; 2] = ["crds/yaml", "charts/fairlead/templates/crds"];

/// Every generated file. What else is to be generated is added here.
///
/// # Errors
/// When an object cannot be written as YAML.
pub fn files() -> Result<Vec<Generated>> {
    let mut files = vec![Generated {
        path: "docs/kinds.md".into(),
        content: crate::kinds_page::page(&fairlead_crds::all_crds())?,
    }];
    for crd in fairlead_crds::all_crds() {
        let name = format!("{}.yaml", crd.spec.names.plural);
        let header = format!("# Made by `{COMMAND}` from the types in crds/src. Do not edit.\n");
        files.push(Generated {
            path: Path::new(OWNED[0]).join(&name),
            content: header.clone() + &yaml(&crd)?,
        });
        files.push(Generated {
            path: Path::new(OWNED[1]).join(&name),
            content: header + &template(crd)?,
        });
    }
    Ok(files)
}

fn yaml(crd: &CustomResourceDefinition) -> Result<String> {
    serde_saphyr::to_string(crd).with_context(|| format!("write CRD {:?} as YAML", crd.metadata.name))
}

/// The CRD as a template of the chart, under the chart's values `crds.enabled` and `crds.keep`.
fn template(mut crd: CustomResourceDefinition) -> Result<String> {
    if let Some((key, value)) = KEEP.split_once(": ") {
        crd.metadata
            .annotations
            .get_or_insert_default()
            .insert(key.to_owned(), value.to_owned());
    }
    let line = format!("    {KEEP}\n");
    let text = escape(&yaml(&crd)?);
    if text.matches(&line).count() != 1 {
        bail!(
            "CRD {:?}: expected the line {line:?} once in its YAML",
            crd.metadata.name
        );
    }
    let kept = format!("    {{{{- if .Values.crds.keep }}}}\n{line}    {{{{- end }}}}\n");
    Ok(format!(
        "{{{{- if .Values.crds.enabled }}}}\n{}{{{{- end }}}}\n",
        text.replace(&line, &kept)
    ))
}

/// Makes helm print `text` as it is, though descriptions in it speak of `{{name}}`.
fn escape(text: &str) -> String {
    text.split("{{")
        .map(|part| part.replace("}}", r#"{{ "}}" }}"#))
        .collect::<Vec<_>>()
        .join(r#"{{ "{{" }}"#)
}

/// Writes every generated file and removes left-over ones; with `check` changes nothing.
///
/// # Errors
/// When a file cannot be read or written; with `check` also when one is not what it would be, naming all of them and
/// the command that mends it.
pub fn run(options: &Gen) -> Result<()> {
    run_at(&repo::root(), &files()?, options.check)
}

fn run_at(root: &Path, files: &[Generated], check: bool) -> Result<()> {
    let mut drift = Vec::new();
    for file in files {
        let path = root.join(&file.path);
        if fs::read_to_string(&path).is_ok_and(|now| now == file.content) {
            continue;
        }
        drift.push(file.path.display().to_string());
        if !check {
            write(&path, &file.content)?;
        }
    }
    for path in left_over(root, files)? {
        drift.push(format!("{} (left over)", path.display()));
        if !check {
            let path = root.join(path);
            fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
        }
    }
    if check && !drift.is_empty() {
        bail!(
            "generated files are out of date: {}; run `{COMMAND}` and commit the result",
            drift.join(", ")
        );
    }
    for path in drift {
        println!("wrote {path}");
    }
    Ok(())
}

fn write(path: &Path, content: &str) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(|| format!("make {}", parent.display()))?;
    }
    fs::write(path, content).with_context(|| format!("write {}", path.display()))
}

/// Files in the [`OWNED`] directories that nothing generates, from the root.
fn left_over(root: &Path, files: &[Generated]) -> Result<Vec<PathBuf>> {
    let wanted: BTreeSet<&Path> = files.iter().map(|file| file.path.as_path()).collect();
    let mut found = Vec::new();
    for directory in OWNED {
        let absolute = root.join(directory);
        if !absolute.exists() {
            continue;
        }
        let entries = fs::read_dir(&absolute).with_context(|| format!("list {}", absolute.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("list {}", absolute.display()))?;
            let path = Path::new(directory).join(entry.file_name());
            if !wanted.contains(path.as_path()) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_files_are_up_to_date() {
        run(&Gen { check: true }).unwrap();
    }

    #[test]
    fn generating_twice_gives_the_same_and_yaml_says_what_the_type_says() {
        assert_eq!(files().unwrap(), files().unwrap());
        for crd in fairlead_crds::all_crds() {
            let back: serde_json::Value = serde_saphyr::from_str(&yaml(&crd).unwrap()).unwrap();
            assert_eq!(back, serde_json::to_value(&crd).unwrap());
        }
    }

    #[test]
    fn braces_survive_helm() {
        assert_eq!(escape("a {{b}} c"), r#"a {{ "{{" }}b{{ "}}" }} c"#);
    }

    #[test]
    fn check_names_missing_changed_and_left_over_files_and_the_command() {
        let root = std::env::temp_dir().join(format!("fairlead-gen-{}", std::process::id()));
        let files = [Generated {
            path: "crds/yaml/a.yaml".into(),
            content: "a\n".into(),
        }];
        let check = || run_at(&root, &files, true).map_err(|error| error.to_string());
        assert!(check().unwrap_err().contains("crds/yaml/a.yaml"));
        run_at(&root, &files, false).unwrap();
        check().unwrap();
        fs::write(root.join("crds/yaml/a.yaml"), "b\n").unwrap();
        fs::write(root.join("crds/yaml/old.yaml"), "").unwrap();
        let error = check().unwrap_err();
        assert!(
            error.contains("a.yaml, crds/yaml/old.yaml (left over); run `cargo xtask gen`"),
            "{error}"
        );
        run_at(&root, &files, false).unwrap();
        check().unwrap();
        fs::remove_dir_all(&root).unwrap();
    }
}
