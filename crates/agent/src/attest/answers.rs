//! Which request gets which proof, and which keys have to be made for that: without sockets, threads or clocks.
//!
//! ```text
//!   request ─ screen ─┬─ tag under the session's key ──────────────┐
//!                     └─ tag under a request key, made if need be ─┴─► proof, or the period's key first
//! ```
//! Two jobs are asked for here and done elsewhere: a request key (one HMAC, of a TPM: ms), and a period's key (a measurement, up to
//! seconds). Whoever can send packets can have only a few of a TPM's request keys made a second, and nobody without a right tag a
//! measurement.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use linewarden_protocol::attest::prover::{Answer, Asked, AskedBy, Prover, Refusal};
use linewarden_protocol::attest::{ConfigurationHash, PeriodKey, PeriodStart, RequestKey, Round};
use linewarden_protocol::device::{GatewayPolicy, Session};
use linewarden_protocol::ids::{DeviceId, GatewayId, Period, RoundNumber};
use linewarden_protocol::wire::{self, MESSAGE_BYTES, Message};

use super::request_keys::RequestKeys;

/// Requests that wait for the key of their tag; most of them are an attacker's if there are more.
const UNVERIFIED_MAX: usize = 16;
/// Gateways whose requests wait for a period's key.
const WAITING_MAX: usize = 8;
/// The last periods whose keys are kept, and of those in which nothing is proven.
const PERIODS_MAX: usize = 4;
/// After so long a request that waits is of no use to anybody, ms.
const WAIT_MS_MAX: u64 = 60_000;
/// First and longest pause after a failure, ms.
pub(crate) const PAUSE_MS: (u64, u64) = (1_000, 60_000);
/// Shortest pause between two measurements, ms; it is as long as the last one took, so that no gateway can keep the device
/// measuring for more than half of its time.
const REST_MS_MIN: u64 = 100;

/// More requests from strangers than keys are made for.
pub(crate) const LIMITED: &str = "limited";
/// Nothing is proven in this period, because its measurement was no good.
pub(crate) const NOT_MEASURED: &str = "not_measured";
/// The gateway is not one of those that the configuration names.
pub(crate) const OTHER_GATEWAY: &str = "other_gateway";

/// Refused requests, by why.
pub(crate) type Refusals = BTreeMap<&'static str, u64>;

/// What is to be made outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    RequestKey(GatewayId, Period),
    Period(PeriodStart),
}

/// A PROOF.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) to: SocketAddr,
    pub(crate) proof: Vec<u8>,
    /// Set with the first proof of a period to a gateway.
    pub(crate) first: Option<First>,
}

/// The first proof of a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct First {
    pub(crate) gateway: GatewayId,
    pub(crate) period: Period,
    pub(crate) h: ConfigurationHash,
}

#[derive(Clone, Copy)]
struct Request {
    payload: [u8; MESSAGE_BYTES],
    from: SocketAddr,
    came_ms: u64,
}

/// A request whose tag waits for a key.
struct Unverified {
    request: Request,
    asks: (GatewayId, Period),
}

/// A request whose tag is right.
struct Waiting {
    request: Request,
    in_session: bool,
    gateway: GatewayId,
    start: PeriodStart,
    asked: Asked,
}

/// A period that can be proven.
struct Made {
    start: PeriodStart,
    key: PeriodKey,
    h: ConfigurationHash,
    told: Vec<GatewayId>,
}

/// The prover with all that waits for it.
pub(crate) struct Answers {
    prover: Prover,
    gateways: GatewayPolicy,
    keys: RequestKeys,
    unverified: VecDeque<Unverified>,
    /// Of each gateway the newest, in the order in which they began to wait.
    waiting: Vec<Waiting>,
    made: VecDeque<Made>,
    unfit: VecDeque<PeriodStart>,
    key_pause: Pause,
    period_pause: Pause,
    refusals: Refusals,
    /// The newest round of each gateway whose request was tagged right.
    newest: BTreeMap<GatewayId, RoundNumber>,
    /// Who has sent the last of them, until it is asked for.
    strange_to: Option<GatewayId>,
}

impl Answers {
    /// `period` as in [`Prover::new`].
    pub(crate) fn new(device: DeviceId, period: Period, gateways: GatewayPolicy, keys: RequestKeys) -> Self {
        Self {
            prover: Prover::new(device, period),
            gateways,
            keys,
            unverified: VecDeque::new(),
            waiting: Vec::new(),
            made: VecDeque::new(),
            unfit: VecDeque::new(),
            key_pause: Pause::default(),
            period_pause: Pause::default(),
            refusals: Refusals::new(),
            newest: BTreeMap::new(),
            strange_to: None,
        }
    }

    /// Another key takes the place of the one that all this was made with. What has waited is forgotten,
    /// and which proofs were given.
    pub(crate) fn renew(&mut self, device: DeviceId, keys: RequestKeys) {
        *self = Self {
            refusals: std::mem::take(&mut self.refusals),
            newest: std::mem::take(&mut self.newest),
            strange_to: self.strange_to.take(),
            ..Self::new(device, self.period(), self.gateways, keys)
        };
    }

    /// A gateway that has begun a round since this was asked last and has no session of this device, as it seems: its request
    /// came under the request key, of which it makes no use otherwise. Nobody but the gateway can have sent it, and a copy of
    /// an older one does not count.
    pub(crate) fn take_stranger(&mut self) -> Option<GatewayId> {
        self.strange_to.take()
    }

    /// Takes note of the round of a request whose tag was right; whether it is newer than all of that gateway before.
    fn note_round(&mut self, gateway: GatewayId, payload: &[u8]) -> bool {
        let Ok(Message::AttestRequest(request)) = wire::parse(payload) else {
            return false;
        };
        let number = Round::from(request).number;
        let newest = self.newest.entry(gateway).or_insert(RoundNumber(0));
        let is_new = *newest < number;
        *newest = number.max(*newest);
        is_new
    }

    /// The last period that the controller has vouched for.
    pub(crate) fn period(&self) -> Period {
        self.prover.period()
    }

    /// Gateways whose tags have been right: likewise.
    pub(crate) fn familiar(&self) -> Vec<GatewayId> {
        self.keys.familiar()
    }

    /// The request key that is wanted first, also in a pause after a failure.
    pub(crate) fn wanted_key(&self) -> Option<(GatewayId, Period)> {
        self.keys.wanted()
    }

    pub(crate) fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// A datagram has come.
    pub(crate) fn receive(
        &mut self,
        datagram: &[u8],
        from: SocketAddr,
        session: Option<&Session>,
        now_ms: u64,
    ) -> Option<Reply> {
        let Ok(payload) = <[u8; MESSAGE_BYTES]>::try_from(datagram) else {
            return self.refuse(Refusal::Malformed.name());
        };
        let request = Request {
            payload,
            from,
            came_ms: now_ms,
        };
        if let Some(asked) = session.and_then(|session| self.asked_in(session, &request)) {
            return self.answer(asked, true, request);
        }
        // Also where there is a session here: the gateway may have lost it, or have shut the device out.
        let screened = match self.prover.screen(&payload, false) {
            Ok(screened) => screened,
            Err(refusal) => return self.refuse(refusal.name()),
        };
        let asks = screened.asks();
        if !self.gateways.allows(asks.0) {
            return self.refuse(OTHER_GATEWAY);
        }
        // No gateway is more than one period behind, and a key costs work.
        if asks.1.0.saturating_add(1) < self.prover.period().0 {
            return self.refuse(Refusal::PeriodOver.name());
        }
        if self.keys.get(asks).is_some() {
            return self.verify(asks, request);
        }
        if !self.keys.want(asks, screened.is_expected(), now_ms) {
            return self.refuse(LIMITED);
        }
        if self.unverified.len() >= UNVERIFIED_MAX {
            self.unverified.pop_front();
        }
        self.unverified.push_back(Unverified { request, asks });
        None
    }

    /// The request, if the gateway of the session has tagged it with the session's key.
    fn asked_in(&mut self, session: &Session, request: &Request) -> Option<Asked> {
        let screened = self.prover.screen(&request.payload, true).ok()?;
        let is_theirs = screened.asks().0 == session.gateway;
        let asked = screened.verify(Some(AskedBy::Session(session.key())));
        let asked = asked.ok().filter(|_| is_theirs)?;
        self.keys.note_genuine(session.gateway);
        // It may be repeated under the request key.
        self.note_round(session.gateway, &request.payload);
        Some(asked)
    }

    /// Goes on with a request whose key is here.
    fn verify(&mut self, asks: (GatewayId, Period), request: Request) -> Option<Reply> {
        let key = self.keys.get(asks);
        // Since it was looked at first, a newer request may have been answered.
        let asked = self
            .prover
            .screen(&request.payload, false)
            .and_then(|screened| screened.verify(key.map(AskedBy::Request)));
        match asked {
            Ok(asked) => {
                self.keys.note_genuine(asks.0);
                if self.note_round(asks.0, &request.payload) {
                    self.strange_to = Some(asks.0);
                }
                self.answer(asked, false, request)
            }
            Err(refusal) => self.refuse(refusal.name()),
        }
    }

    fn answer(&mut self, asked: Asked, in_session: bool, request: Request) -> Option<Reply> {
        let (gateway, start) = asked.asks();
        let asked = match self.prover.answer(asked) {
            Answer::Period(_, asked) => asked,
            proof @ Answer::Proof(_) => return self.reply(&proof, (gateway, start), &request),
        };
        if let Some(made) = self.made.iter().find(|made| made.start == start) {
            self.prover.begin(&asked, &made.key);
            let proof = self.prover.answer(asked);
            return self.reply(&proof, (gateway, start), &request);
        }
        if self.unfit.contains(&start) {
            return self.refuse(NOT_MEASURED);
        }
        let is_full = self.waiting.len() >= WAITING_MAX;
        let place = self.waiting.iter_mut().find(|other| other.gateway == gateway);
        let waiting = Waiting {
            request,
            in_session,
            gateway,
            start,
            asked,
        };
        match place {
            Some(place) => *place = waiting,
            None if is_full => return self.refuse(LIMITED),
            None => self.waiting.push(waiting),
        }
        None
    }

    fn reply(
        &mut self,
        proof: &Answer,
        (gateway, start): (GatewayId, PeriodStart),
        request: &Request,
    ) -> Option<Reply> {
        let proof = proof.bytes()?.to_vec();
        let made = self.made.iter_mut().find(|made| made.start == start);
        let first = made.filter(|made| !made.told.contains(&gateway)).map(|made| {
            made.told.push(gateway);
            First {
                gateway,
                period: start.period,
                h: made.h,
            }
        });
        Some(Reply {
            to: request.from,
            proof,
            first,
        })
    }

    fn refuse(&mut self, why: &'static str) -> Option<Reply> {
        let count = self.refusals.entry(why).or_default();
        *count = count.saturating_add(1);
        None
    }

    /// What to make next, if it is time to.
    pub(crate) fn next(&mut self, now_ms: u64) -> Option<Wanted> {
        self.forget_old(now_ms);
        if self.key_pause.is_over(now_ms)
            && let Some((gateway, period)) = self.keys.wanted()
        {
            return Some(Wanted::RequestKey(gateway, period));
        }
        let waiting = self
            .waiting
            .first()
            .filter(|_| self.period_pause.is_over(now_ms))?;
        Some(Wanted::Period(waiting.start))
    }

    /// When [`Answers::next`] has something though nothing has come.
    pub(crate) fn deadline(&self) -> Option<u64> {
        let key = self.keys.wanted().map(|_| self.key_pause.until_ms);
        let period = self.waiting.first().map(|_| self.period_pause.until_ms);
        key.into_iter().chain(period).min()
    }

    fn forget_old(&mut self, now_ms: u64) {
        let is_young = |request: &Request| now_ms.saturating_sub(request.came_ms) < WAIT_MS_MAX;
        self.waiting.retain(|waiting| is_young(&waiting.request));
        self.unverified.retain(|unverified| is_young(&unverified.request));
        let unverified = &self.unverified;
        self.keys
            .keep_wanted(|asks| unverified.iter().any(|unverified| unverified.asks == asks));
    }

    /// A request key was made: what has waited for it is looked at.
    pub(crate) fn key_made(&mut self, asks: (GatewayId, Period), key: RequestKey) -> Vec<Reply> {
        self.key_pause = Pause::default();
        self.keys.put(asks, key);
        let unverified = std::mem::take(&mut self.unverified);
        let (now, later): (VecDeque<_>, _) = unverified
            .into_iter()
            .partition(|unverified| unverified.asks == asks);
        self.unverified = later;
        now.into_iter()
            .filter_map(|unverified| self.verify(asks, unverified.request))
            .collect()
    }

    /// A request key was not made; says when it is tried again, ms.
    pub(crate) fn key_failed(&mut self, now_ms: u64) -> u64 {
        self.key_pause.lengthen(now_ms, PAUSE_MS)
    }

    /// A period's key was made, in `took_ms`: what has waited for it is answered.
    pub(crate) fn period_made(
        &mut self,
        start: PeriodStart,
        key: PeriodKey,
        h: ConfigurationHash,
        took_ms: u64,
        now_ms: u64,
    ) -> Vec<Reply> {
        self.period_pause = Pause::until(now_ms.saturating_add(took_ms.max(REST_MS_MIN)));
        let told = Vec::new();
        push_bounded(&mut self.made, Made { start, key, h, told });
        let waiting = std::mem::take(&mut self.waiting);
        let (now, later): (Vec<_>, _) = waiting.into_iter().partition(|waiting| waiting.start == start);
        self.waiting = later;
        now.into_iter()
            .filter_map(|waiting| {
                // Since it began to wait, a later round of the period before may have been answered.
                match self.prover.screen(&waiting.request.payload, waiting.in_session) {
                    Ok(_) => self.answer(waiting.asked, waiting.in_session, waiting.request),
                    Err(refusal) => self.refuse(refusal.name()),
                }
            })
            .collect()
    }

    /// A period's key was not made; says when it is tried again, ms; `None` if another attempt in this period would find
    /// the same: nothing is proven in it.
    pub(crate) fn period_failed(&mut self, start: PeriodStart, is_final: bool, now_ms: u64) -> Option<u64> {
        if !is_final {
            return Some(self.period_pause.lengthen(now_ms, PAUSE_MS));
        }
        push_bounded(&mut self.unfit, start);
        let before = self.waiting.len();
        self.waiting.retain(|waiting| waiting.start != start);
        for _ in self.waiting.len()..before {
            self.refuse(NOT_MEASURED);
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

/// A time in which nothing is tried.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pause {
    pub(crate) until_ms: u64,
    delay_ms: u64,
}

impl Pause {
    pub(crate) fn until(until_ms: u64) -> Self {
        Self {
            until_ms,
            delay_ms: 0,
        }
    }

    pub(crate) fn is_over(&self, now_ms: u64) -> bool {
        self.until_ms <= now_ms
    }

    /// After another failure, twice as long as after the one before, within these bounds; says how long, ms.
    pub(crate) fn lengthen(&mut self, now_ms: u64, (first_ms, longest_ms): (u64, u64)) -> u64 {
        self.delay_ms = (2 * self.delay_ms).clamp(first_ms, longest_ms);
        self.until_ms = now_ms.saturating_add(self.delay_ms);
        self.delay_ms
    }
}

#[cfg(test)]
#[path = "answers_tests.rs"]
mod tests;
