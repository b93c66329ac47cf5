//! Plain text tables: right-aligned numbers under their headings, groups parted by an empty line.

/// Alignment of a column.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A column of [`of`]: its heading, its alignment, and the cell of a row.
pub(crate) type Column<R> = (&'static str, Align, fn(&R) -> String);

/// A table with a line for each row, as text.
pub(crate) fn of<R>(columns: &[Column<R>], rows: &[R]) -> String {
    let headings: Vec<(&str, Align)> = columns.iter().map(|&(heading, align, _)| (heading, align)).collect();
    let mut table = Table::new(&headings);
    rows.iter().for_each(|row| table.line(columns.iter().map(|(.., cell)| cell(row))));
    table.render()
}

/// A table that is printed once all of its widths are known.
pub(crate) struct Table {
    columns: Vec<(String, Align)>,
    /// A line without cells separates two groups.
    lines: Vec<Vec<String>>,
}

impl Table {
    /// An empty table. A heading may have several lines.
    pub(crate) fn new(columns: &[(&str, Align)]) -> Table {
        let columns = columns.iter().map(|&(heading, align)| (heading.to_owned(), align)).collect();
        Table { columns, lines: Vec::new() }
    }

    /// Adds a line; missing cells are empty, surplus cells are a bug.
    pub(crate) fn line<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        let cells: Vec<String> = cells.into_iter().map(Into::into).collect();
        debug_assert!(cells.len() <= self.columns.len(), "more cells than columns");
        self.lines.push(cells);
    }

    /// Starts a new group of lines.
    pub(crate) fn gap(&mut self) {
        if self.lines.last().is_some_and(|cells| !cells.is_empty()) {
            self.lines.push(Vec::new());
        }
    }

    /// The text, without a newline at its end.
    pub(crate) fn render(&self) -> String {
        let widths = self.widths();
        let mut text = Vec::new();
        let heading_lines =
            self.columns.iter().map(|(heading, _)| heading.lines().count()).max().unwrap_or(0);
        for n in 0..heading_lines {
            let cells = self.columns.iter().map(|(heading, _)| heading.lines().nth(n).unwrap_or(""));
            text.push(self.render_line(cells, &widths));
        }
        text.push("─".repeat(widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1)));
        let last = self.lines.iter().rposition(|cells| !cells.is_empty()).map_or(0, |at| at + 1);
        for cells in &self.lines[..last] {
            text.push(self.render_line(cells.iter().map(String::as_str), &widths));
        }
        text.join("\n")
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = self
            .columns
            .iter()
            .map(|(heading, _)| heading.lines().map(|line| line.chars().count()).max().unwrap_or(0))
            .collect();
        for cells in &self.lines {
            for (width, cell) in widths.iter_mut().zip(cells) {
                *width = (*width).max(cell.chars().count());
            }
        }
        widths
    }

    fn render_line<'a>(&self, cells: impl Iterator<Item = &'a str>, widths: &[usize]) -> String {
        let mut text = String::new();
        for ((cell, &width), (_, align)) in cells.zip(widths).zip(&self.columns) {
            let padding = " ".repeat(width.saturating_sub(cell.chars().count()));
            match align {
                Align::Left => text.extend([cell, &padding, "  "]),
                Align::Right => text.extend([padding.as_str(), cell, "  "]),
            }
        }
        text.truncate(text.trim_end().len());
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&[("size", Align::Left), ("median\nµs", Align::Right)]);
        table.line(["8 B", "2.16"]);
        table.gap();
        table.gap();
        table.line(["64 KiB", "10.20"]);
        table.line(["µ"]);
        table.gap();
        let expected = "size    median\n            µs\n──────────────\n8 B       2.16\n\n64 KiB   10.20\nµ";
        assert_eq!(table.render(), expected);
    }

    #[test]
    fn an_empty_table_is_its_heading() {
        assert_eq!(Table::new(&[("a", Align::Left), ("b", Align::Right)]).render(), "a  b\n────");
        assert_eq!(Table::new(&[]).render(), "");
    }
}
