//! Charts that add this machine's results to the thesis' Table 1 and Figures 3 to 11, as SVG files.

use std::ops::Range;
use std::path::{Path, PathBuf};

use linewarden_chart::{Area, Axis, BLACK, Chart, ChartError, LegendPosition, RED, Series};

use super::batches::STAGES;
use super::table1;
use crate::bench::figures::{COLORS, Picture, draw_all};
use crate::bench::{BenchError, Report};

/// Draws the charts for which the report has rows into `directory`, which must exist; returns the charts' paths.
///
/// # Errors
/// A file could not be written; the error names it.
pub fn draw(report: &Report, directory: &Path) -> Result<Vec<PathBuf>, BenchError> {
    let pictures: [Picture; 3] = [
        ("haa-table1.svg", table1::draw),
        ("haa-fig3-8.svg", draw_by_batch),
        ("haa-fig9-11.svg", draw_by_threads),
    ];
    draw_all(report, directory, &pictures)
}

/// Messages per second in the thesis for its largest batches (sections 4.1 and 4.2): each processor with its rates in
/// the order of [`STAGES`].
const THESIS_PER_S: [(&str, [f64; 3]); 3] = [
    ("thesis: one thread of an i7-5930K", [1_020.0, 6_200.0, 32_500.0]),
    ("thesis: K40c", [2_967.0, 47_600.0, 41_700.0]),
    ("thesis: Tegra K1", [294.0, 3_030.0, 1_887.0]),
];

/// The points of `stage.STAGE.KIND.N` rows.
fn stage_points(report: &Report, stage: &str, kind: &str) -> Vec<(f64, f64)> {
    let prefix = format!("stage.{stage}.{kind}.");
    let point = |row: &crate::bench::Row| {
        let x = row.name.strip_prefix(&prefix)?.parse::<f64>().ok()?;
        Some((x, row.value))
    };
    report.rows.iter().filter_map(point).collect()
}

fn draw_by_batch(report: &Report) -> Result<Option<String>, ChartError> {
    let title = "Rapid Authentication by batch size: RSA-2048, 32 components (HAA thesis, Fig. 3 to 8)";
    draw_panels(
        report,
        title,
        &Kinds {
            measured: [
                ("batch", "this machine, one core"),
                ("gpu_batch", "this machine, GPU"),
            ],
            x_label: "messages per batch",
        },
        &THESIS_PER_S,
    )
}

fn draw_by_threads(report: &Report) -> Result<Option<String>, ChartError> {
    let title = "Rapid Authentication by threads: RSA-2048, 32 components (HAA thesis, Fig. 9 to 11)";
    draw_panels(
        report,
        title,
        &Kinds {
            measured: [
                ("threads", "this machine"),
                ("threads_and_gpu", "this machine, with a GPU"),
            ],
            x_label: "threads",
        },
        &THESIS_PER_S[..1],
    )
}

/// The rows of a chart.
struct Kinds {
    /// Row kinds with their legends: the CPU's rows are required, the GPU's rows are optional.
    measured: [(&'static str, &'static str); 2],
    x_label: &'static str,
}

/// Draws the three stages side by side.
fn draw_panels(
    report: &Report,
    title: &str,
    kinds: &Kinds,
    published: &[(&str, [f64; 3])],
) -> Result<Option<String>, ChartError> {
    let [(cpu_kind, _), _] = kinds.measured;
    if STAGES
        .iter()
        .any(|stage| stage_points(report, stage, cpu_kind).is_empty())
    {
        return Ok(None);
    }
    linewarden_chart::svg((1200, 460), |area| {
        let areas = linewarden_chart::draw_title(area, title)?.split_evenly((1, 3));
        for (index, (area, stage)) in areas.iter().zip(STAGES).enumerate() {
            let thesis: Vec<(&str, f64)> = published
                .iter()
                .filter_map(|(name, rates)| Some((*name, *rates.get(index)?)))
                .collect();
            let measured = kinds
                .measured
                .map(|(kind, legend)| (legend, stage_points(report, stage, kind)));
            let measured: Vec<_> = measured
                .into_iter()
                .filter(|(_, points)| !points.is_empty())
                .collect();
            draw_panel(area, stage, kinds.x_label, &measured, &thesis)?;
        }
        Ok(())
    })
    .map(Some)
}

fn draw_panel(
    area: &Area<'_>,
    stage: &str,
    x_label: &str,
    measured: &[(&str, Vec<(f64, f64)>)],
    thesis: &[(&str, f64)],
) -> Result<(), ChartError> {
    let points = || measured.iter().flat_map(|(_, points)| points);
    let all_rates = || {
        points()
            .map(|point| point.1)
            .chain(thesis.iter().map(|line| line.1))
    };
    let widest = points().map(|point| point.0).fold(2.0, f64::max);
    // Space above for the legend.
    let heights: Range<f64> =
        all_rates().fold(f64::MAX, f64::min) / 2.0..all_rates().fold(0.0, f64::max) * 40.0;
    let chart = Chart {
        title: stage,
        x: Axis::log(1.0..widest, x_label),
        y: Axis::log(heights, "messages per second"),
        legend: LegendPosition::UpperLeft,
    };
    let measured = measured
        .iter()
        .zip([BLACK, RED])
        .map(|((name, points), color)| Series::line(*name, color, points.iter().copied()).with_markers());
    let published = thesis
        .iter()
        .zip(COLORS)
        .map(|((name, rate), color)| Series::line(*name, color, [(1.0, *rate), (widest, *rate)]));
    chart.draw(area, measured.chain(published))
}
