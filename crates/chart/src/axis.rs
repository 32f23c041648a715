//! Axes.

use std::ops::Range;

use plotters::coord::combinators::{IntoLogRange, LogCoord};
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;

/// Height of labels, pixels.
pub(crate) const TEXT_PX: u32 = 14;

/// An axis.
#[derive(Clone, Debug)]
pub struct Axis<'a> {
    range: Range<f64>,
    kind: Kind,
    /// Meaning and unit of the values.
    pub(crate) description: &'a str,
}

#[derive(Clone, Debug)]
enum Kind {
    Linear,
    Log,
    /// Names of the intervals of length 1.
    Named(Vec<String>),
}

impl<'a> Axis<'a> {
    /// Linear axis, with the meaning and the unit of its values.
    #[must_use]
    pub fn linear(range: Range<f64>, description: &'a str) -> Self {
        Self {
            range,
            kind: Kind::Linear,
            description,
        }
    }

    /// Logarithmic axis, with the meaning and the unit of its values, which are positive.
    #[must_use]
    pub fn log(range: Range<f64>, description: &'a str) -> Self {
        Self {
            range,
            kind: Kind::Log,
            description,
        }
    }

    /// Axis of named intervals: the name `n` belongs to the values from `n` to `n + 1`.
    #[must_use]
    pub fn named(names: impl IntoIterator<Item = String>) -> Self {
        let names: Vec<String> = names.into_iter().collect();
        Self {
            range: 0.0..names.len() as f64,
            kind: Kind::Named(names),
            description: "",
        }
    }

    /// The axis with the opposite direction.
    #[must_use]
    pub fn reversed(mut self) -> Self {
        self.range = self.range.end..self.range.start;
        self
    }

    pub(crate) fn is_named(&self) -> bool {
        matches!(self.kind, Kind::Named(_))
    }

    /// Number of light grid lines between two labels.
    pub(crate) fn light_lines(&self) -> usize {
        match self.kind {
            Kind::Log => 10,
            Kind::Linear | Kind::Named(_) => 0,
        }
    }

    pub(crate) fn scale(&self) -> Scale {
        match &self.kind {
            Kind::Linear => Scale::Linear(self.range.clone().into()),
            Kind::Log => Scale::Log(self.range.clone().log_scale().into()),
            Kind::Named(names) => Scale::Named(self.range.clone().into(), names.len()),
        }
    }

    /// Label of a value.
    pub(crate) fn label(&self, value: f64) -> String {
        match &self.kind {
            Kind::Linear | Kind::Log => number(value),
            Kind::Named(names) => names.get(value as usize).cloned().unwrap_or_default(),
        }
    }

    /// Size of the area for labels and description, pixels.
    pub(crate) fn labels_px(&self, is_vertical: bool) -> u32 {
        let description_px = if self.description.is_empty() { 14 } else { 30 };
        let label_px = if is_vertical {
            let labels = self.scale().key_points(10);
            let characters = labels.iter().map(|value| self.label(*value).chars().count());
            // A character is about half as wide as high.
            characters.max().unwrap_or(0) * TEXT_PX as usize / 2
        } else {
            14
        };
        (description_px + label_px) as u32
    }
}

/// Number with at most six significant decimals, and with groups of three digits before the decimal point.
#[must_use]
pub fn number(value: f64) -> String {
    let text = format!("{value:.6}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    let (sign, text) = text.strip_prefix('-').map_or(("", text), |text| ("-", text));
    let (integer, fraction) = text.split_at(text.find('.').unwrap_or(text.len()));
    let groups: Vec<_> = integer
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(String::from_utf8_lossy)
        .collect();
    format!("{sign}{}{fraction}", groups.join(","))
}

/// Coordinates of an axis of any kind, so that charts with different axes have one type.
pub(crate) enum Scale {
    Linear(RangedCoordf64),
    Log(LogCoord<f64>),
    Named(RangedCoordf64, usize),
}

impl Ranged for Scale {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        match self {
            Self::Linear(scale) | Self::Named(scale, _) => scale.map(value, limit),
            Self::Log(scale) => scale.map(value, limit),
        }
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match self {
            Self::Linear(scale) => scale.key_points(hint),
            Self::Log(scale) => scale.key_points(hint),
            Self::Named(_, count) => (0..*count).map(|number| number as f64 + 0.5).collect(),
        }
    }

    fn range(&self) -> Range<f64> {
        match self {
            Self::Linear(scale) | Self::Named(scale, _) => scale.range(),
            Self::Log(scale) => scale.range(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_grouped() {
        for (value, text) in [
            (0.0, "0"),
            (0.1 + 0.2, "0.3"),
            (1.0, "1"),
            (-1234.5, "-1,234.5"),
            (100_000.0, "100,000"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
