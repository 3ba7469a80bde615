//! Graphs of text, as LATENCY GRAPH draws them.

use std::fmt::Write;

/// Lines of a graph above its labels.
const ROWS: usize = 4;

/// Columns of a graph; more samples make several.
const COLUMNS: usize = 80;

/// The top of a column, from low to high within its row.
const TOPS: [char; 3] = ['_', 'o', '#'];

/// Draws a column for each sample, and its label from top to bottom below it.
pub(super) fn draw(samples: &[(u64, String)]) -> String {
    let values = samples.iter().map(|(value, _)| *value);
    let lowest = values.clone().min().unwrap_or(0);
    let range = values.max().unwrap_or(0) - lowest;
    let mut text = String::new();
    for part in samples.chunks(COLUMNS) {
        for row in 0..ROWS {
            let line = part
                .iter()
                .map(|(value, _)| symbol(step(value - lowest, range), ROWS - 1 - row));
            write_line(&mut text, line);
        }
        let longest = part.iter().map(|(_, label)| label.len()).max();
        for at in 0..longest.unwrap_or(0) {
            let letter = |label: &str| label.chars().nth(at).unwrap_or(' ');
            write_line(&mut text, part.iter().map(|(_, label)| letter(label)));
        }
        text.push('\n');
    }
    text
}

/// Returns how high a column is, in parts of a row.
fn step(above: u64, range: u64) -> usize {
    let steps = ROWS * TOPS.len();
    let step = u128::from(above) * steps as u128 / u128::from(range.max(1));
    (step as usize).min(steps - 1)
}

/// Returns what a column of a height shows in a row, counted from the bottom.
fn symbol(step: usize, row: usize) -> char {
    match step.checked_sub(row * TOPS.len()) {
        None => ' ',
        Some(rest) => TOPS.get(rest).copied().unwrap_or('|'),
    }
}

fn write_line(text: &mut String, line: impl Iterator<Item = char>) {
    let line: String = line.collect();
    let _ = writeln!(text, "{}", line.trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_grow_with_values() {
        let samples: Vec<(u64, String)> =
            (0..12).map(|n| (100 + n * 10, format!("{n}s"))).collect();
        let expected = "         _o#
      _o#|||
   _o#||||||
_o#|||||||||
012345678911
ssssssssss01
          ss

";
        assert_eq!(draw(&samples), expected);
    }

    #[test]
    fn equal_values_and_many_samples() {
        let samples = vec![(7, "1m".to_owned()); COLUMNS + 1];
        let graph = draw(&samples);
        let lines: Vec<&str> = graph.lines().collect();
        // Two graphs of four lines, two lines of labels and an empty one.
        assert_eq!(lines.len(), 14);
        assert_eq!(lines[3], "_".repeat(COLUMNS));
        assert_eq!((lines[10], lines[11], lines[12]), ("_", "1", "m"));
        assert_eq!(draw(&[]), "");
    }
}
