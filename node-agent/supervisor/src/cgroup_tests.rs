//! Parsing and error texts against a plain directory; the real kernel is in `tests/`.

use super::*;

const MOUNTINFO: &str = "\
22 28 0:21 / /proc rw - proc proc rw
30 25 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw
32 30 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory";

#[test]
fn the_own_group_is_found_on_hybrid_and_unified_hosts_and_in_namespaces() {
    let hybrid = own_group("9:memory:/x\n0::/a/b\n", MOUNTINFO).expect("hybrid");
    assert_eq!(hybrid, Path::new("/sys/fs/cgroup/unified/a/b"));
    let pod = "40 39 0:27 /kubepods/pod1 /sys/fs/cgroup rw - cgroup2 cgroup rw";
    assert_eq!(
        own_group("0::/kubepods/pod1/c", pod).expect("pod"),
        Path::new("/sys/fs/cgroup/c")
    );
    let space = "40 39 0:27 / /mnt/a\\040b rw - cgroup2 cgroup rw";
    assert_eq!(own_group("0::/", space).expect("space"), Path::new("/mnt/a b/"));
    assert!(own_group("0::/elsewhere", pod).is_err());
    assert!(own_group("9:memory:/x\n", MOUNTINFO).is_err());
    assert!(own_group("0::/", "22 28 0:21 / /proc rw - proc proc rw").is_err());
}

#[test]
fn counters_are_read_by_name_and_absence_is_no_error() {
    let dir = std::env::temp_dir().join(format!("fairlead-cgroup-{}", std::process::id()));
    fs::create_dir_all(&dir).expect("temp dir");
    let group = Group::at(&dir);
    fs::write(dir.join("cpu.stat"), "usage_usec 42\nuser_usec 1\n").expect("write");
    fs::write(
        dir.join("memory.events"),
        "low 0\nmax 7\noom 2\noom_kill 3\noom_group_kill 1\n",
    )
    .expect("write");
    fs::write(dir.join("cgroup.events"), "populated 1\nfrozen 0\n").expect("write");
    let usage = group.usage().expect("usage");
    assert_eq!(usage.cpu_usec, Some(42));
    assert_eq!(usage.memory_peak, None);
    let events = MemoryEvents {
        max: 7,
        oom: 2,
        oom_kill: 3,
        oom_group_kill: 1,
    };
    assert_eq!(usage.memory_events, Some(events));
    assert!(group.populated().expect("populated"));
    let error = group
        .write("pids.max", "12")
        .expect_err("no such file")
        .to_string();
    assert!(error.contains("pids.max") && error.contains("\"12\""), "{error}");
    fs::write(dir.join("pids.max"), "max\n").expect("write");
    let error = group
        .write_checked("pids.max", "12", "13")
        .expect_err("differs")
        .to_string();
    assert!(error.contains("reads back as"), "{error}");
    let error = check_root(&dir).expect_err("not a cgroup").to_string();
    assert!(error.contains("not a cgroup v2 directory"), "{error}");
    fs::remove_dir_all(&dir).expect("remove");
}
