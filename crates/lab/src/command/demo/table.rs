//! The results table of the demonstration.

use linewarden_lab::demo::report::{AttackOutcome, AttestationReport, Quantiles};
use linewarden_lab::demo::{Report, VICTIMS};

use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;

/// Prints the results of a run.
pub fn print(output: Output, report: &Report) -> Result<(), Failure> {
    output.line(format_args!(
        "{} devices: {}",
        count(report.devices),
        report.parameters.fleet
    ))?;
    output.line(format_args!(
        "data plane: {} · seed {} · {} concurrent devices · attackers run at the same time",
        report.dataplane, report.parameters.seed, report.parameters.window
    ))?;
    output.table(&["", "tried", "succeeded"], &[1, 2], rows(report))
}

fn rows(report: &Report) -> Vec<Vec<String>> {
    let row =
        |description: &str, tried: String, succeeded: String| vec![description.to_owned(), tried, succeeded];
    let mut rows = vec![row(
        "devices authenticated",
        count(report.devices),
        count(report.authenticated),
    )];
    if let Some(service) = &report.service {
        rows.push(row(
            "authenticated devices with access to the service",
            count(service.devices_with_echo + service.devices_without_echo),
            count(service.devices_with_echo),
        ));
    }
    rows.push(row(
        "authentications per second",
        String::new(),
        count(report.auth_per_s.round() as u64),
    ));
    rows.push(latency(
        "latency under attack, without PUF time",
        &report.latency_us,
    ));
    rows.push(latency(
        "latency under attack, with PUF time and queue",
        &report.latency_with_puf_us,
    ));
    for pass in &report.comparison {
        let description = format!("latency of {} without load, one device at a time", pass.dataplane);
        rows.push(latency(&description, &pass.latency_us));
    }
    if let Some(service) = &report.service {
        rows.push(row(
            "frames through the gate before authentication",
            count(service.sent_before_authentication),
            count(service.delivered_before_authentication),
        ));
    }
    if let Some(attestation) = &report.attestation {
        rows.extend(attestation_rows(attestation));
    }
    if let Some(revocation) = &report.revocation {
        rows.push(row(
            &format!("revoked device (1 of {VICTIMS}): new session"),
            "1".to_owned(),
            count(u64::from(revocation.authenticated_after)),
        ));
        rows.push(row(
            "other devices at the same time: new session",
            count(revocation.others_authenticated + revocation.others_refused),
            count(revocation.others_authenticated),
        ));
    }
    rows.extend(report.attacks.iter().map(attack));
    rows.push(row(
        "all attacks",
        count(report.attack_attempts),
        count(report.attacks.iter().map(|attack| attack.successes).sum()),
    ));
    rows
}

/// Rows about attestation: rounds, the modified device, and forged PROOFs.
fn attestation_rows(attestation: &AttestationReport) -> Vec<Vec<String>> {
    let row =
        |description: &str, tried: String, succeeded: String| vec![description.to_owned(), tried, succeeded];
    let unmodified = attestation.provers.saturating_sub(1);
    let detected_in = match attestation.quarantined {
        true => format!("round {}", attestation.detected_after_rounds),
        false => "not detected".to_owned(),
    };
    let quarantined_in = match attestation.quarantined {
        true => format!("round {}", attestation.quarantined_after_rounds),
        false => "not quarantined".to_owned(),
    };
    let mut rows = vec![
        row(
            &format!("{} devices attested: rounds", count(attestation.provers)),
            count(attestation.rounds),
            String::new(),
        ),
        row(
            "time to the last proof of a round, median and maximum",
            format!("{} ms", attestation.last_proof_median_ms),
            format!("{} ms", attestation.last_proof_max_ms),
        ),
        row(
            "device modified on disk: detected in, quarantined in",
            detected_in,
            quarantined_in,
        ),
        row(
            "modified device: new session",
            "1".to_owned(),
            count(attestation.authenticated_in_quarantine.into()),
        ),
    ];
    if let Some(delivered) = attestation.delivered_in_quarantine {
        rows.push(row(
            "modified device: frames through the gate",
            "3".to_owned(),
            count(delivered),
        ));
    }
    rows.extend([
        row(
            "remediated device: new session",
            "1".to_owned(),
            count(attestation.access_restored.into()),
        ),
        row(
            "PROOFs dropped: invalid, from another round",
            count(attestation.drop_proof),
            count(attestation.drop_round),
        ),
        row(
            "unmodified devices in quarantine",
            count(unmodified),
            count(attestation.wrongly_quarantined),
        ),
    ]);
    rows
}

fn latency(description: &str, latency: &Quantiles) -> Vec<String> {
    vec![
        description.to_owned(),
        format!("p50 {}", micros(latency.p50)),
        format!("p99 {}", micros(latency.p99)),
    ]
}

fn attack(outcome: &AttackOutcome) -> Vec<String> {
    let description = format!("attack: {}", outcome.name);
    if outcome.inconclusive.is_some() {
        return vec![description, "not completed".to_owned(), "unknown".to_owned()];
    }
    if outcome.skipped.is_some() {
        return vec![description, "skipped".to_owned(), String::new()];
    }
    vec![description, count(outcome.attempts), count(outcome.successes)]
}

/// A number with thousands separators.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A duration in a suitable unit.
pub fn micros(us: f64) -> String {
    match us {
        large if large >= 10_000.0 => format!("{:.0} ms", large / 1e3),
        large if large >= 1_000.0 => format!("{:.1} ms", large / 1e3),
        middle if middle >= 10.0 => format!("{middle:.0} µs"),
        small => format!("{small:.1} µs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (12_345_678, "12,345,678"),
        ] {
            assert_eq!(count(number), text);
        }
        for (us, text) in [
            (8.44, "8.4 µs"),
            (70.6, "71 µs"),
            (1_234.0, "1.2 ms"),
            (23_456.0, "23 ms"),
        ] {
            assert_eq!(micros(us), text);
        }
    }

    #[test]
    fn a_skipped_or_failed_attack_is_marked() {
        let mut outcome = AttackOutcome {
            name: "x",
            attempts: 3,
            successes: 1,
            ..AttackOutcome::default()
        };
        assert_eq!(attack(&outcome), ["attack: x", "3", "1"]);
        outcome.skipped = Some("the gate is off".to_owned());
        assert_eq!(attack(&outcome)[1], "skipped");
        outcome.inconclusive = Some("broken".to_owned());
        assert_eq!(attack(&outcome)[2], "unknown");
    }
}
