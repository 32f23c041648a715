//! Output of a gateway, as JSON and as text.

use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;
use linewarden_config::gateway::{Backend, Gate, GatewayConfig, ResolvedGateway};
use linewarden_dataplane::Counters;
use linewarden_gateway::{AttestStatus, LinkState, Status, StopReport, TrustState};
use serde::Serialize;

/// JSON output.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum ServeOutput<'a> {
    /// Gates that an ended gateway left were removed.
    GatesRemoved { interfaces: usize },
    /// The data plane is attached.
    Started {
        gateway_id: u32,
        dataplane: &'a str,
        gate: &'a str,
        addresses: Vec<std::net::IpAddr>,
        port: u16,
    },
    /// Status and counters.
    Status {
        #[serde(flatten)]
        status: &'a Status,
        counters: serde_json::Value,
    },
    /// A new configuration is in force.
    Reloaded,
    /// A new configuration was refused; the previous configuration stays in force.
    ReloadRefused { errors: &'a [String] },
    /// The gateway has stopped.
    Stopped {
        unused_rows_reported: bool,
        sessions_retained: bool,
        counters: serde_json::Value,
    },
}

pub fn dataplane_name(config: &GatewayConfig) -> &'static str {
    match config.gateway.dataplane {
        Backend::Xdp => "xdp",
        Backend::Host => "host",
        Backend::P4 => "p4",
    }
}

pub fn gate_name(config: &GatewayConfig) -> &'static str {
    match config.gateway.gate {
        Gate::Off => "off",
        Gate::Bound => "bound",
        Gate::Sealed => "sealed",
    }
}

pub fn print_start(
    output: Output,
    config: &GatewayConfig,
    resolved: &ResolvedGateway,
) -> Result<(), Failure> {
    let section = &config.gateway;
    let (dataplane, gate) = (dataplane_name(config), gate_name(config));
    let addresses = resolved.config.local.clone();
    let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    output.object(&ServeOutput::Started {
        gateway_id: section.id,
        dataplane,
        gate,
        addresses,
        port: section.port,
    })?;
    let interfaces = match section.interfaces.as_slice() {
        [] => String::new(),
        names => format!(" on {}", names.join(", ")),
    };
    output.line(format_args!(
        "gateway {}: {dataplane}{interfaces}, {} port {}, gate {gate}",
        section.id,
        texts.join(", "),
        section.port
    ))
}

pub fn print_status(output: Output, status: &Status, counters: &Counters) -> Result<(), Failure> {
    output.object(&ServeOutput::Status {
        status,
        counters: as_json(counters),
    })?;
    output.line(describe(status))
}

fn describe(status: &Status) -> String {
    let mut text = format!(
        "devices {}, sessions opened {}",
        status.devices, status.sessions_opened
    );
    let notes = [
        ("revoked", status.revoked),
        ("exhausted", status.exhausted),
        ("unserved requests", status.unserved),
        ("admitted", status.admitted),
        ("evicted", status.evicted),
        ("waiting for slot", status.waiting_for_slot),
        ("damaged records", status.damaged),
        ("wrong tags", status.wrong_tags),
        ("wrong proofs", status.wrong_proofs),
        ("sessions closed", status.sessions_closed),
        ("session reports refused", status.reports_refused),
        ("session reports dropped", status.reports_dropped),
        ("first messages dropped (queue full)", status.admissions_dropped),
        ("first messages failed after admission", status.replays_failed),
        ("reloads", status.reloads),
        ("reloads refused", status.reloads_refused),
        ("audit records lost", status.audit_lost),
        ("evidence measurements failed", status.measurements_failed),
        (
            "tickets dropped by the kernel",
            status.tickets.map_or(0, |tickets| tickets.kernel_drops),
        ),
    ];
    for (note, count) in notes.iter().filter(|(_, count)| *count > 0) {
        text.push_str(&format!(", {note} {count}"));
    }
    text.push_str(&describe_attestation(&status.attest));
    if !status.loaded {
        let (done, total) = status.resumed;
        text.push_str(&format!(", loading {done} of {total}"));
    }
    if let LinkState::Lost { error } = &status.link {
        text.push_str(&format!(", LINK LOST: {error}"));
    }
    match &status.trust {
        None | Some(TrustState::Trusted) => {}
        Some(TrustState::Unproven) => text.push_str(", no evidence yet: no rows"),
        Some(TrustState::Untrusted { reason }) => {
            text.push_str(&format!(", UNTRUSTED: no rows, no sessions: {reason}"));
        }
    }
    let conditions = [
        (
            status.replaced,
            ", REPLACED: registration is no longer valid, not serving",
        ),
        (
            status.offline_limit_reached && !status.replaced,
            ", LEASE LOST: no successful request for offline_limit_s, not serving",
        ),
        (status.events_failing, ", reading events fails"),
        (status.audit_failing, ", writing the gateway audit log fails"),
    ];
    for (_, description) in conditions.iter().filter(|(is_active, _)| *is_active) {
        text.push_str(description);
    }
    text
}

/// Text about attestation; empty if no device is enrolled for attestation.
fn describe_attestation(attest: &AttestStatus) -> String {
    if attest.not_attested > 0 {
        return format!(
            ", NOT ATTESTED {}: the gateway has no [attest]",
            attest.not_attested
        );
    }
    if attest.provers == 0 && attest.rounds == 0 {
        return String::new();
    }
    let mut text = format!(
        ", provers {}, rounds {}, last round {}",
        attest.provers, attest.rounds, attest.round
    );
    let notes = [
        ("quarantined", attest.quarantined),
        ("released", attest.remediated + attest.released),
        ("UNREACHABLE", attest.unreachable),
        ("provers refused", attest.provers_refused),
        ("rounds lost", attest.rounds_lost),
    ];
    for (note, count) in notes.iter().filter(|(_, count)| *count > 0) {
        text.push_str(&format!(", {note} {count}"));
    }
    text
}

pub fn print_end(output: Output, report: &StopReport) -> Result<(), Failure> {
    output.object(&ServeOutput::Stopped {
        unused_rows_reported: report.unused_rows_reported,
        sessions_retained: report.keeps_running,
        counters: as_json(&report.counters),
    })?;
    print_counters(output, &report.status, &report.counters)?;
    output.line("stopped")
}

/// Prints a table of counters by verdict, and a table of the frames that the gate dropped, by EtherType.
pub fn print_counters(output: Output, status: &Status, counters: &Counters) -> Result<(), Failure> {
    let row = |(verdict, count): (linewarden_protocol::verdict::Verdict, u64)| {
        vec![
            verdict.name().to_owned(),
            count.to_string(),
            verdict.description().trim().to_owned(),
        ]
    };
    let mut rows: Vec<_> = counters.nonzero().map(row).collect();
    if counters.kernel_drops > 0 {
        let description = "dropped by the kernel: receive buffer full".to_owned();
        rows.push(vec![
            KERNEL_DROPS.to_owned(),
            counters.kernel_drops.to_string(),
            description,
        ]);
    }
    output.table(&["verdict", "packets", ""], &[1], rows)?;
    let row = |(ether_type, frames): (&String, &u64)| vec![ether_type.clone(), frames.to_string()];
    let rows: Vec<_> = status.dropped_types.iter().map(row).collect();
    if !rows.is_empty() {
        output.table(&["dropped by the gate: EtherType", "frames"], &[1], rows)?;
    }
    print_tickets(output, status)
}

/// Prints a table of the ticket counters that are not zero, if there are any.
fn print_tickets(output: Output, status: &Status) -> Result<(), Failure> {
    let Some(tickets) = &status.tickets else {
        return Ok(());
    };
    let counts = [
        ("relayed", tickets.answered),
        ("unknown", tickets.unknown),
        ("rate limited", tickets.rate_limited),
        ("rejected", tickets.rejected),
        ("failed", tickets.failed),
        (KERNEL_DROPS, tickets.kernel_drops),
    ];
    let nonzero_counts = counts.into_iter().filter(|(_, count)| *count > 0);
    let rows: Vec<_> = nonzero_counts
        .map(|(outcome, count)| vec![outcome.to_owned(), count.to_string()])
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    output.table(&["tickets", "messages"], &[1], rows)
}

/// Name of the counter of packets that the kernel dropped before the program received the packets.
const KERNEL_DROPS: &str = "kernel_drops";

fn as_json(counters: &Counters) -> serde_json::Value {
    let drops = (KERNEL_DROPS.to_owned(), counters.kernel_drops.into());
    counters
        .nonzero()
        .map(|(verdict, count)| (verdict.name().to_owned(), count.into()))
        .chain((counters.kernel_drops > 0).then_some(drops))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_line_includes_attestation_if_devices_are_enrolled() {
        let mut status = Status {
            devices: 3,
            loaded: true,
            ..Status::default()
        };
        assert_eq!(describe(&status), "devices 3, sessions opened 0");
        status.attest = AttestStatus {
            provers: 3,
            round: 17,
            rounds: 9,
            quarantined: 1,
            ..AttestStatus::default()
        };
        assert_eq!(
            describe(&status),
            "devices 3, sessions opened 0, provers 3, rounds 9, last round 17, quarantined 1"
        );
        status.attest = AttestStatus {
            not_attested: 2,
            ..AttestStatus::default()
        };
        assert_eq!(
            describe(&status),
            "devices 3, sessions opened 0, NOT ATTESTED 2: the gateway has no [attest]"
        );
    }
}
