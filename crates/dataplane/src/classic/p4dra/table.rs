//! The table of provers of `p4dra-classic`, with open addressing.

use linewarden_protocol::classic::p4dra::{ProverId, swap_word_bytes};

use crate::classic::layout::P4DRA_PROBES;
use crate::store::{table as hash_table, wire_word};

/// The largest table, as a power of two.
const PLACES_MAX_LOG2: u32 = 28;

/// The identifier `d` in wire order, loaded natively.
pub(super) fn id_words(id: &ProverId) -> [u64; 2] {
    linewarden_protocol::keys::halves(&swap_word_bytes(id.0)).map(wire_word)
}

/// The table of provers: each used place holds the index of a prover in this list. The result is the smallest
/// table, at most half full, in which each prover has a place among its candidates ([`probes`]). `None`: no table of up to
/// 2^28 places is sufficient.
pub(super) fn build(provers: &[ProverId], seed: [u64; 2]) -> Option<Vec<Option<usize>>> {
    let places_min = (2 * provers.len()).max(1).next_power_of_two();
    (places_min.trailing_zeros()..=PLACES_MAX_LOG2).find_map(|log2| {
        let mut places = vec![None; 1 << log2];
        for (index, prover) in provers.iter().enumerate() {
            let mut candidates = probes(prover, seed, places.len());
            let free_place = candidates.find(|place| places.get(*place).is_some_and(Option::is_none))?;
            if let Some(cell) = places.get_mut(free_place) {
                *cell = Some(index);
            }
        }
        Some(places)
    })
}

/// The places where a prover may be stored, in the order in which they are searched.
pub(super) fn probes(id: &ProverId, seed: [u64; 2], places: usize) -> impl Iterator<Item = usize> + use<> {
    let [a, b] = id_words(id);
    let first = hash_table::hash(seed, a, b) as u32;
    (0..P4DRA_PROBES as u32).map(move |probe| first.wrapping_add(probe) as usize & (places - 1))
}
