//! Charts as SVG files: Figure 12 of the IoT paper with the published and the measured values, and the hit rates of the eviction
//! policies.

use std::path::{Path, PathBuf};

use linewarden_gateway::Eviction;
use plotters::prelude::*;

use super::{MEMORY_SIZES_GIB, eviction};
use crate::bench::figures::{COLORS, bars, error_text};
use crate::bench::{BenchError, Report};

/// Figure 12 of the IoT paper: response size in bits, and the number of devices with 100 CRPs each in one pipeline of
/// Tofino 1 and of Tofino 2.
const PUBLISHED: [(u32, f64, f64); 3] = [(64, 468e3, 884e3), (128, 360e3, 680e3), (256, 180e3, 340e3)];

/// Draws the charts for the available rows into the existing `directory`; returns the charts' paths.
///
/// # Errors
/// A chart cannot be drawn or written.
pub fn draw(report: &Report, directory: &Path) -> Result<Vec<PathBuf>, BenchError> {
    let pictures: [(&str, Picture); 2] = [("iot-fig12.svg", draw_devices), ("eviction.svg", draw_hit_rates)];
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

fn draw_devices(path: &Path, report: &Report) -> Result<Option<PathBuf>, String> {
    let measured = MEMORY_SIZES_GIB.map(|gib| {
        let devices = report.value(&format!("resident.devices.{gib}_gib"));
        Some((format!("xdp, {gib} GiB of memory"), devices?))
    });
    let Some(measured) = measured.into_iter().collect::<Option<Vec<_>>>() else {
        return Ok(None);
    };
    let groups: Vec<(String, Vec<(&str, f64)>)> = PUBLISHED
        .iter()
        .map(|(bits, tofino_1, tofino_2)| {
            let mut bars = vec![
                ("paper, Tofino 1, one pipeline", *tofino_1),
                ("paper, Tofino 2, one pipeline", *tofino_2),
            ];
            bars.extend(measured.iter().map(|(name, devices)| (name.as_str(), *devices)));
            (format!("{bits} bit"), bars)
        })
        .collect();
    let remarks = [
        "100 CRPs per device. The paper stores responses; a row here is a challenge and a 128-bit key for every".to_owned(),
        "response size. All memory is counted: lines, rows, sessions, tables, and the gateway process.".to_owned(),
    ];
    let title = "Devices supported by response size (IoT paper, Fig. 12)";
    bars(path, title, "devices (log)", &groups, &remarks).map(Some)
}

fn draw_hit_rates(path: &Path, report: &Report) -> Result<Option<PathBuf>, String> {
    let rate = |trace: &str, policy: &str| report.value(&format!("eviction.hit_rate.{trace}.{policy}"));
    let traces = eviction::trace_names();
    let is_measured = |trace: &&str| rate(trace, Eviction::default().name()).is_some();
    let traces: Vec<&str> = traces.into_iter().filter(is_measured).collect();
    if traces.is_empty() {
        return Ok(None);
    }
    let root = SVGBackend::new(path, (900, 480)).into_drawing_area();
    root.fill(&WHITE).map_err(error_text)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(
            "Hit rates in a gateway with room for a tenth of the devices",
            ("sans-serif", 18),
        )
        .margin(12)
        .x_label_area_size(30)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..traces.len() as f64, 0.0..1.0)
        .map_err(error_text)?;
    let label = |x: &f64| match (x.fract() - 0.5).abs() < 0.01 {
        true => traces
            .get(*x as usize)
            .map_or(String::new(), |name| (*name).to_owned()),
        false => String::new(),
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(traces.len() * 2 + 1)
        .x_label_formatter(&label)
        .y_desc("share of authentications handled by the fast path alone")
        .draw()
        .map_err(error_text)?;
    let width = 0.8 / Eviction::ALL.len() as f64;
    for (number, (policy, color)) in Eviction::ALL.iter().zip(COLORS.iter()).enumerate() {
        let left = |position: usize| position as f64 + 0.1 + number as f64 * width;
        let values = || {
            traces
                .iter()
                .enumerate()
                .filter_map(|(position, trace)| Some((position, rate(trace, policy.name())?)))
        };
        chart
            .draw_series(values().map(|(position, rate)| {
                Rectangle::new(
                    [(left(position), 0.0), (left(position) + width * 0.92, rate)],
                    color.filled(),
                )
            }))
            .map_err(error_text)?
            .label(policy.name())
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], color.filled()));
        chart
            .draw_series(values().map(|(position, rate)| {
                Text::new(
                    format!("{rate:.3}"),
                    (left(position), rate + 0.03),
                    ("sans-serif", 13),
                )
            }))
            .map_err(error_text)?;
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
