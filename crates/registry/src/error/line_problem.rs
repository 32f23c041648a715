//! Problems in the lines of an import file.

/// A problem that occurs in one or more lines of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineProblem {
    /// The line numbers, from 1, ascending; not empty.
    pub lines: Vec<u64>,
    /// The problem of each line.
    pub problem: String,
}

/// Maximum number of lines or ranges in a message; further lines are only counted.
const RANGES_SHOWN_MAX: usize = 20;

impl LineProblem {
    /// The problem, prefixed with the file name.
    #[must_use]
    pub fn with_path(&self, path: &std::path::Path) -> String {
        format!("{}, {self}", path.display())
    }
}

impl std::fmt::Display for LineProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ranges: Vec<&[u64]> = self
            .lines
            .chunk_by(|line, next| line.checked_add(1) == Some(*next))
            .collect();
        let range_texts: Vec<String> = ranges
            .iter()
            .take(RANGES_SHOWN_MAX)
            .map(|range| match range {
                [first, .., last] => format!("{first} to {last}"),
                [number] => number.to_string(),
                [] => String::new(),
            })
            .collect();
        let lines = if self.lines.len() == 1 { "line" } else { "lines" };
        write!(f, "{lines} {}", range_texts.join(", "))?;
        let unlisted: usize = ranges
            .iter()
            .skip(RANGES_SHOWN_MAX)
            .map(|range| range.len())
            .sum();
        if unlisted > 0 {
            write!(f, " and {unlisted} more")?;
        }
        write!(f, ": {}", self.problem)
    }
}
