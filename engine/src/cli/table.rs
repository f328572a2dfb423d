//! Tables of plain text.

use std::fmt::Write as _;

/// Rows under one heading line. The first column is text, aligned left; so are the columns named
/// with a trailing `<`; the others are aligned right.
#[derive(Debug)]
pub(super) struct Table {
    headings: &'static [&'static str],
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(headings: &'static [&'static str]) -> Table {
        Table {
            headings,
            rows: Vec::new(),
        }
    }

    /// Adds a row with one cell per heading.
    pub(super) fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.headings.len());
        self.rows
            .push(cells.into_iter().map(|cell| harmless(&cell)).collect());
    }

    /// The table, or `nothing` on a line if it has no rows.
    pub(super) fn print(&self, nothing: &str) -> String {
        if self.rows.is_empty() {
            return format!("{nothing}\n");
        }
        let left: Vec<bool> = self
            .headings
            .iter()
            .enumerate()
            .map(|(n, h)| n == 0 || h.ends_with('<'))
            .collect();
        let headings = self
            .headings
            .iter()
            .map(|h| h.trim_end_matches('<').to_owned());
        let lines: Vec<Vec<String>> = std::iter::once(headings.collect())
            .chain(self.rows.iter().cloned())
            .collect();
        let widths: Vec<usize> = (0..left.len())
            .map(|n| {
                lines
                    .iter()
                    .map(|cells| cells[n].chars().count())
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        let mut out = String::new();
        for cells in &lines {
            let mut line = String::new();
            for ((cell, width), left) in cells.iter().zip(&widths).zip(&left) {
                let _ = match left {
                    true => write!(line, "{cell:<width$}  "),
                    false => write!(line, "{cell:>width$}  "),
                };
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
}

/// Names come from peers: nothing in them may steer a terminal.
pub(super) fn harmless(text: &str) -> String {
    let steers = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if steers(c) {
            out.extend(c.escape_default())
        } else {
            out.push(c)
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["QUEUE", "N", "STATE<"]);
        table.row(vec!["a".into(), "1000".into(), "live".into()]);
        table.row(vec!["k\u{fc}che".into(), "7".into(), String::new()]);
        assert_eq!(
            table.print("none"),
            "QUEUE     N  STATE\na      1000  live\nk\u{fc}che     7\n"
        );
        assert_eq!(Table::new(&["A"]).print("none"), "none\n");
    }

    #[test]
    fn names_cannot_steer_a_terminal() {
        let mut table = Table::new(&["QUEUE"]);
        table.row(vec!["a\u{1b}[2Jb\n\u{202e}".into()]);
        assert_eq!(table.print(""), "QUEUE\na\\u{1b}[2Jb\\n\\u{202e}\n");
    }
}
