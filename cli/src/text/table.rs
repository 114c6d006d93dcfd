//! Tables as kubectl prints them: columns three blanks apart, no lines.

use super::{Paint, Tone};

/// Lays out `rows` below `heads`. Each cell may have a tone; widths count characters, not the colour codes.
pub fn table(heads: &[&str], rows: &[Vec<(String, Option<Tone>)>], paint: Paint) -> Vec<String> {
    let width = |column: usize| {
        let cells = rows
            .iter()
            .filter_map(|row| row.get(column))
            .map(|(text, _)| text.chars().count());
        let head = heads.get(column).map_or(0, |head| head.len());
        cells.chain([head]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let head: Vec<(String, Option<Tone>)> = heads.iter().map(|head| ((*head).to_owned(), None)).collect();
    std::iter::once(&head)
        .chain(rows)
        .map(|row| line(row, &widths, paint))
        .collect()
}

fn line(row: &[(String, Option<Tone>)], widths: &[usize], paint: Paint) -> String {
    let mut text = String::new();
    for (index, (cell, tone)) in row.iter().enumerate() {
        text.push_str(&tone.map_or_else(|| cell.clone(), |tone| paint.tone(tone, cell)));
        if index + 1 < row.len() {
            let pad = widths.get(index).copied().unwrap_or(0) + 3 - cell.chars().count();
            text.extend(std::iter::repeat_n(' ', pad));
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
