//! One story per way an execution can go.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

mod node_toy;

use fairlead_crds::conditions::{kind, reason};
use fairlead_crds::*;
use fairlead_decide::node::*;
use node_toy::*;

fn after(script: Script, ms: u64, then: impl FnOnce(&mut Toy)) -> Toy {
    let mut toy = Toy::new();
    toy.add(execution("u1"), script);
    toy.run_until(toy.now + ms);
    then(&mut toy);
    toy.run_until(toy.now + 300_000);
    toy.oracle();
    toy
}

fn ended(toy: &Toy) -> (ExecutionPhase, String, Outcome) {
    let status = toy.status("u1");
    (
        status.phase.unwrap(),
        status.reason.unwrap(),
        status.outcome.unwrap(),
    )
}

#[test]
fn a_short_execution_costs_exactly_one_status_write() {
    let toy = after(Script::default(), 0, |_| {});
    assert_eq!(toy.writes["u1"], [Level::Final]);
    assert_eq!(toy.reads, 0);
    let status = toy.status("u1");
    assert_eq!(status.phase, Some(ExecutionPhase::Succeeded));
    assert_eq!(status.cleanup, Some(Cleanup::Confirmed));
    assert!(conditions::is_true(&status.conditions, kind::SUCCEEDED));
    assert!(conditions::is_true(&status.conditions, kind::CLEANED_UP));
    let usage = status.usage.unwrap();
    assert_eq!((usage.wall_millis, usage.queued_millis), (10, Some(40)));
    assert_eq!(status.attempts.len(), 1);
    assert_eq!(status.isolation.unwrap().group.unwrap(), "payload-1/tx-u1-1");
    assert!(
        toy.runs.is_empty(),
        "an execution without a run gives its directory back at its end"
    );
}

#[test]
fn a_long_one_is_said_to_run_once_and_the_end_repeats_it() {
    let toy = after(
        Script {
            runs_ms: 5_000,
            ..Script::default()
        },
        0,
        |_| {},
    );
    assert_eq!(toy.writes["u1"], [Level::Running, Level::Final]);
    assert!(toy.status("u1").start_time.is_some());
}

#[test]
fn exit_codes_and_signals_are_told_apart() {
    let of = |exit| {
        ended(&after(
            Script {
                exit,
                ..Script::default()
            },
            0,
            |_| {},
        ))
    };
    use ExecutionPhase::Failed;
    assert_eq!(
        of(Wait::Code(3)),
        (Failed, reason::NON_ZERO_EXIT.into(), Outcome::Completed)
    );
    assert_eq!(
        of(Wait::Code(137)),
        (Failed, reason::NON_ZERO_EXIT.into(), Outcome::Completed)
    );
    assert_eq!(
        of(Wait::Signal(11)),
        (Failed, reason::SIGNALLED.into(), Outcome::Completed)
    );
    assert_eq!(
        of(Wait::Signal(9)),
        (Failed, reason::SIGNALLED.into(), Outcome::Unknown)
    );
}

#[test]
fn a_lack_of_memory_says_whose_limit_it_was_how_high_that_is_and_what_to_change() {
    let all = OomAt::AllTools {
        max_bytes: 77,
        reached: 2,
    };
    for (oom_at, says) in [
        (
            OomAt::Own,
            "own limit of 4194304 bytes (spec.resources.memoryMaxBytes",
        ),
        (
            all,
            "not at the call's own limit of 4194304 bytes, but at the 77 bytes",
        ),
        (
            OomAt::Above,
            "neither at the call's own limit of 4194304 bytes nor",
        ),
    ] {
        let script = Script {
            exit: Wait::Signal(9),
            oom_at: Some(oom_at),
            ..Script::default()
        };
        let toy = after(script, 0, |_| {});
        let end = (
            ExecutionPhase::Failed,
            reason::OUT_OF_MEMORY.into(),
            Outcome::Unknown,
        );
        assert_eq!(ended(&toy), end, "{oom_at:?}");
        let status = toy.status("u1");
        let condition = conditions::find(&status.conditions, kind::SUCCEEDED).unwrap();
        assert!(condition.message.contains(says), "{}", condition.message);
        assert!(condition.message.contains("oom_kill 1"), "{}", condition.message);
    }
}

#[test]
fn the_hard_timeout_ends_it_with_an_unknown_outcome() {
    for obeys_term in [true, false] {
        let toy = after(
            Script {
                runs_ms: 1_000_000,
                obeys_term,
                ..Script::default()
            },
            0,
            |_| {},
        );
        assert_eq!(
            ended(&toy),
            (
                ExecutionPhase::TimedOut,
                reason::HARD_TIMEOUT.into(),
                Outcome::Unknown
            )
        );
    }
}

#[test]
fn a_cancel_is_polite_first_and_written_when_nothing_is_left() {
    for (obeys_term, signal) in [(true, 15), (false, 9)] {
        let script = Script {
            runs_ms: 1_000_000,
            obeys_term,
            ..Script::default()
        };
        let toy = after(script, 2_000, |toy| toy.cancel("u1"));
        assert_eq!(
            ended(&toy),
            (
                ExecutionPhase::Cancelled,
                reason::CANCELLED.into(),
                Outcome::Unknown
            )
        );
        assert_eq!(toy.status("u1").result.unwrap().signal, Some(signal));
    }
}

#[test]
fn a_cancel_before_the_start_starts_nothing() {
    let mut toy = Toy::new();
    let mut object = execution("u1");
    object.spec.desired_state = serde_json::from_value("Cancelled".into()).unwrap();
    toy.add(object, Script::default());
    toy.run_until(5_000);
    assert_eq!(
        ended(&toy),
        (
            ExecutionPhase::Cancelled,
            reason::CANCELLED.into(),
            Outcome::NotStarted
        )
    );
    assert!(toy.started.is_empty());
}

#[test]
fn descendants_have_a_grace_that_output_renews_and_the_hard_timeout_bounds() {
    let quiet = after(
        Script {
            descendants_ms: 100_000,
            ..Script::default()
        },
        0,
        |_| {},
    );
    assert_eq!(
        ended(&quiet),
        (
            ExecutionPhase::Succeeded,
            reason::LEFTOVER_KILLED.into(),
            Outcome::Completed
        )
    );
    let short = after(
        Script {
            descendants_ms: 2_000,
            ..Script::default()
        },
        0,
        |_| {},
    );
    assert_eq!(ended(&short).1, reason::COMPLETED);
    let chatty = after(
        Script {
            descendants_ms: 20_000,
            chatty: true,
            ..Script::default()
        },
        0,
        |_| {},
    );
    assert_eq!(ended(&chatty).1, reason::COMPLETED, "it wrote all the while");
    let endless = after(
        Script {
            descendants_ms: 900_000,
            chatty: true,
            obeys_term: false,
            ..Script::default()
        },
        0,
        |_| {},
    );
    assert_eq!(
        ended(&endless),
        (
            ExecutionPhase::Succeeded,
            reason::LEFTOVER_KILLED.into(),
            Outcome::Completed
        ),
        "the leader's own end stands, and the hard timeout killed what it left behind"
    );
    let wall = endless.status("u1").usage.unwrap().wall_millis;
    assert!(wall >= 60_000, "{wall} ms, all in which processes of it ran");
}

#[test]
fn another_incarnation_is_not_started_and_its_outcome_is_unknown() {
    let mut toy = Toy::new();
    let mut object = execution("u1");
    object.spec.binding.as_mut().unwrap().incarnation = "other".into();
    toy.add(object, Script::default());
    toy.run_until(5_000);
    assert_eq!(
        ended(&toy),
        (
            ExecutionPhase::Failed,
            reason::OTHER_INCARNATION.into(),
            Outcome::Unknown
        )
    );
    assert_eq!(toy.status("u1").cleanup, Some(Cleanup::Unconfirmed));
    assert!(toy.started.is_empty());
}

#[test]
fn a_newer_plan_is_refused() {
    let mut toy = Toy::new();
    let mut object = execution("u1");
    object.spec.binding.as_mut().unwrap().plan_version = 2;
    toy.add(object, Script::default());
    toy.run_until(5_000);
    assert_eq!(
        ended(&toy),
        (
            ExecutionPhase::Failed,
            reason::PLAN_VERSION.into(),
            Outcome::NotStarted
        )
    );
    assert!(toy.started.is_empty());
}

#[test]
fn a_plan_too_new_to_be_read_is_refused_unless_something_of_it_was_begun() {
    let mut object = execution("u1");
    object.spec.binding.as_mut().unwrap().plan_version = 2;
    let object = std::sync::Arc::new(object);
    let mut toy = Toy::new();
    let now = toy.moment();
    let keys = toy.world.absorb(Event::TooNew(std::sync::Arc::clone(&object)));
    let [key] = keys.as_slice() else {
        panic!("one attempt to decide: {keys:?}");
    };
    let actions = decide(&toy.world, key, now).actions;
    let [Action::Report(report)] = actions.as_slice() else {
        panic!("its end and nothing else: {actions:?}");
    };
    let status = &report.status;
    assert_eq!(status.reason.as_deref(), Some(reason::PLAN_VERSION));
    assert_eq!(status.outcome, Some(Outcome::NotStarted));

    // The same after a restart: its process was begun by an agent that could read the plan.
    let mut toy = unable_to_read_what_runs();
    assert_eq!(toy.world.absorb(Event::TooNew(object)), []);
    toy.run_until(30_000);
    assert_eq!(toy.phase("u1"), Some(ExecutionPhase::Running), "it is left alone");
}

#[test]
fn what_is_bound_elsewhere_is_not_touched() {
    let mut toy = Toy::new();
    let mut object = execution("u1");
    object.spec.binding.as_mut().unwrap().node_name = "node-1".into();
    toy.add(object, Script::default());
    toy.run_until(50_000);
    assert!(toy.started.is_empty() && toy.writes.is_empty() && toy.world.attempts.is_empty());
}

#[test]
fn a_start_that_fails_says_why() {
    let refused = after(
        Script {
            refused: true,
            ..Script::default()
        },
        0,
        |_| {},
    );
    assert_eq!(
        ended(&refused),
        (
            ExecutionPhase::Failed,
            reason::START_FAILED.into(),
            Outcome::NotStarted
        )
    );
    assert!(
        refused
            .status("u1")
            .message
            .unwrap()
            .contains("step Exec: No such file")
    );
    let full = after(
        Script {
            start_fails: true,
            ..Script::default()
        },
        0,
        |_| {},
    );
    assert_eq!(
        ended(&full),
        (
            ExecutionPhase::Failed,
            reason::SPOOL_FULL.into(),
            Outcome::NotStarted
        )
    );
}

#[test]
fn a_deleted_object_ends_its_processes_and_bytes_and_nothing_is_written() {
    for ms in [0, 500, 5_000] {
        let script = Script {
            runs_ms: 100_000,
            obeys_term: false,
            ..Script::default()
        };
        let toy = after(script, ms, |toy| toy.delete("u1"));
        toy.nothing_left();
        assert!(
            toy.writes
                .get("u1")
                .is_none_or(|writes| writes == &[Level::Running])
        );
    }
}

#[test]
fn bytes_go_when_the_ended_object_is_found_to_be_gone() {
    let mut toy = after(Script::default(), 0, |_| {});
    toy.objects.clear();
    toy.reconcile();
    toy.run_until(toy.now + 1_000);
    assert_eq!(toy.reads, 1, "it is read back before its bytes go");
    assert!(!toy.world.high_water.contains_key("u1"));
    toy.nothing_left();
}

#[test]
fn a_late_event_of_a_deleted_object_starts_nothing() {
    let mut toy = after(Script::default(), 0, |toy| toy.delete("u1"));
    toy.reconcile();
    toy.run_until(toy.now + 1_000);
    let late = std::sync::Arc::new(execution("u1"));
    assert!(toy.world.absorb(Event::Seen(late)).is_empty());
}

#[test]
fn an_end_that_another_wrote_stops_the_processes_and_stands() {
    let script = Script {
        runs_ms: 100_000,
        ..Script::default()
    };
    let toy = after(script, 3_000, |toy| {
        toy.change("u1", |object| {
            let status = object.status.get_or_insert_default();
            status.phase = Some(ExecutionPhase::Orphaned);
            status.completion_time = Some("1970-01-01T00:00:05Z".parse().unwrap());
        });
    });
    assert_eq!(toy.phase("u1"), Some(ExecutionPhase::Orphaned));
    assert_eq!(toy.writes["u1"], [Level::Running]);
    assert!(
        toy.world.attempts.values().all(|attempt| attempt.closed()),
        "{:?}",
        toy.world.attempts
    );
}

/// Cancels "u1" two seconds after its start; nothing ends it before 200 s.
fn cancel_what_cannot_be_killed(toy: &mut Toy) {
    let script = Script {
        runs_ms: 1_000_000,
        unkillable_until: 200_000,
        obeys_term: false,
        ..Script::default()
    };
    toy.add(execution("u1"), script);
    toy.run_until(2_000);
    toy.cancel("u1");
}

#[test]
fn clean_up_that_fails_is_said_within_its_bound_and_confirmed_later() {
    let mut toy = Toy::new();
    cancel_what_cannot_be_killed(&mut toy);
    toy.run_until(60_000);
    let status = toy.status("u1");
    assert_eq!(
        (status.phase, status.cleanup),
        (Some(ExecutionPhase::Cancelled), Some(Cleanup::Failed))
    );
    let condition = conditions::find(&status.conditions, kind::CLEANED_UP).unwrap();
    assert_eq!(
        (condition.status.as_str(), condition.reason.as_str()),
        ("False", reason::CLEAN_UP_FAILED)
    );
    toy.run_until(300_000);
    let status = toy.status("u1");
    assert_eq!(
        (status.phase, status.cleanup),
        (Some(ExecutionPhase::Cancelled), Some(Cleanup::Confirmed))
    );
    assert!(conditions::is_true(&status.conditions, kind::CLEANED_UP));
    assert_eq!(toy.writes["u1"], [Level::Running, Level::Final, Level::CleanedUp]);
    toy.oracle();
}

/// Without a group nobody can look, so it is confirmed only when the supervisor has seen the last process go.
#[test]
fn what_nobody_can_look_at_is_confirmed_by_the_supervisor_alone() {
    let mut toy = Toy::new();
    toy.world.node.backend = IsolationBackend::ProcessGroup;
    cancel_what_cannot_be_killed(&mut toy);
    toy.run_until(190_000);
    assert_eq!(toy.status("u1").cleanup, Some(Cleanup::Failed));
    toy.run_until(300_000);
    assert_eq!(toy.status("u1").cleanup, Some(Cleanup::Confirmed));
    toy.oracle();
}

/// A supervisor that takes no requests delays neither the end's report nor the loop: few tries, within the first's bound.
#[test]
fn a_kill_that_cannot_be_sent_is_tried_again_within_the_same_bound() {
    let mut toy = Toy::new();
    toy.deaf_until = 200_000;
    cancel_what_cannot_be_killed(&mut toy);
    toy.run_until(60_000);
    let status = toy.status("u1");
    assert_eq!(
        (status.phase, status.cleanup),
        (Some(ExecutionPhase::Cancelled), Some(Cleanup::Failed))
    );
    assert!(toy.unsent["u1"] > 1 && toy.unsent["u1"] < 10, "{:?}", toy.unsent);
}

#[test]
fn clean_up_is_confirmed_also_by_an_agent_that_was_restarted_meanwhile() {
    let mut toy = Toy::new();
    cancel_what_cannot_be_killed(&mut toy);
    toy.run_until(60_000);
    toy.restart(false);
    toy.run_until(400_000);
    assert_eq!(toy.status("u1").cleanup, Some(Cleanup::Confirmed));
    assert_eq!(toy.writes["u1"], [Level::Running, Level::Final, Level::CleanedUp]);
    toy.oracle();
}

#[test]
fn a_write_that_fails_for_the_moment_is_tried_again_whole() {
    let mut toy = Toy::new();
    toy.write_failures = vec![ReportFailure::Transient; 20].into();
    toy.add(execution("u1"), Script::default());
    toy.run_until(600_000);
    assert_eq!(toy.writes["u1"], [Level::Final]);
    assert!(toy.status("u1").output.is_some());
}

#[test]
fn a_refused_end_is_written_without_output_then_as_a_condition_then_anew() {
    for (refusals, levels) in [
        (1, vec![Level::Minimal]),
        (2, vec![Level::Condition, Level::Final]),
        (3, vec![Level::Final]),
    ] {
        let mut toy = Toy::new();
        toy.write_failures = vec![ReportFailure::Refused; refusals].into();
        toy.add(execution("u1"), Script::default());
        toy.run_until(200_000);
        assert_eq!(toy.writes["u1"], levels, "{refusals} refusals");
        assert_eq!(toy.phase("u1"), Some(ExecutionPhase::Succeeded));
        if refusals == 1 {
            assert_eq!(toy.status("u1").reason.as_deref(), Some(reason::STATUS_REFUSED));
            assert!(toy.status("u1").output.is_none());
        }
        toy.oracle();
    }
}

#[test]
fn executions_of_one_run_share_a_user_and_the_run_goes_with_the_last() {
    let mut toy = Toy::new();
    for uid in ["u1", "u2", "u3"] {
        let mut object = execution(uid);
        if uid != "u3" {
            object.spec.run_ref =
                serde_json::from_value(serde_json::json!({"name": "r", "uid": "run"})).unwrap();
        }
        toy.add(
            object,
            Script {
                runs_ms: 20_000,
                ..Script::default()
            },
        );
    }
    toy.run_until(2_000);
    assert_eq!(toy.runs.len(), 2);
    toy.run_until(50_000);
    assert_eq!(
        toy.runs.keys().collect::<Vec<_>>(),
        [&RunKey("run".into())],
        "kept for the run's later calls"
    );
    toy.delete("u1");
    toy.reconcile();
    toy.run_until(60_000);
    assert_eq!(toy.runs.len(), 1);
    toy.restart(false);
    toy.objects.clear();
    toy.reconcile();
    toy.run_until(70_000);
    toy.nothing_left();
}

#[test]
fn more_runs_than_user_numbers_wait_for_one() {
    let mut toy = Toy::new();
    for n in 0..15 {
        toy.add(
            execution(&format!("u{n}")),
            Script {
                runs_ms: 5_000,
                ..Script::default()
            },
        );
    }
    toy.run_until(2_500);
    assert_eq!(toy.started.len(), 10);
    toy.run_until(60_000);
    assert_eq!(toy.started.len(), 15);
    toy.oracle();
}

#[test]
fn the_death_of_the_supervisor_makes_what_ran_unknown() {
    let mut toy = Toy::new();
    toy.add(
        execution("u1"),
        Script {
            runs_ms: 50_000,
            ..Script::default()
        },
    );
    toy.run_until(5_000);
    toy.restart(true);
    toy.run_until(100_000);
    assert_eq!(
        ended(&toy),
        (
            ExecutionPhase::Failed,
            reason::SUPERVISION_LOST.into(),
            Outcome::Unknown
        )
    );
    toy.oracle();
}

#[test]
fn a_running_object_without_a_record_is_never_started() {
    let mut toy = Toy::new();
    let mut object = execution("u1");
    let status = object.status.get_or_insert_default();
    status.phase = Some(ExecutionPhase::Running);
    status.start_time = Some("1970-01-01T00:00:01Z".parse().unwrap());
    toy.add(object, Script::default());
    toy.run_until(5_000);
    assert_eq!(
        ended(&toy),
        (
            ExecutionPhase::Failed,
            reason::SUPERVISION_LOST.into(),
            Outcome::Unknown
        )
    );
    assert!(toy.started.is_empty());
}

#[test]
fn a_user_number_of_an_ended_execution_is_not_taken_from_the_run_that_has_it_now() {
    let mut toy = Toy::new();
    toy.notes_fail = true;
    for n in 0..10 {
        toy.add(execution(&format!("u{n}")), Script::default());
    }
    toy.run_until(60_000);
    assert!(toy.runs.is_empty(), "{:?}", toy.runs);
    // Its number was that of an execution whose slot does not say that its end is stored.
    let script = || Script {
        runs_ms: 50_000,
        ..Script::default()
    };
    toy.add(execution("second"), script());
    toy.run_until(62_000);
    toy.restart(false);
    for n in 10..15 {
        toy.add(execution(&format!("u{n}")), script());
    }
    for n in 0..10 {
        toy.delete(&format!("u{n}"));
    }
    toy.reconcile();
    toy.run_until(70_000);
    assert_eq!(toy.runs.len(), 6, "{:?}", toy.runs);
    toy.run_until(300_000);
    toy.oracle();
}

#[test]
fn a_node_that_drains_stops_what_runs_and_starts_nothing() {
    let mut toy = Toy::new();
    let script = |obeys_term| Script {
        runs_ms: 50_000,
        obeys_term,
        ..Script::default()
    };
    toy.add(execution("u1"), script(true));
    toy.add(execution("u2"), script(false));
    toy.add(execution("u3"), Script::default());
    toy.run_until(5_000);
    toy.drain_node(7_000);
    toy.add(execution("u4"), script(true));
    toy.run_until(8_000);
    for uid in ["u1", "u2"] {
        let status = toy.status(uid);
        assert_eq!(
            (status.phase, status.reason.as_deref(), status.outcome),
            (
                Some(ExecutionPhase::Failed),
                Some(reason::NODE_DRAINING),
                Some(Outcome::Unknown)
            )
        );
    }
    assert_eq!(toy.phase("u3"), Some(ExecutionPhase::Succeeded));
    assert_eq!((toy.phase("u4"), toy.started.len()), (None, 3));
    assert_eq!(toy.world.unfinished(), 0);
    toy.oracle();
}

#[test]
fn a_write_that_is_not_allowed_is_tried_again_whole() {
    let mut toy = Toy::new();
    toy.write_failures = vec![ReportFailure::Forbidden; 5].into();
    toy.add(execution("u1"), Script::default());
    toy.run_until(600_000);
    assert_eq!(toy.writes["u1"], [Level::Final]);
    assert!(toy.status("u1").output.is_some());
}

/// `u1` runs, and the agent that was started meanwhile cannot read it.
fn unable_to_read_what_runs() -> Toy {
    let mut toy = Toy::new();
    let script = Script {
        runs_ms: 50_000,
        ..Script::default()
    };
    toy.add(execution("u1"), script);
    toy.run_until(5_000);
    toy.restart_unable_to_read("u1");
    toy.run_until(20_000);
    toy
}

#[test]
fn what_cannot_be_read_after_a_restart_is_left_alone_until_it_can() {
    let mut toy = unable_to_read_what_runs();
    assert_eq!(toy.phase("u1"), Some(ExecutionPhase::Running));
    toy.change("u1", |_| {});
    toy.run_until(100_000);
    assert_eq!(toy.phase("u1"), Some(ExecutionPhase::Succeeded));
    toy.oracle();
}

#[test]
fn clean_up_of_an_earlier_supervisors_attempt_is_confirmed_only_where_its_group_was_seen_gone() {
    for (group, cleanup) in [(false, Cleanup::Confirmed), (true, Cleanup::Unconfirmed)] {
        let mut toy = Toy::new();
        let script = Script {
            runs_ms: 50_000,
            ..Script::default()
        };
        toy.add(execution("u1"), script);
        toy.run_until(5_000);
        toy.old_groups_stay = group;
        toy.restart(true);
        toy.run_until(100_000);
        assert_eq!(toy.status("u1").cleanup, Some(cleanup));
    }
}
