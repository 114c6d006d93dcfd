//! The table that is printed.

use super::samples::Samples;

/// One figure.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// What was done.
    pub path: String,
    /// What it took of us.
    pub ours: String,
    /// What it takes without us; empty where there is no such thing.
    pub floor: String,
    /// The one in terms of the other.
    pub ratio: String,
    /// What it should be.
    pub aim: &'static str,
}

impl Row {
    /// A row of times: the ratio is that of the medians.
    pub fn times(path: &str, ours: &Samples, floor: &Samples, aim: &'static str) -> Self {
        let ratio = ours.percentile(50) / floor.percentile(50);
        Self {
            path: format!("{path} ({} and {} samples)", ours.count(), floor.count()),
            ours: ours.text(),
            floor: floor.text(),
            ratio: format!("{ratio:.2} ×"),
            aim,
        }
    }

    /// A row of things per second, of which more is better.
    pub fn rate(path: &str, ours: f64, floor: f64, aim: &'static str) -> Self {
        Self {
            path: path.to_owned(),
            ours: format!("{ours:.0} /s"),
            floor: format!("{floor:.0} /s"),
            ratio: format!("{:.0} %", 100.0 * ours / floor),
            aim,
        }
    }

    /// A row without a floor.
    pub fn alone(path: &str, ours: String, aim: &'static str) -> Self {
        Self {
            path: path.to_owned(),
            ours,
            aim,
            ..Self::default()
        }
    }
}

/// Rows, and how they came about.
#[derive(Clone, Debug, Default)]
pub struct Table {
    rows: Vec<Row>,
    notes: Vec<String>,
}

impl Table {
    /// Adds a row.
    pub fn push(&mut self, row: Row) {
        eprintln!(
            "bench: {}: {} (floor {}) {}",
            row.path, row.ours, row.floor, row.ratio
        );
        self.rows.push(row);
    }

    /// Adds a sentence below the table.
    pub fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// The table and its notes as Markdown.
    pub fn markdown(&self) -> String {
        let mut text = String::from(
            "| path | ours, p50 / p99 | floor, p50 / p99 | ratio | aim |\n|---|---|---|---|---|\n",
        );
        for row in &self.rows {
            let cells = [&row.path, &row.ours, &row.floor, &row.ratio].map(|cell| or_dash(cell));
            text.push_str(&format!("| {} | {} |\n", cells.join(" | "), or_dash(row.aim)));
        }
        for note in &self.notes {
            text.push_str(&format!("\n{note}\n"));
        }
        text
    }
}

fn or_dash(cell: &str) -> &str {
    if cell.is_empty() { "–" } else { cell }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_shows_rows_and_notes() {
        let mut table = Table::default();
        let [ours, floor] = ["4000", "1000"].map(|text| Samples::parse(text).unwrap());
        table.push(Row::times("start", &ours, &floor, "≤ 5 ×"));
        table.push(Row::rate("rate", 60.0, 120.0, "≥ 60 %"));
        table.push(Row::alone("memory", "2 MiB".to_owned(), ""));
        table.note("A note.".to_owned());
        let text = table.markdown();
        assert!(
            text.contains("| start (1 and 1 samples) | 4.00 / 4.00 ms | 1.00 / 1.00 ms | 4.00 × | ≤ 5 × |")
        );
        assert!(text.contains("| rate | 60 /s | 120 /s | 50 % | ≥ 60 % |"));
        assert!(text.contains("| memory | 2 MiB | – | – | – |") && text.ends_with("\nA note.\n"));
    }
}
