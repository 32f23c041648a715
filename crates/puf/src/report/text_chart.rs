//! The chart of a report for a terminal: distances between readouts of one device, and between devices.

use super::{Histogram, PufReport};

/// Bars by height; zero is a blank.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Columns of 2 % each.
const COLUMNS: usize = 50;

pub(super) fn text_chart(report: &PufReport) -> String {
    let between = match report.substitute_windows {
        Some(_) => "between windows",
        None => "between devices",
    };
    let axis = (0..COLUMNS / 5)
        .map(|step| format!("{:<5}", step * 10))
        .collect::<String>();
    format!(
        "Hamming distances, % of the bits\n{:>16} {}\n{between:>16} {}\n{:>16} {axis}100",
        "one device",
        bars(&report.intra_distances),
        bars(&report.inter_distances),
        ""
    )
}

/// Heights relative to the highest column.
fn bars(histogram: &Histogram) -> String {
    let width = (histogram.counts.len() / COLUMNS).max(1);
    let columns: Vec<u64> = histogram
        .counts
        .chunks(width)
        .map(|bins| bins.iter().sum())
        .collect();
    let highest = columns.iter().copied().max().unwrap_or(0).max(1);
    let bar = |count: &u64| match count.checked_mul(BARS.len() as u64) {
        Some(0) => ' ',
        // 1 to 8 eighths.
        Some(eighths) => usize::try_from(eighths.div_ceil(highest))
            .ok()
            .and_then(|height| BARS.get(height.saturating_sub(1)))
            .copied()
            .unwrap_or(' '),
        None => ' ',
    };
    columns.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_high_as_their_share_of_the_highest() {
        let mut counts = vec![0; 100];
        counts[0] = 16;
        counts[4] = 1;
        counts[5] = 1;
        counts[99] = 8;
        let drawn: Vec<char> = bars(&Histogram { counts }).chars().collect();
        assert_eq!(drawn.len(), COLUMNS);
        assert_eq!(
            (drawn[0], drawn[1], drawn[2], drawn[COLUMNS - 1]),
            ('█', ' ', '▁', '▄')
        );
        let empty = bars(&Histogram { counts: vec![0; 100] });
        assert_eq!(empty.trim(), "");
    }
}
