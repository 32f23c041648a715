//! Measures the router with and without evidence in every packet (default content, as a hop-by-hop option). Both
//! variants alternate on one worker and forward the flow of the paper on the attesting BMv2.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;
use std::time::Duration;

use linewarden_evidence::inband::MasterKey;
use linewarden_evidence::{BootCount, SwitchId};
use linewarden_switch::evidence::{Carrier, EvidenceSettings, Identity, InBand};
use linewarden_switch::switch::{Slot, Switch};

use super::link::{self, Search, SwitchHarness};
use super::programs::Programs;
use super::router::{Routes, SOURCE_V6, datagram};
use super::{Size, memory};
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Row};

/// Payload of the paper's datagrams, bytes.
const PAYLOAD_BYTES: usize = 1362;
/// Destination of the paper's datagrams.
const DESTINATION: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
/// First rate of the paper's search, bit/s of payload.
const FIRST_BITS_PER_S: u64 = 100_000_000;
/// Target: ten times the rate of the paper's switch, Mbit/s of payload.
const LOSS_FREE_TARGET_MBIT_S: f64 = 2_700.0;
/// Factor of one downward step of the search.
const STEP: f64 = 15.0 / 16.0;
/// Input rate above the capacity, frames/s.
const SATURATING_PER_S: u64 = 2_000_000;

/// Enables evidence in every packet that can carry it.
///
/// # Errors
/// The measurement of the switch fails.
pub fn attest(switch: &mut Switch) -> Result<(), BenchError> {
    let (id, boot_count) = (SwitchId(1), BootCount(1));
    let settings = EvidenceSettings {
        identity: Identity::new(id, boot_count),
        in_band: Some(InBand {
            carrier: Carrier::Option,
            key: MasterKey::new([0x42; 16]).key(id, boot_count),
        }),
        cpu_port: None,
        volatile_registers: BTreeSet::new(),
    };
    switch.start_attestation(settings, None)?;
    Ok(())
}

/// The same program without and with evidence.
struct SwitchPair {
    plain: Switch,
    evidence: Switch,
}

/// One value per switch.
#[derive(Clone, Copy, Debug)]
struct PairResult {
    plain: f64,
    evidence: f64,
}

impl SwitchPair {
    fn new(programs: &Programs) -> Result<Self, BenchError> {
        let mut commands = Routes::new().commands;
        // The one destination of the paper's flow.
        commands += "add routes6 hdr.ipv6.dst:0x20010db8000000000000000000000002/128 forward6(port:1, next_hop:0x02000000bb01)\n";
        let mut evidence = programs.switch("router", &commands)?;
        attest(&mut evidence)?;
        Ok(Self {
            plain: programs.switch("router", &commands)?,
            evidence,
        })
    }

    /// Time per packet from memory to memory, ns, the minimum of the runs.
    fn in_memory(&self, frame: &[u8], size: &Size) -> Result<PairResult, BenchError> {
        let frames = [frame.to_vec()];
        let (mut plain, mut evidence) = (self.plain.worker(), self.evidence.worker());
        let mut minimum = PairResult {
            plain: f64::MAX,
            evidence: f64::MAX,
        };
        for _ in 0..size.runs {
            let ns = memory::ns_per_packet(&mut plain, &frames, size.packets)?;
            minimum.plain = minimum.plain.min(ns);
            let ns = memory::ns_per_packet(&mut evidence, &frames, size.packets)?;
            minimum.evidence = minimum.evidence.min(ns);
        }
        Ok(minimum)
    }

    /// Output rate under overload, packets/s, the maximum of the runs.
    fn saturated_rates(
        &self,
        slot: &Slot,
        harness: &mut SwitchHarness<'_>,
        frame: &[u8],
        size: &Size,
    ) -> Result<PairResult, BenchError> {
        let length = Duration::from_millis(size.paced_ms);
        let mut update_maximum = |switch: &Switch, maximum: &mut f64| {
            slot.run(switch);
            let run = harness.send_without_drain(frame, SATURATING_PER_S, length)?;
            *maximum = maximum.max(run.received_per_s());
            Ok::<_, BenchError>(())
        };
        let mut maximum = PairResult {
            plain: 0.0,
            evidence: 0.0,
        };
        for _ in 0..size.runs.max(size.paced_runs) {
            update_maximum(&self.plain, &mut maximum.plain)?;
            update_maximum(&self.evidence, &mut maximum.evidence)?;
        }
        Ok(maximum)
    }

    /// Highest loss-free rate, packets/s.
    fn loss_free_rates(
        &self,
        slot: &Slot,
        harness: &mut SwitchHarness<'_>,
        frame: &[u8],
        size: &Size,
    ) -> Result<PairResult, BenchError> {
        let search = Search {
            first: FIRST_BITS_PER_S / (8 * PAYLOAD_BYTES as u64),
            length: Duration::from_millis(size.search_ms),
            runs: size.search_runs,
        };
        let mut search_rate = |switch| {
            slot.run(switch);
            search.run(|rate, length| harness.send(frame, rate, length))
        };
        Ok(PairResult {
            plain: search_rate(&self.plain)?,
            evidence: search_rate(&self.evidence)?,
        })
    }
}

/// Measures the rows `evidence_over_plain.*`, `plain.*` and `evidence.*`.
///
/// # Errors
/// The lab could not be set up, or the program or its evidence failed.
pub fn rows(
    size: &Size,
    programs: &Programs,
    progress: Progress<'_>,
    rows: &mut Vec<Row>,
) -> Result<(), BenchError> {
    let switches = SwitchPair::new(programs)?;
    let frame = datagram(SOURCE_V6.into(), DESTINATION.into(), PAYLOAD_BYTES);
    progress("evidence in every packet: in memory", None);
    let ns = switches.in_memory(&frame, size)?;
    let lab = link::lab()?;
    let mut harness = SwitchHarness::new(&lab)?;
    let slot = Slot::default();
    let (saturated, loss_free) = harness.with_worker(slot.worker(), |harness| {
        progress("evidence in every packet: under overload", None);
        let saturated = switches.saturated_rates(&slot, harness, &frame, size)?;
        progress("evidence in every packet: search for the loss-free rate", None);
        Ok((saturated, switches.loss_free_rates(&slot, harness, &frame, size)?))
    })?;
    let mbit = |packets_per_s: f64| packets_per_s * 8.0 * PAYLOAD_BYTES as f64 / 1e6;
    rows.extend([
        Row::higher(
            "evidence_over_plain.rate",
            saturated.evidence / saturated.plain,
            "ratio",
            Some(0.9),
        ),
        Row::fact("plain.saturated_pps", saturated.plain, "packets/s"),
        Row::fact("evidence.saturated_pps", saturated.evidence, "packets/s"),
        Row::higher(
            "evidence_over_plain.in_memory",
            ns.plain / ns.evidence,
            "ratio",
            None,
        ),
        Row::lower("plain.memory_ns_per_packet", ns.plain, "ns", None),
        Row::lower("evidence.memory_ns_per_packet", ns.evidence, "ns", None),
        Row::higher("plain.loss_free_mbit_s", mbit(loss_free.plain), "Mbit/s", None),
        Row::higher(
            "evidence.loss_free_mbit_s",
            mbit(loss_free.evidence),
            "Mbit/s",
            Some(LOSS_FREE_TARGET_MBIT_S),
        ),
        // The tolerance covers a sender that is slightly late at the same step of the search.
        Row::higher(
            "evidence_over_plain.loss_free",
            loss_free.evidence / loss_free.plain,
            "ratio",
            Some(STEP - 0.005),
        ),
    ]);
    Ok(())
}
