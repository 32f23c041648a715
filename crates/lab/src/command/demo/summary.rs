//! The main results of the demonstration, on at most ten lines.

use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;
use linewarden_lab::demo::Report;

use super::table::{count, micros};

/// Prints the main results.
pub fn print(output: Output, report: &Report) -> Result<(), Failure> {
    let attempts = count(report.attack_attempts);
    let successes = count(report.attacks.iter().map(|attack| attack.successes).sum());
    let mut fields = vec![
        ("data plane", report.dataplane.to_owned()),
        (
            "devices authenticated",
            format!("{} of {}", count(report.authenticated), count(report.devices)),
        ),
        (
            "authentications",
            format!(
                "{} per second under attack, latency p50 {}, p99 {}",
                count(report.auth_per_s.round() as u64),
                micros(report.latency_us.p50),
                micros(report.latency_us.p99)
            ),
        ),
    ];
    fields.extend(gate(report));
    fields.extend(attestation(report));
    if let Some(revocation) = &report.revocation {
        let sessions = u64::from(revocation.authenticated_after);
        fields.push(("revoked device", format!("1 attempt, {sessions} new sessions")));
    }
    fields.push((
        "attacks",
        format!(
            "{} kinds, {attempts} attempts, {successes} successful",
            report.attacks.len()
        ),
    ));
    output.fields(&fields)
}

fn gate(report: &Report) -> Option<(&'static str, String)> {
    let service = report.service.as_ref()?;
    let delivered = count(service.delivered_before_authentication);
    let sent = count(service.sent_before_authentication);
    Some((
        "gate",
        format!("{sent} frames sent before authentication, {delivered} delivered"),
    ))
}

fn attestation(report: &Report) -> Option<(&'static str, String)> {
    let attestation = report.attestation.as_ref()?;
    let result = if attestation.quarantined {
        format!("quarantined in round {}", attestation.quarantined_after_rounds)
    } else {
        "not quarantined".to_owned()
    };
    let access = if attestation.access_restored {
        ", released after remediation"
    } else {
        ""
    };
    Some(("modified device", format!("{result}{access}")))
}
