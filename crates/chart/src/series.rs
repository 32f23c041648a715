//! Series of a chart.

use plotters::style::{BLACK, Color, RGBAColor};

/// A series: shapes of one color.
#[derive(Clone, Debug)]
pub struct Series {
    pub(crate) label: String,
    pub(crate) color: RGBAColor,
    pub(crate) shape: Shape,
}

#[derive(Clone, Debug)]
pub(crate) enum Shape {
    Line {
        points: Vec<(f64, f64)>,
        width_px: u32,
        marker_px: u32,
    },
    Dashed(Vec<(f64, f64)>),
    Points(Vec<(f64, f64)>),
    Boxes(Vec<[(f64, f64); 2]>),
    Texts(Vec<((f64, f64), String)>, TextPosition),
}

impl Shape {
    /// Width of the line, pixels; `None` if the shape has no line.
    pub(crate) fn line_px(&self) -> Option<u32> {
        match self {
            Self::Line { width_px, .. } => Some(*width_px),
            Self::Dashed(_) => Some(1),
            Self::Points(_) | Self::Boxes(_) | Self::Texts(..) => None,
        }
    }
}

/// Position of a text relative to its point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TextPosition {
    /// Centered above the point.
    Above,
    /// Right of the point.
    Right,
}

impl Series {
    fn new(label: impl Into<String>, color: impl Color, shape: Shape) -> Self {
        Self {
            label: label.into(),
            color: color.to_rgba(),
            shape,
        }
    }

    /// Line through the points. A series with an empty label is not in the legend.
    #[must_use]
    pub fn line(
        label: impl Into<String>,
        color: impl Color,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Self {
        let shape = Shape::Line {
            points: points.into_iter().collect(),
            width_px: 2,
            marker_px: 0,
        };
        Self::new(label, color, shape)
    }

    /// The line with a marker at each point.
    #[must_use]
    pub fn with_markers(mut self) -> Self {
        if let Shape::Line { marker_px, .. } = &mut self.shape {
            *marker_px = 3;
        }
        self
    }

    /// The line with the width of one pixel.
    #[must_use]
    pub fn thin(mut self) -> Self {
        if let Shape::Line { width_px, .. } = &mut self.shape {
            *width_px = 1;
        }
        self
    }

    /// Thin dashed line, for example for a published value.
    #[must_use]
    pub fn dashed(
        label: impl Into<String>,
        color: impl Color,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Self {
        Self::new(label, color, Shape::Dashed(points.into_iter().collect()))
    }

    /// Points without a line and without a label.
    #[must_use]
    pub fn points(color: impl Color, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        Self::new("", color, Shape::Points(points.into_iter().collect()))
    }

    /// Filled rectangles, given by two opposite corners.
    #[must_use]
    pub fn boxes(
        label: impl Into<String>,
        color: impl Color,
        boxes: impl IntoIterator<Item = [(f64, f64); 2]>,
    ) -> Self {
        Self::new(label, color, Shape::Boxes(boxes.into_iter().collect()))
    }

    /// Texts at points.
    #[must_use]
    pub fn texts(position: TextPosition, texts: impl IntoIterator<Item = ((f64, f64), String)>) -> Self {
        Self::new("", BLACK, Shape::Texts(texts.into_iter().collect(), position))
    }
}
