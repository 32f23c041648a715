//! The chart of authentication latency on each data plane.

use std::fmt::Display;

use plotters::prelude::*;

use super::report::LatencyPass;

/// Width and height in pixels.
const SIZE: (u32, u32) = (960, 560);
/// Colors that color-blind people can distinguish (Okabe and Ito).
const COLORS: [RGBColor; 2] = [RGBColor(0, 114, 178), RGBColor(213, 94, 0)];
const TEXT: i32 = 15;

/// The chart could not be drawn.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("chart could not be drawn: {0}")]
pub struct PictureError(String);

fn error(error: impl Display) -> PictureError {
    PictureError(error.to_string())
}

/// Draws the latency distribution of each pass: the share of authentications by latency, on a logarithmic axis in µs.
/// Returns an SVG document.
///
/// # Errors
/// No authentication was measured, or the drawing library fails.
pub fn latency_cdf(passes: &[LatencyPass]) -> Result<String, PictureError> {
    let times = || passes.iter().flat_map(|pass| &pass.cdf).map(|(time, _)| *time);
    let (fastest, slowest) = times().fold((f64::MAX, 0.0f64), |(low, high), time| {
        (low.min(time), high.max(time))
    });
    if fastest > slowest {
        return Err(error("no authentication was measured"));
    }
    let (left, right) = ((fastest * 0.8).max(0.1), slowest * 1.25);
    let mut document = String::new();
    {
        let root = SVGBackend::with_string(&mut document, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(error)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(
                "Complete authentication, one device at a time",
                ("sans-serif", 20),
            )
            .margin(14)
            .x_label_area_size(44)
            .y_label_area_size(60)
            .build_cartesian_2d((left..right).log_scale(), 0.0..1.0)
            .map_err(error)?;
        chart
            .configure_mesh()
            .x_desc("network and gateway time, µs (two round trips, without PUF)")
            .y_desc("share of authentications")
            .x_label_formatter(&|time| format!("{time:.0}"))
            .label_style(("sans-serif", TEXT))
            .light_line_style(TRANSPARENT)
            .draw()
            .map_err(error)?;
        for (pass, color) in passes.iter().zip(COLORS.iter().cycle()) {
            let line = ShapeStyle::from(color).stroke_width(2);
            chart
                .draw_series(LineSeries::new(steps(pass, left, right), line))
                .map_err(error)?
                .label(format!(
                    "{}: {} devices, p50 {:.0} µs, p99 {:.0} µs",
                    pass.dataplane, pass.devices, pass.latency_us.p50, pass.latency_us.p99
                ))
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], line));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .label_font(("sans-serif", TEXT))
            .draw()
            .map_err(error)?;
        root.present().map_err(error)?;
    }
    Ok(document)
}

/// The corners of the step function of a distribution.
fn steps(pass: &LatencyPass, left: f64, right: f64) -> Vec<(f64, f64)> {
    let mut corners = vec![(left, 0.0)];
    let mut share = 0.0;
    for (time, next_share) in &pass.cdf {
        corners.push((*time, share));
        corners.push((*time, *next_share));
        share = *next_share;
    }
    corners.push((right, share));
    corners
}

#[cfg(test)]
mod tests {
    use super::super::report::Quantiles;
    use super::*;

    fn pass(dataplane: &'static str, factor: f64) -> LatencyPass {
        LatencyPass {
            dataplane,
            devices: 100,
            latency_us: Quantiles {
                p50: 50.0 * factor,
                p99: 99.0 * factor,
            },
            cdf: (1..=100)
                .map(|n| (f64::from(n) * factor, f64::from(n) / 100.0))
                .collect(),
        }
    }

    #[test]
    fn the_chart_shows_both_curves_and_their_quantiles() {
        let svg = latency_cdf(&[pass("xdp", 1.0), pass("host", 2.5)]).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert!(svg.contains("xdp: 100 devices, p50 50 µs, p99 99 µs"), "{svg}");
        assert!(svg.contains("host: 100 devices, p50 125 µs"));
    }

    #[test]
    fn a_chart_without_measurements_is_an_error() {
        assert!(latency_cdf(&[]).is_err());
    }
}
