//! Non-IP frames that the gate dropped, by Ethernet type: the mirror of `bpf/lw_always.h`.

use std::sync::atomic::Ordering::{Acquire, Release};

use libbpf_rs::{MapCore, MapFlags, Object};
use linewarden_protocol::gateway::{DROPPED_TYPES, DroppedTypes, KNOWN_TYPES};

use crate::error::DataPlaneError;
use crate::layout::{DroppedTypeCells, TYPE_TAKEN};
use crate::store::Region;

/// The Ethernet type of each counter.
pub(super) struct DroppedPlaces(Region<DroppedTypeCells>);

impl DroppedPlaces {
    /// Assigns counters to the known types before packets flow.
    pub(super) fn map(object: &Object) -> Result<Self, DataPlaneError> {
        let places = Self(super::config::region(object, "dropped_types", 1)?);
        for (cell, (ether_type, _)) in places.cells().zip(KNOWN_TYPES) {
            cell.store(TYPE_TAKEN | u64::from(ether_type), Release);
        }
        Ok(places)
    }

    fn cells(&self) -> impl Iterator<Item = &std::sync::atomic::AtomicU64> {
        self.0.first().into_iter().flat_map(|cells| &cells.types)
    }

    /// The counts summed over all CPUs. `map` contains `struct lw_dropped`.
    pub(super) fn counts(&self, map: &dyn MapCore) -> Result<DroppedTypes, DataPlaneError> {
        let values = map
            .lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(|error| DataPlaneError::kernel("reading the gate's drop counts by type", error))?
            .unwrap_or_default();
        let mut frames = [0; DROPPED_TYPES + 1];
        for value in values {
            let words = value.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
            frames.iter_mut().zip(words).for_each(|(sum, word)| *sum += word);
        }
        let [frames @ .., other] = frames;
        let counted_types = self.cells().map(|cell| cell.load(Acquire)).zip(frames);
        let types = counted_types
            .take_while(|(cell, _)| *cell != 0)
            .map(|(cell, frames)| ((cell & 0xffff) as u16, frames));
        Ok(DroppedTypes::from_counts(types.collect(), other))
    }
}
