//! The packet path allocates no memory for snapshots, and for hits and misses in each search structure.
//!
//! A program of its own, because it has another allocator.
#![allow(clippy::expect_used, missing_docs, reason = "a test may fail loudly")]

use linewarden_switch::tables::{
    ActionCall, ActionData, ActionId, DefaultPolicy, FieldMatch, HashSeed, KeyField, KeySpec, MatchKind,
    NewEntry, Priority, Publisher, TableId, TableOp, TableSet, TableSetOp, TableSpec, Target, TargetKind,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

struct CountingAllocator;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: forwards every call to the system allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const ENTRIES: u32 = 200;

/// A match on the field; `number` selects one of several variants.
fn field_match(field: &KeyField, number: u32) -> FieldMatch {
    let value = (number % 256).to_be_bytes()[3..].to_vec();
    match field.kind {
        MatchKind::Exact => FieldMatch::Exact(value),
        MatchKind::Valid => FieldMatch::Valid(number.is_multiple_of(2)),
        MatchKind::Lpm => FieldMatch::Lpm {
            value,
            prefix_bits: field.bits - number % 9,
        }
        .canonical(field),
        MatchKind::Ternary => FieldMatch::Ternary {
            value,
            mask: vec![255 - (number % 7) as u8],
        }
        .canonical(field),
        MatchKind::Optional => FieldMatch::Optional(number.is_multiple_of(3).then_some(value)),
        MatchKind::Range => FieldMatch::Range {
            low: value,
            high: vec![1, 0],
        },
    }
}

/// A short and a long key for each search structure.
fn keys() -> Vec<Vec<(MatchKind, u32)>> {
    use MatchKind::{Exact, Lpm, Optional, Range, Ternary, Valid};
    vec![
        vec![(Exact, 48), (Valid, 8)],
        vec![(Exact, 128)],
        vec![(Exact, 128), (Exact, 128)],
        vec![(Lpm, 32)],
        vec![(Lpm, 128), (Exact, 16)],
        vec![(Exact, 128), (Lpm, 128), (Exact, 512)],
        vec![(Ternary, 32), (Lpm, 32)],
        vec![(Ternary, 128), (Optional, 9)],
        vec![(Range, 16), (Ternary, 512), (Exact, 128)],
    ]
}

/// Empty tables with the keys from [`keys`].
fn tables_for_all_keys() -> TableSet {
    let mut set = TableSet::new();
    let seed = HashSeed::random();
    for fields in keys() {
        let fields: Vec<KeyField> = fields
            .iter()
            .map(|(kind, bits)| KeyField::new("f", *kind, *bits))
            .collect();
        let spec = TableSpec {
            name: "t".into(),
            key: KeySpec::new(fields.clone()).expect("a key"),
            size: ENTRIES,
            targets: TargetKind::Action,
            stateful: true,
            initial_default: None,
            default_policy: DefaultPolicy::Free,
        };
        set.add_table(Arc::new(spec), None, &seed);
    }
    set
}

#[test]
fn lookups_allocate_no_memory() {
    let mut publisher = Publisher::new(tables_for_all_keys());
    let tables = keys().len() as u32;
    let mut batch = publisher.begin();
    for id in (0..tables).map(TableId) {
        let spec = batch.state().table(id).expect("is there").spec().key.clone();
        for number in 0..ENTRIES {
            let matches: Vec<FieldMatch> = spec
                .fields()
                .iter()
                .map(|field| field_match(field, number))
                .collect();
            let new_entry = NewEntry {
                key: spec.key(&matches, Priority(number as i32 % 5)).expect("fits"),
                target: Target::Action(ActionCall {
                    action: ActionId(1),
                    data: ActionData::new(),
                }),
                state: None,
                constant: false,
            };
            // Some entries already exist.
            let _ = batch.apply(TableSetOp::Table(id, TableOp::Insert(new_entry)));
        }
    }
    batch.commit();
    let reader = publisher.reader();
    drop(reader.snapshot());

    let mut key = [0u8; 256];
    let (mut hits, mut misses) = (0, 0);
    let allocations_before = ALLOCATIONS.load(Ordering::Relaxed);
    for round in 0..=255u8 {
        let snapshot = reader.snapshot();
        for id in (0..tables).map(TableId) {
            let Some(table) = snapshot.table(id) else { continue };
            let Some(key) = key.get_mut(..table.spec().key.bytes()) else {
                continue;
            };
            key.fill(0);
            let mut end = 0;
            for field in table.spec().key.fields() {
                end += field.bytes();
                if let Some(last) = key.get_mut(end - 1) {
                    *last = if field.kind == MatchKind::Valid { 1 } else { round };
                }
            }
            let entry = table.lookup(key);
            if let Some(state) = entry.and_then(|entry| entry.state()) {
                state.count(64);
                state.record_hit(u64::from(round));
            }
            *(if entry.is_some() { &mut hits } else { &mut misses }) += 1;
        }
    }
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - allocations_before, 0);
    assert!(hits > 256 && misses > 256, "{hits} hits, {misses} misses");
}
