//! A toy of all that a node agent works with: an API server, a supervisor with processes, a journal and a clock.

#![allow(
    dead_code,
    missing_docs,
    reason = "each test binary uses its own part, by its name"
)]
#![allow(
    clippy::unwrap_used,
    clippy::too_many_lines,
    reason = "a toy that fails loudly, in one piece per effect"
)]

use fairlead_crds::*;
use fairlead_decide::node::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

pub const NODE: &str = "node-0";
pub const INCARNATION: &str = "boot/spool";

/// How one execution behaves.
#[derive(Clone, Debug)]
pub struct Script {
    /// Milliseconds until the leader ends.
    pub runs_ms: u64,
    pub exit: Wait,
    /// Milliseconds its descendants live on after it.
    pub descendants_ms: u64,
    /// Descendants write all the while.
    pub chatty: bool,
    /// Whether SIGTERM ends it.
    pub obeys_term: bool,
    /// The spawn is refused at this step.
    pub refused: bool,
    /// A kill never empties the group before this time.
    pub unkillable_until: u64,
    /// Start cannot even ask for it.
    pub start_fails: bool,
    /// The kernel killed one of its processes for memory, at this limit.
    pub oom_at: Option<OomAt>,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            runs_ms: 10,
            exit: Wait::Code(0),
            descendants_ms: 0,
            chatty: false,
            obeys_term: true,
            refused: false,
            unkillable_until: 0,
            start_fails: false,
            oom_at: None,
        }
    }
}

#[derive(Clone, Debug)]
struct Entry {
    spawned_at: u64,
    exited: Option<Exit>,
    emptied: Option<u64>,
    deadline_ms: u64,
    grace_ms: u64,
    deadline_hit: Option<u64>,
    killed: Option<(u64, Cause)>,
    termed: Option<u64>,
    refused: bool,
}

#[derive(Clone, Debug)]
struct Slot {
    user: u32,
    epoch: u32,
    accepted: u64,
    deadline_ms: u64,
    reported: bool,
    group: bool,
    used: bool,
}

pub struct Toy {
    pub now: u64,
    pub world: World,
    pub objects: BTreeMap<String, ToolExecution>,
    pub scripts: BTreeMap<String, Script>,
    entries: BTreeMap<AttemptKey, Entry>,
    /// Ends the slot remembers after the supervisor forgot.
    slots: BTreeMap<AttemptKey, Slot>,
    exits: BTreeMap<AttemptKey, Exit>,
    refusals: BTreeMap<AttemptKey, Refused>,
    spawns: BTreeMap<AttemptKey, u64>,
    pub runs: BTreeMap<RunKey, u32>,
    queue: VecDeque<Event>,
    wakes: BTreeMap<Key, u64>,
    /// The agent dies each time before it notes in the slot that an end is stored.
    pub notes_fail: bool,
    /// The groups of a supervisor that died are still there.
    pub old_groups_stay: bool,
    /// Successful spawns by attempt: the oracle's ledger.
    pub started: BTreeMap<AttemptKey, u32>,
    /// Accepted status writes by UID, as levels.
    pub writes: BTreeMap<String, Vec<Level>>,
    /// Status writes that will fail, first to last.
    pub write_failures: VecDeque<ReportFailure>,
    pub reads: u32,
    /// Until when the supervisor takes no request to kill.
    pub deaf_until: u64,
    /// Requests to kill that it did not take, by execution.
    pub unsent: BTreeMap<String, u32>,
    pub epoch: u32,
    /// Steps after which the agent is killed, and whether the action in hand is still carried out.
    pub crash_at: Option<(u32, bool)>,
    pub steps: u32,
    version: u64,
}

pub fn node(epoch: u32) -> Node {
    Node {
        name: NODE.into(),
        incarnation: INCARNATION.into(),
        backend: IsolationBackend::CgroupV2,
        missing_controllers: vec![],
        first_user: 1000,
        last_user: 1009,
        epoch,
    }
}

pub fn execution(uid: &str) -> ToolExecution {
    let value = serde_json::json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "ToolExecution",
        "metadata": {"name": format!("tx-{uid}"), "namespace": "ns", "uid": uid, "resourceVersion": "1",
                     "creationTimestamp": "1970-01-01T00:00:00Z"},
        "spec": {"tool": {"toolRef": {"name": "t"}}, "binding": {
            "nodeName": NODE, "incarnation": INCARNATION, "attempt": 1, "fence": "f".repeat(32), "term": 1,
            "planVersion": 1, "queuedAt": "1970-01-01T00:00:00Z", "admittedAt": "1970-01-01T00:00:00.040Z", "callDigest": "0".repeat(64), "decisions": [],
            "plan": {"toolGeneration": 1, "command": {"argv": ["true"]},
                     "timeouts": {"hardSeconds": 60, "graceSeconds": 3},
                     "resources": {"memoryMaxBytes": 4_194_304, "cpuMillicores": 10, "maxProcesses": 1, "oomGroup": true},
                     "network": "None", "outputMaxBytes": 50000}}}
    });
    serde_json::from_value(value).unwrap()
}

impl Toy {
    pub fn new() -> Self {
        Self {
            now: 1_000,
            world: World::new(node(1)),
            objects: BTreeMap::new(),
            scripts: BTreeMap::new(),
            entries: BTreeMap::new(),
            slots: BTreeMap::new(),
            exits: BTreeMap::new(),
            refusals: BTreeMap::new(),
            spawns: BTreeMap::new(),
            runs: BTreeMap::new(),
            queue: VecDeque::new(),
            wakes: BTreeMap::new(),
            notes_fail: false,
            old_groups_stay: false,
            started: BTreeMap::new(),
            writes: BTreeMap::new(),
            write_failures: VecDeque::new(),
            reads: 0,
            deaf_until: 0,
            unsent: BTreeMap::new(),
            epoch: 1,
            crash_at: None,
            steps: 0,
            version: 1,
        }
    }

    pub fn moment(&self) -> Moment {
        at(self.now)
    }

    pub fn add(&mut self, object: ToolExecution, script: Script) {
        let uid = object.metadata.uid.clone().unwrap();
        self.scripts.insert(uid.clone(), script);
        self.objects.insert(uid.clone(), object);
        self.push_seen(&uid);
    }

    pub fn change(&mut self, uid: &str, change: impl FnOnce(&mut ToolExecution)) {
        self.version += 1;
        let version = self.version.to_string();
        if let Some(object) = self.objects.get_mut(uid) {
            change(object);
            object.metadata.resource_version = Some(version);
            self.push_seen(uid);
        }
    }

    pub fn cancel(&mut self, uid: &str) {
        self.change(uid, |object| {
            object.spec.desired_state = serde_json::from_value("Cancelled".into()).unwrap();
        });
    }

    pub fn delete(&mut self, uid: &str) {
        self.objects.remove(uid);
        self.queue.push_back(Event::Left { uid: uid.into() });
    }

    fn push_seen(&mut self, uid: &str) {
        let object = self.objects[uid].clone();
        let ended = object
            .status
            .as_ref()
            .and_then(|s| s.phase)
            .is_some_and(|p| p.is_terminal());
        let event = if ended {
            Event::Left { uid: uid.into() }
        } else {
            Event::Seen(Arc::new(object))
        };
        self.queue.push_back(event);
    }

    pub fn status(&self, uid: &str) -> ToolExecutionStatus {
        self.objects[uid].status.clone().unwrap_or_default()
    }

    pub fn phase(&self, uid: &str) -> Option<ExecutionPhase> {
        self.status(uid).phase
    }

    /// Works until nothing is due before `until`.
    pub fn run_until(&mut self, until: u64) {
        loop {
            self.drain();
            let next = self
                .wakes
                .values()
                .chain(&self.next_process_times())
                .copied()
                .min();
            match next.filter(|next| *next <= until) {
                Some(next) => {
                    self.now = self.now.max(next);
                    self.processes();
                    let due: Vec<Key> = self
                        .wakes
                        .iter()
                        .filter(|(_, at)| **at <= self.now)
                        .map(|(key, _)| key.clone())
                        .collect();
                    for key in due {
                        self.wakes.remove(&key);
                        self.decide(key);
                    }
                }
                None => {
                    self.now = self.now.max(until);
                    return self.drain();
                }
            }
        }
    }

    fn drain(&mut self) {
        self.processes();
        while let Some(event) = self.queue.pop_front() {
            for key in self.world.absorb(event) {
                self.decide(key);
            }
            self.users_and_runs_are_inverse();
            self.processes();
        }
    }

    /// Decides a key, checks the laws of a single decision, and carries out what it says.
    pub fn decide(&mut self, key: Key) {
        let now = self.moment();
        let decision = decide(&self.world, &key, now);
        let again = decide(&self.world, &key, now);
        assert_eq!(
            format!("{decision:?}"),
            format!("{again:?}"),
            "the same world gives the same decision"
        );
        self.wakes.remove(&key);
        if let Some(wake) = decision.wake {
            assert!(wake > now.boot_ms, "a wake lies in the future: {decision:?}");
            assert!(!decision.because.is_empty(), "a wait has a reason: {decision:?}");
            self.wakes.insert(key.clone(), wake);
        }
        if decision.actions.is_empty() {
            self.explained(&key, &decision);
            return;
        }
        let mut dirty = BTreeSet::new();
        for action in decision.actions {
            self.steps += 1;
            let crash = self
                .crash_at
                .filter(|(at, _)| *at == self.steps)
                .map(|(_, done)| done);
            dirty.extend(self.world.absorb(Event::Begun {
                action: Box::new(action.clone()),
                at: now,
            }));
            if crash != Some(false) {
                self.execute(action);
            }
            if crash.is_some() {
                return self.restart(false);
            }
        }
        for key in dirty {
            let settled = decide(&self.world, &key, now);
            assert!(
                settled.actions.is_empty(),
                "once begun, nothing is asked for twice: {settled:?}"
            );
            if let Some(wake) = settled.wake {
                self.wakes.insert(key, wake);
            }
        }
    }

    /// Wanted and not there, and nothing done: there must be a reason and a time to look again.
    fn explained(&self, key: &Key, decision: &Decision) {
        if let Key::Attempt(attempt) = key
            && let Some(attempt) = self.world.attempts.get(attempt)
            && !attempt.closed()
        {
            assert!(
                decision.wake.is_some() && !decision.because.is_empty(),
                "{key:?}: {decision:?}"
            );
        }
    }

    /// The agent is killed and started again; with `supervisor` the supervisor and all tools die with it.
    pub fn restart(&mut self, supervisor: bool) {
        self.processes();
        if supervisor {
            self.epoch += 1;
            self.entries.clear();
            for slot in self.slots.values_mut() {
                slot.group &= self.old_groups_stay;
            }
        }
        let snapshot = self.snapshot();
        self.begin_anew(snapshot, BTreeSet::new());
    }

    /// The agent is killed, and the next one cannot read an object.
    pub fn restart_unable_to_read(&mut self, uid: &str) {
        self.processes();
        let mut snapshot = self.snapshot();
        snapshot
            .live
            .retain(|object| object.metadata.uid.as_deref() != Some(uid));
        self.begin_anew(snapshot, BTreeSet::from([uid.to_owned()]));
    }

    fn begin_anew(&mut self, snapshot: Snapshot, unreadable: BTreeSet<String>) {
        self.queue.clear();
        self.wakes.clear();
        self.world = World::new(node(self.epoch));
        self.world.absorb(Event::Unreadable(unreadable));
        for key in self.world.absorb(Event::Resynced(Box::new(snapshot))) {
            self.wakes.insert(key, self.now + 1);
        }
        self.users_and_runs_are_inverse();
    }

    /// The agent is told to end.
    pub fn drain_node(&mut self, kill_at: u64) {
        self.queue.push_back(Event::Draining { kill_at });
    }

    /// A user number belongs to one run, and a run has one.
    pub fn users_and_runs_are_inverse(&self) {
        let of_runs = self.world.runs.iter().map(|(run, state)| (state.user, run));
        assert_eq!(
            of_runs.collect::<BTreeMap<_, _>>(),
            self.world.users.iter().map(|(user, run)| (*user, run)).collect(),
        );
        assert_eq!(self.world.users.len(), self.world.runs.len());
    }

    pub fn snapshot(&self) -> Snapshot {
        let objects = self.objects.values();
        Snapshot {
            at: self.moment(),
            live: objects
                .clone()
                .filter(|o| {
                    !o.status
                        .as_ref()
                        .and_then(|s| s.phase)
                        .is_some_and(|p| p.is_terminal())
                })
                .map(|o| Arc::new(o.clone()))
                .collect(),
            kept: objects
                .map(|o| {
                    let uid = o.metadata.uid.clone().unwrap();
                    let run = o.spec.run_ref.as_ref().map_or(uid.clone(), |run| run.uid.clone());
                    let object = ObjectRef {
                        namespace: "ns".into(),
                        name: o.metadata.name.clone().unwrap(),
                    };
                    (uid, (object, RunKey(run)))
                })
                .collect(),
            held: self
                .slots
                .iter()
                .map(|(key, slot)| self.held(key, slot))
                .collect(),
            entries: self
                .entries
                .iter()
                .map(|(key, entry)| self.entry_facts(key, entry))
                .collect(),
            runs: self.runs.iter().map(|(run, user)| (run.clone(), *user)).collect(),
        }
    }

    fn held(&self, key: &AttemptKey, slot: &Slot) -> Held {
        Held {
            key: key.clone(),
            user: Some(slot.user),
            incarnation: INCARNATION.into(),
            epoch: slot.epoch,
            accepted: at(slot.accepted),
            deadline_ms: slot.deadline_ms,
            spawned: self.spawns.get(key).map(|ms| at(*ms)),
            refused: self.refusals.get(key).cloned(),
            exited: self.exits.get(key).copied(),
            reported: slot.reported,
            group: slot.group,
            group_unused: slot.group && !slot.used,
        }
    }

    fn entry_facts(&self, key: &AttemptKey, entry: &Entry) -> fairlead_decide::node::Entry {
        let mut facts = vec![];
        if entry.refused {
            facts.push(ProcessFact::Refused(self.refusals[key].clone()));
        } else {
            facts.push(ProcessFact::Spawned(at(entry.spawned_at)));
        }
        facts.extend(entry.deadline_hit.map(|ms| ProcessFact::DeadlineReached(at(ms))));
        facts.extend(entry.exited.map(ProcessFact::Exited));
        if let Some(ms) = entry.emptied {
            facts.extend([ProcessFact::Emptied(at(ms)), ProcessFact::Drained]);
        }
        fairlead_decide::node::Entry {
            key: key.clone(),
            facts,
        }
    }

    fn execute(&mut self, action: Action) {
        let at_now = self.moment();
        match action {
            Action::Start(start) => self.start(*start),
            Action::Signal { key, signal } => {
                assert_eq!(signal, 15);
                if let Some(entry) = self.entries.get_mut(&key) {
                    entry.termed.get_or_insert(self.now);
                }
            }
            Action::Kill { key } if self.deaf_until > self.now => {
                *self.unsent.entry(key.uid.clone()).or_default() += 1;
                self.queue.push_back(Event::KillUnsent { key, at: at_now });
            }
            Action::Kill { key } => {
                if let Some(entry) = self.entries.get_mut(&key) {
                    entry.killed.get_or_insert((self.now, Cause::Requested));
                } else {
                    self.queue.push_back(Event::Process {
                        key,
                        fact: ProcessFact::NoEntry(at_now),
                    });
                }
            }
            Action::Measure { key } => {
                let chatty = self.scripts[&key.uid].chatty;
                let bytes = if chatty { self.now } else { 10 };
                self.queue.push_back(Event::Measured {
                    key,
                    at: at_now,
                    bytes,
                });
            }
            Action::Collect { key, populated, .. } => {
                let clean_up = self.remove_group(&key, populated);
                let oom_at = self.scripts[&key.uid].oom_at;
                let collected = Box::new(Collected {
                    output: ExecutionOutput {
                        text: "out".into(),
                        truncated: false,
                        total_bytes: 3,
                        sha256: "0".into(),
                    },
                    output_note: None,
                    cpu_millis: Some(1),
                    memory_peak_bytes: None,
                    pids_peak: None,
                    oom_kills: i64::from(oom_at.is_some()),
                    oom_at,
                    clean_up,
                });
                self.queue.push_back(Event::CollectEnded {
                    key,
                    at: at_now,
                    collected,
                });
            }
            Action::Report(report) => self.report(*report),
            Action::CleanUp { key, .. } => {
                let result = self.remove_group(&key, false);
                self.queue.push_back(Event::CleanUpEnded {
                    key,
                    at: at_now,
                    result,
                });
            }
            Action::Read { uid, .. } => {
                self.reads += 1;
                let result = Ok(self.objects.get(&uid).map(|o| Arc::new(o.clone())));
                self.queue.push_back(Event::ReadBack {
                    uid,
                    at: at_now,
                    result,
                });
            }
            Action::Discard { key, .. } => {
                let result = self.remove_group(&key, false);
                if result.is_ok() {
                    self.slots.remove(&key);
                    self.entries.remove(&key);
                }
                self.queue.push_back(Event::DiscardEnded {
                    key,
                    at: at_now,
                    result,
                });
            }
            Action::RemoveRun { run } => {
                let user = self.runs.remove(&run);
                let used = self.entries.iter().find(|(key, entry)| {
                    entry.emptied.is_none() && !entry.refused && self.slots.get(key).map(|s| s.user) == user
                });
                assert!(
                    used.is_none(),
                    "a user number is given back while a process has it: {used:?}"
                );
                self.queue.push_back(Event::RunRemoved {
                    run,
                    at: at_now,
                    result: Ok(()),
                });
            }
        }
    }

    fn start(&mut self, start: Start) {
        let (key, now) = (start.key.clone(), self.now);
        let script = self.scripts[&key.uid].clone();
        let others = self
            .runs
            .iter()
            .find(|(run, user)| **user == start.user && **run != start.run);
        assert!(others.is_none(), "two runs with one user number: {others:?}");
        self.runs.insert(start.run.clone(), start.user);
        if script.start_fails {
            let failure = StartFailure {
                reason: fairlead_crds::conditions::reason::SPOOL_FULL,
                message: "no room".into(),
                class: ErrorClass::Local,
                leaves: false,
            };
            return self.queue.push_back(Event::StartEnded {
                key,
                at: at(now),
                result: Err(failure),
            });
        }
        let deadline_ms = start.deadline_ms;
        self.slots.insert(
            key.clone(),
            Slot {
                user: start.user,
                epoch: self.epoch,
                accepted: now,
                deadline_ms,
                reported: false,
                group: true,
                used: !script.refused,
            },
        );
        let entry = Entry {
            spawned_at: now,
            exited: None,
            emptied: None,
            deadline_ms,
            grace_ms: 3000,
            deadline_hit: None,
            killed: None,
            termed: None,
            refused: script.refused,
        };
        assert!(
            self.entries.insert(key.clone(), entry).is_none(),
            "asked for twice: {key}"
        );
        self.queue.push_back(Event::StartEnded {
            key: key.clone(),
            at: at(now),
            result: Ok(()),
        });
        let fact = if script.refused {
            let refused = Refused {
                step: "Exec".into(),
                errno: 2,
            };
            self.refusals.insert(key.clone(), refused.clone());
            ProcessFact::Refused(refused)
        } else {
            *self.started.entry(key.clone()).or_default() += 1;
            self.spawns.insert(key.clone(), now);
            ProcessFact::Spawned(at(now))
        };
        self.queue.push_back(Event::Process { key, fact });
    }

    fn report(&mut self, report: Report) {
        let (key, level) = (report.key.clone(), report.level);
        let result = match self.write_failures.pop_front() {
            Some(failure) => Err(failure),
            None => self.store(&report),
        };
        let ends = matches!(level, Level::Final | Level::Minimal);
        if result.is_ok() && ends {
            if let Some(slot) = self.slots.get_mut(&key) {
                slot.reported = !self.notes_fail;
            }
            if self
                .entries
                .get(&key)
                .is_some_and(|entry| entry.emptied.is_some())
            {
                self.entries.remove(&key);
            }
        }
        self.queue.push_back(Event::ReportEnded {
            key,
            at: self.moment(),
            level,
            result,
        });
    }

    fn store(&mut self, report: &Report) -> Result<(), ReportFailure> {
        let uid = report.key.uid.clone();
        let Some(object) = self.objects.get_mut(&uid) else {
            return Err(ReportFailure::NotFound);
        };
        let binding = object.spec.binding.as_ref().unwrap();
        assert_eq!(
            report.status.fence.as_ref(),
            Some(&binding.fence),
            "the fence of the binding"
        );
        let old = object.status.as_ref().and_then(|s| s.phase);
        if old.is_some_and(|p| p.is_terminal()) && report.level != Level::CleanedUp {
            return Err(ReportFailure::Refused);
        }
        if let Some(terminal) = report.status.phase.filter(|p| p.is_terminal()) {
            let entry = self.entries.get(&report.key);
            let left = entry.is_some_and(|e| !e.refused && e.emptied.is_none());
            assert!(
                !left || report.status.cleanup == Some(Cleanup::Failed),
                "{terminal} is written while processes are left"
            );
            assert!(report.status.completion_time.is_some() && report.status.outcome.is_some());
        }
        self.writes.entry(uid.clone()).or_default().push(report.level);
        let status = report.status.clone();
        self.change(&uid, |object| object.status = Some(status));
        Ok(())
    }

    fn remove_group(&mut self, key: &AttemptKey, populated: bool) -> Result<(), String> {
        let left = self
            .entries
            .get(key)
            .is_some_and(|e| !e.refused && e.emptied.is_none());
        assert!(
            !left || populated || self.scripts[&key.uid].unkillable_until > 0,
            "removed while populated: {key}"
        );
        if left {
            let grouped = self.world.node.backend == IsolationBackend::CgroupV2;
            assert!(
                grouped || populated,
                "{key} is cleaned up, and nobody can look whether anything is left"
            );
            return Err("pid 7 is left".into());
        }
        if let Some(slot) = self.slots.get_mut(key) {
            slot.group = false;
        }
        Ok(())
    }

    fn next_process_times(&self) -> Vec<u64> {
        let entries = self
            .entries
            .iter()
            .filter(|(_, e)| !e.refused && e.emptied.is_none());
        let times = entries.flat_map(|(key, e)| {
            let script = &self.scripts[&key.uid];
            let end = e.spawned_at + script.runs_ms;
            [
                end,
                end + script.descendants_ms,
                e.deadline_ms,
                e.deadline_hit.map_or(0, |hit| hit + e.grace_ms),
                script.unkillable_until,
            ]
        });
        times.filter(|time| *time > self.now).collect()
    }

    /// Lets the supervisor and the processes come up to the present.
    fn processes(&mut self) {
        let now = self.now;
        let mut news = vec![];
        for (key, entry) in self
            .entries
            .iter_mut()
            .filter(|(_, e)| !e.refused && e.emptied.is_none())
        {
            let script = &self.scripts[&key.uid];
            if now >= entry.deadline_ms && entry.deadline_hit.is_none() {
                entry.deadline_hit = Some(now);
                entry.termed.get_or_insert(now);
                news.push((key.clone(), ProcessFact::DeadlineReached(at(now))));
            }
            if entry.deadline_hit.is_some_and(|hit| now >= hit + entry.grace_ms) {
                entry.killed.get_or_insert((now, Cause::Deadline));
            }
            let killed = entry.killed.filter(|_| now >= script.unkillable_until);
            let own_end = entry.spawned_at + script.runs_ms;
            if entry.exited.is_none() {
                let wait = match killed {
                    Some(_) => Some(Wait::Signal(9)),
                    None if entry.termed.is_some() && script.obeys_term => Some(Wait::Signal(15)),
                    None if now >= own_end => Some(script.exit),
                    None => None,
                };
                if let Some(wait) = wait {
                    let cause = entry.killed.map_or(Cause::None, |(_, cause)| cause);
                    let exit = Exit {
                        wait,
                        cause,
                        at: at(now),
                    };
                    entry.exited = Some(exit);
                    self.exits.insert(key.clone(), exit);
                    news.push((key.clone(), ProcessFact::Exited(exit)));
                }
            }
            if let Some(exit) = entry.exited {
                let natural = now >= exit.at.boot_ms + script.descendants_ms;
                let termed = entry.termed.is_some() && script.obeys_term;
                if killed.is_some() || natural || termed {
                    entry.emptied = Some(now);
                    news.extend([
                        (key.clone(), ProcessFact::Emptied(at(now))),
                        (key.clone(), ProcessFact::Drained),
                    ]);
                }
            }
        }
        self.queue
            .extend(news.into_iter().map(|(key, fact)| Event::Process { key, fact }));
    }

    /// What must hold at the end of every story.
    pub fn oracle(&self) {
        for (key, count) in &self.started {
            assert!(*count <= 1, "{key} was started {count} times");
        }
        for (uid, writes) in &self.writes {
            let ends = writes
                .iter()
                .filter(|level| matches!(level, Level::Final | Level::Minimal))
                .count();
            assert!(ends <= 1, "{uid} was reported {ends} times: {writes:?}");
        }
        for (uid, object) in &self.objects {
            let status = object.status.clone().unwrap_or_default();
            let key = AttemptKey {
                uid: uid.clone(),
                attempt: 1,
            };
            let started = self.started.contains_key(&key);
            match status.outcome {
                Some(Outcome::NotStarted) => assert!(!started, "{uid} was started: {status:?}"),
                Some(Outcome::Completed) => assert!(started, "{uid} was never started: {status:?}"),
                _ => {}
            }
        }
    }

    /// Nothing of ours is left anywhere.
    pub fn nothing_left(&self) {
        assert!(self.slots.is_empty(), "slots: {:?}", self.slots);
        assert!(self.entries.is_empty(), "entries: {:?}", self.entries);
        assert!(self.runs.is_empty(), "runs: {:?}", self.runs);
        assert!(
            self.world.attempts.is_empty(),
            "attempts: {:?}",
            self.world.attempts
        );
        assert!(
            self.world.users.is_empty() && self.world.high_water.is_empty(),
            "{:?}",
            self.world
        );
    }

    /// The periodic list of what exists.
    pub fn reconcile(&mut self) {
        self.queue
            .push_back(Event::Existing(self.objects.keys().cloned().collect()));
    }
}

pub fn at(boot_ms: u64) -> Moment {
    Moment {
        boot_ms,
        unix_ms: boot_ms as i64,
    }
}
