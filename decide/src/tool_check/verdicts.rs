//! Verdicts on arguments that were judged lately: a call is looked at often while it waits, and judged once.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// SHA-256 of arguments as JSON.
pub(super) type Digest = [u8; 32];
type Verdict = Result<(), String>;

/// Most verdicts that are kept of one tool, as it is at one generation.
const MAX_VERDICTS: usize = 128;

/// The last verdicts of one tool. What is kept is a function of the tool and the arguments alone, so it changes no
/// decision, only how long one takes.
#[derive(Default)]
pub(super) struct Verdicts {
    kept: Mutex<VecDeque<(Digest, Verdict)>>,
}

impl Verdicts {
    /// The verdict on the arguments of that digest: the one that is kept, or else that of `judge`.
    pub(super) fn of(&self, digest: Digest, judge: impl FnOnce() -> Verdict) -> Verdict {
        let known = |kept: &VecDeque<(Digest, Verdict)>| {
            let entry = kept.iter().find(|(of, _)| *of == digest);
            entry.map(|(_, verdict)| verdict.clone())
        };
        if let Some(verdict) = known(&self.kept.lock().unwrap_or_else(PoisonError::into_inner)) {
            return verdict;
        }
        let verdict = judge();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= MAX_VERDICTS {
            kept.pop_front();
        }
        kept.push_back((digest, verdict.clone()));
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_reached_once_and_the_oldest_is_forgotten() {
        let verdicts = Verdicts::default();
        let digest = |n: usize| {
            let mut digest = Digest::default();
            digest[..8].copy_from_slice(&n.to_le_bytes());
            digest
        };
        let mut judged = 0;
        for n in 0..=MAX_VERDICTS {
            for _ in 0..3 {
                let verdict = verdicts.of(digest(n), || {
                    judged += 1;
                    Err(format!("no {n}"))
                });
                assert_eq!(verdict, Err(format!("no {n}")));
            }
        }
        assert_eq!(judged, MAX_VERDICTS + 1);
        assert_eq!(verdicts.kept.lock().unwrap().len(), MAX_VERDICTS);
        assert_eq!(
            verdicts.of(digest(0), || Ok(())),
            Ok(()),
            "the first was forgotten"
        );
        assert_eq!(
            verdicts.of(digest(2), || Ok(())),
            Err("no 2".to_owned()),
            "a later one is kept"
        );
    }
}
