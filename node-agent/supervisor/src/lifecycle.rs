//! What happens to an entry between its clone and its end. Every fact goes to the slot first, then to the
//! agent.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use fairlead_supervisor::slot::{self, Exited, Refused, Spawned};
use fairlead_supervisor::step::Step;
use fairlead_supervisor::sys;
use fairlead_supervisor::wire::{Cause, EntryPhase, Exit};

use crate::child::{FAILED, REPORT_MAX};
use crate::hold::Hold;
use crate::init::{self, REPORT_LEN};
use crate::log;
use crate::os::{self, Reaped};
use crate::spawn::Started;
use crate::supervisor::{Source, Supervisor, token};
use crate::table::{Entry, PumpWish, TELL_DEADLINE, TELL_EMPTIED, TELL_EXITED, TELL_REFUSED, TELL_SPAWNED};

/// First and longest pause between two writes of `cgroup.kill`.
const KILL_PAUSE_MS: (u64, u64) = (10, 1_000);
/// Pause between two looks at a process group, which reports nothing by itself.
const LOOK_PAUSE_MS: u64 = 20;
/// Pause before looking again at a group whose control file could not be read.
const RETRY_MS: u64 = 1_000;

impl Entry {
    /// Notes that nothing of the tool ran.
    pub(crate) fn refuse(&mut self, step: Step, errno: i32) {
        self.state.phase = EntryPhase::Refused;
        (self.state.step, self.state.errno) = (Some(step), errno);
        self.tell |= TELL_REFUSED;
        self.write("refused", |fd| {
            slot::write_refused(
                fd,
                &Refused {
                    step,
                    errno,
                    unix_ms: sys::realtime_ms(),
                },
            )
        });
    }

    fn write(&self, what: &str, write: impl FnOnce(i32) -> io::Result<()>) {
        let Some(slot) = &self.slot else { return };
        if let Err(e) = write(slot.as_raw_fd()) {
            // The agent still learns it by event; after its restart it learns it by State.
            log::warn(format_args!(
                "write {what} to the slot of {}: {e}",
                self.state.key
            ));
        }
    }
}

impl Supervisor {
    /// Puts a fresh child into the table and watches it.
    pub(crate) fn adopt(&mut self, index: usize, mut entry: Entry, started: Started) {
        let key = entry.state.key;
        entry.state.pid = started.pid;
        entry.hold = Some(started.hold);
        entry.has_init = started.report.is_some();
        (entry.status, entry.report) = (Some(started.status), started.report);
        (entry.stdout, entry.stderr) = (Some(started.stdout), started.stderr);
        entry.pump = PumpWish::Add;
        self.table.put(index, entry);
        if let Err(e) = self.watch(index) {
            log::warn(format_args!("watch {key}: {e}"));
            self.begin_kill(index, Cause::None, sys::boottime_ms());
        }
        if let Some(register) = started.register {
            // A child that died meanwhile does not read it.
            let _ = os::write(register.as_fd(), b"1");
        }
    }

    fn watch(&mut self, index: usize) -> io::Result<()> {
        let Some(entry) = self.table.get(index) else {
            return Ok(());
        };
        if let Some(status) = &entry.status {
            self.poller.add(
                status.as_fd(),
                libc::EPOLLIN,
                token(Source::Status, index, entry.generation),
            )?;
        }
        if let Some(report) = &entry.report {
            self.poller.add(
                report.as_fd(),
                libc::EPOLLIN,
                token(Source::Report, index, entry.generation),
            )?;
        }
        if let Some(Hold::Cgroup { group, .. }) = &entry.hold {
            self.poller.add(
                group.events(),
                libc::EPOLLPRI,
                token(Source::Group, index, entry.generation),
            )?;
        }
        Ok(())
    }

    /// Reads how far the child came. At the end of the pipe it runs the program, or never will.
    pub(crate) fn read_status(&mut self, index: usize) {
        let Some(entry) = self.table.get(index) else {
            return;
        };
        let Some(status) = &entry.status else { return };
        let mut bytes = [0u8; REPORT_MAX];
        let ended = loop {
            match os::read(status.as_fd(), &mut bytes) {
                Ok(0) => break true,
                Ok(n) => note_progress(&mut entry.last_step, &mut entry.failed, &bytes[..n]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break false,
            }
        };
        if !ended {
            return;
        }
        if let Some(status) = entry.status.take() {
            self.poller.close(status);
        }
        let last = entry.last_step.unwrap_or(Step::Clone);
        match entry.failed {
            None if last == Step::Exec => {
                let (pid, boottime_ms) = (entry.state.pid, sys::boottime_ms());
                entry.state.phase = EntryPhase::Running;
                entry.state.spawned_ms = boottime_ms;
                entry.tell |= TELL_SPAWNED;
                entry.write("spawned", |fd| {
                    slot::write_spawned(
                        fd,
                        &Spawned {
                            pid,
                            boottime_ms,
                            unix_ms: sys::realtime_ms(),
                        },
                    )
                });
            }
            failed => entry.refuse(last, failed.unwrap_or(0)),
        }
    }

    /// Reads what the init of the entry's PID namespace has to say: how the leader ended, once.
    pub(crate) fn read_report(&mut self, index: usize) {
        let Some(entry) = self.table.get(index) else {
            return;
        };
        let Some(report) = &entry.report else { return };
        let mut bytes = [0u8; REPORT_LEN];
        // A record is written whole, and nothing but one is written.
        let len = match os::read(report.as_fd(), &mut bytes) {
            Ok(len) => len,
            Err(_) => return,
        };
        if let Some(report) = entry.report.take() {
            self.poller.close(report);
        }
        let pid = entry.state.pid;
        if len == REPORT_LEN {
            self.leader_exited(index, &init::decode(pid, &bytes));
        }
    }

    /// The first process was reaped: the leader, or the init that has told its end unless it was killed too.
    pub(crate) fn first_died(&mut self, index: usize, dead: &Reaped) {
        self.read_report(index);
        // An init that ends of itself has told the leader's end, or could not give up its rights: then the kernel has
        // killed the leader with it.
        let by_itself = libc::WIFEXITED(dead.status);
        let killed = self
            .table
            .get(index)
            .is_some_and(|entry| entry.has_init && by_itself);
        let dead = Reaped {
            status: if killed { libc::SIGKILL } else { dead.status },
            ..*dead
        };
        self.leader_exited(index, &dead);
        if let Some(entry) = self.table.get(index) {
            entry.reaped = true;
        }
        self.check_empty(index);
    }

    fn leader_exited(&mut self, index: usize, dead: &Reaped) {
        // Its end of the status pipe is closed: what it still had to say is there.
        self.read_status(index);
        let Some(entry) = self.table.get(index) else {
            return;
        };
        if entry.state.phase == EntryPhase::Starting {
            entry.refuse(entry.last_step.unwrap_or(Step::Clone), 0);
        }
        if entry.state.phase == EntryPhase::Running {
            let exit = Exit {
                wait_status: dead.status,
                cause: entry.state.cause,
                boottime_ms: sys::boottime_ms(),
                user_us: dead.user_us,
                system_us: dead.system_us,
                max_rss_kib: dead.max_rss_kib,
            };
            entry.state.phase = EntryPhase::Exited;
            entry.state.wait_status = dead.status;
            entry.state.exited_ms = exit.boottime_ms;
            entry.exit = exit;
            entry.tell |= TELL_EXITED;
            entry.write("exited", |fd| {
                slot::write_exited(
                    fd,
                    &Exited {
                        exit,
                        unix_ms: sys::realtime_ms(),
                    },
                )
            });
        }
    }

    /// Notes that a group is empty. Only after its first process was reaped: before, it may not be in it yet.
    pub(crate) fn check_empty(&mut self, index: usize) {
        let Some(entry) = self.table.get(index) else {
            return;
        };
        let Some(hold) = &entry.hold else { return };
        let populated = hold.populated();
        if !entry.reaped {
            return;
        }
        let now = sys::boottime_ms();
        match populated {
            Ok(true) => {
                let silent = matches!(hold, Hold::ProcessGroup { .. });
                entry.check_at_ms = if silent { now + LOOK_PAUSE_MS } else { 0 };
            }
            Err(e) => {
                log::warn(format_args!(
                    "read whether the group of {} is empty: {e}",
                    entry.state.key
                ));
                entry.check_at_ms = now + RETRY_MS;
            }
            Ok(false) => {
                (entry.state.emptied, entry.state.emptied_ms) = (true, now);
                (entry.deadline_ms, entry.kill_at_ms, entry.check_at_ms) = (0, 0, 0);
                entry.tell |= TELL_EMPTIED;
                if let Some(Hold::Cgroup { group, .. }) = entry.hold.take() {
                    self.poller.remove(group.events());
                }
                self.free_if_over(index);
            }
        }
    }

    /// Starts killing; goes on by itself until the group is empty. The first cause stands, and what comes
    /// after the leader's end is not the cause of it.
    pub(crate) fn begin_kill(&mut self, index: usize, cause: Cause, now: u64) {
        let Some(entry) = self.table.get(index) else {
            return;
        };
        if entry.state.emptied {
            return;
        }
        if entry.state.cause == Cause::None && entry.state.exited_ms == 0 {
            entry.state.cause = cause;
        }
        entry.kill_pause_ms = KILL_PAUSE_MS.0;
        self.kill_again(index, now);
    }

    fn kill_again(&mut self, index: usize, now: u64) {
        let Some(entry) = self.table.get(index) else {
            return;
        };
        let Some(hold) = &entry.hold else { return };
        if let Err(e) = hold.kill() {
            log::warn(format_args!("kill the group of {}: {e}", entry.state.key));
        }
        entry.kill_at_ms = now + entry.kill_pause_ms;
        entry.kill_pause_ms = (entry.kill_pause_ms * 2).min(KILL_PAUSE_MS.1);
    }

    /// Something of this entry is due.
    pub(crate) fn entry_due(&mut self, index: usize, now: u64) {
        let Some(entry) = self.table.get(index) else {
            return;
        };
        if entry.check_at_ms != 0 && entry.check_at_ms <= now {
            entry.check_at_ms = 0;
            self.check_empty(index);
        }
        let Some(entry) = self.table.get(index) else {
            return;
        };
        if entry.kill_at_ms != 0 && entry.kill_at_ms <= now {
            if entry.kill_pause_ms == 0 {
                return self.begin_kill(index, Cause::Deadline, now);
            }
            return self.kill_again(index, now);
        }
        if entry.deadline_ms != 0 && entry.deadline_ms <= now && !entry.state.deadline_reached {
            self.deadline(index, now);
        }
    }

    /// SIGTERM to all and the kill after the grace, or the kill at once.
    fn deadline(&mut self, index: usize, now: u64) {
        let Some(entry) = self.table.get(index) else {
            return;
        };
        (entry.state.deadline_reached, entry.deadline_at_ms) = (true, now);
        entry.tell |= TELL_DEADLINE;
        if entry.grace_ms == 0 || entry.kill_at_ms != 0 {
            return self.begin_kill(index, Cause::Deadline, now);
        }
        if entry.state.cause == Cause::None && entry.state.exited_ms == 0 {
            entry.state.cause = Cause::Deadline;
        }
        entry.kill_at_ms = now + entry.grace_ms;
        if let Some(hold) = &entry.hold
            && let Err(e) = self.signaller.send(hold, libc::SIGTERM)
        {
            log::warn(format_args!("SIGTERM to the group of {}: {e}", entry.state.key));
        }
    }
}

/// Takes the child's bytes: a step it begins, or the error number of the one it began last.
fn note_progress(last_step: &mut Option<Step>, failed: &mut Option<i32>, bytes: &[u8]) {
    let mut rest = bytes;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte != FAILED {
            *last_step = Step::from_code(*byte).or(*last_step);
            continue;
        }
        let mut number = [0u8; 4];
        if let Some(bytes) = after.get(..4) {
            number.copy_from_slice(bytes);
        }
        *failed = Some(i32::from_le_bytes(number));
        return;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_the_last_step_and_its_error() {
        let (mut step, mut failed) = (None, None);
        note_progress(&mut step, &mut failed, &[Step::Session.code(), Step::Hide.code()]);
        assert_eq!((step, failed), (Some(Step::Hide), None));
        note_progress(&mut step, &mut failed, &[Step::Exec.code(), FAILED, 2, 0, 0, 0]);
        assert_eq!((step, failed), (Some(Step::Exec), Some(2)));
    }
}
