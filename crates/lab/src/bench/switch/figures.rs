//! Charts as SVG files: Figure 10 of the P4DRA paper for the P4 ciphers, and the model that the paper leaves to future work.

use std::path::{Path, PathBuf};

use plotters::prelude::*;

use super::ciphers::WIRE_BYTES;
use super::{paced, ports};
use crate::bench::figures::{COLORS, error_text};
use crate::bench::{BenchError, Report};

/// Draws the charts for the available rows into the existing `directory`; returns the charts' paths.
///
/// # Errors
/// A chart cannot be drawn or written.
pub fn draw(report: &Report, directory: &Path) -> Result<Vec<PathBuf>, BenchError> {
    type Picture = fn(&Path, &Report) -> Result<Option<PathBuf>, String>;
    let pictures: [(&str, Picture); 2] = [
        ("p4-fig10.svg", draw_rates),
        ("p4-recirculation.svg", draw_by_recirculations),
    ];
    let mut drawn = Vec::new();
    for (name, picture) in pictures {
        let failed = |reason| BenchError::Picture {
            picture: name.to_owned(),
            reason,
        };
        drawn.extend(picture(&directory.join(name), report).map_err(failed)?);
    }
    Ok(drawn)
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

fn draw_rates(path: &Path, report: &Report) -> Result<Option<PathBuf>, String> {
    let lines: Vec<Curve> = paced::variants()
        .map(|variant| (variant.name(), rate_points(report, &variant.name())))
        .collect();
    let (widest, highest) = (maximum(&lines, |point| point.0), maximum(&lines, |point| point.1));
    if highest == 0.0 {
        return Ok(None);
    }
    let root = SVGBackend::new(path, (900, 520)).into_drawing_area();
    root.fill(&WHITE).map_err(error_text)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(
            "Output by input rate, 64 bytes of each packet decrypted in P4, one core (P4DRA paper, Fig. 10)",
            ("sans-serif", 18),
        )
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(52)
        .build_cartesian_2d(0.0..widest * 1.05, 0.0..highest * 1.6)
        .map_err(error_text)?;
    chart
        .configure_mesh()
        .x_desc("input, Mbit/s of 98-byte frames with preamble and gap")
        .y_desc("output, Mbit/s")
        .draw()
        .map_err(error_text)?;
    let colors = COLORS.into_iter().chain([BLACK, GREEN, MAGENTA]);
    for ((name, line), color) in lines.into_iter().zip(colors) {
        chart
            .draw_series(LineSeries::new(line, color.stroke_width(2)).point_size(3))
            .map_err(error_text)?
            .label(name)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], color.stroke_width(3)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()
        .map_err(error_text)?;
    root.present().map_err(error_text)?;
    Ok(Some(path.to_owned()))
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

fn draw_by_recirculations(path: &Path, report: &Report) -> Result<Option<PathBuf>, String> {
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
    let root = SVGBackend::new(path, (900, 960)).into_drawing_area();
    root.fill(&WHITE).map_err(error_text)?;
    let (upper, lower) = root.split_vertically(500);
    draw_software_chart(&upper, report, &programs)?;
    draw_chip_chart(&lower)?;
    root.present().map_err(error_text)?;
    Ok(Some(path.to_owned()))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// Draws the rates of the software switch: measured points on computed lines.
fn draw_software_chart(
    area: &Area<'_>,
    report: &Report,
    programs: &[(String, ports::Cost)],
) -> Result<(), String> {
    const RECIRCULATIONS: std::ops::RangeInclusive<u32> = 1..=44;
    let rates = programs
        .iter()
        .flat_map(|(_, cost)| [cost.rate(1.0, 4.0), cost.rate(44.0, 1.0)]);
    let highest = rates.clone().fold(0.0, f64::max) * 6.0;
    let lowest = rates.fold(highest, f64::min) / 1.5;
    let mut chart = ChartBuilder::on(area)
        .caption(
            "Software switch: rate by recirculations per packet (R) and recirculation ports (P, one worker each)",
            ("sans-serif", 18),
        )
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..45.0, (lowest..highest).log_scale())
        .map_err(error_text)?;
    chart
        .configure_mesh()
        .x_desc("recirculations per packet")
        .y_desc("packets/s (log)")
        .draw()
        .map_err(error_text)?;
    for ((program, cost), color) in programs.iter().zip(COLORS) {
        for ports in [1, 2, 4] {
            let computed = RECIRCULATIONS
                .map(f64::from)
                .map(|recirculations| (recirculations, cost.rate(recirculations, f64::from(ports))));
            let width = if ports == 4 { 1 } else { 2 };
            let drawn = chart
                .draw_series(LineSeries::new(computed, color.stroke_width(width)))
                .map_err(error_text)?;
            if ports == 1 {
                drawn
                    .label(format!(
                        "{program}: lines P / ({:.0} ns + R × {:.0} ns) for P = 1, 2, 4; points measured",
                        cost.fixed_ns, cost.recirculation_ns
                    ))
                    .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], color.stroke_width(3)));
            }
            let points = measured_points(report, program, ports);
            chart
                .draw_series(
                    points
                        .into_iter()
                        .map(|point| Circle::new(point, 4, color.filled())),
                )
                .map_err(error_text)?;
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()
        .map_err(error_text)
}

/// Draws the computed rates of a switching chip.
fn draw_chip_chart(area: &Area<'_>) -> Result<(), String> {
    let mut chart = ChartBuilder::on(area)
        .caption(
            "A switching chip with one queue for new and recirculated packets, computed",
            ("sans-serif", 18),
        )
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..0.4, 0.0..0.25)
        .map_err(error_text)?;
    chart
        .configure_mesh()
        .x_desc("input rate, relative to the capacity of one recirculation port")
        .y_desc("output rate, relative to the same capacity")
        .draw()
        .map_err(error_text)?;
    let lines = [12, 28, 40]
        .into_iter()
        .flat_map(|recirculations| [(recirculations, 2), (recirculations, 4)]);
    for ((recirculations, ports), color) in lines.zip(COLORS) {
        let points = (0..=200)
            .map(|step| f64::from(step) * 0.002)
            .map(|input| (input, ports::chip_output(input, recirculations, f64::from(ports))));
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)))
            .map_err(error_text)?
            .label(format!("{recirculations} recirculations, {ports} ports"))
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], color.stroke_width(3)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()
        .map_err(error_text)
}
