//! Installing a chart and running programs beside the control plane, with stand-ins for our own: what is
//! tested is that they get their rights, their namespaces and groups, and that they all go again.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use xtask::cgroup::Tree;
use xtask::control_plane::ControlPlane;
use xtask::process::Identity;
use xtask::programs::Programs;
use xtask::stack::Stack;
use xtask::{install, wait};

const SERVICE_ACCOUNTS: &str = "\
{{- range list \"fairlead-operator\" \"fairlead-node-agent\" }}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: {{ . }}, namespace: {{ $.Release.Namespace }}}
{{- end }}
";

/// Joins a group below its root, leaves a grandchild there, writes its own process number, and waits.
const SUPERVISOR: &str = "#!/bin/sh
spool=$4 root=$6
mkdir -p $root/payload
echo $$ > $root/payload/cgroup.procs
setsid sleep 1000 &
$2 1000 &
echo $$ > $spool/pid
wait
";

fn make_chart(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir.join("templates"))?;
    fs::write(
        dir.join("Chart.yaml"),
        "apiVersion: v2\nname: stand-in\nversion: 0.0.1\n",
    )?;
    fs::write(dir.join("templates/accounts.yaml"), SERVICE_ACCOUNTS)?;
    Ok(())
}

fn make_programs(dir: &Path) -> Result<Programs> {
    fs::create_dir_all(dir)?;
    for (name, text) in [
        ("fairlead-supervisor", SUPERVISOR),
        ("fairlead-operator", "#!/bin/sh\nexec sleep 1000\n"),
    ] {
        fs::write(dir.join(name), text)?;
        fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o755))?;
    }
    fs::copy("/bin/sleep", dir.join("fairlead-node-agent"))?;
    Ok(Programs {
        dir: dir.to_path_buf(),
    })
}

/// A node with an agent of another program is outdated, by that program. What stands in for the supervisor always is:
/// its process runs the shell.
fn a_new_agent_is_noticed(stack: &Stack, programs: &Programs) -> Result<()> {
    wait::until(
        "the agent to start",
        Duration::from_secs(10),
        Duration::from_millis(20),
        || Ok(stack.agent(0)?.map(drop)),
        String::new,
    )?;
    assert_eq!(stack.running_nodes()?, [0]);
    assert_eq!(stack.outdated("node-0")?, ["fairlead-supervisor"]);
    let next = programs.path("next");
    fs::copy("/bin/true", &next)?;
    fs::rename(&next, programs.path("fairlead-node-agent"))?;
    assert_eq!(
        stack.outdated("node-0")?,
        ["fairlead-supervisor", "fairlead-node-agent"]
    );
    assert_eq!(stack.outdated("operator")?, ["fairlead-operator"]);
    assert_eq!(stack.outdated("never started")?, [""; 0]);
    fs::copy("/bin/sleep", &next)?;
    fs::rename(&next, programs.path("fairlead-node-agent")).context("put the agent back")
}

/// What the node's supervisor says its own process number is, once it says so.
fn own_number(stack: &Stack) -> Result<String> {
    let file = stack.spool(0).join("pid");
    wait::until(
        "the supervisor to start",
        Duration::from_secs(10),
        Duration::from_millis(20),
        || Ok(fs::read_to_string(&file).ok().filter(|text| text.ends_with('\n'))),
        || fs::read_to_string(stack.log("node-0")).unwrap_or_default(),
    )
}

fn whoami(control_plane: &ControlPlane, kubeconfig: &Path) -> Result<String> {
    let template = "--output=jsonpath={.status.userInfo.username}";
    control_plane
        .cluster()
        .kubectl_as(kubeconfig, &["auth", "whoami", template], None)
}

/// A second stack in the same place, which ends without being detached, ends what it started alone.
fn a_stack_takes_only_its_own_along(
    control_plane: &ControlPlane,
    programs: &Programs,
    groups: &Tree,
) -> Result<()> {
    let mut second = Stack::open(
        &control_plane.dir().join("stack"),
        control_plane.cluster(),
        programs,
        groups.clone(),
    )?;
    assert!(!second.start_node(0)?.1 && second.start_node(1)?.1);
    let (first, own) = (second.process("node-0")?, second.spool(1).join("pid"));
    wait::until(
        "node-1 to start",
        Duration::from_secs(10),
        Duration::from_millis(20),
        || Ok(own.exists().then_some(())),
        String::new,
    )?;
    drop(second);
    assert!(first.context("node-0 runs")?.is_alive()?);
    assert!(groups.path().join("node-0").exists() && !groups.path().join("node-1").exists());
    Ok(())
}

/// Kills the supervisor of node 0, starts the node again and gives the new supervisor.
fn a_killed_node_is_started_again(stack: &mut Stack, supervisor: &Identity) -> Result<Identity> {
    supervisor.signal(rustix::process::Signal::KILL)?;
    wait::until(
        "the launcher to end",
        Duration::from_secs(10),
        Duration::from_millis(20),
        || Ok((!stack.is_running("node-0")?).then_some(())),
        String::new,
    )?;
    fs::remove_file(stack.spool(0).join("pid"))?;
    assert!(stack.start_node(0)?.1);
    assert_eq!(own_number(stack)?, "1\n");
    stack.process("node-0")?.context("node-0 runs")
}

#[test]
fn programs_get_their_rights_and_groups_and_all_go() {
    if !rustix::process::geteuid().is_root() {
        assert!(
            std::env::var_os("CI").is_none(),
            "control groups and PID namespaces need root"
        );
        eprintln!("skipped: control groups and PID namespaces need root");
        return;
    }
    let control_plane = ControlPlane::for_tests("stack").unwrap();
    let chart = control_plane.dir().join("chart");
    make_chart(&chart).unwrap();
    install::chart_at(control_plane.cluster(), &chart, &[]).unwrap();
    install::chart_at(control_plane.cluster(), &chart, &[]).unwrap();
    let programs = make_programs(&control_plane.dir().join("programs")).unwrap();
    let groups = Tree::named(&format!("fairlead-stack-{}", std::process::id())).unwrap();

    let dir = control_plane.dir().join("stack");
    let mut stack = Stack::open(&dir, control_plane.cluster(), &programs, groups.clone()).unwrap();
    assert!(stack.start_operator("operator").unwrap());
    assert!(!stack.start_operator("operator").unwrap(), "it is started once");
    assert_eq!(stack.start_node(0).unwrap(), ("node-0".to_owned(), true));
    assert_eq!(stack.start_node(0).unwrap(), ("node-0".to_owned(), false));
    assert_eq!(
        own_number(&stack).unwrap(),
        "1\n",
        "a supervisor is the first of its PID namespace"
    );
    a_new_agent_is_noticed(&stack, &programs).unwrap();
    let account = |name| format!("system:serviceaccount:fairlead-system:{name}");
    let operator = whoami(&control_plane, &stack.kubeconfig("operator")).unwrap();
    assert_eq!(operator, account("fairlead-operator"));
    let node = whoami(&control_plane, &stack.kubeconfig("node-0")).unwrap();
    assert_eq!(node, account("fairlead-node-agent"));

    a_stack_takes_only_its_own_along(&control_plane, &programs, &groups).unwrap();

    let operator = stack.process("operator").unwrap().unwrap();
    let supervisor = stack.process("node-0").unwrap().unwrap();
    let members = fs::read_to_string(groups.path().join("node-0/payload/cgroup.procs")).unwrap();
    let members: Vec<Identity> = members
        .lines()
        .filter_map(|pid| Identity::of(pid.parse().unwrap()).unwrap())
        .collect();
    assert!(
        members.len() >= 2 && members.contains(&supervisor),
        "{members:?}, {supervisor:?}"
    );

    let again = a_killed_node_is_started_again(&mut stack, &supervisor).unwrap();

    drop(stack);
    for process in members.iter().chain([&operator, &again]) {
        assert!(!process.is_alive().unwrap(), "{process:?} is left");
    }
    assert!(!groups.path().exists(), "{} is left", groups.path().display());
}
