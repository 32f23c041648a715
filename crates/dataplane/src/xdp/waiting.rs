//! PROOFs that wait in the packet path for the next PROOF on their CPU (`struct lw_waiting`, docs/adr/0024). These
//! PROOFs are settled before verdicts are read.
//!
//! A free place belongs to the packet path until the packet path has filled it. The side that takes the content of a
//! place, by compare-and-swap, settles the PROOF: the packet path at the next PROOF on that CPU, or user space. PROOFs
//! that arrive in the meantime are settled one at a time. If a process is killed before it frees a place, the place
//! stays taken until the next process frees it. Until then all PROOFs are dropped (`drop_stopped`), because the program
//! that handles PROOFs ends with its process.

use std::net::Ipv6Addr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::{Mutex, PoisonError};

use libbpf_rs::Object;
use linewarden_forro::{Backend, Inputs, R14, matching_blocks};
use linewarden_protocol::ids::{DeviceId, RoundNumber, RowIndex};
use linewarden_protocol::verdict::Verdict;

use super::config::{possible_cpus, region};
use crate::config::Config;
use crate::counters::Counters;
use crate::error::DataPlaneError;
use crate::event::{Event, EventKind};
use crate::layout::{ALTERNATE, WAITING_FREE, WAITING_FULL, WAITING_TAKEN, WaitingProof};
use crate::rate::RateWindow;
use crate::store::Region;
use crate::store::provers::{ProverGeometry, ProverRegions, key_words};
use crate::timestamps::Timestamps;

/// Possible outcomes of PROOFs that user space settles, in the order of the counters in `struct lw_waiting`.
const OUTCOMES: [Verdict; 4] = [
    Verdict::ProofOk,
    Verdict::DropProved,
    Verdict::DropProof,
    Verdict::DropNoKey,
];

/// Number of polls of a taken place, about 0.1 ms in total. The packet path frees a place in a hundredth of this time,
/// unless its CPU was preempted.
const SPINS_MAX: u32 = 1 << 13;

/// The places, one per CPU.
pub(super) struct WaitingProofs {
    places: Region<WaitingProof>,
    geometry: ProverGeometry,
    /// Limits of reported wrong proofs, by CPU, as in the packet path.
    alarms: Mutex<Vec<RateWindow>>,
}

impl WaitingProofs {
    /// Maps the array of a loaded object. Content of an earlier process refers to lines of removed provers, so this
    /// content is discarded.
    pub(super) fn map(object: &Object, config: &Config) -> Result<Self, DataPlaneError> {
        let places: Region<WaitingProof> = region(object, "waiting", possible_cpus()?)?;
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

    /// Settles the waiting PROOFs. `report` receives wrong proofs, limited per second and CPU.
    pub(super) fn settle(
        &self,
        provers: &ProverRegions,
        now: Timestamps,
        alarm_per_s: u32,
        report: &mut dyn FnMut(Event),
    ) {
        for (cpu, place) in self.places.iter().enumerate() {
            let Some(taken_proof) = TakenProof::take(place) else {
                continue;
            };
            let outcome = taken_proof.settle(provers, &self.geometry);
            let counters = place.settled_counts.iter().zip(OUTCOMES);
            for (counter, _) in counters.filter(|(_, counted)| *counted == outcome) {
                counter.fetch_add(1, Relaxed);
            }
            if outcome == Verdict::DropProof && self.may_report(cpu, now, alarm_per_s) {
                report(taken_proof.event());
            }
        }
    }

    fn may_report(&self, cpu: usize, now: Timestamps, alarm_per_s: u32) -> bool {
        // A panic leaves these numbers consistent.
        let mut alarms = self.alarms.lock().unwrap_or_else(PoisonError::into_inner);
        let window = alarms.get_mut(cpu);
        window.is_some_and(|window| window.allows(now.monotonic_ns, alarm_per_s))
    }

    /// Adds the counts of PROOFs that user space settled.
    pub(super) fn count(&self, counters: &mut Counters) {
        for place in self.places.iter() {
            for (counter, outcome) in place.settled_counts.iter().zip(OUTCOMES) {
                counters.add(outcome, counter.load(Relaxed));
            }
        }
    }
}

/// A PROOF that was taken from its place.
struct TakenProof {
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

impl TakenProof {
    /// Takes a waiting PROOF and frees its place. If the packet path is settling the PROOF, this function waits for
    /// the verdict: the PROOF may have arrived long before the current query.
    fn take(place: &WaitingProof) -> Option<Self> {
        let mut attempts = 0..SPINS_MAX;
        loop {
            // Most places are free: they are read before the swap, so that their CPUs keep the cache lines.
            let state = place.state.load(Acquire);
            let swap = || {
                place
                    .state
                    .compare_exchange(WAITING_FULL, WAITING_TAKEN, AcqRel, Relaxed)
            };
            match state {
                WAITING_FULL if swap().is_ok() => break,
                // The packet path has taken the PROOF.
                WAITING_FULL | WAITING_TAKEN if attempts.next().is_some() => std::hint::spin_loop(),
                _ => return None,
            }
        }
        let word = |cell: &AtomicU64| cell.load(Relaxed);
        let mut proof = [0; 64];
        let words = proof.chunks_exact_mut(8).zip(&place.proof);
        words.for_each(|(bytes, cell)| bytes.copy_from_slice(&word(cell).to_ne_bytes()));
        let taken_proof = Self {
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
        Some(taken_proof)
    }

    /// gateway_id and number of the round.
    fn counter(&self) -> u64 {
        u64::from_be_bytes(self.r.to_ne_bytes())
    }

    /// Number of the round.
    fn number(&self) -> u32 {
        self.counter() as u32
    }

    /// Mirrors `lw_settle()`.
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
        let alternate = (line.slot.load(Acquire) as usize).saturating_mul(2) | key_lane;
        let alternate = provers.alternates.get(alternate);
        let alternate_flag = if self.is_made_with(&key) {
            0
        } else if alternate
            .is_some_and(|alternate| key_words(&alternate.word).is_some_and(|key| self.is_made_with(&key)))
        {
            ALTERNATE
        } else {
            return Verdict::DropProof;
        };
        let result = word.compare_exchange(self.before, self.after | alternate_flag, AcqRel, Relaxed);
        result.map_or(Verdict::DropProved, |_| Verdict::ProofOk)
    }

    fn is_made_with(&self, key: &[u64; 4]) -> bool {
        let mut inputs = Inputs::default();
        inputs.set_counter_and_nonce(0, self.counter(), &self.nonce.to_ne_bytes());
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
            source: Ipv6Addr::from(addr).to_canonical(),
            ingress: self.ingress,
        }
    }
}
