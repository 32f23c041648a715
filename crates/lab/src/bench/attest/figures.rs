//! Charts that correspond to figures 10, 11, 16 and 17 of the P4DRA paper (`docs/experiments.md`), as SVG files.

use std::path::{Path, PathBuf};

use linewarden_chart::{Axis, BLACK, Chart, ChartError, LegendPosition, RGBColor, Series};

use super::link::time_row;
use super::paced::{PROGRAMS, WIRE_BYTES};
use crate::bench::figures::{COLORS, Picture, bars, draw_all};
use crate::bench::{BenchError, Report};

/// Draws the charts for which the report has rows into `directory`, which must exist; returns the charts' paths.
///
/// # Errors
/// A file could not be written; the error names it.
pub fn draw(report: &Report, directory: &Path) -> Result<Vec<PathBuf>, BenchError> {
    let pictures: [Picture; 4] = [
        ("p4dra-fig10.svg", draw_rates),
        ("p4dra-fig11.svg", draw_resources),
        ("p4dra-fig16.svg", draw_host_times),
        ("p4dra-fig17.svg", draw_packet_path_times),
    ];
    draw_all(report, directory, &pictures)
}

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

fn draw_rates(report: &Report) -> Result<Option<String>, ChartError> {
    let lines = PROGRAMS.map(|(name, _)| (name, rate_points(report, name)));
    let points = || lines.iter().flat_map(|(_, line)| line.iter());
    let widest = points().map(|point| point.0).fold(0.0, f64::max) * 1.05;
    let highest = points().map(|point| point.1).fold(0.0, f64::max) * 1.15;
    if highest == 0.0 {
        return Ok(None);
    }
    let chart = Chart {
        title: "Output rate by input rate; 64 bytes of each packet encrypted; one core (P4DRA paper, Fig. 10)",
        x: Axis::linear(
            0.0..widest,
            "input, Gbit/s (110-byte frames with preamble and gap)",
        ),
        y: Axis::linear(0.0..highest, "output, Gbit/s"),
        legend: LegendPosition::UpperLeft,
    };
    let colors = [BLACK].into_iter().chain(COLORS);
    let lines = lines
        .into_iter()
        .zip(colors)
        .map(|((name, line), color)| Series::line(label(name), color, line).with_markers());
    chart.svg((900, 520), lines).map(Some)
}

fn draw_resources(report: &Report) -> Result<Option<String>, ChartError> {
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
        "Resources of each program (P4DRA paper, Table 1 and Fig. 11)",
        "count, B or ns (log)",
        &groups,
        &remarks,
    )
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

fn draw_host_times(report: &Report) -> Result<Option<String>, ChartError> {
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
    attestation_times("Time to attest a fleet on a host (P4DRA paper, Fig. 16)", &times)
}

fn draw_packet_path_times(report: &Report) -> Result<Option<String>, ChartError> {
    let [blue, _, light, ..] = COLORS;
    let times = [
        Times::measured(report, "xdp", "xdp: in the kernel, one core", blue),
        Times::published("paper: Tofino", light, |published| published.2),
    ];
    attestation_times(
        "Time to attest a fleet in the packet path (P4DRA paper, Fig. 17)",
        &times,
    )
}

/// Draws the times by the number of provers; returns `None` if the report has no measured time.
fn attestation_times(title: &str, times: &[Times]) -> Result<Option<String>, ChartError> {
    if times.first().is_none_or(|measured| measured.points.is_empty()) {
        return Ok(None);
    }
    let points = || times.iter().flat_map(|times| times.points.iter());
    let max_provers = points().map(|point| point.0).fold(1.0, f64::max) * 1.3;
    let max_ms = points().map(|point| point.1).fold(1.0, f64::max) * 30.0;
    let min_ms = points().map(|point| point.1).fold(max_ms, f64::min) / 2.0;
    let chart = Chart {
        title,
        x: Axis::log(0.8..max_provers, "provers in a round (log)"),
        y: Axis::log(min_ms..max_ms, "ms (log)"),
        legend: LegendPosition::UpperLeft,
    };
    let lines = times.iter().map(|Times { label, color, points }| {
        let (provers, duration_ms) = points.last().copied().unwrap_or_default();
        let label = format!("{label}: {duration_ms:.1} ms for {provers}");
        Series::line(label, *color, points.iter().copied()).with_markers()
    });
    chart.svg((900, 520), lines).map(Some)
}
