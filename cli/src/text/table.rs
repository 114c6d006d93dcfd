//! Tables as kubectl prints them: columns three blanks apart, no lines.

use super::{Paint, Tone};

/// The text of one place in a table, and its tone.
pub type Cell = (String, Option<Tone>);

/// The columns of a table, as wide as what was seen so far.
#[derive(Clone, Debug)]
pub struct Columns {
    heads: Vec<&'static str>,
    widths: Vec<usize>,
}

impl Columns {
    /// Columns as wide as their heads, which are plain ASCII.
    pub fn new(heads: &[&'static str]) -> Self {
        Self {
            heads: heads.to_vec(),
            widths: heads.iter().map(|head| head.len()).collect(),
        }
    }

    /// Makes the column called `head` at least `width` characters wide.
    pub fn at_least(&mut self, head: &str, width: usize) {
        for (there, known) in self.heads.iter().zip(&mut self.widths) {
            if *there == head {
                *known = width.max(*known);
            }
        }
    }

    /// Makes room for `rows`. Widths count characters, not the colour codes.
    pub fn fit(&mut self, rows: &[Vec<Cell>]) {
        for row in rows {
            for ((text, _), width) in row.iter().zip(&mut self.widths) {
                *width = text.chars().count().max(*width);
            }
        }
    }

    /// The line of the heads.
    pub fn head(&self) -> String {
        let heads: Vec<Cell> = self.heads.iter().map(|head| ((*head).to_owned(), None)).collect();
        line(&heads, &self.widths, |_, text| text.to_owned())
    }

    /// The line of a row that [`Columns::fit`] has seen.
    pub fn line(&self, row: &[Cell], paint: Paint) -> String {
        line(row, &self.widths, |tone, text| paint.tone(tone, text))
    }
}

/// Lays out `rows` below `heads`.
pub fn table(heads: &[&'static str], rows: &[Vec<Cell>], paint: Paint) -> Vec<String> {
    let mut columns = Columns::new(heads);
    columns.fit(rows);
    let rows = rows.iter().map(|row| columns.line(row, paint));
    std::iter::once(columns.head()).chain(rows).collect()
}

fn line(row: &[Cell], widths: &[usize], paint: impl Fn(Tone, &str) -> String) -> String {
    let mut text = String::new();
    for (index, (cell, tone)) in row.iter().enumerate() {
        text.push_str(&tone.map_or_else(|| cell.clone(), |tone| paint(tone, cell)));
        if index + 1 < row.len() {
            let width = widths.get(index).copied().unwrap_or(0) + 3;
            text.extend(std::iter::repeat_n(
                ' ',
                width.saturating_sub(cell.chars().count()),
            ));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let row = |cells: [&str; 2]| cells.map(|cell| (cell.to_owned(), Some(Tone::Good))).to_vec();
        let lines = table(
            &["NAME", "PHASE"],
            &[row(["é", "Running"]), row(["longer-name", "x"])],
            Paint::OFF,
        );
        assert_eq!(
            lines,
            ["NAME          PHASE", "é             Running", "longer-name   x"]
        );
    }
}
