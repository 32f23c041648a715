//! Responds to attestation requests, and determines the keys that are needed: without sockets, threads or clocks.
//!
//! ```text
//!   request ─ screen ─┬─ tag under the session key ────────────────┐
//!                     └─ tag under a request key, made if needed ──┴─► proof, or the period key first
//! ```
//! Two jobs are requested here and executed elsewhere: a request key (one HMAC; with a TPM, some ms), and a period key
//! (a measurement, up to seconds). An attacker who can send packets causes only a few request keys of a TPM per second,
//! and without a valid tag no measurement.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use linewarden_protocol::attest::prover::{ProofOutcome, Prover, Refusal, RequestTagKey, VerifiedRequest};
use linewarden_protocol::attest::{ConfigurationHash, PeriodKey, PeriodStart, RequestKey, Round};
use linewarden_protocol::device::{GatewayPolicy, Session};
use linewarden_protocol::ids::{DeviceId, GatewayId, Period, RoundNumber};
use linewarden_protocol::wire::{self, MESSAGE_BYTES, Message};

use super::request_keys::RequestKeys;
use crate::retry::RetryTimer;

/// Maximum number of requests that wait for the key of their tag; if there are more, most are an attacker's.
const UNVERIFIED_MAX: usize = 16;
/// Maximum number of gateways whose requests wait for a period key.
const WAITING_MAX: usize = 8;
/// Maximum number of stored period keys, and of stored periods without a valid measurement.
const PERIODS_MAX: usize = 4;
/// Time after which a waiting request is obsolete, ms.
const WAIT_MS_MAX: u64 = 60_000;
/// First and longest delay after a failure, ms.
pub(crate) const BACKOFF_MS: (u64, u64) = (1_000, 60_000);
/// Minimum pause between two measurements, ms; the pause is as long as the last measurement, so that no gateway keeps
/// the device busy for more than half of its time.
const MEASUREMENT_PAUSE_MS_MIN: u64 = 100;

/// Rejection: too many requests wait for a request key or for the key of a period.
pub(crate) const RATE_LIMITED: &str = "limited";
/// Rejection: the measurement of this period failed permanently.
pub(crate) const NOT_MEASURED: &str = "not_measured";
/// Rejection: the gateway is not accepted by the configuration.
pub(crate) const OTHER_GATEWAY: &str = "other_gateway";

/// Number of rejected requests, by reason.
pub(crate) type Rejections = BTreeMap<&'static str, u64>;

/// A key that the caller must make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyJob {
    RequestKey(GatewayId, Period),
    Period(PeriodStart),
}

/// A PROOF message.
#[derive(Debug)]
pub(crate) struct ProofReply {
    pub(crate) to: SocketAddr,
    pub(crate) proof: Vec<u8>,
    /// Set for the first proof of a period to a gateway.
    pub(crate) first_proof: Option<FirstProof>,
}

/// The first proof of a period to a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FirstProof {
    pub(crate) gateway: GatewayId,
    pub(crate) period: Period,
    pub(crate) h: ConfigurationHash,
}

#[derive(Clone, Copy)]
struct Request {
    payload: [u8; MESSAGE_BYTES],
    from: SocketAddr,
    received_ms: u64,
}

/// A request whose tag waits for a key.
struct UnverifiedRequest {
    request: Request,
    key_id: (GatewayId, Period),
}

/// A request with a valid tag.
struct QueuedRequest {
    request: Request,
    in_session: bool,
    gateway: GatewayId,
    start: PeriodStart,
    verified: VerifiedRequest,
}

/// A period with its key.
struct PreparedPeriod {
    start: PeriodStart,
    key: PeriodKey,
    h: ConfigurationHash,
    reported_gateways: Vec<GatewayId>,
}

/// The prover with its waiting requests and keys.
pub(crate) struct Responder {
    prover: Prover,
    gateways: GatewayPolicy,
    keys: RequestKeys,
    unverified: VecDeque<UnverifiedRequest>,
    /// The newest request of each gateway that waits for a period key.
    waiting: Vec<QueuedRequest>,
    periods: VecDeque<PreparedPeriod>,
    failed_periods: VecDeque<PeriodStart>,
    key_retry: RetryTimer,
    period_retry: RetryTimer,
    rejections: Rejections,
    /// The newest round of each gateway that has sent a request with a valid tag.
    newest_rounds: BTreeMap<GatewayId, RoundNumber>,
    /// The gateway of the last new request under a request key; `None` after the caller has read the value.
    sessionless_gateway: Option<GatewayId>,
}

impl Responder {
    /// Creates a responder; `period` as in [`Prover::new`].
    pub(crate) fn new(device: DeviceId, period: Period, gateways: GatewayPolicy, keys: RequestKeys) -> Self {
        Self {
            prover: Prover::new(device, period),
            gateways,
            keys,
            unverified: VecDeque::new(),
            waiting: Vec::new(),
            periods: VecDeque::new(),
            failed_periods: VecDeque::new(),
            key_retry: RetryTimer::new(BACKOFF_MS),
            period_retry: RetryTimer::new(BACKOFF_MS),
            rejections: Rejections::new(),
            newest_rounds: BTreeMap::new(),
            sessionless_gateway: None,
        }
    }

    /// Replaces the attestation key. Waiting requests and sent proofs are forgotten.
    pub(crate) fn replace_key(&mut self, device: DeviceId, keys: RequestKeys) {
        *self = Self {
            rejections: std::mem::take(&mut self.rejections),
            newest_rounds: std::mem::take(&mut self.newest_rounds),
            sessionless_gateway: self.sessionless_gateway.take(),
            ..Self::new(device, self.period(), self.gateways, keys)
        };
    }

    /// Returns the gateway that, since the last call, has begun a round without a session of this device. The first
    /// received request of the round had a valid tag under the request key. A gateway with a session sends a round
    /// first under the session key, and at most repeats the request under the request key. Only the gateway can have
    /// sent this request, and copies of older requests do not count.
    pub(crate) fn take_sessionless_gateway(&mut self) -> Option<GatewayId> {
        self.sessionless_gateway.take()
    }

    /// Records the round of a request with a valid tag; returns whether the round is later than all recorded rounds of
    /// the gateway.
    fn record_round(&mut self, gateway: GatewayId, payload: &[u8]) -> bool {
        let Ok(Message::AttestRequest(request)) = wire::parse(payload) else {
            return false;
        };
        let number = Round::from(request).number;
        let newest = self.newest_rounds.entry(gateway).or_insert(RoundNumber(0));
        let is_new = *newest < number;
        *newest = number.max(*newest);
        is_new
    }

    /// The last period that the controller has confirmed.
    pub(crate) fn period(&self) -> Period {
        self.prover.period()
    }

    /// Gateways with valid tags.
    pub(crate) fn verified_gateways(&self) -> Vec<GatewayId> {
        self.keys.verified_gateways()
    }

    /// The next request key to make, also before its retry is due.
    pub(crate) fn next_request_key(&self) -> Option<(GatewayId, Period)> {
        self.keys.next_pending()
    }

    pub(crate) fn rejections(&self) -> &Rejections {
        &self.rejections
    }

    /// Handles a received datagram.
    pub(crate) fn receive(
        &mut self,
        datagram: &[u8],
        from: SocketAddr,
        session: Option<&Session>,
        now_ms: u64,
    ) -> Option<ProofReply> {
        let Ok(payload) = <[u8; MESSAGE_BYTES]>::try_from(datagram) else {
            return self.reject(Refusal::Malformed.name());
        };
        let request = Request {
            payload,
            from,
            received_ms: now_ms,
        };
        if let Some(verified) = session.and_then(|session| self.verify_in_session(session, &request)) {
            return self.respond(verified, true, request);
        }
        // Even if the device has a session, the request is checked under the request key too: the gateway may have lost
        // the session, or have quarantined the device.
        let screened = match self.prover.screen(&payload, false) {
            Ok(screened) => screened,
            Err(refusal) => return self.reject(refusal.name()),
        };
        let key_id = screened.gateway_and_period();
        if !self.gateways.allows(key_id.0) {
            return self.reject(OTHER_GATEWAY);
        }
        // An older period is rejected before a key is made: a gateway is at most one period behind, and a key is expensive.
        if key_id.1.0.saturating_add(1) < self.prover.period().0 {
            return self.reject(Refusal::StalePeriod.name());
        }
        if self.keys.get(key_id).is_some() {
            return self.verify(key_id, request);
        }
        if !self.keys.request(key_id, screened.is_expected(), now_ms) {
            return self.reject(RATE_LIMITED);
        }
        if self.unverified.len() >= UNVERIFIED_MAX {
            self.unverified.pop_front();
        }
        self.unverified.push_back(UnverifiedRequest { request, key_id });
        None
    }

    /// Verifies a request under the session key.
    fn verify_in_session(&mut self, session: &Session, request: &Request) -> Option<VerifiedRequest> {
        let screened = self.prover.screen(&request.payload, true).ok()?;
        let is_session_gateway = screened.gateway_and_period().0 == session.gateway;
        let verified = screened.verify(Some(RequestTagKey::Session(session.key())));
        let verified = verified.ok().filter(|_| is_session_gateway)?;
        self.keys.record_verified(session.gateway);
        // The gateway may repeat the request under the request key. The recorded round shows that the repetition is not
        // new.
        self.record_round(session.gateway, &request.payload);
        Some(verified)
    }

    /// Verifies a request under its request key.
    fn verify(&mut self, key_id: (GatewayId, Period), request: Request) -> Option<ProofReply> {
        let key = self.keys.get(key_id);
        // A newer request may have been answered since the first check.
        let verified = self
            .prover
            .screen(&request.payload, false)
            .and_then(|screened| screened.verify(key.map(RequestTagKey::Request)));
        match verified {
            Ok(verified) => {
                self.keys.record_verified(key_id.0);
                if self.record_round(key_id.0, &request.payload) {
                    self.sessionless_gateway = Some(key_id.0);
                }
                self.respond(verified, false, request)
            }
            Err(refusal) => self.reject(refusal.name()),
        }
    }

    fn respond(
        &mut self,
        verified: VerifiedRequest,
        in_session: bool,
        request: Request,
    ) -> Option<ProofReply> {
        let (gateway, start) = verified.gateway_and_start();
        let verified = match self.prover.respond(verified) {
            ProofOutcome::MeasurementNeeded(_, verified) => verified,
            proof @ ProofOutcome::Proof(_) => return self.reply(&proof, (gateway, start), &request),
        };
        if let Some(prepared) = self.periods.iter().find(|prepared| prepared.start == start) {
            self.prover.begin_period(&verified, &prepared.key);
            let proof = self.prover.respond(verified);
            return self.reply(&proof, (gateway, start), &request);
        }
        if self.failed_periods.contains(&start) {
            return self.reject(NOT_MEASURED);
        }
        let is_full = self.waiting.len() >= WAITING_MAX;
        let entry = self.waiting.iter_mut().find(|queued| queued.gateway == gateway);
        let waiting = QueuedRequest {
            request,
            in_session,
            gateway,
            start,
            verified,
        };
        match entry {
            Some(entry) => *entry = waiting,
            None if is_full => return self.reject(RATE_LIMITED),
            None => self.waiting.push(waiting),
        }
        None
    }

    fn reply(
        &mut self,
        proof: &ProofOutcome,
        (gateway, start): (GatewayId, PeriodStart),
        request: &Request,
    ) -> Option<ProofReply> {
        let proof = proof.bytes()?.to_vec();
        let prepared = self.periods.iter_mut().find(|prepared| prepared.start == start);
        let first_proof = prepared
            .filter(|prepared| !prepared.reported_gateways.contains(&gateway))
            .map(|prepared| {
                prepared.reported_gateways.push(gateway);
                FirstProof {
                    gateway,
                    period: start.period,
                    h: prepared.h,
                }
            });
        Some(ProofReply {
            to: request.from,
            proof,
            first_proof,
        })
    }

    fn reject(&mut self, reason: &'static str) -> Option<ProofReply> {
        let count = self.rejections.entry(reason).or_default();
        *count = count.saturating_add(1);
        None
    }

    /// The next key to make, if one is due.
    pub(crate) fn next_job(&mut self, now_ms: u64) -> Option<KeyJob> {
        self.expire_requests(now_ms);
        if self.key_retry.is_due(now_ms)
            && let Some((gateway, period)) = self.keys.next_pending()
        {
            return Some(KeyJob::RequestKey(gateway, period));
        }
        let waiting = self
            .waiting
            .first()
            .filter(|_| self.period_retry.is_due(now_ms))?;
        Some(KeyJob::Period(waiting.start))
    }

    /// The earliest time at which [`Responder::next_job`] returns a job without a further datagram, ms.
    pub(crate) fn deadline(&self) -> Option<u64> {
        let key = self.keys.next_pending().map(|_| self.key_retry.due_ms());
        let period = self.waiting.first().map(|_| self.period_retry.due_ms());
        key.into_iter().chain(period).min()
    }

    fn expire_requests(&mut self, now_ms: u64) {
        let is_current = |request: &Request| now_ms.saturating_sub(request.received_ms) < WAIT_MS_MAX;
        self.waiting.retain(|waiting| is_current(&waiting.request));
        self.unverified
            .retain(|unverified| is_current(&unverified.request));
        let unverified = &self.unverified;
        self.keys
            .retain_pending(|key_id| unverified.iter().any(|unverified| unverified.key_id == key_id));
    }

    /// Handles the requests that waited for a request key.
    pub(crate) fn request_key_ready(
        &mut self,
        key_id: (GatewayId, Period),
        key: RequestKey,
    ) -> Vec<ProofReply> {
        self.key_retry.succeed();
        self.keys.insert(key_id, key);
        let unverified = std::mem::take(&mut self.unverified);
        let (ready, remaining): (VecDeque<_>, _) = unverified
            .into_iter()
            .partition(|unverified| unverified.key_id == key_id);
        self.unverified = remaining;
        ready
            .into_iter()
            .filter_map(|unverified| self.verify(key_id, unverified.request))
            .collect()
    }

    /// Records that a request key could not be made; returns the time to the next attempt, ms.
    pub(crate) fn request_key_failed(&mut self, now_ms: u64, random: u64) -> u64 {
        self.key_retry.fail(now_ms, random)
    }

    /// Handles the requests that waited for a period key. `measurement_ms`: duration of the measurement.
    pub(crate) fn period_key_ready(
        &mut self,
        start: PeriodStart,
        key: PeriodKey,
        h: ConfigurationHash,
        measurement_ms: u64,
        now_ms: u64,
    ) -> Vec<ProofReply> {
        let pause_ms = measurement_ms.max(MEASUREMENT_PAUSE_MS_MIN);
        self.period_retry.succeed_until(now_ms.saturating_add(pause_ms));
        let reported_gateways = Vec::new();
        push_bounded(
            &mut self.periods,
            PreparedPeriod {
                start,
                key,
                h,
                reported_gateways,
            },
        );
        let waiting = std::mem::take(&mut self.waiting);
        let (ready, remaining): (Vec<_>, _) = waiting.into_iter().partition(|waiting| waiting.start == start);
        self.waiting = remaining;
        ready
            .into_iter()
            .filter_map(|waiting| {
                // While this request waited, the device may have answered a later round of the previous period. The
                // request is then stale.
                match self.prover.screen(&waiting.request.payload, waiting.in_session) {
                    Ok(_) => self.respond(waiting.verified, waiting.in_session, waiting.request),
                    Err(refusal) => self.reject(refusal.name()),
                }
            })
            .collect()
    }

    /// Records that a period key could not be made; returns the time to the next attempt, ms. Returns `None` if another
    /// attempt in this period would fail too: the device then sends no proof in this period.
    pub(crate) fn period_key_failed(
        &mut self,
        start: PeriodStart,
        is_final: bool,
        now_ms: u64,
        random: u64,
    ) -> Option<u64> {
        if !is_final {
            return Some(self.period_retry.fail(now_ms, random));
        }
        push_bounded(&mut self.failed_periods, start);
        let waiting_before = self.waiting.len();
        self.waiting.retain(|waiting| waiting.start != start);
        for _ in self.waiting.len()..waiting_before {
            self.reject(NOT_MEASURED);
        }
        None
    }
}

fn push_bounded<T>(list: &mut VecDeque<T>, value: T) {
    if list.len() >= PERIODS_MAX {
        list.pop_front();
    }
    list.push_back(value);
}

#[cfg(test)]
#[path = "responder_tests.rs"]
mod tests;
