//! Samples of one thing, and what is said of them.

use anyhow::{Context, Result, bail};

/// Times in microseconds, in ascending order; never empty.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Reads numbers of microseconds between blanks.
    pub fn parse(text: &str) -> Result<Self> {
        let numbers: Result<Vec<f64>, _> = text.split_whitespace().map(str::parse).collect();
        Self::new(numbers.with_context(|| format!("read samples: {text:?}"))?)
    }

    /// Takes numbers of microseconds.
    pub fn new(mut micros: Vec<f64>) -> Result<Self> {
        if micros.is_empty() {
            bail!("no samples were measured");
        }
        micros.sort_by(f64::total_cmp);
        Ok(Self(micros))
    }

    /// All of these together.
    pub fn merged(parts: Vec<Self>) -> Result<Self> {
        Self::new(parts.into_iter().flat_map(|part| part.0).collect())
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The value below or at which a share of `percent` lies, by nearest rank.
    pub fn percentile(&self, percent: usize) -> f64 {
        let rank = (self.0.len() * percent).div_ceil(100).max(1);
        self.0.get(rank - 1).copied().unwrap_or_default()
    }

    /// `p50 / p99`, in milliseconds.
    pub fn text(&self) -> String {
        format!(
            "{} / {} ms",
            millis(self.percentile(50)),
            millis(self.percentile(99))
        )
    }
}

fn millis(micros: f64) -> String {
    let millis = micros / 1_000.0;
    if millis < 10.0 {
        format!("{millis:.2}")
    } else {
        format!("{millis:.1}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let samples = Samples::parse("4000 1000\n3000 2000").unwrap();
        assert_eq!(
            (samples.percentile(50), samples.percentile(99)),
            (2_000.0, 4_000.0)
        );
        assert_eq!(samples.text(), "2.00 / 4.00 ms");
        assert_eq!(Samples::parse("12345").unwrap().text(), "12.3 / 12.3 ms");
        let merged =
            Samples::merged(vec![Samples::parse("9 1").unwrap(), Samples::parse("5").unwrap()]).unwrap();
        assert_eq!(merged, Samples::parse("1 5 9").unwrap());
        assert!(Samples::parse(" ").is_err() && Samples::parse("x").is_err());
    }
}
