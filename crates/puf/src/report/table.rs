//! The figures of a report as text.

use serde::Serialize;

use super::{DeviceReport, PufReport};
use crate::metrics::Spread;

/// One line of the report's table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// What is measured.
    pub metric: String,
    /// The figure.
    pub value: String,
    /// What would be ideal, or is demanded.
    pub wanted: String,
}

fn row(metric: impl Into<String>, value: impl Into<String>, wanted: impl Into<String>) -> Row {
    Row {
        metric: metric.into(),
        value: value.into(),
        wanted: wanted.into(),
    }
}

pub(super) fn rows(report: &PufReport) -> Vec<Row> {
    let mut rows = Vec::new();
    for device in &report.devices {
        let name = match report.devices.len() {
            1 => String::new(),
            _ => format!("{}: ", device.name),
        };
        rows.extend(device_rows(&name, device));
    }
    let over = match report.windows_stand_in {
        Some(windows) => format!(" ({windows} windows of one chip, not chips)"),
        None => format!(" ({} devices)", report.devices.len()),
    };
    if let Some(s) = report.uniqueness {
        rows.push(row(format!("uniqueness{over}"), with_deviation(s), "0.500"));
    }
    if let Some(s) = report.bit_aliasing {
        rows.push(row(format!("bit-aliasing{over}"), with_deviation(s), "0.500"));
    }
    if let Some(h) = report.min_entropy_across_devices {
        rows.push(row(
            format!("min-entropy per bit by position{over}"),
            format!("{h:.3}"),
            "1",
        ));
    }
    rows.extend(report.rebuilds.iter().map(|r| {
        let mut value = format!(
            "{} failures in {} rebuilds, {} windows",
            r.failures, r.attempts, r.windows
        );
        if let Some(bits) = r.residual_bits_min {
            value.push_str(&format!(", min-entropy at least {bits:.0} bits"));
        }
        if r.refused > 0 {
            value.push_str(&format!(", {} refused", r.refused));
        }
        if let Some(reason) = &r.first_refusal {
            value.push_str(&format!(" ({reason})"));
        }
        row(format!("{} ({})", r.kind, r.profile), value, "0 failures")
    }));
    rows
}

fn device_rows(name: &str, device: &DeviceReport) -> Vec<Row> {
    let m = &device.metrics;
    let metric = |what: &str| format!("{name}{what}");
    let mut rows = vec![
        row(
            metric("readouts"),
            format!("{} of {} bits", m.readouts, m.bits),
            "",
        ),
        row(metric("uniformity"), format!("{:.3}", m.uniformity.mean), "0.500"),
        row(
            metric("bit error rate against the majority"),
            percent(m.error_vs_majority),
            "0 %",
        ),
    ];
    if let (Some(error), Some(reliability)) = (m.error_vs_first, m.reliability) {
        rows.push(row(
            metric("bit error rate against the first readout"),
            percent(error),
            "0 %",
        ));
        rows.push(row(metric("reliability"), format!("{reliability:.4}"), "1"));
        rows.push(row(
            metric("cells that never change"),
            format!("{:.1} %", 100.0 * m.stable_share),
            "100 %",
        ));
    }
    if let Some(entropy) = &device.entropy {
        let value = format!("{:.3}, limited by {}", entropy.per_bit, entropy.limited_by);
        rows.push(row(metric("min-entropy per cell"), value, "1"));
        let value = format!("{:.0} of {} bits", entropy.residual_bits, entropy.secret_bits);
        rows.push(row(
            metric("min-entropy of a secret from raw cells"),
            value,
            "128 bits, else debias",
        ));
    }
    let health = match device.health_findings.as_slice() {
        [] => "passed".to_owned(),
        findings => findings.join("; "),
    };
    rows.push(row(metric("health test"), health, "passed"));
    rows
}

fn percent(s: Spread) -> String {
    format!("{:.2} % (at most {:.2} %)", 100.0 * s.mean, 100.0 * s.max)
}

fn with_deviation(s: Spread) -> String {
    format!("{:.3}, standard deviation {:.4}", s.mean, s.deviation)
}
