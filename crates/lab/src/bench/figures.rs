//! Figures 9 to 11 of the IoT paper and Figure 9 of the UAV paper, with the published and the measured values, as SVG files.

use std::path::{Path, PathBuf};

use plotters::prelude::*;

use super::latency::Series;
use super::{BenchError, Report};

/// A published value, drawn as a dashed line with its label: values of a paper's switch are blue like xdp, values of
/// a paper's host are red like host.
struct Published {
    text: &'static str,
    value: f64,
    color: RGBColor,
}

pub(super) const COLORS: [RGBColor; 6] = [
    RGBColor(0, 90, 181),
    RGBColor(220, 50, 32),
    RGBColor(64, 150, 220),
    RGBColor(240, 140, 100),
    RGBColor(0, 60, 110),
    RGBColor(150, 30, 20),
];

/// Draws all charts into the existing `directory`; returns the charts' paths.
///
/// # Errors
/// A chart cannot be drawn or written.
pub fn draw(report: &Report, directory: &Path) -> Result<Vec<PathBuf>, BenchError> {
    let series_of = |picture: &str| -> Vec<&Series> {
        report
            .latencies
            .iter()
            .filter(|series| series.picture == picture)
            .collect()
    };
    let mut drawn = Vec::new();
    let mut add = |name: &str, result: Result<PathBuf, String>| -> Result<(), BenchError> {
        drawn.push(result.map_err(|reason| BenchError::Picture {
            picture: name.into(),
            reason,
        })?);
        Ok(())
    };
    let iot = [
        Published {
            text: "paper, switch, 64 bit: p99 0.25 ms",
            value: 250.0,
            color: COLORS[2],
        },
        Published {
            text: "paper, switch, 256 bit: p99 0.40 ms",
            value: 400.0,
            color: COLORS[4],
        },
        Published {
            text: "paper, host, 64 bit: p99 0.55 ms",
            value: 550.0,
            color: COLORS[3],
        },
        Published {
            text: "paper, host, 256 bit: p99 1 ms",
            value: 1000.0,
            color: COLORS[5],
        },
    ];
    let uav = [
        Published {
            text: "paper, switch: p99 214 us",
            value: 214.0,
            color: COLORS[2],
        },
        Published {
            text: "paper, host: p99 432 us",
            value: 432.0,
            color: COLORS[3],
        },
    ];
    let file = |name: &str| directory.join(name);
    add(
        "iot-fig9a.svg",
        draw_cdf(
            &file("iot-fig9a.svg"),
            "Latency of a complete authentication (IoT paper, Fig. 9a)",
            &series_of("iot-fig9a"),
            &iot,
        ),
    )?;
    add(
        "uav-fig9.svg",
        draw_cdf(
            &file("uav-fig9.svg"),
            "100 sequential authentications, 5 CRPs, 2 challenges (UAV paper, Fig. 9)",
            &series_of("uav-fig9"),
            &uav,
        ),
    )?;
    add(
        "iot-fig9bc-10.svg",
        draw_costs(&file("iot-fig9bc-10.svg"), report),
    )?;
    add("iot-fig11.svg", draw_rates(&file("iot-fig11.svg"), report))?;
    Ok(drawn)
}

pub(super) fn error_text<E: std::fmt::Display>(error: E) -> String {
    error.to_string()
}

/// A number without decimals, in groups of three digits.
pub(super) fn round_to_integer(number: f64) -> String {
    let digits = format!("{number:.0}");
    let groups: Vec<_> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(String::from_utf8_lossy)
        .collect();
    groups.join(",")
}

fn draw_cdf(
    path: &Path,
    title: &str,
    series: &[&Series],
    published: &[Published],
) -> Result<PathBuf, String> {
    let p9995_us = |series: &Series| series.latency_ns.value_at_quantile(0.9995) as f64 / 1000.0;
    let x_max = series
        .iter()
        .map(|series| p9995_us(series))
        .chain(published.iter().map(|published| published.value))
        .fold(10.0, f64::max)
        * 1.3;
    let x_min = series
        .iter()
        .map(|series| series.latency_ns.min() as f64 / 1000.0)
        .fold(x_max, f64::min)
        .max(0.5)
        * 0.8;
    let root = SVGBackend::new(path, (900, 520)).into_drawing_area();
    root.fill(&WHITE).map_err(error_text)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(52)
        .build_cartesian_2d((x_min..x_max).log_scale(), 0.0..1.0)
        .map_err(error_text)?;
    chart
        .configure_mesh()
        .x_desc("latency, us (log)")
        .y_desc("share of authentications")
        .draw()
        .map_err(error_text)?;
    for (series, color) in series.iter().zip(COLORS.iter().cycle()) {
        let total = series.latency_ns.len().max(1) as f64;
        let mut count = 0;
        let points: Vec<(f64, f64)> = series
            .latency_ns
            .iter_recorded()
            .map(|step| {
                count += step.count_at_value();
                (step.value_iterated_to() as f64 / 1000.0, count as f64 / total)
            })
            .collect();
        let p99 = series.latency_ns.value_at_quantile(0.99) as f64 / 1000.0;
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)))
            .map_err(error_text)?
            .label(format!("{}: p99 {p99:.1} us", series.name))
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], color.stroke_width(3)));
    }
    for published in published {
        let color = published.color;
        chart
            .draw_series(DashedLineSeries::new(
                [(published.value, 0.0), (published.value, 1.0)],
                4,
                4,
                published.color.stroke_width(1),
            ))
            .map_err(error_text)?
            .label(published.text)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], color.stroke_width(1)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()
        .map_err(error_text)?;
    root.present().map_err(error_text)?;
    Ok(path.to_owned())
}

/// Draws groups of bars over a logarithmic axis.
pub(super) fn bars(
    path: &Path,
    title: &str,
    unit: &str,
    groups: &[(String, Vec<(&str, f64)>)],
    remarks: &[String],
) -> Result<PathBuf, String> {
    let values = groups
        .iter()
        .flat_map(|(_, bars)| bars.iter().map(|(_, value)| *value));
    // Space above the bars for the legend.
    let y_max = values.clone().fold(1.0, f64::max) * 12.0;
    let y_min = values.fold(y_max, f64::min) / 3.0;
    let root = SVGBackend::new(path, (900, 480 + 20 * remarks.len() as u32)).into_drawing_area();
    root.fill(&WHITE).map_err(error_text)?;
    let (upper, lower) = root.split_vertically(470);
    let group_count = groups.len() as f64;
    let mut chart = ChartBuilder::on(&upper)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(30)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..group_count, (y_min..y_max).log_scale())
        .map_err(error_text)?;
    let name = |x: &f64| {
        groups
            .get(*x as usize)
            .map_or(String::new(), |(name, _)| name.clone())
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(groups.len() * 2 + 1)
        .x_label_formatter(&|x| {
            if (x.fract() - 0.5).abs() < 0.01 {
                name(x)
            } else {
                String::new()
            }
        })
        .y_desc(unit)
        .draw()
        .map_err(error_text)?;
    for (position, (_, bars)) in groups.iter().enumerate() {
        let width = 0.7 / bars.len().max(1) as f64;
        for (number, ((label, value), color)) in bars.iter().zip(COLORS.iter().cycle()).enumerate() {
            let left = position as f64 + 0.15 + number as f64 * width;
            let bar = Rectangle::new([(left, y_min), (left + width * 0.92, *value)], color.filled());
            let drawn = chart.draw_series([bar]).map_err(error_text)?;
            if position == 0 {
                drawn
                    .label(*label)
                    .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], color.filled()));
            }
            let value_text = if *value >= 1e6 {
                format!("{:.2} M", value / 1e6)
            } else if *value >= 1e4 {
                format!("{:.0} k", value / 1e3)
            } else {
                format!("{value:.0}")
            };
            chart
                .draw_series([Text::new(value_text, (left, *value * 1.25), ("sans-serif", 13))])
                .map_err(error_text)?;
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()
        .map_err(error_text)?;
    for (line, remark) in remarks.iter().enumerate() {
        lower
            .draw(&Text::new(
                remark.clone(),
                (70, 2 + 20 * line as i32),
                ("sans-serif", 14),
            ))
            .map_err(error_text)?;
    }
    root.present().map_err(error_text)?;
    Ok(path.to_owned())
}

fn draw_costs(path: &Path, report: &Report) -> Result<PathBuf, String> {
    let value = |name: String| report.value(&name).unwrap_or(f64::NAN);
    let sizes = [64, 128, 256];
    let groups: Vec<(String, Vec<(&str, f64)>)> = sizes
        .iter()
        .map(|size| {
            let bars = vec![
                (
                    "xdp, eBPF program only (REQ + RESP)",
                    value(format!("xdp.classic_iot_ns.{size}")),
                ),
                (
                    "xdp, including the veth",
                    value(format!("xdp.classic_cpu_ns.{size}")),
                ),
                (
                    "host, all verifier CPU time",
                    value(format!("host.classic_cpu_ns.{size}")),
                ),
            ];
            (format!("{size} bit"), bars)
        })
        .collect();
    let gains: Vec<String> = sizes
        .iter()
        .map(|size| {
            format!(
                "{:.1} at {size}",
                value(format!("xdp_over_host.classic_rate.{size}"))
            )
        })
        .collect();
    let remarks = [
        format!(
            "CPU time of host divided by xdp: {} bit. Mean latency gains in the paper (Fig. 10): 100 % to 472 %.",
            gains.join(", ")
        ),
        "Paper, from 64 to 256 bit: +1 % per packet on the switch, +150 % on the host (Fig. 9b, 9c).".into(),
    ];
    bars(
        path,
        "Cost of an authentication by response size (IoT paper, Fig. 9b, 9c and 10)",
        "ns of CPU (log)",
        &groups,
        &remarks,
    )
}

fn draw_rates(path: &Path, report: &Report) -> Result<PathBuf, String> {
    let value = |name: &str| report.value(name).unwrap_or(f64::NAN);
    let mut groups = vec![(
        "LAP/1".to_owned(),
        vec![("xdp", value("xdp.auth_rate")), ("host", value("host.auth_rate"))],
    )];
    for size in [64, 128, 256] {
        let per_second = |data_plane: &str| 1e9 / value(&format!("{data_plane}.classic_cpu_ns.{size}"));
        groups.push((
            format!("classic {size} bit"),
            vec![("xdp", per_second("xdp")), ("host", per_second("host"))],
        ));
    }
    let remarks = [format!(
        "LAP/1: rate of xdp divided by host {:.1}. Paper, switch divided by host: 1.53 to 1.81. Classic runs use bursts of 64 without saturation.",
        value("xdp_over_host.auth_rate")
    )];
    bars(
        path,
        "Complete authentications per second of verifier CPU time (IoT paper, Fig. 11)",
        "1/s (log)",
        &groups,
        &remarks,
    )
}
