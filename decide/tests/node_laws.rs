//! The laws of the core, for the node half: total, deterministic under shuffling, settles, crash-safe at any prefix,
//! safe, explains, moves on. The toy checks the laws of a single decision at every one it makes.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod node_toy;

use fairlead_decide::node::*;
use node_toy::*;
use proptest::prelude::*;
use std::sync::Arc;

fn script() -> impl Strategy<Value = Script> {
    let exit = prop_oneof![Just(Wait::Code(0)), Just(Wait::Code(2)), Just(Wait::Signal(11))];
    (
        0_u64..90_000,
        exit,
        prop_oneof![Just(0_u64), 0_u64..20_000],
        any::<(bool, bool)>(),
        0_u8..20,
    )
        .prop_map(
            |(runs_ms, exit, descendants_ms, (chatty, obeys_term), special)| Script {
                runs_ms: if special < 8 { runs_ms % 3_000 } else { runs_ms },
                exit,
                descendants_ms,
                chatty,
                obeys_term,
                refused: special == 18,
                start_fails: special == 19,
                unkillable_until: 0,
                oom_at: None,
            },
        )
}

#[derive(Clone, Debug)]
enum Deed {
    Cancel,
    Delete,
    KillAgent,
    KillSupervisor,
    Nothing,
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        3 => Just(Deed::Cancel), 2 => Just(Deed::Delete), 3 => Just(Deed::KillAgent),
        1 => Just(Deed::KillSupervisor), 3 => Just(Deed::Nothing)
    ]
}

fn failure() -> impl Strategy<Value = ReportFailure> {
    prop_oneof![3 => Just(ReportFailure::Transient), 1 => Just(ReportFailure::Refused)]
}

type Plan = (
    Vec<(Script, Deed, u64, bool)>,
    Vec<ReportFailure>,
    Option<(u32, bool)>,
);

fn plan() -> impl Strategy<Value = Plan> {
    (
        proptest::collection::vec((script(), deed(), 0_u64..70_000, any::<bool>()), 1..6),
        proptest::collection::vec(failure(), 0..5),
        proptest::option::of((1_u32..40, any::<bool>())),
    )
}

fn live_through((stories, failures, crash): Plan) -> Toy {
    let mut toy = Toy::new();
    toy.crash_at = crash;
    toy.write_failures = failures.into();
    let mut deeds: Vec<(u64, String, Deed)> = vec![];
    for (n, (script, deed, when, of_run)) in stories.into_iter().enumerate() {
        let uid = format!("u{n}");
        let mut object = execution(&uid);
        if of_run {
            object.spec.run_ref =
                serde_json::from_value(serde_json::json!({"name": "r", "uid": "run"})).unwrap();
        }
        toy.add(object, script);
        deeds.push((when, uid, deed));
    }
    deeds.sort_by_key(|(when, ..)| *when);
    for (when, uid, deed) in deeds {
        toy.run_until(1_000 + when);
        match deed {
            Deed::Cancel => toy.cancel(&uid),
            Deed::Delete => toy.delete(&uid),
            Deed::KillAgent => toy.restart(false),
            Deed::KillSupervisor => toy.restart(true),
            Deed::Nothing => {}
        }
    }
    toy.run_until(toy.now + 600_000);
    toy
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// Whatever happens, every object that is left ends, nothing is started twice or reported twice, and when the
    /// objects are gone nothing is left.
    #[test]
    fn every_execution_ends_and_nothing_is_left(plan in plan()) {
        let mut toy = live_through(plan);
        toy.oracle();
        for uid in toy.objects.keys() {
            prop_assert!(toy.phase(uid).is_some_and(|phase| phase.is_terminal()), "{uid}: {:?}", toy.status(uid));
        }
        prop_assert!(toy.world.attempts.values().all(|attempt| attempt.closed()), "{:?}", toy.world.attempts);
        toy.objects.clear();
        toy.reconcile();
        toy.run_until(toy.now + 100_000);
        toy.nothing_left();
    }

    /// Killed after any action, done or not, the agent comes to the same end as one that was never killed.
    #[test]
    fn a_crash_anywhere_comes_to_the_same_end(script in script(), step in 1_u32..8, done: bool) {
        let whole = live_through((vec![(script.clone(), Deed::Nothing, 0, false)], vec![], None));
        let crashed = live_through((vec![(script, Deed::Nothing, 0, false)], vec![], Some((step, done))));
        crashed.oracle();
        let end = |toy: &Toy| { let s = toy.status("u0"); (s.phase, s.outcome, s.cleanup) };
        prop_assert_eq!(end(&whole), end(&crashed));
        prop_assert_eq!(whole.started.len(), crashed.started.len());
    }

    /// Events of different executions may come in any order.
    #[test]
    fn the_order_of_events_of_different_executions_does_not_matter(order in Just((0..6_usize).collect::<Vec<_>>()).prop_shuffle()) {
        let facts = |key: &AttemptKey, n: usize| {
            let exit = Exit { wait: Wait::Code(i32::try_from(n).unwrap()), cause: Cause::None, at: at(50) };
            [ProcessFact::Spawned(at(10)), ProcessFact::Exited(exit), ProcessFact::Emptied(at(60)), ProcessFact::Drained]
                .map(|fact| Event::Process { key: key.clone(), fact })
        };
        let build = |order: &[usize], rotate: usize| {
            let mut world = World::new(node(1));
            for n in order {
                world.absorb(Event::Seen(Arc::new(execution(&format!("u{n}")))));
            }
            for n in order {
                let key = AttemptKey { uid: format!("u{n}"), attempt: 1 };
                let mut facts = facts(&key, *n);
                facts.rotate_left(rotate % 4);
                for fact in facts {
                    world.absorb(fact);
                }
            }
            world
        };
        let straight = build(&[0, 1, 2, 3, 4, 5], 0);
        let shuffled = build(&order, order[0]);
        for n in 0..6 {
            let key = Key::Attempt(AttemptKey { uid: format!("u{n}"), attempt: 1 });
            let (one, other) = (decide(&straight, &key, at(5_000)), decide(&shuffled, &key, at(5_000)));
            prop_assert_eq!(format!("{one:?}"), format!("{other:?}"));
        }
    }

    /// No event, however late, makes the core fail, start what it has ended, or write what is gone.
    #[test]
    fn total_whatever_comes(kinds in proptest::collection::vec((0_u8..14, 0_u8..3, 1_u32..3, any::<bool>()), 0..60)) {
        let mut world = World::new(node(1));
        let mut gone = std::collections::BTreeSet::new();
        for (step, (kind, uid, attempt, flag)) in kinds.into_iter().enumerate() {
            let uid = format!("u{uid}");
            let key = AttemptKey { uid: uid.clone(), attempt };
            let now = at(1_000 + step as u64 * 700);
            let result = if flag { Ok(()) } else { Err("busy".to_owned()) };
            let event = match kind {
                0 | 1 => {
                    let mut object = execution(&uid);
                    object.spec.binding.as_mut().unwrap().attempt = i64::from(attempt);
                    Event::Seen(Arc::new(object))
                }
                2 => Event::Left { uid: uid.clone() },
                3 => { gone.insert(uid.clone()); Event::ReadBack { uid: uid.clone(), at: now, result: Ok(None) } }
                4 => Event::ReadBack { uid: uid.clone(), at: now, result: Err(()) },
                5 => Event::Process { key: key.clone(), fact: ProcessFact::Spawned(now) },
                6 => Event::Process { key: key.clone(), fact: ProcessFact::Emptied(now) },
                7 => Event::Process { key: key.clone(), fact: ProcessFact::NoEntry(now) },
                8 => Event::Measured { key: key.clone(), at: now, bytes: 5 },
                9 => Event::ReportEnded { key: key.clone(), at: now, level: Level::Final,
                        result: if flag { Ok(()) } else { Err(ReportFailure::Refused) } },
                10 => Event::CleanUpEnded { key: key.clone(), at: now, result },
                11 => Event::StartEnded { key: key.clone(), at: now, result: Ok(()) },
                12 => Event::Listed(vec![]),
                _ => Event::DiscardEnded { key: key.clone(), at: now, result },
            };
            for dirty in world.absorb(event) {
                let decision = decide(&world, &dirty, now);
                prop_assert!(decision.wake.is_none_or(|wake| wake > now.boot_ms));
                for action in decision.actions {
                    match &action {
                        Action::Start(start) => {
                            let known = &world.attempts[&start.key];
                            prop_assert!(!known.process.begun() && !gone.contains(&start.key.uid));
                        }
                        Action::Report(report) => prop_assert!(!gone.contains(&report.key.uid)),
                        _ => {}
                    }
                    world.absorb(Event::Begun { action: Box::new(action), at: now });
                }
            }
        }
    }
}
