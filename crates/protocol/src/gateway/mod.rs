//! The gateway role of LAP/1, as the reference implementation (oracle): plain, single-threaded, correct rather than
//! fast.
//!
//! Tests compare every data plane with the oracle byte for byte. For the same state, time and frame, the oracle always
//! returns the same bytes and verdict. Each of these steps decides about a frame, or passes it to the next step:
//!
//! 1. Is the frame for the gateway? ([`Gateway::handle_frame`], classification; the gate decides last, on all other
//!    frames.)
//! 2. Is it well formed? ([`crate::wire::parse`])
//! 3. REQUEST: the reply comes from the line; nothing is written.
//! 4. RESPONSE: [`Gateway::check_response`] reads and verifies, [`Gateway::commit`] spends the row,
//!    [`Gateway::open_session`] does the work of the winner. The steps are separate because other CPUs can handle
//!    packets between the steps, and so can tests. Each step requires the proof from the previous step:
//!    [`FreshVerified`] → [`TagVerified`](crate::tag::TagVerified) → [`CommittedRow`].
//!
//! The states of a device's line:
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
//! The session is separate from this state: it is live while its id is not zero, it has not expired and the device is
//! not revoked. No memory survives a crash of the machine (LAP/1 1.4.10). Afterwards, user space installs rows from the
//! mark that the registry reserved in advance (1.4.6).

mod attest;
mod bindings;
mod config;
mod control;
mod dropped;
mod fresh;
mod gate;
mod gate_exemptions;
mod line;
mod provision;
mod request;
mod response;
mod sealed;
#[cfg(test)]
mod tests;

use alloc::collections::BTreeMap;

use zerocopy::{FromBytes as _, IntoBytes as _};

pub use attest::{Configuration, OpenRound, ProofRecord, ProverKeys};
pub use config::{Gate, GatewayConfig, LiveSettings};
pub use control::{ControlAddress, ControlProtocol, LLC};
pub use dropped::{DROPPED_TYPES, DroppedTypes, KNOWN_TYPES};
pub use fresh::{FRESH_MAX_AGE_MS, FreshValue, FreshVerified};
#[cfg(feature = "lab")]
pub(crate) use gate::reverse_if_reply;
pub use line::{LineView, Row, SessionView};
pub use provision::{DeviceInstall, ProvisionError};
pub use request::challenge;
pub use response::{CommittedRow, ResponseCheck, VerifiedResponse};
pub use sealed::HandledFrame;

use crate::frame::{Meta, ip_from_bytes};
use crate::ids::{DeviceId, Period, RoundNumber};
use crate::time::Now;
use crate::verdict::{VERDICT_SLOTS, Verdict};
use crate::wire::{self, MESSAGE_BYTES, Message};
use bindings::Bindings;
use fresh::AcceptedFreshValues;
use line::Line;
use request::RateLimit;

/// A gateway: its devices' lines, its freshness values, its gate.
#[derive(Debug)]
pub struct Gateway {
    config: GatewayConfig,
    lines: BTreeMap<DeviceId, Line>,
    bindings: Bindings,
    freshness: AcceptedFreshValues,
    is_stopping: bool,
    nak_limit: RateLimit,
    miss_limit: RateLimit,
    provers: BTreeMap<DeviceId, attest::ProverState>,
    periods: attest::ByParity<Option<Period>>,
    rounds: attest::ByParity<Option<OpenRound>>,
    /// Number of the last opened round; 0: no round was opened.
    last_round: RoundNumber,
    counters: [u64; VERDICT_SLOTS],
    dropped: DroppedTypes,
}

/// A reply that replaces the message it responds to.
enum ReplyMessage {
    Challenge(wire::Challenge),
    Ack(wire::Ack),
    Nak(wire::Nak),
}

impl Gateway {
    /// A gateway without devices. It sends no reply until it has a freshness value.
    #[must_use]
    pub fn new(config: GatewayConfig) -> Self {
        Self {
            bindings: Bindings::new(config.bindings_max),
            config,
            lines: BTreeMap::new(),
            freshness: AcceptedFreshValues::default(),
            is_stopping: false,
            nak_limit: RateLimit::default(),
            miss_limit: RateLimit::default(),
            provers: BTreeMap::new(),
            periods: attest::ByParity::default(),
            rounds: attest::ByParity::default(),
            last_round: RoundNumber(0),
            counters: [0; VERDICT_SLOTS],
            dropped: DroppedTypes::default(),
        }
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &GatewayConfig {
        &self.config
    }

    /// Applies new settings. A session keeps the lifetime that it was granted, and its repeated ACK contains that
    /// lifetime (LAP/1 1.4.4). Sessions at addresses that the machine has now are closed (LAP/1 1.4.13).
    pub fn reconfigure(&mut self, live: LiveSettings) {
        if let Some(sources) = &live.sources {
            for line in self.lines.values_mut() {
                line.session_id
                    .take_if(|_| sources.is_own_address(ip_from_bytes(line.session.origin.src_ip)));
            }
        }
        self.config.sources = live.sources;
        self.config.session_lifetime_s = live.session_lifetime_s;
        self.config.nak_per_s = live.nak_per_s;
        self.config.miss_per_s = live.miss_per_s;
    }

    /// Sets a new freshness value; the current value becomes the previous value (LAP/1 1.4.1: every 8 s).
    pub fn rotate_fresh_value(&mut self, value: FreshValue, now: Now) {
        self.freshness.rotate(value, now);
    }

    /// Replaces both freshness values, as at the start and after a suspend: no older value is accepted.
    pub fn replace_fresh_values(&mut self, current: FreshValue, previous: FreshValue, now: Now) {
        self.freshness = AcceptedFreshValues::default();
        self.freshness.rotate(previous, now);
        self.freshness.rotate(current, now);
    }

    /// Sets whether the gateway replies to REQUESTs with a NAK, because it is stopping.
    pub fn set_stopping(&mut self, stopping: bool) {
        self.is_stopping = stopping;
    }

    /// Number of packets with this verdict since the start.
    #[must_use]
    pub fn counter(&self, verdict: Verdict) -> u64 {
        let count = self.counters.get(usize::from(verdict.number()));
        count.copied().unwrap_or_default()
    }

    /// All counters, by verdict number.
    #[must_use]
    pub fn counters(&self) -> &[u64; VERDICT_SLOTS] {
        &self.counters
    }

    /// Dropped non-IP frames, by Ethernet type.
    #[must_use]
    pub fn dropped_types(&self) -> &DroppedTypes {
        &self.dropped
    }

    /// Clears all memory, as a crash of the machine does; only the configuration remains.
    pub fn crash(&mut self) {
        *self = Self::new(self.config.clone());
    }

    /// Handles a UDP payload addressed to the LAP port, and writes the reply in place if the verdict is a reply.
    ///
    /// For data planes that receive only datagrams. The verdict is counted as for frames.
    pub fn handle_payload(&mut self, now: Now, meta: &Meta, payload: &mut [u8]) -> Verdict {
        let verdict = self.handle_lap(now, meta, payload);
        self.count(verdict)
    }

    pub(crate) fn count(&mut self, verdict: Verdict) -> Verdict {
        if let Some(counter) = self.counters.get_mut(usize::from(verdict.number())) {
            *counter += 1;
        }
        verdict
    }

    /// Parses a LAP/1 payload, and handles the message by its type. A reply has the length of its message.
    fn handle_lap(&mut self, now: Now, meta: &Meta, payload: &mut [u8]) -> Verdict {
        let outcome = match wire::parse(payload) {
            Err(reason) => Err(reason),
            Ok(Message::Request(request)) => self.handle_request(now, meta, request),
            Ok(Message::Response(response)) => self.handle_response(now, meta, response),
            Ok(Message::Proof(proof)) => Err(self.handle_proof(now, proof)),
            Ok(Message::DataUp(..)) => Err(Verdict::DropGateNotSealed),
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
            Ok((verdict, reply)) => reply.write(payload).map_or(Verdict::DropLength, |()| verdict),
        }
    }
}

impl ReplyMessage {
    /// Writes the reply over the payload. `None` if the payload is not [`MESSAGE_BYTES`] long, which parsing has
    /// excluded.
    fn write(&self, payload: &mut [u8]) -> Option<()> {
        let bytes = match self {
            Self::Challenge(message) => message.as_bytes(),
            Self::Ack(message) => message.as_bytes(),
            Self::Nak(message) => message.as_bytes(),
        };
        let (target, rest) = <[u8; MESSAGE_BYTES]>::mut_from_prefix(payload).ok()?;
        rest.is_empty().then(|| target.copy_from_slice(bytes))
    }
}
