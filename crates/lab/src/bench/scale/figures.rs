//! Charts as SVG files: Figure 12 of the IoT paper with the published and the measured values, and the hit rates of the eviction
//! policies.

use std::path::{Path, PathBuf};

use linewarden_chart::{Axis, Chart, ChartError, LegendPosition};
use linewarden_gateway::Eviction;

use super::{MEMORY_SIZES_GIB, eviction};
use crate::bench::figures::{BarGroups, Picture, bars, draw_all, group_axis, grouped_bars};
use crate::bench::{BenchError, Report};

/// Figure 12 of the IoT paper: response size in bits, and the number of devices with 100 CRPs each in one pipeline of
/// Tofino 1 and of Tofino 2.
const PUBLISHED: [(u32, f64, f64); 3] = [(64, 468e3, 884e3), (128, 360e3, 680e3), (256, 180e3, 340e3)];

/// Draws the charts for the available rows into the existing `directory`; returns the charts' paths.
///
/// # Errors
/// A chart cannot be drawn or written.
pub fn draw(report: &Report, directory: &Path) -> Result<Vec<PathBuf>, BenchError> {
    let pictures: [Picture; 2] = [("iot-fig12.svg", draw_devices), ("eviction.svg", draw_hit_rates)];
    draw_all(report, directory, &pictures)
}

fn draw_devices(report: &Report) -> Result<Option<String>, ChartError> {
    let measured = MEMORY_SIZES_GIB.map(|gib| {
        let devices = report.value(&format!("resident.devices.{gib}_gib"));
        Some((format!("xdp, {gib} GiB of memory"), devices?))
    });
    let Some(measured) = measured.into_iter().collect::<Option<Vec<_>>>() else {
        return Ok(None);
    };
    let groups: BarGroups<'_> = PUBLISHED
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
    bars(title, "devices (log)", &groups, &remarks)
}

fn draw_hit_rates(report: &Report) -> Result<Option<String>, ChartError> {
    let rate = |trace: &str, policy: &str| report.value(&format!("eviction.hit_rate.{trace}.{policy}"));
    let is_measured = |trace: &&str| rate(trace, Eviction::default().name()).is_some();
    let bars = |trace: &str| {
        let bar = |policy: &Eviction| Some((policy.name(), rate(trace, policy.name())?));
        (trace.to_owned(), Eviction::ALL.iter().filter_map(bar).collect())
    };
    let traces = eviction::trace_names();
    let groups: BarGroups<'_> = traces.into_iter().filter(is_measured).map(bars).collect();
    if groups.is_empty() {
        return Ok(None);
    }
    let chart = Chart {
        title: "Hit rates in a gateway with room for a tenth of the devices",
        x: group_axis(&groups),
        y: Axis::linear(
            0.0..1.0,
            "share of authentications handled by the fast path alone",
        ),
        legend: LegendPosition::UpperRight,
    };
    let bars = grouped_bars(&groups, 0.0, |rate| format!("{rate:.3}"));
    chart.svg((900, 480), bars).map(Some)
}
