//! Charts that correspond to figures 10, 11, 16 and 17 of the P4DRA paper (`docs/experiments.md`), as SVG files.

use std::path::{Path, PathBuf};

use plotters::prelude::*;

use super::link::time_row;
use super::paced::{PROGRAMS, WIRE_BYTES};
use crate::bench::figures::{COLORS, bars, error_text};
use crate::bench::{BenchError, Report};

/// Draws the charts for which the report has rows into `directory`, which must exist; returns the charts' paths.
///
/// # Errors
/// A file could not be written; the error names it.
pub fn draw(report: &Report, directory: &Path) -> Result<Vec<PathBuf>, BenchError> {
    let pictures: [(&str, Picture); 4] = [
        ("p4dra-fig10.svg", draw_rates),
        ("p4dra-fig11.svg", draw_resources),
        ("p4dra-fig16.svg", draw_host_times),
        ("p4dra-fig17.svg", draw_packet_path_times),
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

type Picture = fn(&Path, &Report) -> Result<Option<PathBuf>, String>;

/// The bit rate of the measured frames on a wire, Gbit/s.
fn gbit(packets_per_s: f64) -> f64 {
    packets_per_s * WIRE_BYTES as f64 * 8.0 / 1e9
}

/// Input and output rate of a program, Gbit/s, in the order of the runs.
fn rate_points(report: &Report, name: &str) -> Vec<(f64, f64)> {
    let prefix = format!("cipher.rate.{name}.");
    let input =
        |row: &crate::bench::Row| Some(row.name.strip_prefix(&prefix)?.strip_suffix(".in")?.to_owned());
    let runs = report
        .rows
        .iter()
        .filter_map(|row| Some((input(row)?, row.value)));
    runs.filter_map(|(rate, sent)| Some((gbit(sent), gbit(report.value(&format!("{prefix}{rate}.out"))?))))
        .collect()
}

fn label(name: &str) -> &str {
    if name == "none" { "no cipher" } else { name }
}

fn draw_rates(path: &Path, report: &Report) -> Result<Option<PathBuf>, String> {
    let lines = PROGRAMS.map(|(name, _)| (name, rate_points(report, name)));
    let points = || lines.iter().flat_map(|(_, line)| line.iter());
    let widest = points().map(|point| point.0).fold(0.0, f64::max) * 1.05;
    let highest = points().map(|point| point.1).fold(0.0, f64::max) * 1.15;
    if highest == 0.0 {
        return Ok(None);
    }
    let root = SVGBackend::new(path, (900, 520)).into_drawing_area();
    root.fill(&WHITE).map_err(error_text)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(
            "Output rate by input rate; 64 bytes of each packet encrypted; one core (P4DRA paper, Fig. 10)",
            ("sans-serif", 18),
        )
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(52)
        .build_cartesian_2d(0.0..widest, 0.0..highest)
        .map_err(error_text)?;
    chart
        .configure_mesh()
        .x_desc("input, Gbit/s (110-byte frames with preamble and gap)")
        .y_desc("output, Gbit/s")
        .draw()
        .map_err(error_text)?;
    let colors = [BLACK].into_iter().chain(COLORS);
    for ((name, line), color) in lines.iter().zip(colors) {
        chart
            .draw_series(LineSeries::new(line.iter().copied(), color.stroke_width(2)).point_size(3))
            .map_err(error_text)?
            .label(label(name))
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], color.stroke_width(3)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()
        .map_err(error_text)?;
    root.present().map_err(error_text)?;
    Ok(Some(path.to_owned()))
}

fn draw_resources(path: &Path, report: &Report) -> Result<Option<PathBuf>, String> {
    let kinds = [
        ("instructions", "insns"),
        ("machine code, B", "jited_bytes"),
        ("stack, B", "stack_bytes"),
        ("64-byte packet, ns", "64.packet_ns"),
        ("1408-byte packet, ns", "1408.packet_ns"),
    ];
    let programs = [
        ("Forró14", "forro14"),
        ("ChaCha20", "chacha20"),
        ("XForró14-Poly1305", "aead.xforro14poly1305"),
        ("ChaCha20-Poly1305", "aead.chacha20poly1305"),
    ];
    let group = |(title, figure): (&str, &str)| {
        let bar = |(label, name)| Some((label, report.value(&format!("cipher.{name}.{figure}"))?));
        let bars = programs.into_iter().map(bar).collect::<Option<Vec<_>>>()?;
        Some((title.to_owned(), bars))
    };
    let Some(groups) = kinds.into_iter().map(group).collect::<Option<Vec<_>>>() else {
        return Ok(None);
    };
    let remarks = [
        format!(
            "Maps of all programs: {:.0} B. The programs encrypt payloads of up to 1,472 B; Forró computes four blocks in parallel, ChaCha one.",
            report.value("cipher.map_bytes").unwrap_or(f64::NAN)
        ),
        "The paper gives a switch's resources: Forró14 uses 2.9 % of the Tofino's SRAM and 43.1 % of its header vectors."
            .to_owned(),
    ];
    bars(
        path,
        "Resources of each program (P4DRA paper, Table 1 and Fig. 11)",
        "count, B or ns (log)",
        &groups,
        &remarks,
    )
    .map(Some)
}

/// Number of provers, and the published mean times, ms, on x86 and on Tofino.
const PUBLISHED: [(u32, f64, f64); 8] = [
    (2_500, 1706.7, 11.67),
    (5_000, 3370.3, 22.58),
    (7_500, 5038.8, 33.77),
    (10_000, 6712.7, 44.60),
    (12_500, 8361.7, 54.41),
    (15_000, 10013.6, 64.74),
    (17_500, 11679.2, 77.19),
    (20_000, 13349.9, 88.33),
];

/// Times to attest a fleet, by the number of provers.
struct Times {
    label: &'static str,
    color: RGBColor,
    points: Vec<(f64, f64)>,
}

impl Times {
    fn measured(report: &Report, verifier: &str, label: &'static str, color: RGBColor) -> Self {
        let prefix = time_row(verifier, 0);
        let prefix = prefix.trim_end_matches('0');
        let point = |row: &crate::bench::Row| {
            let provers: u32 = row.name.strip_prefix(prefix)?.parse().ok()?;
            Some((f64::from(provers), row.value))
        };
        Self {
            label,
            color,
            points: report.rows.iter().filter_map(point).collect(),
        }
    }

    fn published(label: &'static str, color: RGBColor, ms: fn(&(u32, f64, f64)) -> f64) -> Self {
        let point = |published: &(u32, f64, f64)| (f64::from(published.0), ms(published));
        Self {
            label,
            color,
            points: PUBLISHED.iter().map(point).collect(),
        }
    }
}

fn draw_host_times(path: &Path, report: &Report) -> Result<Option<PathBuf>, String> {
    let [_, red, _, orange, blue, ..] = COLORS;
    let times = [
        Times::measured(
            report,
            "socket",
            "host: UDP socket, portable Forró, one core",
            red,
        ),
        Times::measured(
            report,
            "simd",
            "host: PROOFs in memory, vector instructions, one core",
            blue,
        ),
        Times::published(
            "paper: x86, one external program per proof",
            orange,
            |published| published.1,
        ),
    ];
    attestation_times(
        path,
        "Time to attest a fleet on a host (P4DRA paper, Fig. 16)",
        &times,
    )
}

fn draw_packet_path_times(path: &Path, report: &Report) -> Result<Option<PathBuf>, String> {
    let [blue, _, light, ..] = COLORS;
    let times = [
        Times::measured(report, "xdp", "xdp: in the kernel, one core", blue),
        Times::published("paper: Tofino", light, |published| published.2),
    ];
    attestation_times(
        path,
        "Time to attest a fleet in the packet path (P4DRA paper, Fig. 17)",
        &times,
    )
}

/// Draws the times by the number of provers; returns `None` if the report has no measured time.
fn attestation_times(path: &Path, title: &str, times: &[Times]) -> Result<Option<PathBuf>, String> {
    if times.first().is_none_or(|measured| measured.points.is_empty()) {
        return Ok(None);
    }
    let points = || times.iter().flat_map(|times| times.points.iter());
    let max_provers = points().map(|point| point.0).fold(1.0, f64::max) * 1.3;
    let max_ms = points().map(|point| point.1).fold(1.0, f64::max) * 30.0;
    let min_ms = points().map(|point| point.1).fold(max_ms, f64::min) / 2.0;
    let root = SVGBackend::new(path, (900, 520)).into_drawing_area();
    root.fill(&WHITE).map_err(error_text)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(70)
        .build_cartesian_2d((0.8..max_provers).log_scale(), (min_ms..max_ms).log_scale())
        .map_err(error_text)?;
    chart
        .configure_mesh()
        .x_desc("provers in a round (log)")
        .y_desc("ms (log)")
        .draw()
        .map_err(error_text)?;
    for Times { label, color, points } in times {
        let color = *color;
        let (provers, duration_ms) = points.last().copied().unwrap_or_default();
        chart
            .draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)).point_size(3))
            .map_err(error_text)?
            .label(format!("{label}: {duration_ms:.1} ms for {provers}"))
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], color.stroke_width(3)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()
        .map_err(error_text)?;
    root.present().map_err(error_text)?;
    Ok(Some(path.to_owned()))
}
