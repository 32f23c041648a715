//! Rounds: who is asked, again while silent, and what it has shown when its time is over.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use linewarden_controller::attest::{GroupPlan, RoundOutcome, Seen, Verdict};
use linewarden_dataplane::{DataPlaneError, ProverError, ProverSet};
use linewarden_protocol::attest::Round;
use linewarden_protocol::gateway::OpenRound;
use linewarden_protocol::ids::{DeviceId, Period, RoundNumber};
use linewarden_protocol::time::Monotonic;
use linewarden_protocol::wire::AttestRequest;
use linewarden_registry::Revision;

use super::members::Queued;
use super::schedule::{Busy, Due};
use super::{Attestation, Unreached};
use crate::audit::Happening;
use crate::node::Node;
use crate::time::Clock;

/// Rounds that are open at a time: data planes know one with an even number and one with an odd one.
pub(super) const ROUNDS_MAX: usize = 2;
/// Requests that are sent between two looks at everything else.
const BATCH: usize = 1_024;
/// Sending goes on after this, ns, when the kernel takes no more for now.
const CONGESTED_NS: u64 = 1_000_000;
/// The silent are asked again after these parts of the answer time, in hundredths: datagrams are lost.
const REPEATS_PERCENT: [u64; 3] = [15, 35, 65];
/// How often a round is looked at whose requests are out, ns.
const LOOK_NS: u64 = 20_000_000;
/// How often a gateway that cannot ask devices says so, ns.
const UNREACHED_TELL_NS: u64 = 3_600_000_000_000;

/// A prover that is asked.
#[derive(Clone, Copy, Debug)]
struct Asked {
    prover: Queued,
    address: IpAddr,
    /// That no request could be sent there is no fault of its own.
    is_excused: bool,
    /// The kernel has taken the request.
    is_sent: bool,
}

/// Where a prover was asked again last.
#[derive(Clone, Copy, Debug)]
struct Repeated {
    address: IpAddr,
    /// Since the round began.
    at_ms: u32,
    /// Where it was asked again before that.
    before: Option<IpAddr>,
}

impl Repeated {
    /// Where a proof comes from that took so long: one that was here before the last request answers none that went there. `first` is
    /// where the first request went. Times of proofs are coarse, by a clock's tick and a part of the round.
    fn answered(&self, elapsed_ms: u32, first: Option<IpAddr>, answer_ms: u64) -> IpAddr {
        let coarse_ms = 10 + answer_ms / 2_048;
        let earlier = self.before.or(first);
        match u64::from(elapsed_ms) + coarse_ms < u64::from(self.at_ms) {
            true => earlier.unwrap_or(self.address),
            false => self.address,
        }
    }
}

/// A round that is open.
#[derive(Debug)]
pub(super) struct Running {
    round: Round,
    group: GroupPlan,
    busy: Busy,
    heard: Revision,
    began: Clock,
    answer_ms: u64,
    until_ns: u64,
    /// Provers that are still to be asked in this pass.
    queue: Vec<Queued>,
    /// Who was asked and has proven nothing so far.
    silent: Vec<Asked>,
    /// Where the silent were asked again.
    repeated_to: HashMap<DeviceId, Repeated>,
    /// Who could not be asked, and why the last of them could not.
    unreached: HashSet<DeviceId>,
    refusal: Option<DataPlaneError>,
    verdicts: Vec<Verdict>,
    last_verdict_ms: u32,
    repeats: usize,
    due_ns: u64,
}

impl Running {
    pub(super) fn due_ns(&self) -> u64 {
        self.due_ns
    }

    pub(super) fn period(&self) -> Period {
        self.round.start.period
    }

    /// Who has proven moves over to the verdicts.
    fn look(&mut self, provers: &dyn ProverSet) -> Result<(), ProverError> {
        let (number, answer_ms) = (self.round.number, self.answer_ms);
        let silent: Vec<DeviceId> = self.silent.iter().map(|asked| asked.prover.device).collect();
        let mut proved = provers.proved_of(&silent, number)?.into_iter();
        let (verdicts, last) = (&mut self.verdicts, &mut self.last_verdict_ms);
        let repeated_to = &self.repeated_to;
        self.silent.retain(|asked| {
            let Some(proved) = proved.next().flatten() else {
                return true;
            };
            // Where it was asked it can be asked. To whom nothing was sent has had the nonce from others: that is no answer, and
            // it must not pass for one from where nothing can be sent.
            let first = Some(asked.address).filter(|_| asked.is_sent);
            let repeated = repeated_to.get(&asked.prover.device);
            let again = repeated.map(|repeated| repeated.answered(proved.elapsed_ms, first, answer_ms));
            let Some(address) = again.or(first) else {
                return true;
            };
            *last = (*last).max(proved.elapsed_ms);
            let seen = match u64::from(proved.elapsed_ms) > answer_ms {
                true => Seen::Late(proved.configuration),
                false => Seen::Ok(proved.configuration),
            };
            verdicts.push(Verdict {
                device: asked.prover.device,
                enrolled_at: asked.prover.enrolled_at,
                seen,
                address,
            });
            false
        });
        Ok(())
    }

    fn outcome(mut self, clock: Clock) -> RoundOutcome {
        let silent = self.silent.iter().map(|asked| Verdict {
            device: asked.prover.device,
            enrolled_at: asked.prover.enrolled_at,
            seen: Seen::Silent,
            address: asked.address,
        });
        self.verdicts.extend(silent);
        let age_ns = clock.boot_ns.saturating_sub(self.began.boot_ns);
        RoundOutcome {
            number: self.round.number,
            group: self.group.name,
            period: self.round.start.period,
            heard: self.heard,
            lasted_ms: age_ns / 1_000_000,
            ended_ns: clock.boot_ns,
            last_verdict_ms: self.last_verdict_ms,
            verdicts: self.verdicts,
        }
    }
}

impl Attestation {
    /// The number of the next round: numbers are left out whose place in the data plane is taken by a round that is open.
    fn next_number(&self) -> Option<RoundNumber> {
        let is_free = |number: &u32| {
            let mut open = self.running.iter();
            open.all(|open| (open.round.number.0 ^ number) & 1 == 1)
        };
        let number = self.numbers.clone().take(ROUNDS_MAX).find(is_free);
        number
            .filter(|_| self.running.len() < ROUNDS_MAX)
            .map(RoundNumber)
    }

    fn busy(&self) -> Vec<Busy> {
        self.running.iter().map(|running| running.busy).collect()
    }

    /// When a round can be opened, monotonic clock. Without keys or numbers none can be, however due it is: an answer brings them.
    pub(super) fn opens_ns(&self) -> Option<u64> {
        let due_ns = self.schedule.due_ns(&self.busy())?;
        self.next_number().and(self.provable())?;
        Some(self.draws.due_ns(due_ns))
    }
}

impl Node {
    /// Opens the round of a group that is due, if there is a place for it.
    pub(super) fn open_round(
        &mut self,
        attestation: &mut Attestation,
        clock: Clock,
        random: &mut dyn FnMut() -> Option<[u8; 8]>,
    ) {
        let now_ns = clock.monotonic_ns;
        if attestation.opens_ns().is_none_or(|opens_ns| opens_ns > now_ns) {
            return;
        }
        let (Some(number), Some(start)) = (attestation.next_number(), attestation.provable()) else {
            return;
        };
        let (Some(nonce), Some(jitter)) = (random(), random()) else {
            self.status.draws_failed += 1;
            if attestation.draws.fail(now_ns) {
                tracing::warn!(
                    "no random bytes are to be had: no round of attestation begins until there are"
                );
            }
            return;
        };
        attestation.draws.succeed();
        let (jitter, busy) = (u64::from_ne_bytes(jitter), attestation.busy());
        let Some(due) = attestation.schedule.take_due(now_ns, jitter, &busy) else {
            return;
        };
        let queue = attestation.members.of_group(due.id, start.period);
        if queue.is_empty() {
            return;
        }
        attestation.numbers.start = number.0.saturating_add(1);
        let round = Round {
            gateway: self.settings.gateway,
            number,
            nonce,
            start,
        };
        match self.begin_round(round, due, queue, clock) {
            Some(running) => attestation.running.push(running),
            None => tracing::error!(%number, "a round could not be opened"),
        }
    }

    fn begin_round(&mut self, round: Round, due: Due, queue: Vec<Queued>, clock: Clock) -> Option<Running> {
        let answer_ms = due.answer_ms;
        let now_ms = clock.monotonic_ns / 1_000_000;
        // As long again, so that what is late is seen to be late.
        let until_ms = now_ms.saturating_add(2 * answer_ms);
        let open = OpenRound {
            round,
            started: Monotonic(now_ms),
            until: Monotonic(until_ms),
        };
        let opened = self.plane.provers()?.open_round(&open);
        if let Err(error) = opened {
            tracing::error!(%error, number = %round.number, "the data plane refuses a round");
            return None;
        }
        Some(Running {
            round,
            group: due.group,
            busy: Busy {
                id: due.id,
                is_long: due.is_long,
            },
            heard: self.feed_from,
            began: clock,
            answer_ms,
            until_ns: until_ms.saturating_mul(1_000_000),
            silent: Vec::with_capacity(queue.len()),
            repeated_to: HashMap::new(),
            unreached: HashSet::new(),
            refusal: None,
            queue,
            verdicts: Vec::new(),
            last_verdict_ms: 0,
            repeats: 0,
            due_ns: clock.monotonic_ns,
        })
    }

    /// Goes on with each round for which it is time.
    pub(super) fn follow_rounds(&mut self, attestation: &mut Attestation, clock: Clock) {
        for running in std::mem::take(&mut attestation.running) {
            let open = match running.due_ns <= clock.monotonic_ns {
                true => self.follow_round(attestation, running, clock),
                false => Some(running),
            };
            attestation.running.extend(open);
        }
    }

    /// Sends what is to be sent, looks who has proven, and ends the round when all have, or its time is over.
    fn follow_round(
        &mut self,
        attestation: &mut Attestation,
        mut running: Running,
        clock: Clock,
    ) -> Option<Running> {
        let now_ns = clock.monotonic_ns;
        if !running.queue.is_empty() {
            self.send_requests(attestation, &mut running, clock);
        }
        if running.queue.is_empty() || now_ns >= running.until_ns {
            let looked = self.plane.provers().map(|provers| running.look(provers));
            if let Some(Err(error)) = looked {
                // Nobody is silent for want of a look.
                tracing::error!(%error, number = %running.round.number, "a round is given up");
                return None;
            }
            let is_done = running.queue.is_empty() && running.silent.is_empty();
            if is_done || now_ns >= running.until_ns {
                self.tell_unreached(attestation, &mut running, clock);
                let outcome = running.outcome(clock);
                attestation.members.keep_proved(&outcome.verdicts);
                self.keep_outcome(attestation, outcome);
                return None;
            }
            self.plan_next_look(&mut running, clock);
        }
        Some(running)
    }

    fn plan_next_look(&mut self, running: &mut Running, clock: Clock) {
        let now_ns = clock.monotonic_ns;
        let since_ns = now_ns.saturating_sub(running.began.monotonic_ns);
        let repeat = REPEATS_PERCENT.get(running.repeats);
        let repeat_ns = repeat.map(|percent| running.answer_ms * percent * 10_000);
        if repeat_ns.is_some_and(|repeat_ns| since_ns >= repeat_ns) {
            running.repeats += 1;
            running.queue = running.silent.iter().map(|asked| asked.prover).collect();
        }
        let provers = self.plane.provers();
        let spacing_ns = provers.map_or(0, |provers| provers.look_spacing_ns());
        let look_ns = LOOK_NS.max(spacing_ns * running.silent.len() as u64);
        running.due_ns = match running.queue.is_empty() {
            true => now_ns.saturating_add(look_ns).min(running.until_ns),
            false => now_ns,
        };
    }

    /// Asks the next of the queue. What the kernel does not take is asked a little later.
    fn send_requests(&mut self, attestation: &mut Attestation, running: &mut Running, clock: Clock) {
        let now_s = u32::try_from(clock.boot_ns / 1_000_000_000).unwrap_or(u32::MAX);
        let from = running.queue.len().saturating_sub(BATCH);
        let queued = running.queue.split_off(from);
        let mut requests: Vec<(SocketAddr, AttestRequest)> = Vec::with_capacity(queued.len());
        let mut asked = Vec::with_capacity(queued.len());
        let is_last = running.repeats == REPEATS_PERCENT.len();
        let devices: Vec<DeviceId> = queued.iter().map(|queued| queued.device).collect();
        let sessions = self.plane.session_requests(&devices, &running.round, now_s);
        for (queued, session) in queued.into_iter().zip(sessions) {
            let request = attestation
                .members
                .request(session, queued, &running.round, is_last);
            if let Some(way) = request {
                requests.push((way.to, way.request));
                asked.push(Asked {
                    prover: queued,
                    address: way.to.ip(),
                    is_excused: way.is_excused,
                    is_sent: false,
                });
            }
        }
        let done = self.send(&requests, &mut asked, running);
        let is_first_pass = running.repeats == 0;
        let unsent = asked.split_off(done.min(asked.len()));
        if is_first_pass {
            running.silent.append(&mut asked);
        } else {
            let at_ms = clock.monotonic_ns.saturating_sub(running.began.monotonic_ns) / 1_000_000;
            for asked in asked.iter().filter(|asked| asked.is_sent) {
                let before = running.repeated_to.get(&asked.prover.device);
                let repeated = Repeated {
                    address: asked.address,
                    at_ms: u32::try_from(at_ms).unwrap_or(u32::MAX),
                    before: before.map(|before| before.address),
                };
                running.repeated_to.insert(asked.prover.device, repeated);
            }
        }
        let now_ns = clock.monotonic_ns;
        running.due_ns = now_ns;
        if !unsent.is_empty() {
            running.queue.extend(unsent.iter().map(|asked| asked.prover));
            running.due_ns = now_ns.saturating_add(CONGESTED_NS);
        }
    }

    /// Sends until the kernel takes no more; how many of `asked` are done with. In the first pass those to whom nothing can be sent
    /// from here are taken out of it, so that they are not silent, unless it may be their own doing. Later all have been asked.
    fn send(
        &mut self,
        requests: &[(SocketAddr, AttestRequest)],
        asked: &mut Vec<Asked>,
        running: &mut Running,
    ) -> usize {
        let mut done = 0;
        let mut refused = HashSet::new();
        while let Some(rest) = requests.get(done..).filter(|rest| !rest.is_empty()) {
            match self.plane.ask(rest) {
                Ok(0) => break,
                Ok(sent) => {
                    let taken = asked.iter_mut().skip(done).take(sent);
                    taken.for_each(|asked| asked.is_sent = true);
                    done += sent;
                    self.status.attest.requests += sent as u64;
                }
                Err(error) => {
                    tracing::debug!(%error, "a device cannot be asked");
                    // It has had no session here, and so comes through no gate: nobody gets away with anything by that.
                    let is_unplaced = matches!(error, DataPlaneError::Unplaced { .. });
                    running.refusal = Some(error);
                    if let Some(asked) = asked.get_mut(done) {
                        asked.is_excused |= is_unplaced;
                        refused.insert(asked.prover.device);
                    }
                    done += 1;
                }
            }
        }
        if running.repeats > 0 {
            return done;
        }
        let before = asked.len();
        asked.retain(|asked| {
            let is_unreached = asked.is_excused && refused.contains(&asked.prover.device);
            if is_unreached {
                running.unreached.insert(asked.prover.device);
            }
            !is_unreached
        });
        done - (before - asked.len())
    }

    /// Tells of devices that this gateway could not ask: when it begins, now and then while it lasts, and when it is over.
    fn tell_unreached(&mut self, attestation: &mut Attestation, running: &mut Running, clock: Clock) {
        let group = &running.group.name;
        if running.repeats == 0 {
            // For these there was no room all the time.
            let queue = running.queue.drain(..);
            running.unreached.extend(queue.map(|queued| queued.device));
        }
        let devices = running.unreached.len() as u64;
        let told_ns = attestation
            .unreached
            .get(group)
            .map(|unreached| unreached.told_ns);
        let now_ns = clock.monotonic_ns;
        let is_due = told_ns.is_none_or(|told_ns| now_ns.saturating_sub(told_ns) >= UNREACHED_TELL_NS);
        if devices == 0 {
            if attestation.unreached.remove(group).is_some() {
                tracing::info!(%group, "all devices can be asked again");
            }
        } else {
            let told_ns = told_ns.filter(|_| !is_due).unwrap_or(now_ns);
            attestation
                .unreached
                .insert(group.clone(), Unreached { told_ns, devices });
        }
        if devices > 0 && is_due {
            let error = running.refusal.take().map(|error| error.to_string());
            let error = error.unwrap_or_else(|| "no room to send".to_owned());
            tracing::warn!(
                %group, devices, error,
                "these cannot be asked from here, which counts for no quarantine: is an interface down, or a route missing?"
            );
            self.trail.note(Happening::Unreached {
                round: running.round.number.0,
                group: group.to_string(),
                devices,
                error,
            });
        }
        self.status.attest.unreached = attestation.unreached.values().map(|group| group.devices).sum();
    }
}
