//! Set hashes: known answers, order independence, and states after any history of changes.

use std::collections::BTreeMap;

use linewarden_evidence::encoding::Entry;
use linewarden_evidence::lthash::{DigestKind, Expansion, LtHash};
use linewarden_evidence::state::{
    ArrayId, Digests, DirtyCells, MeasuredState, PutOutcome, Stability, StateError, program_digest,
};
use linewarden_evidence::{BootCount, SwitchId};
use proptest::prelude::*;

use crate::common::{config, entry};

fn hash<'a>(elements: impl IntoIterator<Item = &'a [u8]>) -> LtHash {
    let mut hash = LtHash::EMPTY;
    elements
        .into_iter()
        .for_each(|element| hash.add(&Expansion::of(element)));
    hash
}

fn measured_state() -> MeasuredState {
    MeasuredState::new(SwitchId(1), BootCount(1), program_digest(b"program"))
}

/// The expected digests are from a Python program with its own BLAKE3.
#[test]
fn the_digests_are_those_of_an_independent_program() {
    let numbers: Vec<[u8; 4]> = (0u32..100).map(u32::to_be_bytes).collect();
    for (hash, kind, digest) in [
        (
            LtHash::EMPTY,
            DigestKind::Tables,
            "3737cebb322ab2626eaf27d221bed357752dcd51e8e12f11cc39b28f0033df1c",
        ),
        (
            hash([&b"a"[..], b"b"]),
            DigestKind::Registers,
            "9a0026dd22af390ba01c6d53bca527714112a139293331fc610588d96e2c200a",
        ),
        (
            hash(numbers.iter().map(|number| &number[..])),
            DigestKind::Object,
            "37f272fcf2392e8c56cbe0c97f978b5d4ff596aefde3962b056fa9e8ba869764",
        ),
    ] {
        assert_eq!(hash.digest(kind).to_string(), digest);
    }
}

#[test]
fn no_digest_of_one_kind_is_valid_for_another_kind() {
    let hash = hash([&b"a"[..]]);
    let digests =
        [DigestKind::Tables, DigestKind::Registers, DigestKind::Object].map(|kind| hash.digest(kind));
    assert_ne!(digests[0], digests[1]);
    assert_ne!(digests[1], digests[2]);
    assert_ne!(digests[0], digests[2]);
}

proptest! {
    #![proptest_config(config(64))]

    #[test]
    fn any_order_gives_the_same_hash(
        elements in prop::collection::btree_set(prop::collection::vec(any::<u8>(), 0..80), 0..12),
        temporary in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 0..6),
        rotation in any::<prop::sample::Index>(),
    ) {
        let elements: Vec<_> = elements.into_iter().collect();
        let in_order = hash(elements.iter().map(Vec::as_slice));
        let mut reversed = elements.clone();
        if !reversed.is_empty() {
            let mid = rotation.index(reversed.len());
            reversed.rotate_left(mid);
            reversed.reverse();
        }
        let mut shuffled = LtHash::EMPTY;
        temporary.iter().for_each(|element| shuffled.add(&Expansion::of(element)));
        reversed.iter().for_each(|element| shuffled.add(&Expansion::of(element)));
        temporary.iter().rev().for_each(|element| shuffled.remove(&Expansion::of(element)));
        prop_assert_eq!(&in_order, &shuffled);
        prop_assert_eq!(in_order.to_bytes(), shuffled.to_bytes());
    }

    /// The digests depend only on the final content, not on earlier entries.
    #[test]
    fn a_state_digest_is_independent_of_its_history(
        changes in prop::collection::vec((entry(), any::<bool>()), 0..40),
    ) {
        let mut changed_state = measured_state();
        let mut present = BTreeMap::new();
        for (entry, is_put) in changes {
            if matches!(entry, Entry::RegisterCell(_)) {
                prop_assert_eq!(changed_state.put(&entry), Err(StateError::RegisterAsEntry));
                prop_assert_eq!(changed_state.remove(&entry), Err(StateError::RegisterAsEntry));
                continue;
            }
            let identity = entry.encode_parts().identity;
            let sequence = changed_state.snapshot().sequence;
            let has_changed = if is_put {
                let before = present.insert(identity, entry.clone());
                let expected = match before {
                    None => PutOutcome::Added,
                    Some(before) if before == entry => PutOutcome::Unchanged,
                    Some(_) => PutOutcome::Replaced,
                };
                prop_assert_eq!(changed_state.put(&entry).unwrap(), expected);
                expected != PutOutcome::Unchanged
            } else {
                let was_present = present.remove(&identity).is_some();
                prop_assert_eq!(changed_state.remove(&entry).unwrap(), was_present);
                was_present
            };
            prop_assert_eq!(changed_state.snapshot().sequence > sequence, has_changed);
        }
        let mut new_state = measured_state();
        for entry in present.values().rev() {
            prop_assert_eq!(new_state.put(entry).unwrap(), PutOutcome::Added);
        }
        prop_assert_eq!(changed_state.snapshot().digests, new_state.snapshot().digests);
        prop_assert_eq!(changed_state.objects(), new_state.objects());
        let drift = changed_state.rescan_hashes();
        prop_assert!(drift.objects.is_empty() && drift.are_sums_valid);
        let inventory: Vec<_> = changed_state.entries().map(|encoded| Entry::decode(&encoded.to_bytes()).unwrap()).collect();
        prop_assert_eq!(inventory.len(), present.len());
        for entry in inventory {
            prop_assert_eq!(present.get(&entry.encode_parts().identity), Some(&entry));
        }
    }

    /// The result is independent of when the changes are folded.
    #[test]
    fn registers_are_measured_by_their_current_values(
        width in 1u32..80,
        writes in prop::collection::vec((0u32..70, any::<u128>(), any::<bool>()), 0..60),
    ) {
        let mut array = TestArray::new(width, 70);
        let mut state = measured_state();
        let id = state.declare_array("r", width, 70, Stability::Static).unwrap();
        for (index, value, folds) in writes {
            array.write(index, value);
            if folds {
                array.fold(&mut state, id);
            }
        }
        array.fold(&mut state, id);
        prop_assert!(array.dirty.is_empty());
        let mut new_state = measured_state();
        let new_id = new_state.declare_array("r", width, 70, Stability::Static).unwrap();
        array.mark_all();
        array.fold(&mut new_state, new_id);
        prop_assert_eq!(state.snapshot().digests, new_state.snapshot().digests);
        prop_assert_eq!(state.objects(), new_state.objects());
        prop_assert_eq!(state.check_array(id).unwrap().compare(|i, out| array.read(i, out)), None);
        prop_assert!(state.rescan_hashes().are_sums_valid);
    }
}

/// A register array of a data plane.
struct TestArray {
    bytes: usize,
    mask: u128,
    width: u32,
    cells: Vec<u128>,
    dirty: DirtyCells,
}

impl TestArray {
    fn new(width: u32, size: u32) -> Self {
        Self {
            bytes: width.div_ceil(8) as usize,
            mask: u128::MAX >> (128 - width),
            width,
            cells: vec![0; size as usize],
            dirty: DirtyCells::new(width, size),
        }
    }

    fn read(&self, index: u32, out: &mut [u8]) {
        out.copy_from_slice(&self.cells[index as usize].to_be_bytes()[16 - self.bytes..]);
    }

    fn write(&mut self, index: u32, value: u128) {
        let mut old = vec![0; self.bytes];
        self.read(index, &mut old);
        self.dirty.mark(index, &old);
        self.cells[index as usize] = value & self.mask;
    }

    fn fold(&mut self, state: &mut MeasuredState, id: ArrayId) -> usize {
        let mut dirty = std::mem::replace(&mut self.dirty, DirtyCells::new(self.width, 0));
        let folded = state
            .fold(id, &mut dirty, |index, out| self.read(index, out))
            .unwrap();
        self.dirty = dirty;
        folded
    }

    /// Marks all cells as changed from zero.
    fn mark_all(&mut self) {
        for index in 0..self.cells.len() as u32 {
            self.dirty.mark(index, &vec![0; self.bytes]);
        }
    }
}

fn digests(state: &mut MeasuredState) -> Digests {
    state.snapshot().digests
}

#[test]
fn a_cell_set_back_to_zero_leaves_the_digest_unchanged() {
    let mut state = measured_state();
    let id = state.declare_array("r", 9, 8, Stability::Static).unwrap();
    let empty = digests(&mut state);
    let mut array = TestArray::new(9, 8);
    array.write(3, 7);
    array.write(3, 8);
    assert_eq!(array.dirty.len(), 1);
    assert_eq!(array.fold(&mut state, id), 1);
    assert_eq!(state.objects()[0].entries, 1);
    assert_ne!(digests(&mut state), empty);
    let sequence = state.snapshot().sequence;
    array.write(3, 0);
    // At the next measurement, cell 4 has its old value again. So only the change of cell 3 counts.
    array.write(4, 1);
    array.write(4, 0);
    assert_eq!(array.fold(&mut state, id), 1);
    assert_eq!(digests(&mut state), empty);
    assert_eq!(state.objects()[0].entries, 0);
    assert_eq!(state.snapshot().sequence.0, sequence.0 + 1);
    array.write(5, 2);
    array.write(5, 0);
    assert_eq!(array.fold(&mut state, id), 0);
    assert_eq!(state.snapshot().sequence.0, sequence.0 + 1);
}

#[test]
fn volatile_arrays_are_listed_but_excluded_from_the_digest() {
    let mut state = measured_state();
    let id = state.declare_array("counts", 32, 8, Stability::Volatile).unwrap();
    let before = digests(&mut state);
    let object = state.objects()[0].clone();
    let mut array = TestArray::new(32, 8);
    array.write(1, 1);
    assert_eq!(array.fold(&mut state, id), 1);
    assert_eq!(digests(&mut state), before);
    assert!(state.objects()[0].is_volatile);
    assert_ne!(state.objects()[0].digest, object.digest);
}

#[test]
fn memory_changed_without_a_mark_is_detected() {
    let mut state = measured_state();
    let id = state.declare_array("r", 16, 300, Stability::Static).unwrap();
    let mut array = TestArray::new(16, 300);
    (0..300).for_each(|index| array.write(index, u128::from(index)));
    array.fold(&mut state, id);
    assert_eq!(
        state
            .check_array(id)
            .unwrap()
            .compare(|i, out| array.read(i, out)),
        None
    );
    array.cells[17] ^= 1;
    let drift = state
        .check_array(id)
        .unwrap()
        .compare(|i, out| array.read(i, out))
        .unwrap();
    assert_eq!(drift.measured, state.objects()[0].digest);
    assert_ne!(drift.measured, drift.in_memory);
}

#[test]
fn invalid_cells_are_not_folded() {
    let mut state = measured_state();
    let id = state.declare_array("r", 16, 4, Stability::Static).unwrap();
    assert_eq!(
        state.declare_array("r", 8, 4, Stability::Static),
        Err(StateError::DuplicateArray("r".to_owned()))
    );
    let mut dirty = DirtyCells::new(16, 4);
    dirty.mark(4, &[0, 0]);
    dirty.mark(u32::MAX, &[0, 0]);
    dirty.mark(0, &[0]);
    dirty.mark_u64(0, 0);
    dirty.mark_u64(0, 9);
    assert_eq!(dirty.len(), 1);
    let mut narrow = DirtyCells::new(8, 4);
    assert!(matches!(
        state.fold(id, &mut narrow, |_, _| ()),
        Err(StateError::UnknownArray(0))
    ));
    assert_eq!(state.fold(id, &mut dirty, |_, out| out.fill(1)), Ok(1));
}

#[test]
fn another_program_begins_with_an_empty_state() {
    let mut state = measured_state();
    let id = state.declare_array("r", 16, 4, Stability::Static).unwrap();
    let mut array = TestArray::new(16, 4);
    array.write(0, 1);
    array.fold(&mut state, id);
    let before = state.snapshot();
    state = state.successor(program_digest(b"another"));
    let after = state.snapshot();
    assert_ne!(before.digests.program, after.digests.program);
    assert!(after.sequence > before.sequence);
    assert!(state.objects().is_empty());
    assert!(matches!(state.check_array(id), Err(StateError::UnknownArray(_))));
    let empty = digests(&mut MeasuredState::new(
        SwitchId(1),
        BootCount(1),
        program_digest(b"another"),
    ));
    assert_eq!(after.digests, empty);
}
