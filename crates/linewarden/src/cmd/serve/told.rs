//! What a gateway says of itself, for machines and for people.

use linewarden_dataplane::Counters;
use linewarden_gateway::config::{Backend, Gate, GatewayConfig, Resolved};
use linewarden_gateway::{AttestStatus, LinkState, P4draStatus, Status, Stopped, TrustState};
use serde::Serialize;

use crate::failure::Failure;
use crate::output::Output;

/// A line for machines.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Told<'a> {
    /// Gates that were kept shut are gone.
    Released { interfaces: usize },
    /// The data plane is attached.
    Started {
        gateway_id: u32,
        dataplane: &'a str,
        gate: &'a str,
        addresses: Vec<std::net::IpAddr>,
        port: u16,
    },
    /// How things stand.
    Status {
        #[serde(flatten)]
        status: &'a Status,
        counters: serde_json::Value,
    },
    /// Another configuration is in force.
    Reloaded,
    /// Another configuration was refused; the old one stays.
    ReloadRefused { errors: &'a [String] },
    /// The end.
    Stopped {
        settled: bool,
        goes_on: bool,
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
        Gate::Open => "open",
        Gate::Sealed => "sealed",
    }
}

pub fn tell_start(output: Output, config: &GatewayConfig, resolved: &Resolved) -> Result<(), Failure> {
    let section = &config.gateway;
    let (dataplane, gate) = (dataplane_name(config), gate_name(config));
    let addresses = resolved.config.local.clone();
    let shown: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    output.object(&Told::Started {
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
        shown.join(", "),
        section.port
    ))
}

pub fn tell_status(output: Output, status: &Status, counters: &Counters) -> Result<(), Failure> {
    output.object(&Told::Status {
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
        ("on their last rows", status.exhausted),
        ("requests refused for lack of rows", status.unserved),
        ("admitted", status.admitted),
        ("evicted", status.evicted),
        ("without room", status.no_room),
        ("damaged", status.damaged),
        ("wrong tags", status.wrong_tags),
        ("wrong proofs", status.wrong_proofs),
        ("closed for newer ones elsewhere", status.sessions_closed),
        ("reports refused", status.reports_refused),
        ("reports dropped", status.reports_dropped),
        ("turned away", status.visitors_turned_away),
        ("replays failed", status.replays_failed),
        ("reloads", status.reloads),
        ("reloads refused", status.reloads_refused),
        ("audit records lost", status.audit_lost),
        ("times not measured", status.unmeasured),
        (
            "tickets dropped by the kernel",
            status.tickets.map_or(0, |tickets| tickets.kernel_drops),
        ),
    ];
    for (what, count) in notes.iter().filter(|(_, count)| *count > 0) {
        text.push_str(&format!(", {what} {count}"));
    }
    text.push_str(&describe_attestation(&status.attest));
    if let Some(p4dra) = &status.p4dra {
        text.push_str(&describe_p4dra(p4dra));
    }
    if !status.loaded {
        let (done, all) = status.resumed;
        text.push_str(&format!(", loading {done} of {all}"));
    }
    if status.link != LinkState::Reachable {
        text.push_str(", controller away");
    }
    match &status.trust {
        None | Some(TrustState::Trusted) => {}
        Some(TrustState::Unproven) => text.push_str(", not shown yet what it runs: no rows"),
        Some(TrustState::Distrusted { why }) => {
            text.push_str(&format!(", NOT TRUSTED, no rows: {why}"));
        }
    }
    let states = [
        (status.replaced, ", REPLACED: answering nothing"),
        (
            status.lapsed && !status.replaced,
            ", LAPSED: too long without the controller, answering nothing",
        ),
        (status.events_failing, ", events cannot be read"),
        (status.audit_failing, ", audit record cannot be written"),
    ];
    for (_, state) in states.iter().filter(|(is_so, _)| *is_so) {
        text.push_str(state);
    }
    text
}

/// Nothing where nobody is to be attested.
fn describe_attestation(attest: &AttestStatus) -> String {
    if attest.not_attested > 0 {
        return format!(", NOT ATTESTED {}: no [attest] here", attest.not_attested);
    }
    if attest.provers == 0 && attest.rounds == 0 {
        return String::new();
    }
    let mut text = format!(
        ", to attest {}, rounds {}, the last {}",
        attest.provers, attest.rounds, attest.round
    );
    let notes = [
        ("quarantined", attest.quarantined),
        ("let in again", attest.readmitted + attest.reopened),
        ("CANNOT BE ASKED", attest.unreached),
        ("without room for their keys", attest.provers_refused),
        ("rounds lost", attest.rounds_lost),
    ];
    for (what, count) in notes.iter().filter(|(_, count)| *count > 0) {
        text.push_str(&format!(", {what} {count}"));
    }
    text
}

fn describe_p4dra(p4dra: &P4draStatus) -> String {
    let mut text = format!(
        ", p4dra-classic rounds {}, the last with {} of {} verified",
        p4dra.rounds, p4dra.verified, p4dra.provers
    );
    if p4dra.unsent > 0 {
        text.push_str(&format!(", rounds NOT SENT {}", p4dra.unsent));
    }
    text
}

pub fn tell_end(output: Output, stopped: &Stopped) -> Result<(), Failure> {
    output.object(&Told::Stopped {
        settled: stopped.settled,
        goes_on: stopped.goes_on,
        counters: as_json(&stopped.counters),
    })?;
    tell_counters(output, &stopped.status, &stopped.counters)?;
    output.line("stopped")
}

/// A table of counters by verdict, and one of what the gate has dropped by Ethernet type, if it has.
pub fn tell_counters(output: Output, status: &Status, counters: &Counters) -> Result<(), Failure> {
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
        output.table(&["dropped at the gate: Ethernet type", "frames"], &[1], rows)?;
    }
    tell_tickets(output, status)
}

/// A table of what became of tickets, where any came.
fn tell_tickets(output: Output, status: &Status) -> Result<(), Failure> {
    let Some(tickets) = &status.tickets else {
        return Ok(());
    };
    let counts = [
        ("answered", tickets.answered),
        ("strange", tickets.strange),
        ("limited", tickets.limited),
        ("silent", tickets.silent),
        ("failed", tickets.failed),
        (KERNEL_DROPS, tickets.kernel_drops),
    ];
    let counted = counts.into_iter().filter(|(_, count)| *count > 0);
    let rows: Vec<_> = counted
        .map(|(outcome, count)| vec![outcome.to_owned(), count.to_string()])
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    output.table(&["tickets", "messages"], &[1], rows)
}

/// Beside the verdicts: packets that had none, for no data plane has seen them.
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
    fn the_line_of_state_tells_of_attestation_where_there_is_some() {
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
            "devices 3, sessions opened 0, to attest 3, rounds 9, the last 17, quarantined 1"
        );
        status.attest = AttestStatus {
            not_attested: 2,
            ..AttestStatus::default()
        };
        assert_eq!(
            describe(&status),
            "devices 3, sessions opened 0, NOT ATTESTED 2: no [attest] here"
        );
    }
}
