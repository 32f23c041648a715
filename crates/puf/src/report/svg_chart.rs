//! The charts of a report: distances, flip probabilities, and the share of ones over the memory.

use linewarden_chart::{
    Area, Axis, BLUE, Chart, ChartError, Color as _, LegendPosition, RGBColor, Series, VERMILION,
};

use super::{MAP_COLUMNS, PufReport};

pub(super) fn svg(report: &PufReport) -> Result<String, ChartError> {
    linewarden_chart::svg((1200, 860), |area| {
        let (upper, lower) = area.split_vertically(430);
        let (left, right) = upper.split_horizontally(600);
        draw_distances(report, &left)?;
        draw_flips(report, &right)?;
        draw_map(report, &lower)
    })
}

fn draw_distances(report: &PufReport, area: &Area<'_>) -> Result<(), ChartError> {
    let inter = match report.substitute_windows {
        Some(_) => "between windows of the chip",
        None => "between devices",
    };
    let chart = Chart {
        title: "Hamming distance",
        x: Axis::linear(0.0..1.0, "share of differing bits"),
        y: Axis::linear(0.0..1.08, "count, relative to the peak"),
        legend: LegendPosition::UpperRight,
    };
    let series = [
        (&report.intra_distances, "between readouts of one device", BLUE),
        (&report.inter_distances, inter, VERMILION),
    ];
    let series = series.map(|(histogram, label, color)| {
        let peak = histogram.counts.iter().max().copied().unwrap_or(0).max(1) as f64;
        let width = 1.0 / histogram.counts.len().max(1) as f64;
        let bars = histogram
            .counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(|(i, count)| {
                let x = i as f64 * width;
                [(x, 0.0), (x + width, *count as f64 / peak)]
            });
        Series::boxes(label, color.mix(0.75), bars)
    });
    chart.draw(area, series)
}

fn draw_flips(report: &PufReport, area: &Area<'_>) -> Result<(), ChartError> {
    let lowest = report.flip_probability_cdf.first().copied().unwrap_or(0.0);
    let bottom = (lowest * 10.0).floor() / 10.0;
    let chart = Chart {
        title: "Flip probability of the cells",
        x: Axis::linear(0.0..0.5, "probability of the rarer value"),
        y: Axis::linear(
            bottom.min(0.9)..1.0,
            "share of cells with at most this probability",
        ),
        legend: LegendPosition::LowerRight,
    };
    // As steps: few readouts give few distinct probabilities.
    let points = report
        .flip_probability_cdf
        .iter()
        .enumerate()
        .flat_map(|(i, share)| {
            let x = i as f64 / 200.0;
            [(x, *share), (x + 1.0 / 200.0, *share)]
        });
    chart.draw(area, [Series::line("", BLUE, points)])
}

fn draw_map(report: &PufReport, area: &Area<'_>) -> Result<(), ChartError> {
    let rows = report.ones_map.len().div_ceil(MAP_COLUMNS).max(1);
    let name = report.devices.first().map_or("", |device| device.name.as_str());
    let title = format!(
        "Share of ones over the memory of {name} (white 0.5, blue 0.35 or less, orange 0.65 or more)"
    );
    let chart = Chart {
        title: &title,
        x: Axis::linear(0.0..MAP_COLUMNS as f64, "address of the cell modulo 64"),
        y: Axis::linear(0.0..rows as f64, "part of the memory"),
        legend: LegendPosition::UpperRight,
    };
    let tiles = report.ones_map.iter().enumerate().map(|(i, share)| {
        let (x, y) = ((i % MAP_COLUMNS) as f64, (i / MAP_COLUMNS) as f64);
        Series::boxes("", tile_color(*share), [[(x, y), (x + 1.0, y + 1.0)]])
    });
    chart.draw(area, tiles)
}

/// The color of a share of ones: from blue (0.35 or less) through white (0.5) to orange (0.65 or more).
fn tile_color(share: f64) -> RGBColor {
    let deviation = ((share - 0.5) / 0.15).clamp(-1.0, 1.0);
    let extreme_color = if deviation < 0.0 { BLUE } else { VERMILION };
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
