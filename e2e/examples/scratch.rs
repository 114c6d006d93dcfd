use xtask::{control_plane::{ControlPlane, Options}, install, programs::{Programs, Profile}, stack::Stack, cgroup::Tree};
fn main() -> anyhow::Result<()> {
    let dir = std::path::PathBuf::from("/tmp/scratch-cp");
    std::fs::create_dir_all(&dir)?;
    let programs = Programs::there(Profile::Debug);
    let cp = ControlPlane::start(&Options { dir: dir.clone(), fsync: false })?;
    install::chart(cp.cluster(), &[])?;
    let mut stack = Stack::open(&dir, cp.cluster(), &programs, Tree::named("fairlead-scratch")?)?;
    let names: Vec<String> = std::env::args().skip(1).collect();
    for n in &names {
        if let Some(i) = n.strip_prefix("node-") { stack.start_node(i.parse()?)?; } else { stack.start_operator(n)?; }
    }
    for n in &names { stack.wait_ready(n)?; }
    stack.detach()?; cp.detach()?;
    Ok(())
}
