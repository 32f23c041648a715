//! The state for in-band evidence (`bpf/lw_stamp.h`): published here, and read for every packet that passes the gate.

use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};
use std::sync::{Mutex, PoisonError};

use libbpf_rs::{MapCore, MapFlags, Object};
use linewarden_evidence::inband::Template;

use super::config::region;
use crate::error::DataPlaneError;
use crate::layout::Shared;
use crate::stamp::{Stamp, StampCounts};
use crate::store::Region;

/// Words of the option.
const OPTION_WORDS: usize = Template::BYTES / 8;

/// `struct lw_stamp`: evidence of one state.
#[repr(C)]
pub(super) struct StampCell {
    pub(super) number: AtomicU64,
    pub(super) until_ns: AtomicU64,
    pub(super) option: [AtomicU64; OPTION_WORDS],
    pub(super) midstate: [AtomicU64; 4],
    pub(super) pad: [AtomicU64; 5],
}

/// `struct lw_stamping`.
#[repr(C)]
pub(super) struct StampingCell {
    pub(super) slot: [StampCell; 2],
    pub(super) current: AtomicU64,
    pub(super) pad: [AtomicU64; 7],
    pub(super) counter: AtomicU64,
    pub(super) room: [AtomicU64; 7],
}
// SAFETY: repr(C), atomics only, valid when zero.
unsafe impl Shared for StampingCell {}

/// The active state. The memory of the state contains tag inputs, so this type has no `Debug`.
pub(super) struct Stamping(Mutex<Region<StampingCell>>);

impl Stamping {
    pub(super) fn map(object: &Object) -> Result<Self, DataPlaneError> {
        region(object, "stamping", 1).map(|region| Self(Mutex::new(region)))
    }

    /// Activates a state for all later packets, or extends the current one. `None`: packets carry no evidence.
    pub(super) fn publish(&self, stamp: Option<&Stamp>) {
        // The lock serializes writers. A writer that panicked left a state that packets recognize as incomplete.
        let region = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(cell) = region.first() else {
            return;
        };
        let Some(Stamp { template, until_ns }) = stamp else {
            cell.current.store(0, Release);
            return;
        };
        // The number continues after a pause: a concurrent reader must not see an old number again.
        let [even, odd] = &cell.slot;
        let newest = even.number.load(Relaxed).max(odd.number.load(Relaxed));
        let slot = |number: u64| if number.is_multiple_of(2) { even } else { odd };
        if newest != 0 && cell.current.load(Relaxed) == newest && slot(newest).matches(template) {
            slot(newest).until_ns.store(*until_ns, Release);
            return;
        }
        let number = newest + 1;
        slot(number).write(number, template, *until_ns);
        cell.current.store(number, Release);
    }
}

impl Drop for Stamping {
    /// Clears the secrets, because a program that outlives this process may keep the memory.
    fn drop(&mut self) {
        let region = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(cell) = region.first() {
            cell.current.store(0, Release);
            // A concurrent reader must not take zeros for a state.
            cell.slot.iter().for_each(|slot| slot.number.store(0, Relaxed));
            fence(Release);
            let words = cell.slot.iter().flat_map(|slot| &slot.midstate);
            words.for_each(|word| word.store(0, Relaxed));
        }
    }
}

impl StampCell {
    fn matches(&self, template: &Template) -> bool {
        let equals = |(cell, word): (&AtomicU64, u64)| cell.load(Relaxed) == word;
        self.option.iter().zip(words(template)).all(equals)
            && self.midstate.iter().zip(*template.midstate).all(equals)
    }

    /// Writes the state. A concurrent reader finds another number at the end of its read.
    fn write(&self, number: u64, template: &Template, until_ns: u64) {
        self.number.store(0, Relaxed);
        // Visible before all later writes.
        fence(Release);
        self.until_ns.store(until_ns, Relaxed);
        let store = |(cell, word): (&AtomicU64, u64)| cell.store(word, Relaxed);
        self.option.iter().zip(words(template)).for_each(store);
        self.midstate.iter().zip(*template.midstate).for_each(store);
        self.number.store(number, Release);
    }
}

/// Words in the order of a native load.
fn words(template: &Template) -> impl Iterator<Item = u64> {
    let words = template.option.as_chunks().0.iter();
    words.map(|word| u64::from_ne_bytes(*word))
}

/// Sums `struct lw_stamp_counts` over the CPUs.
pub(super) fn counts(map: &dyn MapCore) -> Result<StampCounts, DataPlaneError> {
    let values = map
        .lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)
        .map_err(|error| DataPlaneError::kernel("reading the stamp counts", error))?
        .unwrap_or_default();
    let mut sum = StampCounts::default();
    for value in values {
        let words = value.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
        let counters = [
            &mut sum.stamped,
            &mut sum.not_ipv6,
            &mut sum.stale,
            &mut sum.unfit,
        ];
        counters
            .into_iter()
            .zip(words)
            .for_each(|(sum, word)| *sum += word);
    }
    Ok(sum)
}
