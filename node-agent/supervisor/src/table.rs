//! The entries: one per attempt that is not yet forgotten. Room for all is reserved once; a page of it becomes resident
//! when the first entry comes to it.

use std::os::fd::OwnedFd;

use fairlead_supervisor::step::Step;
use fairlead_supervisor::wire::{EntryPhase, EntryState, Event, Exit, Key};

use crate::hold::Hold;

/// Most attempts at once. A node has a capacity of a few dozen; ended attempts stay until forgotten.
pub(crate) const MAX_ENTRIES: usize = 1_024;

/// What the agent has not been told yet, one bit each.
pub(crate) const TELL_STATE: u8 = 1;
pub(crate) const TELL_SPAWNED: u8 = 1 << 1;
pub(crate) const TELL_REFUSED: u8 = 1 << 2;
pub(crate) const TELL_DEADLINE: u8 = 1 << 3;
pub(crate) const TELL_EXITED: u8 = 1 << 4;
pub(crate) const TELL_EMPTIED: u8 = 1 << 5;
pub(crate) const TELL_DRAINED: u8 = 1 << 6;
const TELL_ORDER: [u8; 7] = [
    TELL_STATE,
    TELL_SPAWNED,
    TELL_REFUSED,
    TELL_DEADLINE,
    TELL_EXITED,
    TELL_EMPTIED,
    TELL_DRAINED,
];

/// One output stream: the end we keep so that a new pump can go on, and where the bytes go.
pub(crate) struct Flow {
    pub(crate) pipe: OwnedFd,
    pub(crate) spool: OwnedFd,
}

/// What the pump must be told about an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PumpWish {
    /// Nothing to tell.
    #[default]
    None,
    /// Take the pipes over.
    Add,
    /// Let them go; then the entry is freed.
    Remove,
}

/// One attempt.
pub(crate) struct Entry {
    pub(crate) state: EntryState,
    pub(crate) exit: Exit,
    pub(crate) generation: u32,
    pub(crate) tell: u8,
    pub(crate) reaped: bool,
    pub(crate) forget: bool,
    pub(crate) slot: Option<OwnedFd>,
    pub(crate) hold: Option<Hold>,
    pub(crate) status: Option<OwnedFd>,
    /// Where the init of its PID namespace tells the leader's end.
    pub(crate) report: Option<OwnedFd>,
    /// Whether its first process is an init, and not the leader.
    pub(crate) has_init: bool,
    pub(crate) last_step: Option<Step>,
    pub(crate) failed: Option<i32>,
    pub(crate) stdout: Option<Flow>,
    pub(crate) stderr: Option<Flow>,
    pub(crate) store_max_bytes: u64,
    pub(crate) pump: PumpWish,
    /// Absolute boottime milliseconds; 0 = none. The same for the next two.
    pub(crate) deadline_ms: u64,
    pub(crate) grace_ms: u64,
    pub(crate) kill_at_ms: u64,
    pub(crate) kill_pause_ms: u64,
    pub(crate) check_at_ms: u64,
    pub(crate) drained_ms: u64,
    pub(crate) deadline_at_ms: u64,
}

impl Entry {
    pub(crate) fn new(key: Key) -> Entry {
        Entry {
            state: EntryState {
                key,
                ..EntryState::default()
            },
            exit: Exit::default(),
            generation: 0,
            tell: 0,
            reaped: false,
            forget: false,
            slot: None,
            hold: None,
            status: None,
            report: None,
            has_init: false,
            last_step: None,
            failed: None,
            stdout: None,
            stderr: None,
            store_max_bytes: 0,
            pump: PumpWish::None,
            deadline_ms: 0,
            grace_ms: 0,
            kill_at_ms: 0,
            kill_pause_ms: 0,
            check_at_ms: 0,
            drained_ms: 0,
            deadline_at_ms: 0,
        }
    }

    /// Whether nothing can happen any more in this entry's group.
    pub(crate) fn over(&self) -> bool {
        let ended = matches!(self.state.phase, EntryPhase::Exited | EntryPhase::Refused);
        ended && self.reaped && self.state.emptied
    }

    /// The next event the agent has not got, with its bit.
    pub(crate) fn next_event(&self) -> Option<(u8, Event)> {
        let bit = TELL_ORDER.into_iter().find(|bit| self.tell & bit != 0)?;
        let (key, state) = (self.state.key, &self.state);
        let event = match bit {
            TELL_STATE => Event::State(*state),
            TELL_SPAWNED => Event::Spawned {
                key,
                pid: state.pid,
                boottime_ms: state.spawned_ms,
            },
            TELL_REFUSED => Event::Refused {
                key,
                step: state.step.unwrap_or(Step::Request),
                errno: state.errno,
            },
            TELL_DEADLINE => Event::DeadlineReached {
                key,
                boottime_ms: self.deadline_at_ms,
            },
            TELL_EXITED => Event::Exited { key, exit: self.exit },
            TELL_EMPTIED => Event::Emptied {
                key,
                boottime_ms: state.emptied_ms,
            },
            _ => Event::Drained {
                key,
                boottime_ms: self.drained_ms,
            },
        };
        Some((bit, event))
    }

    /// The earliest time at which something must be done for this entry; `u64::MAX` = never.
    pub(crate) fn due_ms(&self) -> u64 {
        let deadline = if self.state.deadline_reached {
            0
        } else {
            self.deadline_ms
        };
        [deadline, self.kill_at_ms, self.check_at_ms]
            .into_iter()
            .filter(|at| *at != 0)
            .min()
            .unwrap_or(u64::MAX)
    }
}

/// All entries. The lowest free place is used first, so there are only as many places as were ever used at once.
pub(crate) struct Table {
    entries: Vec<Option<Entry>>,
    generation: u32,
}

impl Table {
    pub(crate) fn new() -> Table {
        Table {
            entries: Vec::with_capacity(MAX_ENTRIES),
            generation: 0,
        }
    }

    /// The place the next entry goes to; `None` if the table is full.
    pub(crate) fn free_place(&self) -> Option<usize> {
        let used = self.entries.len();
        let freed = self.entries.iter().position(Option::is_none);
        freed.or((used < MAX_ENTRIES).then_some(used))
    }

    /// Puts an entry at the place that [`Table::free_place`] gave. Allocates nothing.
    pub(crate) fn put(&mut self, place: usize, mut entry: Entry) {
        self.generation = self.generation.wrapping_add(1) & 0xff_ffff;
        entry.generation = self.generation;
        match self.entries.get_mut(place) {
            Some(free) => *free = Some(entry),
            None => self.entries.push(Some(entry)),
        }
    }

    pub(crate) fn get(&mut self, index: usize) -> Option<&mut Entry> {
        self.entries.get_mut(index).and_then(Option::as_mut)
    }

    /// The entry at that place, unless it is another one by now.
    pub(crate) fn get_same(&mut self, index: usize, generation: u32) -> Option<&mut Entry> {
        self.get(index).filter(|entry| entry.generation == generation)
    }

    pub(crate) fn find(&self, key: &Key) -> Option<usize> {
        self.position(|entry| entry.state.key == *key)
    }

    /// The entry whose leader is that unreaped child.
    pub(crate) fn find_pid(&self, pid: i32) -> Option<usize> {
        self.position(|entry| entry.state.pid == pid && !entry.reaped)
    }

    fn position(&self, test: impl Fn(&Entry) -> bool) -> Option<usize> {
        self.entries
            .iter()
            .position(|place| place.as_ref().is_some_and(&test))
    }

    pub(crate) fn take(&mut self, index: usize) -> Option<Entry> {
        self.entries.get_mut(index).and_then(Option::take)
    }

    /// All places that may hold an entry.
    pub(crate) fn indexes(&self) -> std::ops::Range<usize> {
        0..self.entries.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().flatten()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.entries.iter_mut().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(attempt: u32) -> Key {
        Key {
            uid: [1; 16],
            attempt,
        }
    }

    #[test]
    fn places_are_reused_with_a_new_generation_and_a_full_table_refuses() {
        let mut table = Table::new();
        let reserved = table.entries.as_ptr();
        // What is only reserved takes no memory; what was written to does.
        assert_eq!(table.entries.len(), 0);
        let first = table.free_place().expect("table is empty");
        table.put(first, Entry::new(key(1)));
        let old = table.get(first).expect("there").generation;
        assert!(table.take(first).is_some() && table.find(&key(1)).is_none());
        assert_eq!(table.free_place(), Some(first));
        table.put(first, Entry::new(key(2)));
        assert!(table.get_same(first, old).is_none());
        for attempt in 3..(MAX_ENTRIES as u32 + 2) {
            let place = table.free_place().expect("not full");
            table.put(place, Entry::new(key(attempt)));
        }
        assert_eq!(table.free_place(), None);
        assert_eq!(
            table.entries.as_ptr(),
            reserved,
            "a place was reserved for each from the start"
        );
    }

    #[test]
    fn events_come_in_the_order_of_a_life_and_state_stands_first() {
        let mut entry = Entry::new(key(1));
        entry.tell = TELL_DRAINED | TELL_EXITED | TELL_SPAWNED;
        let mut seen = Vec::new();
        while let Some((bit, _)) = entry.next_event() {
            seen.push(bit);
            entry.tell &= !bit;
        }
        assert_eq!(seen, [TELL_SPAWNED, TELL_EXITED, TELL_DRAINED]);
    }

    #[test]
    fn the_earliest_wish_counts_and_a_reached_deadline_does_not() {
        let mut entry = Entry::new(key(1));
        assert_eq!(entry.due_ms(), u64::MAX);
        entry.deadline_ms = 50;
        entry.kill_at_ms = 70;
        assert_eq!(entry.due_ms(), 50);
        entry.state.deadline_reached = true;
        assert_eq!(entry.due_ms(), 70);
    }
}
