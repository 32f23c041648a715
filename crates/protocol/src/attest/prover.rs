//! The device's role: answers tagged ATTEST_REQUESTs, one proof a round (LAP/1 3.2).
//!
//! A request goes through [`Prover::screen`], which needs no key, [`Screened::verify`], which does, and
//! [`Prover::answer`]. Where k lies in a TPM the keys cost it work, so what can be refused without them is refused first, and a
//! new period is answered only after the caller has measured and has brought the period's key.

use zerocopy::IntoBytes as _;

use super::keys::{PeriodKey, ProofKey, RequestKey};
use super::round::{PeriodStart, Round};
use crate::ids::{DeviceId, GatewayId, Period, RoundNumber};
use crate::keys::SessionKey;
use crate::tag::{self, TagVerified};
use crate::wire::{self, AttestRequest, Message, Proof};

/// Gateways that are remembered; one more takes the place of who was silent longest.
pub const GATEWAYS: usize = 4;

macro_rules! refusals {
    ($($(#[doc = $doc:literal])+ $variant:ident, $name:literal;)+) => {
        /// Why a request gets no proof. Nothing is sent then.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Refusal { $($(#[doc = $doc])+ $variant),+ }

        impl Refusal {
            /// All, in the order in which they are looked for.
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
    /// No ATTEST_REQUEST of LAP/1.
    Malformed, "malformed";
    /// For another device.
    OtherDevice, "other_device";
    /// Round 0 is none.
    RoundZero, "round_zero";
    /// The tag is zero.
    Untagged, "untagged";
    /// A period before the one that was proven last.
    PeriodOver, "period_over";
    /// The period that was proven last, under another salt.
    OtherSalt, "other_salt";
    /// A round before the last one.
    RoundOver, "round_over";
    /// The last round, under another nonce.
    OtherNonce, "other_nonce";
    /// There is no key under which that gateway could ask.
    NoKey, "no_key";
    /// The tag does not verify.
    WrongTag, "wrong_tag";
}

/// What the gateway's tag is under.
#[derive(Clone, Copy, Debug)]
pub enum AskedBy<'a> {
    /// A live session with that gateway.
    Session(&'a SessionKey),
    /// The key of that gateway and period.
    Request(&'a RequestKey),
}

/// A request that may be worth a tag.
#[derive(Clone, Copy, Debug)]
pub struct Screened {
    message: AttestRequest,
    in_session: bool,
    is_expected: bool,
}

/// A request whose tag has verified.
#[derive(Debug)]
pub struct Asked {
    round: Round,
    in_session: bool,
    _tag: TagVerified,
}

/// What to do about a request.
#[derive(Debug)]
pub enum Answer {
    /// Send this.
    Proof(Proof),
    /// Measure, make the period's key (the HMAC of [`period_message`](super::keys::period_message)), hand it to
    /// [`Prover::begin`] and answer again.
    Period(PeriodStart, Asked),
}

/// A gateway that has asked.
#[derive(Debug)]
struct Known {
    gateway: GatewayId,
    start: PeriodStart,
    key: ProofKey,
    last: Option<Proven>,
    /// When it was last heard, in requests.
    heard: u64,
}

/// The last round that was answered.
#[derive(Debug)]
struct Proven {
    number: RoundNumber,
    nonce: [u8; 8],
    proof: [u8; 64],
}

/// A device as a prover.
#[derive(Debug)]
pub struct Prover {
    device: DeviceId,
    /// The last period that the controller has vouched for.
    period: Period,
    known: [Option<Known>; GATEWAYS],
    requests: u64,
}

impl Prover {
    /// `period`: the last one that is known to have begun, from enrolment or from what the caller has kept.
    #[must_use]
    pub fn new(device: DeviceId, period: Period) -> Self {
        Self {
            device,
            period,
            known: [const { None }; GATEWAYS],
            requests: 0,
        }
    }

    /// The last period that the controller has vouched for: worth keeping across a restart.
    #[must_use]
    pub fn period(&self) -> Period {
        self.period
    }

    /// The controller has told, under a key of its own, that this period has begun.
    pub fn catch_up(&mut self, period: Period) {
        self.period = self.period.max(period);
    }

    /// All that can be refused without a key.
    ///
    /// # Errors
    /// The first [`Refusal`] that holds, up to `OtherNonce`.
    pub fn screen(&self, payload: &[u8], in_session: bool) -> Result<Screened, Refusal> {
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
        let known = self.known(round.gateway);
        self.check_period(&round, known, in_session)?;
        if let Some(last) = known.and_then(|known| known.last.as_ref()) {
            if round.number < last.number {
                return Err(Refusal::RoundOver);
            }
            if round.number == last.number && round.nonce != last.nonce {
                return Err(Refusal::OtherNonce);
            }
        }
        Ok(Screened {
            message: *message,
            in_session,
            is_expected: known.is_some_and(|known| known.start.period == round.start.period)
                || round.start.period.0 <= self.period.0.saturating_add(1),
        })
    }

    /// In a session a gateway can only spoil its own periods; without one the controller vouches for the period, since only it
    /// makes request keys, and only of the running period and the next.
    fn check_period(&self, round: &Round, known: Option<&Known>, in_session: bool) -> Result<(), Refusal> {
        let asked = round.start.period;
        let last = match known {
            Some(known) => known.start.period,
            None if in_session => Period(0),
            None => self.period,
        };
        if asked < last {
            return Err(Refusal::PeriodOver);
        }
        let is_other = |known: &Known| known.start.period == asked && known.start.salt != round.start.salt;
        if known.is_some_and(is_other) {
            return Err(Refusal::OtherSalt);
        }
        Ok(())
    }

    /// The proof, or the period that must be measured first. The same request again gets the same proof again: the first
    /// one was lost.
    pub fn answer(&mut self, asked: Asked) -> Answer {
        self.requests += 1;
        let (requests, device) = (self.requests, self.device);
        if !asked.in_session {
            self.catch_up(asked.round.start.period);
        }
        let round = asked.round;
        let mine = |known: &&mut Known| known.gateway == round.gateway && known.start == round.start;
        let Some(known) = self.known.iter_mut().flatten().find(mine) else {
            return Answer::Period(round.start, asked);
        };
        known.heard = requests;
        let again = known.last.as_ref().filter(|last| last.number == round.number);
        let proof = match again {
            Some(last) => last.proof,
            None => known.key.prove(&round),
        };
        known.last = Some(Proven {
            number: round.number,
            nonce: round.nonce,
            proof,
        });
        Answer::Proof(round.answer(device, proof))
    }

    /// The key of the period that `asked` is about: what is proven to its gateway from now on.
    pub fn begin(&mut self, asked: &Asked, key: &PeriodKey) {
        let round = &asked.round;
        let last = self.forget(round.gateway);
        let heard = |slot: &Option<Known>| slot.as_ref().map_or(0, |known| known.heard);
        let Some(slot) = self.known.iter_mut().min_by_key(|slot| heard(slot)) else {
            return;
        };
        *slot = Some(Known {
            gateway: round.gateway,
            start: round.start,
            key: key.for_gateway(round.gateway),
            last,
            heard: self.requests,
        });
    }

    /// Rounds go on over periods.
    fn forget(&mut self, gateway: GatewayId) -> Option<Proven> {
        let is_it = |slot: &&mut Option<Known>| slot.as_ref().is_some_and(|known| known.gateway == gateway);
        let slot = self.known.iter_mut().find(is_it)?;
        slot.take()?.last
    }

    fn known(&self, gateway: GatewayId) -> Option<&Known> {
        self.known.iter().flatten().find(|known| known.gateway == gateway)
    }
}

impl Screened {
    /// Who asks, and in which period: a [`RequestKey`] is that pair's.
    #[must_use]
    pub fn asks(&self) -> (GatewayId, Period) {
        let round = Round::from(&self.message);
        (round.gateway, round.start.period)
    }

    /// Whether its period is the last one or the next. A device that was off for longer is asked in a later one, and so is one that
    /// somebody wants to keep busy: where a [`RequestKey`] costs something, few of the unexpected ones are worth it.
    #[must_use]
    pub fn is_expected(&self) -> bool {
        self.is_expected
    }

    /// Checks the tag; `None` is no key.
    ///
    /// # Errors
    /// `NoKey`, also where the request was screened as one of the other kind; `WrongTag`.
    pub fn verify(self, key: Option<AskedBy<'_>>) -> Result<Asked, Refusal> {
        let key = match (key, self.in_session) {
            (Some(AskedBy::Session(key)), true) => key.as_bytes(),
            (Some(AskedBy::Request(key)), false) => key.as_bytes(),
            _ => return Err(Refusal::NoKey),
        };
        let expected = tag::attest_request(key, &self.message);
        let tag = tag::verify(&expected, &self.message.tag).ok_or(Refusal::WrongTag)?;
        Ok(Asked {
            round: Round::from(&self.message),
            in_session: self.in_session,
            _tag: tag,
        })
    }
}

impl Asked {
    /// Who asks, and what period is to be proven.
    #[must_use]
    pub fn asks(&self) -> (GatewayId, PeriodStart) {
        (self.round.gateway, self.round.start)
    }
}

impl Answer {
    /// The message to be sent, if there is one.
    #[must_use]
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Proof(proof) => Some(proof.as_bytes()),
            Self::Period(..) => None,
        }
    }
}

#[cfg(test)]
#[path = "prover_tests.rs"]
mod tests;
