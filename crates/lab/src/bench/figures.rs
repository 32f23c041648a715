//! Figures 9 to 11 of the IoT paper and Figure 9 of the UAV paper, with the published and the measured values, as SVG files.

use std::path::{Path, PathBuf};

use linewarden_chart::{Axis, Chart, ChartError, LegendPosition, RGBColor, Series, TextPosition, number};

use super::{BenchError, Report, latency};

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

/// File name of a chart, and the function that draws the chart if the report has its rows.
pub(super) type Picture = (&'static str, fn(&Report) -> Result<Option<String>, ChartError>);

/// Draws the charts for the available rows into the existing `directory`; returns the charts' paths.
pub(super) fn draw_all(
    report: &Report,
    directory: &Path,
    pictures: &[Picture],
) -> Result<Vec<PathBuf>, BenchError> {
    let mut drawn = Vec::new();
    for (name, picture) in pictures {
        let failed = |reason: String| BenchError::Picture {
            picture: (*name).to_owned(),
            reason,
        };
        if let Some(svg) = picture(report).map_err(|error| failed(error.to_string()))? {
            let path = directory.join(name);
            std::fs::write(&path, svg).map_err(|error| failed(error.to_string()))?;
            drawn.push(path);
        }
    }
    Ok(drawn)
}

/// Draws all charts into the existing `directory`; returns the charts' paths.
///
/// # Errors
/// A chart cannot be drawn or written.
pub fn draw(report: &Report, directory: &Path) -> Result<Vec<PathBuf>, BenchError> {
    let pictures: [Picture; 4] = [
        ("iot-fig9a.svg", draw_iot_latencies),
        ("uav-fig9.svg", draw_uav_latencies),
        ("iot-fig9bc-10.svg", draw_costs),
        ("iot-fig11.svg", draw_rates),
    ];
    draw_all(report, directory, &pictures)
}

fn draw_iot_latencies(report: &Report) -> Result<Option<String>, ChartError> {
    let published = [
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
    let title = "Latency of a complete authentication (IoT paper, Fig. 9a)";
    draw_cdf(title, report, "iot-fig9a", &published)
}

fn draw_uav_latencies(report: &Report) -> Result<Option<String>, ChartError> {
    let published = [
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
    let title = "100 sequential authentications, 5 CRPs, 2 challenges (UAV paper, Fig. 9)";
    draw_cdf(title, report, "uav-fig9", &published)
}

/// Draws the latency distributions of the series of a picture.
fn draw_cdf(
    title: &str,
    report: &Report,
    picture: &str,
    published: &[Published],
) -> Result<Option<String>, ChartError> {
    let measured = || report.latencies.iter().filter(|series| series.picture == picture);
    let p9995_us = |series: &latency::Series| series.latency_ns.value_at_quantile(0.9995) as f64 / 1000.0;
    let x_max = measured()
        .map(p9995_us)
        .chain(published.iter().map(|published| published.value))
        .fold(10.0, f64::max)
        * 1.3;
    let x_min = measured()
        .map(|series| series.latency_ns.min() as f64 / 1000.0)
        .fold(x_max, f64::min)
        .max(0.5)
        * 0.8;
    let chart = Chart {
        title,
        x: Axis::log(x_min..x_max, "latency, us (log)"),
        y: Axis::linear(0.0..1.0, "share of authentications"),
        legend: LegendPosition::LowerRight,
    };
    let measured = measured().zip(COLORS.iter().cycle()).map(|(series, color)| {
        let total = series.latency_ns.len().max(1) as f64;
        let mut count = 0;
        let points = series.latency_ns.iter_recorded().map(|step| {
            count += step.count_at_value();
            (step.value_iterated_to() as f64 / 1000.0, count as f64 / total)
        });
        let p99 = series.latency_ns.value_at_quantile(0.99) as f64 / 1000.0;
        Series::line(format!("{}: p99 {p99:.1} us", series.name), *color, points)
    });
    let published = published.iter().map(|published| {
        let line = [(published.value, 0.0), (published.value, 1.0)];
        Series::dashed(published.text, published.color, line)
    });
    chart.svg((900, 520), measured.chain(published)).map(Some)
}

/// Groups of bars: the name of each group, and the label and the value of each of its bars.
pub(super) type BarGroups<'a> = Vec<(String, Vec<(&'a str, f64)>)>;

/// The names of groups as an axis.
pub(super) fn group_axis(groups: &BarGroups<'_>) -> Axis<'static> {
    Axis::named(groups.iter().map(|(name, _)| name.clone()))
}

/// Bars from `base` to their values, and the values above the bars. The legend names the bars of the first group.
pub(super) fn grouped_bars(groups: &BarGroups<'_>, base: f64, text: fn(f64) -> String) -> Vec<Series> {
    let bars = groups.iter().enumerate().flat_map(|(position, (_, bars))| {
        let width = 0.7 / bars.len().max(1) as f64;
        let with_color = bars.iter().zip(COLORS.iter().cycle()).enumerate();
        with_color.flat_map(move |(index, ((label, value), color))| {
            let left = position as f64 + 0.15 + index as f64 * width;
            let right = left + width * 0.92;
            let label = if position == 0 { *label } else { "" };
            let middle = ((left + right) / 2.0, *value);
            [
                Series::boxes(label, *color, [[(left, base), (right, *value)]]),
                Series::texts(TextPosition::Above, [(middle, text(*value))]),
            ]
        })
    });
    bars.collect()
}

/// Draws groups of bars over a logarithmic axis.
pub(super) fn bars(
    title: &str,
    unit: &str,
    groups: &BarGroups<'_>,
    remarks: &[String],
) -> Result<Option<String>, ChartError> {
    let values = groups
        .iter()
        .flat_map(|(_, bars)| bars.iter().map(|(_, value)| *value));
    // Space above the bars for the legend.
    let y_max = values.clone().fold(1.0, f64::max) * 12.0;
    let y_min = values.fold(y_max, f64::min) / 3.0;
    let chart = Chart {
        title,
        x: group_axis(groups),
        y: Axis::log(y_min..y_max, unit),
        legend: LegendPosition::UpperRight,
    };
    let text = |value: f64| {
        if value >= 1e6 {
            format!("{:.2} M", value / 1e6)
        } else if value >= 1e4 {
            format!("{:.0} k", value / 1e3)
        } else {
            number(value.round())
        }
    };
    let remarks_px = linewarden_chart::REMARK_PX * remarks.len() as u32;
    linewarden_chart::svg((900, 480 + remarks_px), |area| {
        let (upper, lower) = area.split_vertically(470);
        chart.draw(&upper, grouped_bars(groups, y_min, text))?;
        linewarden_chart::draw_remarks(&lower, remarks)
    })
    .map(Some)
}

fn draw_costs(report: &Report) -> Result<Option<String>, ChartError> {
    let value = |name: String| report.value(&name).unwrap_or(f64::NAN);
    let sizes = [64, 128, 256];
    let groups: BarGroups<'_> = sizes
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
        "Cost of an authentication by response size (IoT paper, Fig. 9b, 9c and 10)",
        "ns of CPU (log)",
        &groups,
        &remarks,
    )
}

fn draw_rates(report: &Report) -> Result<Option<String>, ChartError> {
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
        "Complete authentications per second of verifier CPU time (IoT paper, Fig. 11)",
        "1/s (log)",
        &groups,
        &remarks,
    )
}
