//! A small seeded generator (SplitMix64), so that a seed gives the same story on every machine and version.

/// Milliseconds of simulated time.
pub type Ms = i64;

#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `from..to`; `from` when the range is empty.
    pub fn range(&mut self, from: i64, to: i64) -> i64 {
        let width = to.saturating_sub(from).max(1);
        from + i64::try_from(self.next() % width.unsigned_abs()).unwrap_or(0)
    }

    /// Whether something of this chance, in thousandths, happens.
    pub fn chance(&mut self, thousandths: u32) -> bool {
        self.next() % 1000 < u64::from(thousandths)
    }

    pub fn pick<'a, T>(&mut self, list: &'a [T]) -> Option<&'a T> {
        let n = usize::try_from(self.range(0, i64::try_from(list.len()).unwrap_or(0))).unwrap_or(0);
        list.get(n)
    }

    pub fn hex(&mut self, bytes: usize) -> String {
        let mut text = String::new();
        while text.len() < bytes * 2 {
            text.push_str(&format!("{:016x}", self.next()));
        }
        text.truncate(bytes * 2);
        text
    }
}
