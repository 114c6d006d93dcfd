//! Places in the repository.

use std::path::{Path, PathBuf};

/// The root of the repository these tools were built from.
pub fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

/// Where cargo puts what it builds: `CARGO_TARGET_DIR`, else `target/` in the root.
pub fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(directory) => root().join(directory),
        None => root().join("target"),
    }
}

/// The chart that `up` and the tests install.
pub fn chart() -> PathBuf {
    root().join("charts/fairlead")
}
