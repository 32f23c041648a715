//! The chart of authentication latency on each data plane.

use linewarden_chart::{Axis, BLUE, Chart, ChartError, LegendPosition, Series, VERMILION};

use super::report::LatencyPass;

/// Draws the latency distribution of each pass: the share of authentications by latency, on a logarithmic axis in µs.
/// Returns an SVG document.
///
/// # Errors
/// No authentication was measured, or the drawing library fails.
pub fn latency_cdf(passes: &[LatencyPass]) -> Result<String, ChartError> {
    let times = || passes.iter().flat_map(|pass| &pass.cdf).map(|(time, _)| *time);
    let (fastest, slowest) = times().fold((f64::MAX, 0.0f64), |(low, high), time| {
        (low.min(time), high.max(time))
    });
    if fastest > slowest {
        return Err(ChartError::new("no authentication was measured"));
    }
    let (left, right) = ((fastest * 0.8).max(0.1), slowest * 1.25);
    let chart = Chart {
        title: "Complete authentication, one device at a time",
        x: Axis::log(
            left..right,
            "network and gateway time, µs (two round trips, without PUF)",
        ),
        y: Axis::linear(0.0..1.0, "share of authentications"),
        legend: LegendPosition::LowerRight,
    };
    let colors = [BLUE, VERMILION].into_iter().cycle();
    let lines = passes.iter().zip(colors).map(|(pass, color)| {
        let label = format!(
            "{}: {} devices, p50 {:.0} µs, p99 {:.0} µs",
            pass.dataplane, pass.devices, pass.latency_us.p50, pass.latency_us.p99
        );
        Series::line(label, color, steps(pass, left, right))
    });
    chart.svg((960, 560), lines)
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
