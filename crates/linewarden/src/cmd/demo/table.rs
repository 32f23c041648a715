//! The table at the end.

use linewarden_lab::demo::report::{AttackOutcome, AttestationReport, Quantiles};
use linewarden_lab::demo::{Report, WITNESSES};

use crate::failure::Failure;
use crate::output::Output;

/// Prints what came of a run.
pub fn print(output: Output, report: &Report) -> Result<(), Failure> {
    output.line(format_args!(
        "{} devices: {}",
        count(report.devices),
        report.parameters.fleet
    ))?;
    output.line(format_args!(
        "verifier: {} · seed {} · {} devices at once · attackers work at the same time",
        report.dataplane, report.parameters.seed, report.parameters.window
    ))?;
    output.table(&["", "tried", "succeeded"], &[1, 2], rows(report))
}

fn rows(report: &Report) -> Vec<Vec<String>> {
    let row = |what: &str, tried: String, succeeded: String| vec![what.to_owned(), tried, succeeded];
    let mut rows = vec![row(
        "devices authenticate",
        count(report.devices),
        count(report.authenticated),
    )];
    if let Some(service) = &report.service {
        rows.push(row(
            "authenticated devices reach the service",
            count(service.reached + service.unreached),
            count(service.reached),
        ));
    }
    rows.push(row(
        "authentications per second",
        String::new(),
        count(report.auth_per_s.round() as u64),
    ));
    rows.push(latency("latency under attack, without PUF", &report.latency_us));
    rows.push(latency(
        "latency under attack, with PUF and queue",
        &report.latency_with_puf_us,
    ));
    for pass in &report.comparison {
        let what = format!("latency of {} in quiet, one at a time", pass.dataplane);
        rows.push(latency(&what, &pass.latency_us));
    }
    if let Some(service) = &report.service {
        rows.push(row(
            "through the gate before authenticating",
            count(service.tried_before),
            count(service.reached_before),
        ));
    }
    if let Some(attestation) = &report.attestation {
        rows.extend(proofs(attestation));
    }
    if let Some(revocation) = &report.revocation {
        rows.push(row(
            &format!("1 of {WITNESSES} devices, revoked: session again"),
            "1".to_owned(),
            count(u64::from(revocation.authenticated_after)),
        ));
        rows.push(row(
            "the other devices beside it: session again",
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

/// Rounds, the changed device, and the junk.
fn proofs(attestation: &AttestationReport) -> Vec<Vec<String>> {
    let row = |what: &str, tried: String, succeeded: String| vec![what.to_owned(), tried, succeeded];
    let wrongly = attestation.provers.saturating_sub(1);
    let found = match attestation.quarantined {
        true => format!("round {}", attestation.found_after_rounds),
        false => "not found".to_owned(),
    };
    let out = match attestation.quarantined {
        true => format!("round {}", attestation.quarantined_after_rounds),
        false => "not out".to_owned(),
    };
    let mut rows = vec![
        row(
            &format!(
                "{} devices prove what they run: rounds",
                count(attestation.provers)
            ),
            count(attestation.rounds),
            String::new(),
        ),
        row(
            "last proof of a round, half of them and all",
            format!("{} ms", attestation.last_proof_ms),
            format!("{} ms", attestation.last_proof_max_ms),
        ),
        row("1 device changed on disk: silent, and shut out, in", found, out),
        row(
            "the changed device: session again",
            "1".to_owned(),
            count(attestation.authenticated_after.into()),
        ),
    ];
    if let Some(reached) = attestation.reached_after {
        rows.push(row(
            "the changed device: through the gate",
            "3".to_owned(),
            count(reached),
        ));
    }
    rows.extend([
        row(
            "put right on disk: let in again",
            "1".to_owned(),
            count(attestation.back_in.into()),
        ),
        row(
            "junk PROOFs that did not verify, and of no round",
            count(attestation.drop_proof),
            count(attestation.drop_round),
        ),
        row(
            "devices quarantined though unchanged",
            count(wrongly),
            count(attestation.wrongly_quarantined),
        ),
    ]);
    rows
}

fn latency(what: &str, latency: &Quantiles) -> Vec<String> {
    vec![
        what.to_owned(),
        format!("p50 {}", micros(latency.p50)),
        format!("p99 {}", micros(latency.p99)),
    ]
}

fn attack(outcome: &AttackOutcome) -> Vec<String> {
    let what = format!("attack: {}", outcome.name);
    if outcome.inconclusive.is_some() {
        return vec![what, "failed".to_owned(), "unknown".to_owned()];
    }
    if outcome.skipped.is_some() {
        return vec![what, "left out".to_owned(), String::new()];
    }
    vec![what, count(outcome.attempts), count(outcome.successes)]
}

/// With separators between thousands.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A duration given in µs, in a unit that fits.
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
    fn an_attack_that_was_left_out_or_failed_says_so() {
        let mut outcome = AttackOutcome {
            name: "x",
            attempts: 3,
            successes: 1,
            ..AttackOutcome::default()
        };
        assert_eq!(attack(&outcome), ["attack: x", "3", "1"]);
        outcome.skipped = Some("the gate is off".to_owned());
        assert_eq!(attack(&outcome)[1], "left out");
        outcome.inconclusive = Some("broken".to_owned());
        assert_eq!(attack(&outcome)[2], "unknown");
    }
}
