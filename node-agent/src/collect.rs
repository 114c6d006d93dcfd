//! What is read when an attempt has ended, and its clean-up.

use crate::host::Host;
use crate::ids;
use crate::spool::Spool;
use crate::start::INIT_PROCESSES;
use fairlead_crds::ExecutionOutput;
use fairlead_crds::canonical::{hex, sha256_hex};
use fairlead_decide::node::{AttemptKey, Collected, OomAt};
use fairlead_decide::output::{Canonical, canonical, canonical_cut_off};
use fairlead_supervisor::cgroup::{self, Group, Usage};
use fairlead_supervisor::slot::{Stream, StreamOutput};
use fairlead_supervisor::wire::Request;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

/// Longest wait for a group that is known to be empty to go away.
const REMOVE_BOUND: Duration = Duration::from_secs(1);
/// Longest try to empty a group on the way to removing it.
const KILL_BOUND: Duration = Duration::from_millis(500);
/// Bytes read at once for the digest.
const CHUNK: usize = 256 * 1024;
/// Most process ids named in a message.
const PIDS_NAMED: usize = 16;

/// Reads counters and output of an attempt and removes its group. Blocks.
pub(crate) fn collect(
    host: &Host,
    key: &AttemptKey,
    name: &str,
    max_bytes: usize,
    populated: bool,
) -> Collected {
    let group = host.group(key);
    // Before the group goes, and after the last process did.
    let usage = group.as_ref().map_or_else(Usage::default, |group| {
        group.usage().unwrap_or_else(|error| {
            tracing::debug!(execution = %key, %error, "read the counters");
            Usage::default()
        })
    });
    let oom_kills = usage.memory_events.map_or(0, |events| events.oom_kill);
    let killed = group.as_ref().filter(|_| oom_kills > 0);
    let oom_at = killed.and_then(|group| match whose_limit(group) {
        Ok(at) => Some(at),
        Err(error) => {
            tracing::warn!(execution = %key, %error, "read whose memory limit it was");
            None
        }
    });
    let clean_up = match (&group, populated) {
        (Some(group), true) => Err(left_over(group)),
        (None, true) => Err("processes of its session could not be ended".to_owned()),
        (Some(group), false) => group
            .remove(REMOVE_BOUND)
            .map_err(|error| format!("{error}; {}", left_over(group))),
        (None, false) => Ok(()),
    };
    let (output, output_note) = read_output(host, key, name, max_bytes);
    let number = |value: Option<u64>| value.and_then(|value| i64::try_from(value).ok());
    Collected {
        output,
        output_note,
        cpu_millis: number(usage.cpu_usec).map(|usec| usec / 1_000),
        memory_peak_bytes: number(usage.memory_peak),
        pids_peak: number(usage.pids_peak.map(|peak| peak.saturating_sub(INIT_PROCESSES))),
        oom_kills: number(Some(oom_kills)).unwrap_or(0),
        oom_at,
        clean_up,
    }
}

/// At whose limit something in the group was killed. `oom` of a group rises when its own limit is the one that cannot be
/// kept, `oom_kill` wherever the kernel finds what it kills.
fn whose_limit(group: &Group) -> cgroup::Result<OomAt> {
    let times = |group: &Group| {
        let events = group.memory_events_local()?;
        cgroup::Result::Ok(events.map_or(0, |events| events.oom))
    };
    if times(group)? > 0 {
        return Ok(OomAt::Own);
    }
    let Some(payload) = group.path().parent().map(Group::at) else {
        return Ok(OomAt::Above);
    };
    let reached = i64::try_from(times(&payload)?).unwrap_or(i64::MAX);
    // "max" is no limit.
    let max_bytes = payload.read("memory.max")?.parse();
    Ok(match max_bytes {
        Ok(max_bytes) if reached > 0 => OomAt::AllTools { max_bytes, reached },
        _ => OomAt::Above,
    })
}

fn left_over(group: &Group) -> String {
    let pids = group.procs().unwrap_or_default();
    let named: Vec<String> = pids.iter().take(PIDS_NAMED).map(i32::to_string).collect();
    let more = if pids.len() > PIDS_NAMED { " and more" } else { "" };
    format!(
        "group {} is not empty: processes {}{more}",
        group.path().display(),
        named.join(", ")
    )
}

fn read_output(
    host: &Host,
    key: &AttemptKey,
    name: &str,
    max_bytes: usize,
) -> (ExecutionOutput, Option<String>) {
    match try_output(&host.spool, key, name, max_bytes) {
        Ok(read) => read,
        Err(error) => {
            tracing::error!(execution = %key, %error, "read the output");
            let output = ExecutionOutput {
                text: String::new(),
                truncated: true,
                total_bytes: 0,
                sha256: String::new(),
            };
            (output, Some(format!("its output could not be read: {error}")))
        }
    }
}

fn try_output(
    spool: &Spool,
    key: &AttemptKey,
    name: &str,
    max_bytes: usize,
) -> io::Result<(ExecutionOutput, Option<String>)> {
    // The account first: once it says that the stream has ended, the file does not grow any more.
    let slot = spool.slot(key)?;
    let journal = slot.read()?;
    let known = journal.output.map(|output| output.stdout);
    let path = spool.stdout(key);
    let mut file = File::open(&path)?;
    let stored = file.metadata()?.len();
    // A file shorter than its account was frozen at an earlier look.
    let ended = known.is_some_and(|account| account.ended && account.stored <= stored);
    let cut_off = journal.spawned.is_some() && !ended;
    let dropped = known.filter(|account| account.dropped() > 0);
    let account = dropped.unwrap_or(StreamOutput {
        total: stored,
        stored,
        errno: known.map_or(0, |account| account.errno),
        ended,
    });
    let mut note = note(&account, cut_off);
    if cut_off && dropped.is_none() {
        match freeze(&path, &file, stored) {
            Ok(copy) => file = copy,
            Err(error) => {
                tracing::warn!(execution = %key, path = %path.display(), %error, "freeze an output that was cut off");
                let more = format!("; its file may still grow beyond the {stored} bytes told here");
                note = note.map(|note| note + &more);
            }
        }
    }
    let total = account.total.max(stored);
    let max = max_bytes as u64;
    // Short output, which is most, is read once for all that is made of it.
    let whole = stored <= max.min(CHUNK as u64);
    let head = read_at(&file, 0, max.min(stored))?;
    let sha256 = if whole {
        sha256_hex(&head)
    } else {
        digest(&mut file, stored)?
    };
    let tail = if account.dropped() > 0 {
        Some(slot.read_tail(Stream::Stdout, &account)?)
    } else if whole {
        None
    } else {
        let want = max.min(stored);
        Some(read_at(&file, stored - want, want)?)
    };
    let tail = tail.as_ref().unwrap_or(&head);
    let make = if cut_off { canonical_cut_off } else { canonical };
    let Canonical { text, truncated } = make(&head, tail, total, max_bytes, name);
    let output = ExecutionOutput {
        text,
        truncated,
        total_bytes: i64::try_from(total).unwrap_or(i64::MAX),
        sha256,
    };
    Ok((output, note))
}

/// Puts a copy of the first `len` bytes in the place of a file that the pump may still write to, so that what is told
/// of it stays true. Gives the copy.
fn freeze(path: &Path, file: &File, len: u64) -> io::Result<File> {
    let draft = path.with_extension("frozen");
    let copied = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&draft)
        .and_then(|mut copy| match io::copy(&mut file.take(len), &mut copy)? {
            copied if copied == len => Ok(copy),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        })
        .and_then(|copy| fs::rename(&draft, path).map(|()| copy));
    if copied.is_err() {
        // The room may be what is missing; the error that counts is the first one.
        let _ = fs::remove_file(&draft);
    }
    copied
}

fn note(account: &StreamOutput, cut_off: bool) -> Option<String> {
    if account.errno != 0 {
        let error = io::Error::from_raw_os_error(account.errno);
        let (stored, total) = (account.stored, account.total);
        return Some(format!(
            "its output could not all be stored ({stored} of {total} bytes): {error}"
        ));
    }
    let dropped = account.dropped();
    if cut_off {
        return Some(
            "the end of its output may be missing, since its pipe was not read to the end".to_owned(),
        );
    }
    (dropped > 0).then(|| format!("{dropped} bytes of its output beyond what a node keeps were dropped"))
}

/// Of the first `len` bytes.
fn digest(file: &mut File, len: u64) -> io::Result<String> {
    file.rewind()?;
    let mut file = file.take(len);
    let mut hash = Sha256::new();
    let mut buffer = vec![0_u8; CHUNK];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            n => hash.update(buffer.get(..n).unwrap_or_default()),
        }
    }
    Ok(hex(&hash.finalize()))
}

fn read_at(file: &File, offset: u64, len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0_u8; usize::try_from(len).unwrap_or(0)];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

/// Empties and removes the group of an attempt that was started under the supervisor of that epoch. Blocks for about one
/// and a half seconds at most.
///
/// # Errors
/// One sentence with the group and the processes that are left.
pub(crate) fn clean_up(host: &Host, key: &AttemptKey, epoch: u32) -> Result<(), String> {
    if let Some(group) = host.group_of(key, epoch) {
        match group.kill_until_empty(KILL_BOUND) {
            Ok(true) => group.remove(REMOVE_BOUND).map_err(|error| error.to_string())?,
            Ok(false) => return Err(left_over(&group)),
            Err(error) => return Err(error.to_string()),
        }
    }
    forget(host, key)
}

/// Removes everything of an attempt. Blocks as [`clean_up`], and for as long as removing its directory takes.
///
/// # Errors
/// One sentence with what is left.
pub(crate) fn discard(host: &Host, key: &AttemptKey, epoch: u32) -> Result<(), String> {
    clean_up(host, key, epoch)?;
    host.spool
        .remove_attempt(key)
        .map_err(|error| format!("remove {}: {error}", host.spool.attempt(key).display()))
}

/// Lets the supervisor drop its entry.
pub(crate) fn forget(host: &Host, key: &AttemptKey) -> Result<(), String> {
    ids::to_wire(key).map_or(Ok(()), |key| host.tell("Forget", &Request::Forget { key }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlead_supervisor::slot::{FILE_SLOT, Output, Slot, Spawned, write_output, write_spawned};
    use std::io::Write as _;
    use std::os::fd::AsRawFd;

    #[test]
    fn an_output_that_is_not_read_to_its_end_says_so_and_does_not_grow_afterwards() {
        let dir = std::env::temp_dir().join(format!("fairlead-cut-off-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let spool = Spool::open(&dir).unwrap();
        let key = AttemptKey {
            uid: "01020304-0506-0708-090a-0b0c0d0e0f10".into(),
            attempt: 1,
        };
        fs::create_dir_all(spool.attempt(&key)).unwrap();
        let slot = Slot::create(&spool.attempt(&key).join(FILE_SLOT)).unwrap();
        let spawned = Spawned {
            pid: 1,
            boottime_ms: 1,
            unix_ms: 1,
        };
        write_spawned(slot.as_raw_fd(), &spawned).unwrap();
        let mut pump = File::create(spool.stdout(&key)).unwrap();
        pump.write_all(b"line 1\nli").unwrap();
        let told = |output: &ExecutionOutput, note: Option<String>| {
            assert!(output.truncated);
            assert!(
                output.text.starts_with("line 1\nli\n<persisted-output-cut-off>"),
                "{}",
                output.text
            );
            assert_eq!(
                (output.total_bytes, output.sha256.clone()),
                (9, sha256_hex(b"line 1\nli"))
            );
            assert!(note.unwrap().contains("may be missing"));
            assert_eq!(fs::read(spool.stdout(&key)).unwrap(), b"line 1\nli");
        };
        let (first, note) = try_output(&spool, &key, "x", 1024).unwrap();
        told(&first, note);
        // The pump goes on and comes to the end: too late, also for an agent that looks again after its restart.
        pump.write_all(b"ne 2\n").unwrap();
        let stdout = StreamOutput {
            total: 14,
            stored: 14,
            errno: 0,
            ended: true,
        };
        let stderr = StreamOutput::default();
        write_output(slot.as_raw_fd(), &Output { stdout, stderr }).unwrap();
        let (again, note) = try_output(&spool, &key, "x", 1024).unwrap();
        told(&again, note);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn the_digest_is_the_same_however_the_bytes_are_read() {
        let path = std::env::temp_dir().join(format!("fairlead-digest-{}", std::process::id()));
        for len in [0, 3, CHUNK, CHUNK + 1] {
            let bytes = vec![b'x'; len];
            fs::write(&path, [bytes.as_slice(), b"what came later"].concat()).unwrap();
            let read = digest(&mut File::open(&path).unwrap(), len as u64).unwrap();
            assert_eq!(read, sha256_hex(&bytes), "{len}");
            assert_eq!(read.len(), 64);
        }
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn the_counters_of_the_two_groups_say_whose_limit_it_was() {
        let payload = std::env::temp_dir().join(format!("fairlead-whose-{}", std::process::id()));
        let group = Group::at(payload.join("tx-1"));
        fs::create_dir_all(group.path()).unwrap();
        let all = |reached| OomAt::AllTools {
            max_bytes: 64,
            reached,
        };
        for (own, above, limit, at) in [
            (1, 0, "64", OomAt::Own),
            (1, 5, "64", OomAt::Own),
            (0, 5, "64", all(5)),
            (0, 0, "64", OomAt::Above),
            (0, 5, "max", OomAt::Above),
        ] {
            // An attempt's own oom_kill rises in each of these cases.
            let counters = |oom: u64| format!("low 0\nmax 9\noom {oom}\noom_kill 1\n");
            fs::write(group.path().join("memory.events.local"), counters(own)).unwrap();
            fs::write(payload.join("memory.events.local"), counters(above)).unwrap();
            fs::write(payload.join("memory.max"), format!("{limit}\n")).unwrap();
            assert_eq!(whose_limit(&group).unwrap(), at, "{own} {above} {limit}");
        }
        fs::remove_dir_all(payload).unwrap();
    }
}
