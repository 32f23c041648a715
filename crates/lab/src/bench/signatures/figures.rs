//! The thesis' Table 1 and Figures 3 to 11 with ours in them. SVG.

use std::ops::Range;
use std::path::{Path, PathBuf};

use plotters::coord::Shift;
use plotters::prelude::*;

use super::batches::STAGES;
use super::table1;
use crate::bench::figures::{COLOURS, text, whole};
use crate::bench::{BenchError, Report};

/// Draws the pictures whose rows are there into `directory`, which must be there, and returns their paths.
///
/// # Errors
/// A file that cannot be written, named.
pub fn draw(report: &Report, directory: &Path) -> Result<Vec<PathBuf>, BenchError> {
    let pictures: [(&str, Picture); 3] = [
        ("haa-table1.svg", table1::draw),
        ("haa-fig3-8.svg", by_batch),
        ("haa-fig9-11.svg", by_threads),
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

/// Messages per second that the thesis prints for its largest batches (4.1, 4.2), by stage: its CPU, the K40c, the GPU of the Tegra K1.
const THESIS_PER_S: [(&str, [f64; 3]); 3] = [
    ("thesis: one thread of an i7-5930K", [1_020.0, 6_200.0, 32_500.0]),
    ("thesis: K40c", [2_967.0, 47_600.0, 41_700.0]),
    ("thesis: Tegra K1", [294.0, 3_030.0, 1_887.0]),
];

/// The points of `stage.STAGE.KIND.N` rows.
fn line(report: &Report, stage: &str, kind: &str) -> Vec<(f64, f64)> {
    let prefix = format!("stage.{stage}.{kind}.");
    let of_row = |row: &crate::bench::Row| {
        let at = row.name.strip_prefix(&prefix)?.parse::<f64>().ok()?;
        Some((at, row.value))
    };
    report.rows.iter().filter_map(of_row).collect()
}

fn by_batch(path: &Path, report: &Report) -> Result<Option<PathBuf>, String> {
    let title = "Rapid Authentication by batch: RSA-2048, 32 components (HAA thesis, Fig. 3 to 8)";
    panels(
        path,
        report,
        title,
        &Kinds {
            ours: [("batch", "one core here"), ("gpu_batch", "a GPU here")],
            x_label: "messages of a batch",
        },
        &THESIS_PER_S,
    )
}

fn by_threads(path: &Path, report: &Report) -> Result<Option<PathBuf>, String> {
    let title = "Rapid Authentication by threads: RSA-2048, 32 components (HAA thesis, Fig. 9 to 11)";
    panels(
        path,
        report,
        title,
        &Kinds {
            ours: [
                ("threads", "here"),
                ("threads_and_gpu", "here, and a GPU at once"),
            ],
            x_label: "threads",
        },
        &THESIS_PER_S[..1],
    )
}

/// What a picture's lines are made of.
struct Kinds {
    /// Kinds of rows with their legends: without a processor's there is no picture, a GPU's may be missing.
    ours: [(&'static str, &'static str); 2],
    x_label: &'static str,
}

/// Beside each other the three stages.
fn panels(
    path: &Path,
    report: &Report,
    title: &str,
    kinds: &Kinds,
    published: &[(&str, [f64; 3])],
) -> Result<Option<PathBuf>, String> {
    let [(processors, _), _] = kinds.ours;
    if STAGES
        .iter()
        .any(|stage| line(report, stage, processors).is_empty())
    {
        return Ok(None);
    }
    let root = SVGBackend::new(path, (1200, 460)).into_drawing_area();
    root.fill(&WHITE).map_err(text)?;
    let area = root.titled(title, ("sans-serif", 20)).map_err(text)?;
    let areas = area.split_evenly((1, 3));
    for (index, (area, stage)) in areas.iter().zip(STAGES).enumerate() {
        let thesis: Vec<(&str, f64)> = published
            .iter()
            .filter_map(|(name, rates)| Some((*name, *rates.get(index)?)))
            .collect();
        let ours = kinds
            .ours
            .map(|(kind, legend)| (legend, line(report, stage, kind)));
        let ours: Vec<_> = ours
            .into_iter()
            .filter(|(_, points)| !points.is_empty())
            .collect();
        panel(area, stage, kinds.x_label, &ours, &thesis)?;
    }
    root.present().map_err(text)?;
    Ok(Some(path.to_owned()))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn panel(
    area: &Area<'_>,
    stage: &str,
    x_label: &str,
    ours: &[(&str, Vec<(f64, f64)>)],
    thesis: &[(&str, f64)],
) -> Result<(), String> {
    let points = || ours.iter().flat_map(|(_, points)| points);
    let all = || {
        points()
            .map(|point| point.1)
            .chain(thesis.iter().map(|line| line.1))
    };
    let widest = points().map(|point| point.0).fold(2.0, f64::max);
    // Room above for the legend.
    let heights: Range<f64> = all().fold(f64::MAX, f64::min) / 2.0..all().fold(0.0, f64::max) * 20.0;
    let mut chart = ChartBuilder::on(area)
        .caption(stage, ("sans-serif", 17))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(82)
        .build_cartesian_2d((1.0..widest).log_scale(), heights.log_scale())
        .map_err(text)?;
    chart
        .configure_mesh()
        .x_label_formatter(&|x| whole(*x))
        .y_label_formatter(&|y| whole(*y))
        .x_desc(x_label)
        .y_desc("messages per second")
        .draw()
        .map_err(text)?;
    let ours = ours
        .iter()
        .zip([BLACK, RED])
        .map(|((name, points), colour)| (*name, points.clone(), colour, 3));
    let theirs = thesis
        .iter()
        .zip(COLOURS)
        .map(|((name, rate), colour)| (*name, vec![(1.0, *rate), (widest, *rate)], colour, 0));
    for (name, line, colour, size) in ours.chain(theirs) {
        chart
            .draw_series(LineSeries::new(line, colour.stroke_width(2)).point_size(size))
            .map_err(text)?
            .label(name)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], colour.stroke_width(3)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()
        .map_err(text)
}
