//! Charts as SVG files: Figure 10 of the P4DRA paper for the P4 ciphers, and the model that the paper leaves to future work.

use std::path::{Path, PathBuf};

use linewarden_chart::{Area, Axis, BLACK, Chart, ChartError, GREEN, LegendPosition, MAGENTA, Series};

use super::ciphers::WIRE_BYTES;
use super::{paced, ports};
use crate::bench::figures::{COLORS, Picture, draw_all};
use crate::bench::{BenchError, Report};

/// Draws the charts for the available rows into the existing `directory`; returns the charts' paths.
///
/// # Errors
/// A chart cannot be drawn or written.
pub fn draw(report: &Report, directory: &Path) -> Result<Vec<PathBuf>, BenchError> {
    let pictures: [Picture; 2] = [
        ("p4-fig10.svg", draw_rates),
        ("p4-recirculation.svg", draw_by_recirculations),
    ];
    draw_all(report, directory, &pictures)
}

/// A curve: name and points.
type Curve = (String, Vec<(f64, f64)>);

/// Rate on the wire, Mbit/s.
fn mbit(packets_per_s: f64) -> f64 {
    packets_per_s * WIRE_BYTES as f64 * 8.0 / 1e6
}

/// Input and output of a program, Mbit/s, in the order of the runs.
fn rate_points(report: &Report, name: &str) -> Vec<(f64, f64)> {
    let prefix = format!("p4.rate.{name}.");
    let inputs = report.rows.iter().filter_map(|row| {
        let rate = row.name.strip_prefix(&prefix)?.strip_suffix(".in")?;
        let output = report.value(&format!("{prefix}{rate}.out"))?;
        Some((mbit(row.value), mbit(output)))
    });
    inputs.collect()
}

fn maximum(lines: &[Curve], coordinate: impl Fn(&(f64, f64)) -> f64) -> f64 {
    let points = lines.iter().flat_map(|(_, line)| line);
    points.map(coordinate).fold(0.0, f64::max)
}

fn draw_rates(report: &Report) -> Result<Option<String>, ChartError> {
    let lines: Vec<Curve> = paced::variants()
        .map(|variant| (variant.name(), rate_points(report, &variant.name())))
        .collect();
    let (widest, highest) = (maximum(&lines, |point| point.0), maximum(&lines, |point| point.1));
    if highest == 0.0 {
        return Ok(None);
    }
    let chart = Chart {
        title: "Output by input rate, 64 bytes of each packet decrypted in P4, one core (P4DRA paper, Fig. 10)",
        x: Axis::linear(
            0.0..widest * 1.05,
            "input, Mbit/s of 98-byte frames with preamble and gap",
        ),
        y: Axis::linear(0.0..highest * 1.6, "output, Mbit/s"),
        legend: LegendPosition::UpperRight,
    };
    let colors = COLORS.into_iter().chain([BLACK, GREEN, MAGENTA]);
    let lines = lines
        .into_iter()
        .zip(colors)
        .map(|((name, line), color)| Series::line(name, color, line).with_markers());
    chart.svg((900, 520), lines).map(Some)
}

/// The measured points of a program with this number of ports: recirculations and packets/s.
fn measured_points(report: &Report, program: &str, ports: u32) -> Vec<(f64, f64)> {
    let (prefix, suffix) = (format!("ports.{program}."), format!("x{ports}.measured"));
    let points = report.rows.iter().filter_map(|row| {
        let recirculations = row.name.strip_prefix(&prefix)?.strip_suffix(&suffix)?;
        Some((recirculations.parse().ok()?, row.value))
    });
    points.collect()
}

fn draw_by_recirculations(report: &Report) -> Result<Option<String>, ChartError> {
    let programs: Vec<_> = ports::programs()
        .filter_map(|(cipher, pass_work)| {
            let program = format!("{cipher}.{}", pass_work.name());
            let cost = ports::Cost {
                fixed_ns: report.value(&format!("ports.{program}.once_ns"))?,
                recirculation_ns: report.value(&format!("ports.{program}.again_ns"))?,
            };
            Some((program, cost))
        })
        .collect();
    if programs.is_empty() {
        return Ok(None);
    }
    linewarden_chart::svg((900, 960), |area| {
        let (upper, lower) = area.split_vertically(500);
        draw_software_chart(&upper, report, &programs)?;
        draw_chip_chart(&lower)
    })
    .map(Some)
}

/// Draws the rates of the software switch: measured points on computed lines.
fn draw_software_chart(
    area: &Area<'_>,
    report: &Report,
    programs: &[(String, ports::Cost)],
) -> Result<(), ChartError> {
    const RECIRCULATIONS: std::ops::RangeInclusive<u32> = 1..=44;
    let rates = programs
        .iter()
        .flat_map(|(_, cost)| [cost.rate(1.0, 4.0), cost.rate(44.0, 1.0)]);
    let highest = rates.clone().fold(0.0, f64::max) * 6.0;
    let lowest = rates.fold(highest, f64::min) / 1.5;
    let chart = Chart {
        title: "Software switch: rate by recirculations per packet (R) and recirculation ports (P, one worker each)",
        x: Axis::linear(0.0..45.0, "recirculations per packet"),
        y: Axis::log(lowest..highest, "packets/s (log)"),
        legend: LegendPosition::UpperRight,
    };
    let mut series = Vec::new();
    for ((program, cost), color) in programs.iter().zip(COLORS) {
        for ports in [1, 2, 4] {
            let computed = RECIRCULATIONS
                .map(f64::from)
                .map(|recirculations| (recirculations, cost.rate(recirculations, f64::from(ports))));
            let label = match ports {
                1 => format!(
                    "{program}: lines P / ({:.0} ns + R × {:.0} ns) for P = 1, 2, 4; points measured",
                    cost.fixed_ns, cost.recirculation_ns
                ),
                _ => String::new(),
            };
            let line = Series::line(label, color, computed);
            series.push(if ports == 4 { line.thin() } else { line });
            series.push(Series::points(color, measured_points(report, program, ports)));
        }
    }
    chart.draw(area, series)
}

/// Draws the computed rates of a switching chip.
fn draw_chip_chart(area: &Area<'_>) -> Result<(), ChartError> {
    let chart = Chart {
        title: "A switching chip with one queue for new and recirculated packets, computed",
        x: Axis::linear(
            0.0..0.4,
            "input rate, relative to the capacity of one recirculation port",
        ),
        y: Axis::linear(0.0..0.25, "output rate, relative to the same capacity"),
        legend: LegendPosition::UpperRight,
    };
    let lines = [12, 28, 40]
        .into_iter()
        .flat_map(|recirculations| [(recirculations, 2), (recirculations, 4)]);
    let lines = lines.zip(COLORS).map(|((recirculations, ports), color)| {
        let points = (0..=200)
            .map(|step| f64::from(step) * 0.002)
            .map(|input| (input, ports::chip_output(input, recirculations, f64::from(ports))));
        let label = format!("{recirculations} recirculations, {ports} ports");
        Series::line(label, color, points)
    });
    chart.draw(area, lines)
}
