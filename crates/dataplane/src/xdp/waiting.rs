//! PROOFs that wait in the packet path for the next one on their CPU (`struct lw_waiting`, docs/adr/0025): whoever looks at verdicts
//! has them settled first.
//!
//! A place is the packet path's until that has filled it. Whoever takes what is in it, by compare-and-swap, settles it: the next
//! PROOF on that CPU or this side. PROOFs that come there meanwhile are settled one by one. A process that is killed in between leaves
//! the place taken; the next one frees it, and until then no PROOF is judged (`drop_stopped`).

use std::net::Ipv6Addr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::{Mutex, PoisonError};

use libbpf_rs::Object;
use linewarden_forro::{Backend, Inputs, R14, matching_blocks};
use linewarden_protocol::ids::{DeviceId, RoundNumber, RowIndex};
use linewarden_protocol::verdict::Verdict;

use super::config::region;
use crate::DataPlaneError;
use crate::config::Config;
use crate::counters::Counters;
use crate::event::{Event, EventKind};
use crate::host::Moment;
use crate::layout::{ALTERNATE, WAITING_FREE, WAITING_FULL, WAITING_TAKEN, WaitingProof};
use crate::rate::RateWindow;
use crate::store::Region;
use crate::store::provers::{ProverGeometry, ProverRegions, key_words};

/// What becomes of PROOFs that are taken here; `struct lw_waiting` counts in this order.
const OUTCOMES: [Verdict; 4] = [
    Verdict::ProofOk,
    Verdict::DropProved,
    Verdict::DropProof,
    Verdict::DropNoKey,
];

/// How often a place is looked at that is taken: about 0.1 ms, of which the packet path needs a hundredth, unless its CPU has been
/// taken from it.
const LOOKS_MAX: u32 = 1 << 13;

/// The places, one a CPU.
pub(super) struct Waiting {
    places: Region<WaitingProof>,
    geometry: ProverGeometry,
    /// By CPU, as in the packet path.
    alarms: Mutex<Vec<RateWindow>>,
}

/// CPUs that there may be: a place each.
pub(super) fn cpus() -> Result<u32, DataPlaneError> {
    let cpus = libbpf_rs::num_possible_cpus();
    let cpus = cpus.map_err(|error| DataPlaneError::kernel("counting the CPUs", error))?;
    Ok(u32::try_from(cpus).unwrap_or(u32::MAX))
}

impl Waiting {
    /// Maps the array of a loaded object. What an earlier process left there names lines of provers that are gone: it is forgotten.
    pub(super) fn map(object: &Object, config: &Config) -> Result<Self, DataPlaneError> {
        let places: Region<WaitingProof> = region(object, "waiting", cpus()?)?;
        let states = places.iter().map(|place| &place.state);
        states.for_each(|state| state.store(WAITING_FREE, Release));
        let alarms = places.iter().map(|_| RateWindow::default()).collect();
        Ok(Self {
            places,
            geometry: config.prover_geometry(),
            alarms: Mutex::new(alarms),
        })
    }

    pub(super) fn places(&self) -> &[WaitingProof] {
        &self.places
    }

    /// Settles what waits. `report` is told of wrong proofs, of so many a second and CPU.
    pub(super) fn settle(
        &self,
        provers: &ProverRegions,
        now: Moment,
        alarm_per_s: u32,
        report: &mut dyn FnMut(Event),
    ) {
        for (cpu, place) in self.places.iter().enumerate() {
            let Some(claim) = Claim::take(place) else {
                continue;
            };
            let outcome = claim.settle(provers, &self.geometry);
            let counters = place.settled.iter().zip(OUTCOMES);
            for (counter, _) in counters.filter(|(_, counted)| *counted == outcome) {
                counter.fetch_add(1, Relaxed);
            }
            if outcome == Verdict::DropProof && self.may_report(cpu, now, alarm_per_s) {
                report(claim.event());
            }
        }
    }

    fn may_report(&self, cpu: usize, now: Moment, alarm_per_s: u32) -> bool {
        // Numbers, whole at every moment.
        let mut alarms = self.alarms.lock().unwrap_or_else(PoisonError::into_inner);
        let window = alarms.get_mut(cpu);
        window.is_some_and(|window| window.allows(now.monotonic_ns, alarm_per_s))
    }

    /// Adds what was settled here.
    pub(super) fn count(&self, counters: &mut Counters) {
        for place in self.places.iter() {
            for (counter, outcome) in place.settled.iter().zip(OUTCOMES) {
                counters.add(outcome, counter.load(Relaxed));
            }
        }
    }
}

/// A PROOF that has waited, out of its place.
struct Claim {
    line: u32,
    before: u32,
    after: u32,
    addr: [u64; 2],
    ingress: u32,
    device_id: u64,
    r: u64,
    nonce: u64,
    proof: [u8; 64],
}

impl Claim {
    /// What waits in a place, which is free from then on. What the packet path settles just now is waited for: it may have come long ago.
    fn take(place: &WaitingProof) -> Option<Self> {
        let mut looks = 0..LOOKS_MAX;
        loop {
            // Most are free: looked at before they are swapped, that their CPUs keep them.
            let state = place.state.load(Acquire);
            let swap = || {
                place
                    .state
                    .compare_exchange(WAITING_FULL, WAITING_TAKEN, AcqRel, Relaxed)
            };
            match state {
                WAITING_FULL if swap().is_ok() => break,
                // The packet path has it, now or by now.
                WAITING_FULL | WAITING_TAKEN if looks.next().is_some() => std::hint::spin_loop(),
                _ => return None,
            }
        }
        let word = |cell: &AtomicU64| cell.load(Relaxed);
        let mut proof = [0; 64];
        let words = proof.chunks_exact_mut(8).zip(&place.proof);
        words.for_each(|(bytes, cell)| bytes.copy_from_slice(&word(cell).to_ne_bytes()));
        let claim = Self {
            line: place.line.load(Relaxed),
            before: place.before.load(Relaxed),
            after: place.after.load(Relaxed),
            addr: place.addr.each_ref().map(word),
            ingress: place.ingress.load(Relaxed),
            device_id: word(&place.device_id),
            r: word(&place.r),
            nonce: word(&place.nonce),
            proof,
        };
        place.state.store(WAITING_FREE, Release);
        Some(claim)
    }

    /// gateway_id and number of its round.
    fn asked(&self) -> u64 {
        u64::from_be_bytes(self.r.to_ne_bytes())
    }

    /// The number of its round.
    fn number(&self) -> u32 {
        self.asked() as u32
    }

    /// As `lw_settle()`.
    fn settle(&self, provers: &ProverRegions, geometry: &ProverGeometry) -> Verdict {
        let lane = self.number() as usize & 1;
        let line = provers.lines.get(self.line as usize);
        let Some((line, word)) = line.and_then(|line| Some((line, line.proved.get(lane)?))) else {
            return Verdict::DropNoKey;
        };
        let Some(key) = key_words(&line.key) else {
            return Verdict::DropNoKey;
        };
        let key_lane = usize::from(self.line >= geometry.all_places());
        let other = (line.slot.load(Acquire) as usize).saturating_mul(2) | key_lane;
        let other = provers.alternates.get(other);
        let mark = if self.is_made_by(&key) {
            0
        } else if other.is_some_and(|other| key_words(&other.word).is_some_and(|key| self.is_made_by(&key))) {
            ALTERNATE
        } else {
            return Verdict::DropProof;
        };
        let swapped = word.compare_exchange(self.before, self.after | mark, AcqRel, Relaxed);
        swapped.map_or(Verdict::DropProved, |_| Verdict::ProofOk)
    }

    fn is_made_by(&self, key: &[u64; 4]) -> bool {
        let mut inputs = Inputs::default();
        inputs.ask(0, self.asked(), &self.nonce.to_ne_bytes());
        inputs.set_key(0, key);
        matching_blocks::<R14>(Backend::SCALAR, &inputs, &[&self.proof]) & 1 == 1
    }

    fn event(&self) -> Event {
        let [high, low] = self.addr.map(u64::to_ne_bytes);
        let mut addr = [0; 16];
        let bytes = high.into_iter().chain(low);
        addr.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
        Event {
            kind: EventKind::WrongProof(RoundNumber(self.number())),
            device: DeviceId(u64::from_be_bytes(self.device_id.to_ne_bytes())),
            idx: RowIndex(0),
            from: Ipv6Addr::from(addr).to_canonical(),
            ingress: self.ingress,
        }
    }
}
