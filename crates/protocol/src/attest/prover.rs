//! The role of the device: responds to tagged ATTEST_REQUESTs with one proof per round (LAP/1 3.2).
//!
//! A request passes [`Prover::screen`], which needs no key, [`ScreenedRequest::verify`], which needs a key, and
//! [`Prover::respond`]. If k is in a TPM, each key costs TPM time. So checks without a key come first, and the device
//! proves a new period only after the caller has measured the configuration and supplied the period's key.

use zerocopy::IntoBytes as _;

use super::keys::{PeriodKey, ProofKey, RequestKey};
use super::round::{PeriodStart, Round};
use crate::ids::{DeviceId, GatewayId, Period, RoundNumber};
use crate::keys::SessionKey;
use crate::tag::{self, TagVerified};
use crate::wire::{self, AttestRequest, Message, Proof};

/// Number of gateways whose state is kept. A further gateway replaces the gateway with the oldest request.
pub const GATEWAYS: usize = 4;

macro_rules! refusals {
    ($($(#[doc = $doc:literal])+ $variant:ident, $name:literal;)+) => {
        /// Why the device sends no proof for a request. The device sends nothing in this case.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Refusal { $($(#[doc = $doc])+ $variant),+ }

        impl Refusal {
            /// All reasons, in the order of the checks.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Name in counters and logs.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }
    };
}

refusals! {
    /// The message is not an ATTEST_REQUEST of LAP/1.
    Malformed, "malformed";
    /// The request is for another device.
    OtherDevice, "other_device";
    /// Round 0 is not a valid round number.
    RoundZero, "round_zero";
    /// The tag is zero.
    Untagged, "untagged";
    /// The period is older than the last proven period.
    StalePeriod, "stale_period";
    /// The request contains the last proven period with another salt.
    OtherSalt, "other_salt";
    /// The round is older than the last round.
    StaleRound, "stale_round";
    /// The request contains the last round with another nonce.
    OtherNonce, "other_nonce";
    /// There is no key for the gateway and the period of the request.
    NoKey, "no_key";
    /// The tag does not verify.
    WrongTag, "wrong_tag";
}

/// The key under which the gateway computed the tag.
#[derive(Clone, Copy, Debug)]
pub enum RequestTagKey<'a> {
    /// The key of the session with this gateway.
    Session(&'a SessionKey),
    /// The request key of this gateway and period.
    Request(&'a RequestKey),
}

/// A request that passed all checks that need no key.
#[derive(Clone, Copy, Debug)]
pub struct ScreenedRequest {
    message: AttestRequest,
    in_session: bool,
    is_expected: bool,
}

/// A request whose tag verified.
#[derive(Debug)]
pub struct VerifiedRequest {
    round: Round,
    in_session: bool,
    _tag: TagVerified,
}

/// The action of the caller for a request.
#[derive(Debug)]
pub enum ProofOutcome {
    /// Send this message.
    Proof(Proof),
    /// Measure the configuration, compute the period key (the HMAC of
    /// [`period_message`](super::keys::period_message)), pass it to [`Prover::begin_period`] and call
    /// [`Prover::respond`] again.
    MeasurementNeeded(PeriodStart, VerifiedRequest),
}

/// The prover's state for one gateway.
#[derive(Debug)]
struct GatewayState {
    gateway: GatewayId,
    start: PeriodStart,
    key: ProofKey,
    last_proven: Option<ProvenRound>,
    /// Value of the request counter at the gateway's last request.
    last_request: u64,
}

/// The last round with a proof.
#[derive(Debug)]
struct ProvenRound {
    number: RoundNumber,
    nonce: [u8; 8],
    proof: [u8; 64],
}

/// The prover of one device.
#[derive(Debug)]
pub struct Prover {
    device: DeviceId,
    /// The last period that the controller has confirmed.
    period: Period,
    gateways: [Option<GatewayState>; GATEWAYS],
    requests: u64,
}

impl Prover {
    /// `period`: the last period that is known to have begun, from the enrollment or from the caller's storage.
    #[must_use]
    pub fn new(device: DeviceId, period: Period) -> Self {
        Self {
            device,
            period,
            gateways: [const { None }; GATEWAYS],
            requests: 0,
        }
    }

    /// The last period that the controller has confirmed. A caller keeps it across restarts.
    #[must_use]
    pub fn period(&self) -> Period {
        self.period
    }

    /// Advances to a later period that the controller has confirmed; an earlier period changes nothing.
    pub fn advance_period(&mut self, period: Period) {
        self.period = self.period.max(period);
    }

    /// Checks everything that needs no key.
    ///
    /// # Errors
    /// The first [`Refusal`] that applies, up to `OtherNonce`.
    pub fn screen(&self, payload: &[u8], in_session: bool) -> Result<ScreenedRequest, Refusal> {
        let Ok(Message::AttestRequest(message)) = wire::parse(payload) else {
            return Err(Refusal::Malformed);
        };
        if message.header.device() != self.device {
            return Err(Refusal::OtherDevice);
        }
        if message.round.get() == 0 {
            return Err(Refusal::RoundZero);
        }
        if message.tag == [0; 16] {
            return Err(Refusal::Untagged);
        }
        let round = Round::from(message);
        let state = self.gateway_state(round.gateway);
        self.check_period(&round, state, in_session)?;
        if let Some(last) = state.and_then(|state| state.last_proven.as_ref()) {
            if round.number < last.number {
                return Err(Refusal::StaleRound);
            }
            if round.number == last.number && round.nonce != last.nonce {
                return Err(Refusal::OtherNonce);
            }
        }
        Ok(ScreenedRequest {
            message: *message,
            in_session,
            is_expected: state.is_some_and(|state| state.start.period == round.start.period)
                || round.start.period.0 <= self.period.0.saturating_add(1),
        })
    }

    /// Checks the period and its salt. In a session, a gateway can only affect its own periods. Without a session, the
    /// controller confirms the period: only the controller makes request keys, and only for the current and the next
    /// period.
    fn check_period(
        &self,
        round: &Round,
        state: Option<&GatewayState>,
        in_session: bool,
    ) -> Result<(), Refusal> {
        let period = round.start.period;
        let last = match state {
            Some(state) => state.start.period,
            None if in_session => Period(0),
            None => self.period,
        };
        if period < last {
            return Err(Refusal::StalePeriod);
        }
        let is_other =
            |state: &GatewayState| state.start.period == period && state.start.salt != round.start.salt;
        if state.is_some_and(is_other) {
            return Err(Refusal::OtherSalt);
        }
        Ok(())
    }

    /// Returns the proof, or the period that must be measured first. A repeated request gets the same proof, because
    /// the first response may be lost.
    pub fn respond(&mut self, request: VerifiedRequest) -> ProofOutcome {
        self.requests += 1;
        let (requests, device) = (self.requests, self.device);
        if !request.in_session {
            self.advance_period(request.round.start.period);
        }
        let round = request.round;
        let is_of_round =
            |state: &&mut GatewayState| state.gateway == round.gateway && state.start == round.start;
        let Some(state) = self.gateways.iter_mut().flatten().find(is_of_round) else {
            return ProofOutcome::MeasurementNeeded(round.start, request);
        };
        state.last_request = requests;
        let repeated = state
            .last_proven
            .as_ref()
            .filter(|last| last.number == round.number);
        let proof = match repeated {
            Some(last) => last.proof,
            None => state.key.prove(&round),
        };
        state.last_proven = Some(ProvenRound {
            number: round.number,
            nonce: round.nonce,
            proof,
        });
        ProofOutcome::Proof(round.proof_message(device, proof))
    }

    /// Sets the key of the period of `request`. Later proofs for the request's gateway use this key.
    pub fn begin_period(&mut self, request: &VerifiedRequest, key: &PeriodKey) {
        let round = &request.round;
        let last = self.remove_gateway(round.gateway);
        let age = |entry: &Option<GatewayState>| entry.as_ref().map_or(0, |state| state.last_request);
        let Some(entry) = self.gateways.iter_mut().min_by_key(|entry| age(entry)) else {
            return;
        };
        *entry = Some(GatewayState {
            gateway: round.gateway,
            start: round.start,
            key: key.for_gateway(round.gateway),
            last_proven: last,
            last_request: self.requests,
        });
    }

    /// Removes the state of a gateway; returns its last proven round, because round numbers continue across periods.
    fn remove_gateway(&mut self, gateway: GatewayId) -> Option<ProvenRound> {
        let is_of_gateway =
            |entry: &&mut Option<GatewayState>| entry.as_ref().is_some_and(|state| state.gateway == gateway);
        let entry = self.gateways.iter_mut().find(is_of_gateway)?;
        entry.take()?.last_proven
    }

    fn gateway_state(&self, gateway: GatewayId) -> Option<&GatewayState> {
        self.gateways
            .iter()
            .flatten()
            .find(|state| state.gateway == gateway)
    }
}

impl ScreenedRequest {
    /// The gateway and the period of the request, which select the [`RequestKey`].
    #[must_use]
    pub fn gateway_and_period(&self) -> (GatewayId, Period) {
        let round = Round::from(&self.message);
        (round.gateway, round.start.period)
    }

    /// Whether the request is for the last period of its gateway, or for a period up to the period after
    /// [`Prover::period`]. A device that was switched off receives later periods, but so does a device under attack.
    /// Where a [`RequestKey`] is expensive, callers limit the unexpected requests.
    #[must_use]
    pub fn is_expected(&self) -> bool {
        self.is_expected
    }

    /// Verifies the tag. `None` means that there is no key.
    ///
    /// # Errors
    /// `NoKey` if there is no key, or if the request was screened for the other kind of key; `WrongTag`.
    pub fn verify(self, key: Option<RequestTagKey<'_>>) -> Result<VerifiedRequest, Refusal> {
        let key = match (key, self.in_session) {
            (Some(RequestTagKey::Session(key)), true) => key.as_bytes(),
            (Some(RequestTagKey::Request(key)), false) => key.as_bytes(),
            _ => return Err(Refusal::NoKey),
        };
        let expected = tag::attest_request(key, &self.message);
        let tag = tag::verify(&expected, &self.message.tag).ok_or(Refusal::WrongTag)?;
        Ok(VerifiedRequest {
            round: Round::from(&self.message),
            in_session: self.in_session,
            _tag: tag,
        })
    }
}

impl VerifiedRequest {
    /// The gateway and the period to prove.
    #[must_use]
    pub fn gateway_and_start(&self) -> (GatewayId, PeriodStart) {
        (self.round.gateway, self.round.start)
    }
}

impl ProofOutcome {
    /// The message to send, if there is one.
    #[must_use]
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Proof(proof) => Some(proof.as_bytes()),
            Self::MeasurementNeeded(..) => None,
        }
    }
}

#[cfg(test)]
#[path = "prover_tests.rs"]
mod tests;
