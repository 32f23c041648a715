//! The gateway role of LAP/1, as an oracle: plain, single-threaded, and obviously right rather than fast.
//!
//! Every data plane is compared with it byte for byte. Given the same state, time and frame it always returns the
//! same bytes and verdict. A frame goes through these steps, and each decides or hands on:
//!
//! 1. Is it for us? ([`Gateway::handle_frame`], classification; the gate decides last, on everything else.)
//! 2. Is it well formed? ([`crate::wire::parse`])
//! 3. REQUEST: answered from the line; nothing is written.
//! 4. RESPONSE: [`Gateway::check_response`] reads and verifies, [`Gateway::commit`] spends the row,
//!    [`Gateway::open_session`] does the winner's work. They are apart because on several CPUs other packets are
//!    handled in between, and tests put them there. Each demands the proof that the one before has made:
//!    [`Fresh`] → [`TagVerified`](crate::tag::TagVerified) → [`Unspent`].
//!
//! One device's line:
//!
//! ```mermaid
//! stateDiagram-v2
//!     [*] --> Absent
//!     Absent --> Empty: install without rows
//!     Absent --> Valid: install
//!     Empty --> Valid: refill
//!     Valid --> Busy: RESPONSE verified, row spent (compare-and-swap), session id zeroed
//!     Busy --> Valid: session opened, next row (or key) in place
//!     Busy --> Empty: session opened, no row left
//!     Busy --> Empty: recover after a crash of user space, session id zeroed
//!     Valid --> Revoked: revoke
//!     Empty --> Revoked: revoke
//!     Busy --> Revoked: revoke (BUSY stays until the winner is done)
//!     Revoked --> Absent: wipe
//!     Valid --> Absent: wipe, crash
//!     Empty --> Absent: wipe, crash
//! ```
//!
//! The session lives beside this: it is live while its id is not zero, its lease is not over and the device is not
//! revoked. Nothing survives a crash of the machine, by LAP/1 1.4.10; user space then installs at the mark that the
//! registry reserved ahead (1.4.6).

mod always;
mod attest;
mod bindings;
mod config;
mod control;
mod dropped;
mod fresh;
mod gate;
mod line;
mod p4dra;
mod provision;
mod request;
mod response;
mod sealed;
#[cfg(test)]
mod tests;

use alloc::collections::BTreeMap;

use zerocopy::{FromBytes as _, IntoBytes as _};

pub use attest::{Configuration, OpenRound, Proved, ProverKeys};
pub use config::{Gate, GatewayConfig, Live};
pub use control::{ControlAddress, ControlProtocol, LLC};
pub use dropped::{DROPPED_TYPES, DroppedTypes, KNOWN_TYPES};
pub use fresh::{FRESH_MAX_AGE_MS, Fresh, FreshValue};
pub use line::{LineView, Row, SessionView};
pub use p4dra::P4dra;
pub use provision::{DeviceInstall, ProvisionError};
pub use request::challenge;
pub use response::{Checked, Unspent, Verified};
pub use sealed::Handled;

use crate::classic::verifier::Verifier;
use crate::frame::{Meta, ip_from_bytes};
use crate::ids::{DeviceId, Period, RoundNumber};
use crate::time::Now;
use crate::verdict::{VERDICT_SLOTS, Verdict};
use crate::wire::{self, MESSAGE_BYTES, Message};
use bindings::Bindings;
use fresh::Freshness;
use line::Line;
use request::RateLimit;

/// A gateway: its devices' lines, its freshness values, its gate.
#[derive(Debug)]
pub struct Gateway {
    config: GatewayConfig,
    lines: BTreeMap<DeviceId, Line>,
    bindings: Bindings,
    freshness: Freshness,
    stopping: bool,
    nak_limit: RateLimit,
    miss_limit: RateLimit,
    classic: Option<(u16, Verifier)>,
    p4dra: Option<P4dra>,
    provers: BTreeMap<DeviceId, attest::Prover>,
    periods: attest::Lanes<Option<Period>>,
    rounds: attest::Lanes<Option<OpenRound>>,
    /// 0: none was opened.
    last_round: RoundNumber,
    counters: [u64; VERDICT_SLOTS],
    dropped: DroppedTypes,
}

/// A reply in place of the message that it answers.
enum Answer {
    Challenge(wire::Challenge),
    Ack(wire::Ack),
    Nak(wire::Nak),
}

impl Gateway {
    /// A gateway that knows no device and answers nothing until it is given a freshness value.
    #[must_use]
    pub fn new(config: GatewayConfig) -> Self {
        Self {
            bindings: Bindings::new(config.bindings_max),
            config,
            lines: BTreeMap::new(),
            freshness: Freshness::default(),
            stopping: false,
            nak_limit: RateLimit::default(),
            miss_limit: RateLimit::default(),
            classic: None,
            p4dra: None,
            provers: BTreeMap::new(),
            periods: attest::Lanes::default(),
            rounds: attest::Lanes::default(),
            last_round: RoundNumber(0),
            counters: [0; VERDICT_SLOTS],
            dropped: DroppedTypes::default(),
        }
    }

    /// Serves a classic profile on that UDP port (insecure; for measurement only).
    pub fn serve_classic(&mut self, port: u16, verifier: Verifier) {
        self.classic = Some((port, verifier));
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &GatewayConfig {
        &self.config
    }

    /// Puts other settings into force. A session keeps the lease that it was granted, and its ACK repeated names that
    /// (LAP/1 1.4.4). Sessions at addresses that the machine has now are closed (LAP/1 1.4.13).
    pub fn reconfigure(&mut self, live: Live) {
        if let Some(sources) = &live.sources {
            for line in self.lines.values_mut() {
                line.session_id
                    .take_if(|_| sources.owns(ip_from_bytes(line.session.from.src_ip)));
            }
        }
        self.config.sources = live.sources;
        self.config.lease_s = live.lease_s;
        self.config.nak_per_s = live.nak_per_s;
        self.config.miss_per_s = live.miss_per_s;
    }

    /// Draws a new freshness value; the current one becomes the previous (LAP/1 1.4.1: every 8 s).
    pub fn set_fresh(&mut self, value: FreshValue, now: Now) {
        self.freshness.rotate(value, now);
    }

    /// Replaces both freshness values, as at the start and after a suspend: no older one is accepted.
    pub fn restart_fresh(&mut self, current: FreshValue, previous: FreshValue, now: Now) {
        self.freshness = Freshness::default();
        self.freshness.rotate(previous, now);
        self.freshness.rotate(current, now);
    }

    /// Whether REQUESTs are answered with a NAK because the gateway is stopping.
    pub fn set_stopping(&mut self, stopping: bool) {
        self.stopping = stopping;
    }

    /// How many packets got that verdict since the start.
    #[must_use]
    pub fn counter(&self, verdict: Verdict) -> u64 {
        let slot = self.counters.get(usize::from(verdict.number()));
        slot.copied().unwrap_or_default()
    }

    /// All counters, by verdict number.
    #[must_use]
    pub fn counters(&self) -> &[u64; VERDICT_SLOTS] {
        &self.counters
    }

    /// Frames other than IP that the gate has dropped, by Ethernet type.
    #[must_use]
    pub fn dropped_types(&self) -> &DroppedTypes {
        &self.dropped
    }

    /// Loses everything that memory held, as a crash of the machine does; only the configuration is read again.
    pub fn crash(&mut self) {
        *self = Self::new(self.config.clone());
    }

    /// Handles a UDP payload addressed to the LAP port, and replaces it in place when the verdict is a reply.
    ///
    /// For data planes that see datagrams only; counted like frames.
    pub fn handle_payload(&mut self, now: Now, meta: &Meta, payload: &mut [u8]) -> Verdict {
        let verdict = self.lap(now, meta, payload);
        self.count(verdict)
    }

    fn count(&mut self, verdict: Verdict) -> Verdict {
        if let Some(slot) = self.counters.get_mut(usize::from(verdict.number())) {
            *slot += 1;
        }
        verdict
    }

    /// LAP/1 on a payload: parse, then by type. Replies have the length of what they answer.
    fn lap(&mut self, now: Now, meta: &Meta, payload: &mut [u8]) -> Verdict {
        let outcome = match wire::parse(payload) {
            Err(reason) => Err(reason),
            Ok(Message::Request(request)) => self.request(now, meta, request),
            Ok(Message::Response(response)) => self.response(now, meta, response),
            Ok(Message::Proof(proof)) => Err(self.proof(now, proof)),
            Ok(Message::DataUp(..)) => Err(Verdict::DropNotSealed),
            Ok(
                Message::Challenge(_)
                | Message::Ack(_)
                | Message::Nak(_)
                | Message::DataDown(..)
                | Message::AttestRequest(_),
            ) => Err(Verdict::DropDirection),
        };
        match outcome {
            Err(reason) => reason,
            Ok((verdict, answer)) => answer.write(payload).map_or(Verdict::DropLength, |()| verdict),
        }
    }
}

impl Answer {
    /// `None` when the payload is not [`MESSAGE_BYTES`] long, which parsing has excluded.
    fn write(&self, payload: &mut [u8]) -> Option<()> {
        let bytes = match self {
            Self::Challenge(message) => message.as_bytes(),
            Self::Ack(message) => message.as_bytes(),
            Self::Nak(message) => message.as_bytes(),
        };
        let (slot, rest) = <[u8; MESSAGE_BYTES]>::mut_from_prefix(payload).ok()?;
        rest.is_empty().then(|| slot.copy_from_slice(bytes))
    }
}
