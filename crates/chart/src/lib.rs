//! Charts as SVG documents in one style: axes, series, legend and texts, drawn with `plotters`.
//!
//! ```
//! use linewarden_chart::{Axis, BLUE, Chart, LegendPosition, Series};
//!
//! let chart = Chart {
//!     title: "Latency",
//!     x: Axis::log(1.0..100.0, "latency, µs"),
//!     y: Axis::linear(0.0..1.0, "share of requests"),
//!     legend: LegendPosition::LowerRight,
//! };
//! let measured = Series::line("measured", BLUE, [(3.0, 0.0), (5.0, 0.5), (80.0, 1.0)]);
//! let svg = chart.svg((900, 520), [measured])?;
//! assert!(svg.starts_with("<svg"));
//! # Ok::<(), linewarden_chart::ChartError>(())
//! ```
#![forbid(unsafe_code)]

mod axis;
mod series;

use std::fmt::Display;

use plotters::chart::SeriesAnno;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

pub use axis::{Axis, number};
pub use plotters::prelude::SeriesLabelPosition as LegendPosition;
pub use plotters::style::{BLACK, Color, GREEN, MAGENTA, RED, RGBColor};
pub use series::{Series, TextPosition};

use axis::TEXT_PX;
use series::Shape;

/// Blue that color-blind people can distinguish from [`VERMILION`] (Okabe and Ito).
pub const BLUE: RGBColor = RGBColor(0, 114, 178);
/// Vermilion that color-blind people can distinguish from [`BLUE`] (Okabe and Ito).
pub const VERMILION: RGBColor = RGBColor(213, 94, 0);

const FONT: &str = "sans-serif";
const TITLE_PX: u32 = 18;
/// Distance of the lines of [`draw_remarks`], pixels.
pub const REMARK_PX: u32 = 20;

/// A document or a part of a document.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A chart could not be drawn.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("chart could not be drawn: {0}")]
pub struct ChartError(String);

impl ChartError {
    /// Error with this cause.
    pub fn new(cause: impl Display) -> Self {
        Self(cause.to_string())
    }
}

impl From<DrawingAreaErrorKind<std::io::Error>> for ChartError {
    fn from(error: DrawingAreaErrorKind<std::io::Error>) -> Self {
        Self::new(error)
    }
}

/// Draws an SVG document with a white background; the size is width and height, pixels.
///
/// # Errors
/// `draw` fails.
pub fn svg(
    size: (u32, u32),
    draw: impl FnOnce(&Area<'_>) -> Result<(), ChartError>,
) -> Result<String, ChartError> {
    let mut document = String::new();
    let root = SVGBackend::with_string(&mut document, size).into_drawing_area();
    root.fill(&WHITE)?;
    draw(&root)?;
    root.present()?;
    drop(root);
    Ok(document)
}

/// Draws lines of text, [`REMARK_PX`] pixels each.
///
/// # Errors
/// The drawing library fails.
pub fn draw_remarks(area: &Area<'_>, remarks: &[impl AsRef<str>]) -> Result<(), ChartError> {
    for (y, remark) in (2..).step_by(REMARK_PX as usize).zip(remarks) {
        area.draw(&Text::new(remark.as_ref(), (16, y), (FONT, TEXT_PX)))?;
    }
    Ok(())
}

/// Draws a title above an area and returns the remaining area.
///
/// # Errors
/// The drawing library fails.
pub fn draw_title<'a>(area: &Area<'a>, title: &str) -> Result<Area<'a>, ChartError> {
    Ok(area.titled(title, (FONT, TITLE_PX))?)
}

/// Title, axes and legend of a chart.
#[derive(Clone, Debug)]
pub struct Chart<'a> {
    /// Title.
    pub title: &'a str,
    /// Horizontal axis.
    pub x: Axis<'a>,
    /// Vertical axis.
    pub y: Axis<'a>,
    /// Position of the legend, which names the series that have a label.
    pub legend: LegendPosition,
}

impl Chart<'_> {
    /// Draws a document with this chart only; the size is width and height, pixels.
    ///
    /// # Errors
    /// The drawing library fails.
    pub fn svg(
        &self,
        size: (u32, u32),
        series: impl IntoIterator<Item = Series>,
    ) -> Result<String, ChartError> {
        svg(size, |area| self.draw(area, series))
    }

    /// Draws the chart into an area.
    ///
    /// # Errors
    /// The drawing library fails.
    pub fn draw(&self, area: &Area<'_>, series: impl IntoIterator<Item = Series>) -> Result<(), ChartError> {
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, (FONT, TITLE_PX))
            .margin(12)
            // For the second half of the last label.
            .margin_right(24)
            .x_label_area_size(self.x.labels_px(false))
            .y_label_area_size(self.y.labels_px(true))
            .build_cartesian_2d(self.x.scale(), self.y.scale())?;
        self.draw_axes(&mut chart)?;
        let mut has_labels = false;
        for Series { label, color, shape } in series {
            let line_px = shape.line_px();
            let drawn = draw_shape(&mut chart, shape, color)?;
            if label.is_empty() {
                continue;
            }
            has_labels = true;
            drawn.label(label);
            match line_px {
                Some(px) => drawn
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(px))),
                None => {
                    drawn.legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], color.filled()))
                }
            };
        }
        if has_labels {
            chart
                .configure_series_labels()
                .position(self.legend.clone())
                .label_font((FONT, TEXT_PX))
                .background_style(WHITE.mix(0.85))
                .border_style(BLACK.mix(0.3))
                .draw()?;
        }
        Ok(())
    }

    fn draw_axes(&self, chart: &mut Context<'_, '_>) -> Result<(), ChartError> {
        let (x_label, y_label) = (
            |value: &f64| self.x.label(*value),
            |value: &f64| self.y.label(*value),
        );
        let mut mesh = chart.configure_mesh();
        mesh.label_style((FONT, TEXT_PX))
            .light_line_style(BLACK.mix(0.06))
            .x_max_light_lines(self.x.light_lines())
            .y_max_light_lines(self.y.light_lines())
            .x_label_formatter(&x_label)
            .y_label_formatter(&y_label);
        if self.x.is_named() {
            mesh.disable_x_mesh();
        } else {
            mesh.x_desc(self.x.description);
        }
        if self.y.is_named() {
            mesh.disable_y_mesh();
        } else {
            mesh.y_desc(self.y.description);
        }
        Ok(mesh.draw()?)
    }
}

type Context<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<axis::Scale, axis::Scale>>;

fn draw_shape<'c, 'a, 'b>(
    chart: &'c mut Context<'a, 'b>,
    shape: Shape,
    color: RGBAColor,
) -> Result<&'c mut SeriesAnno<'a, SVGBackend<'b>>, ChartError> {
    let filled = color.filled();
    Ok(match shape {
        Shape::Line {
            points,
            width_px,
            marker_px,
        } => {
            chart.draw_series(LineSeries::new(points, color.stroke_width(width_px)).point_size(marker_px))?
        }
        Shape::Dashed(points) => {
            chart.draw_series(DashedLineSeries::new(points, 4, 4, color.stroke_width(1)))?
        }
        Shape::Points(points) => {
            chart.draw_series(points.into_iter().map(|point| Circle::new(point, 4, filled)))?
        }
        Shape::Boxes(boxes) => {
            chart.draw_series(boxes.into_iter().map(|corners| Rectangle::new(corners, filled)))?
        }
        Shape::Texts(texts, position) => {
            let anchor = match position {
                TextPosition::Above => Pos::new(HPos::Center, VPos::Bottom),
                TextPosition::Right => Pos::new(HPos::Left, VPos::Center),
            };
            let style = TextStyle::from((FONT, TEXT_PX)).color(&color).pos(anchor);
            let text = |(point, text)| Text::new(text, point, style.clone());
            chart.draw_series(texts.into_iter().map(text))?
        }
    })
}
