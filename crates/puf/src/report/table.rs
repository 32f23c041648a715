//! The figures of a report as text.

use serde::Serialize;

use super::{DeviceReport, PufReport, RebuildResult};
use crate::{entropy::estimate, metrics::Spread};

/// One line of the report's table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// What is measured.
    pub metric: String,
    /// The figure.
    pub value: String,
    /// The ideal or required value.
    pub target: String,
}

fn row(metric: impl Into<String>, value: impl Into<String>, target: impl Into<String>) -> Row {
    Row {
        metric: metric.into(),
        value: value.into(),
        target: target.into(),
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
    rows.extend(comparison_rows(report));
    rows.extend(report.rebuilds.iter().map(rebuild_row));
    rows
}

/// The target column shows the values for fair, independent bits, which depend on the number of devices.
fn comparison_rows(report: &PufReport) -> Vec<Row> {
    let (compared, scope) = match report.substitute_windows {
        Some(windows) => (windows, format!(" ({windows} windows of one chip, not chips)")),
        None => (
            report.devices.len(),
            format!(" ({} devices)", report.devices.len()),
        ),
    };
    let mut rows = Vec::new();
    if let Some(s) = report.uniqueness {
        rows.push(row(format!("uniqueness{scope}"), with_deviation(s), "0.500"));
    }
    if let Some(s) = report.bit_aliasing {
        let fair = format!("0.500, standard deviation {:.4}", 0.5 / (compared as f64).sqrt());
        rows.push(row(format!("bit-aliasing{scope}"), with_deviation(s), fair));
    }
    if let Some(h) = report.min_entropy_across_devices {
        let fair = estimate::by_position_of_fair_bits(compared);
        let target = format!("{fair:.3} for fair bits");
        rows.push(row(
            format!("min-entropy per bit by position{scope}"),
            format!("{h:.3}"),
            target,
        ));
    }
    if report.substitute_windows.is_none() && compared > 1 {
        let same = match report.duplicate_devices.as_slice() {
            [] => "none".to_owned(),
            same => same
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("; "),
        };
        rows.push(row("memory that devices have in common", same, "none"));
    }
    rows
}

fn rebuild_row(r: &RebuildResult) -> Row {
    let metric = format!("{} ({})", r.kind, r.profile);
    let mut value = match r.failure_rate_below {
        Some(below) => format!(
            "{} failures in {} rebuilds, {} windows: failure rate below {} with 95 % confidence",
            r.failures,
            r.attempts,
            r.windows,
            rate(below)
        ),
        None if r.readouts <= r.enrollment_readouts => format!(
            "NOT TRIED: enrollment uses {} readouts and a rebuild one more, but only {} exist; take more, or set --enrollment-readouts {}",
            r.enrollment_readouts,
            r.readouts,
            r.readouts.saturating_sub(1).max(3)
        ),
        None => "NOT TRIED: no window was enrolled".to_owned(),
    };
    if let Some(bits) = r.residual_bits_min {
        value.push_str(&format!(", min-entropy at least {bits:.0} bits"));
    }
    if r.refused > 0 {
        value.push_str(&format!(", {} windows refused", r.refused));
    }
    if let Some(reason) = &r.first_refusal {
        value.push_str(&format!(" ({reason})"));
    }
    row(metric, value, "0 failures")
}

fn rate(share: f64) -> String {
    match share >= 1e-3 {
        true => format!("{:.2} %", 100.0 * share),
        false => format!("{share:.1e}"),
    }
}

fn device_rows(name: &str, device: &DeviceReport) -> Vec<Row> {
    let m = &device.metrics;
    let metric = |label: &str| format!("{name}{label}");
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
            "above 0 %, at most 10 %",
        ),
    ];
    if let (Some(error), Some(reliability)) = (m.error_vs_first, m.reliability) {
        rows.push(row(
            metric("bit error rate against the first readout"),
            percent(error),
            "above 0 %, at most 15 %",
        ));
        rows.push(row(metric("reliability"), format!("{reliability:.4}"), ""));
        rows.push(row(
            metric("cells that never change"),
            format!("{:.1} %", 100.0 * m.stable_share),
            "",
        ));
    }
    if let Some(entropy) = &device.entropy {
        let value = format!("{:.3}, limited by {}", entropy.per_bit, entropy.limited_by);
        rows.push(row(metric("min-entropy per cell"), value, "1"));
        let value = format!("{:.0} of {} bits", entropy.residual_bits, entropy.secret_bits);
        rows.push(row(
            metric("min-entropy of a secret from raw cells"),
            value,
            "128 bits; if lower, debias",
        ));
    }
    let health = match device.health_findings.as_slice() {
        [] => "passed".to_owned(),
        findings => findings.join("; "),
    };
    rows.push(row(metric("health test"), health, "passed"));
    let bad = match device.bad_ranges.as_slice() {
        [] => "none".to_owned(),
        bad => bad.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
    };
    rows.push(row(metric("memory that is not power-up state"), bad, "none"));
    let enrollment = match (&device.refusal, device.enrollment_bits) {
        (Some(refusal), _) => format!("REFUSED: {refusal}"),
        (None, Some(bits)) => format!("accepted, {bits:.0} bits of min-entropy"),
        (None, None) => "not tried".to_owned(),
    };
    rows.push(row(metric("enrollment"), enrollment, "accepted"));
    rows
}

fn percent(s: Spread) -> String {
    format!("{:.2} % (at most {:.2} %)", 100.0 * s.mean, 100.0 * s.max)
}

fn with_deviation(s: Spread) -> String {
    format!("{:.3}, standard deviation {:.4}", s.mean, s.deviation)
}
