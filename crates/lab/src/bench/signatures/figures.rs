//! Charts that add this machine's results to the thesis' Table 1 and Figures 3 to 11, as SVG files.

use std::ops::Range;
use std::path::{Path, PathBuf};

use plotters::coord::Shift;
use plotters::prelude::*;

use super::batches::STAGES;
use super::table1;
use crate::bench::figures::{COLORS, error_text, round_to_integer};
use crate::bench::{BenchError, Report};

/// Draws the charts for which the report has rows into `directory`, which must exist; returns the charts' paths.
///
/// # Errors
/// A file could not be written; the error names it.
pub fn draw(report: &Report, directory: &Path) -> Result<Vec<PathBuf>, BenchError> {
    let pictures: [(&str, Picture); 3] = [
        ("haa-table1.svg", table1::draw),
        ("haa-fig3-8.svg", draw_by_batch),
        ("haa-fig9-11.svg", draw_by_threads),
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

fn draw_by_batch(path: &Path, report: &Report) -> Result<Option<PathBuf>, String> {
    let title = "Rapid Authentication by batch size: RSA-2048, 32 components (HAA thesis, Fig. 3 to 8)";
    draw_panels(
        path,
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

fn draw_by_threads(path: &Path, report: &Report) -> Result<Option<PathBuf>, String> {
    let title = "Rapid Authentication by threads: RSA-2048, 32 components (HAA thesis, Fig. 9 to 11)";
    draw_panels(
        path,
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
    path: &Path,
    report: &Report,
    title: &str,
    kinds: &Kinds,
    published: &[(&str, [f64; 3])],
) -> Result<Option<PathBuf>, String> {
    let [(cpu_kind, _), _] = kinds.measured;
    if STAGES
        .iter()
        .any(|stage| stage_points(report, stage, cpu_kind).is_empty())
    {
        return Ok(None);
    }
    let root = SVGBackend::new(path, (1200, 460)).into_drawing_area();
    root.fill(&WHITE).map_err(error_text)?;
    let area = root.titled(title, ("sans-serif", 20)).map_err(error_text)?;
    let areas = area.split_evenly((1, 3));
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
    root.present().map_err(error_text)?;
    Ok(Some(path.to_owned()))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn draw_panel(
    area: &Area<'_>,
    stage: &str,
    x_label: &str,
    measured: &[(&str, Vec<(f64, f64)>)],
    thesis: &[(&str, f64)],
) -> Result<(), String> {
    let points = || measured.iter().flat_map(|(_, points)| points);
    let all_rates = || {
        points()
            .map(|point| point.1)
            .chain(thesis.iter().map(|line| line.1))
    };
    let widest = points().map(|point| point.0).fold(2.0, f64::max);
    // Space above for the legend.
    let heights: Range<f64> =
        all_rates().fold(f64::MAX, f64::min) / 2.0..all_rates().fold(0.0, f64::max) * 20.0;
    let mut chart = ChartBuilder::on(area)
        .caption(stage, ("sans-serif", 17))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(82)
        .build_cartesian_2d((1.0..widest).log_scale(), heights.log_scale())
        .map_err(error_text)?;
    chart
        .configure_mesh()
        .x_label_formatter(&|x| round_to_integer(*x))
        .y_label_formatter(&|y| round_to_integer(*y))
        .x_desc(x_label)
        .y_desc("messages per second")
        .draw()
        .map_err(error_text)?;
    let measured = measured
        .iter()
        .zip([BLACK, RED])
        .map(|((name, points), color)| (*name, points.clone(), color, 3));
    let published = thesis
        .iter()
        .zip(COLORS)
        .map(|((name, rate), color)| (*name, vec![(1.0, *rate), (widest, *rate)], color, 0));
    for (name, line, color, size) in measured.chain(published) {
        chart
            .draw_series(LineSeries::new(line, color.stroke_width(2)).point_size(size))
            .map_err(error_text)?
            .label(name)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], color.stroke_width(3)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()
        .map_err(error_text)
}
