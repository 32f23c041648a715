//! The charts of a report: distances, flip probabilities, and the share of ones over the memory.

use std::fmt::Display;

use plotters::{coord::Shift, prelude::*};

use super::{MAP_COLUMNS, PufReport};

/// Width and height in pixels.
const SIZE: (u32, u32) = (1200, 860);
const INTRA: RGBColor = RGBColor(0, 114, 178);
const INTER: RGBColor = RGBColor(213, 94, 0);
const TEXT: i32 = 15;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawResult = Result<(), String>;

pub(super) fn svg(report: &PufReport) -> Result<String, String> {
    let mut document = String::new();
    {
        let root = SVGBackend::with_string(&mut document, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(draw_error)?;
        let (upper, lower) = root.split_vertically(430);
        let (left, right) = upper.split_horizontally(600);
        draw_distances(report, &left)?;
        draw_flips(report, &right)?;
        draw_map(report, &lower)?;
        root.present().map_err(draw_error)?;
    }
    Ok(document)
}

fn draw_error(error: impl Display) -> String {
    format!("drawing the chart failed: {error}")
}

fn draw_distances(report: &PufReport, area: &Area<'_>) -> DrawResult {
    let inter = match report.substitute_windows {
        Some(_) => "between windows of the chip",
        None => "between devices",
    };
    let mut chart = ChartBuilder::on(area)
        .caption("Hamming distance", ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(55)
        .build_cartesian_2d(0.0..1.0, 0.0..1.08)
        .map_err(draw_error)?;
    chart
        .configure_mesh()
        .x_desc("share of differing bits")
        .y_desc("count, relative to the peak")
        .label_style(("sans-serif", TEXT))
        .light_line_style(TRANSPARENT)
        .draw()
        .map_err(draw_error)?;
    let series = [
        (&report.intra_distances, "between readouts of one device", INTRA),
        (&report.inter_distances, inter, INTER),
    ];
    for (histogram, label, color) in series {
        let peak = histogram.counts.iter().max().copied().unwrap_or(0).max(1) as f64;
        let width = 1.0 / histogram.counts.len().max(1) as f64;
        let bars = histogram
            .counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(|(i, count)| {
                let x = i as f64 * width;
                Rectangle::new(
                    [(x, 0.0), (x + width, *count as f64 / peak)],
                    color.mix(0.75).filled(),
                )
            });
        chart
            .draw_series(bars)
            .map_err(draw_error)?
            .label(label)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], color.filled()));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .label_font(("sans-serif", TEXT))
        .background_style(WHITE.mix(0.85))
        .draw()
        .map_err(draw_error)
}

fn draw_flips(report: &PufReport, area: &Area<'_>) -> DrawResult {
    let lowest = report.flip_probability_cdf.first().copied().unwrap_or(0.0);
    let bottom = (lowest * 10.0).floor() / 10.0;
    let mut chart = ChartBuilder::on(area)
        .caption("Flip probability of the cells", ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(55)
        .build_cartesian_2d(0.0..0.5, bottom.min(0.9)..1.0)
        .map_err(draw_error)?;
    chart
        .configure_mesh()
        .x_desc("probability of the rarer value")
        .y_desc("share of cells with at most this probability")
        .label_style(("sans-serif", TEXT))
        .light_line_style(TRANSPARENT)
        .draw()
        .map_err(draw_error)?;
    // As steps: few readouts give few distinct probabilities.
    let points = report
        .flip_probability_cdf
        .iter()
        .enumerate()
        .flat_map(|(i, share)| {
            let x = i as f64 / 200.0;
            [(x, *share), (x + 1.0 / 200.0, *share)]
        });
    chart
        .draw_series(LineSeries::new(points, INTRA.stroke_width(2)))
        .map_err(draw_error)?;
    Ok(())
}

fn draw_map(report: &PufReport, area: &Area<'_>) -> DrawResult {
    let rows = report.ones_map.len().div_ceil(MAP_COLUMNS).max(1);
    let name = report.devices.first().map_or("", |device| device.name.as_str());
    let title = format!(
        "Share of ones over the memory of {name} (white 0.5, blue 0.35 or less, orange 0.65 or more)"
    );
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(55)
        .build_cartesian_2d(0..MAP_COLUMNS, (0..rows).into_segmented())
        .map_err(draw_error)?;
    chart
        .configure_mesh()
        .disable_mesh()
        .x_desc("address of the cell modulo 64")
        .y_desc("part of the memory")
        .label_style(("sans-serif", TEXT))
        .draw()
        .map_err(draw_error)?;
    let tiles = report.ones_map.iter().enumerate().map(|(i, share)| {
        let (x, y) = (i % MAP_COLUMNS, i / MAP_COLUMNS);
        let corners = [(x, SegmentValue::Exact(y)), (x + 1, SegmentValue::Exact(y + 1))];
        Rectangle::new(corners, tile_color(*share).filled())
    });
    chart.draw_series(tiles).map_err(draw_error)?;
    Ok(())
}

/// The color of a share of ones: from blue (0.35 or less) through white (0.5) to orange (0.65 or more).
fn tile_color(share: f64) -> RGBColor {
    let deviation = ((share - 0.5) / 0.15).clamp(-1.0, 1.0);
    let extreme_color = if deviation < 0.0 { INTRA } else { INTER };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between two color values"
    )]
    let blend = |component: u8| (255.0 + (f64::from(component) - 255.0) * deviation.abs()).round() as u8;
    RGBColor(
        blend(extreme_color.0),
        blend(extreme_color.1),
        blend(extreme_color.2),
    )
}
