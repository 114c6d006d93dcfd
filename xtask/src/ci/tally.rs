//! What was counted, and how a tier ended.

use std::time::Duration;

use anyhow::{Result, anyhow};

/// Counts of tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
    /// Tests that were left out on purpose.
    pub ignored: u64,
}

impl Tally {
    /// Takes the counts from a closing line of Rust's test harness: `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
    pub fn read(&mut self, line: &str) {
        let Some((_, counts)) = line
            .strip_prefix("test result: ")
            .and_then(|rest| rest.split_once(". "))
        else {
            return;
        };
        for count in counts.split("; ") {
            let Some((number, what)) = count.split_once(' ') else {
                continue;
            };
            let Ok(number) = number.parse::<u64>() else {
                continue;
            };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }
}

/// That a tier cannot run here, and why.
#[derive(Clone, Debug)]
pub struct CannotRun(pub String);

impl std::fmt::Display for CannotRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CannotRun {}

/// How a tier ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All passed.
    Passed,
    /// It could not run, and that is said.
    Skipped(String),
    /// Something failed.
    Failed(String),
}

/// A tier that has ended.
#[derive(Clone, Debug)]
pub struct Row {
    name: &'static str,
    took: Duration,
    /// What was counted; a tier without tests of its own counts one.
    pub tally: Tally,
    /// How it ended.
    pub verdict: Verdict,
}

impl Row {
    /// Judges a tier. With `strict` one that could not run has failed.
    pub fn new(
        name: &'static str,
        took: Duration,
        mut tally: Tally,
        result: Result<()>,
        strict: bool,
    ) -> Self {
        let failed_tests = tally.failed;
        let result = match result {
            Ok(()) if failed_tests > 0 => Err(anyhow!("{failed_tests} failed")),
            other => other,
        };
        let verdict = match result {
            Ok(()) => Verdict::Passed,
            Err(error) => match error.downcast_ref::<CannotRun>() {
                Some(why) if !strict => Verdict::Skipped(why.0.clone()),
                Some(why) => Verdict::Failed(format!("cannot run here, and CI=true: {why}")),
                None => Verdict::Failed(format!("{error:#}")),
            },
        };
        match verdict {
            Verdict::Passed if tally.passed == 0 => tally.passed = 1,
            Verdict::Failed(_) if tally.failed == 0 => tally.failed = 1,
            _ => {}
        }
        Self {
            name,
            took,
            tally,
            verdict,
        }
    }

    /// One line on the tier.
    pub fn line(&self) -> String {
        let (word, why) = match &self.verdict {
            Verdict::Passed => ("ok", String::new()),
            Verdict::Skipped(why) => ("skipped", format!("  {why}")),
            Verdict::Failed(why) => ("FAILED", format!("  {why}")),
        };
        let Tally {
            passed,
            failed,
            ignored,
        } = self.tally;
        let ignored = if ignored > 0 {
            format!(", {ignored} ignored")
        } else {
            String::new()
        };
        let time = time(self.took);
        format!(
            "{:<10} {time:>8}  {word:<7} {passed} passed, {failed} failed{ignored}{why}",
            self.name
        )
    }
}

/// Minutes and seconds.
pub fn time(took: Duration) -> String {
    let seconds = took.as_secs();
    if seconds < 60 {
        format!("{:.1} s", took.as_secs_f64())
    } else {
        format!("{} m {:02} s", seconds / 60, seconds % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_closing_lines_only() {
        let mut tally = Tally::default();
        tally.read("running 3 tests");
        tally.read(
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s",
        );
        tally.read("test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out");
        assert_eq!(
            tally,
            Tally {
                passed: 4,
                failed: 2,
                ignored: 1
            }
        );
    }

    #[test]
    fn a_tier_that_cannot_run_fails_only_where_all_must_run() {
        let row = |strict| {
            let cannot = Err(CannotRun("needs root".to_owned()).into());
            Row::new("kernel", Duration::from_secs(1), Tally::default(), cannot, strict)
        };
        assert_eq!(row(false).verdict, Verdict::Skipped("needs root".to_owned()));
        assert_eq!(row(false).tally, Tally::default());
        assert_eq!(row(true).tally.failed, 1);
    }

    #[test]
    fn a_failed_test_fails_its_tier() {
        let tally = Tally {
            passed: 2,
            failed: 1,
            ignored: 0,
        };
        let row = Row::new("unit", Duration::from_millis(1500), tally, Ok(()), false);
        assert_eq!(
            row.line(),
            "unit          1.5 s  FAILED  2 passed, 1 failed  1 failed"
        );
    }

    #[test]
    fn times_read_well() {
        assert_eq!(time(Duration::from_millis(1250)), "1.2 s");
        assert_eq!(time(Duration::from_secs(125)), "2 m 05 s");
    }
}
