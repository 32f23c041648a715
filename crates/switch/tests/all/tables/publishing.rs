//! Batches are atomic: readers see all of a batch or nothing, at any time.

use super::model::{action, key_spec, table_spec};
use linewarden_switch::tables::{
    BatchError, EntryHandle, FieldMatch, HashSeed, MatchKind, MatchType, NewEntry, Priority, Publisher,
    Reader, Snapshot, TableChange, TableId, TableOp, TableSet, TableSetChange, TableSetError, TableSetOp,
    Target,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An exact table and a ternary table with the same entries.
const TABLES: [TableId; 2] = [TableId(0), TableId(1)];
const KEYS: u8 = 32;

fn two_tables() -> TableSet {
    let mut set = TableSet::new();
    let seed = HashSeed::random();
    for (kind, match_type) in [
        (MatchKind::Exact, MatchType::Exact),
        (MatchKind::Ternary, MatchType::Ternary),
    ] {
        set.add_table(
            table_spec(key_spec(&[(kind, 16)], match_type), 1_000),
            None,
            &seed,
        );
    }
    set
}

fn insert(set: &TableSet, table: TableId, key: u8, number: u32) -> TableSetOp {
    let spec = &set.table(table).expect("two tables").spec().key;
    let field_match = match spec.match_type() {
        MatchType::Exact => FieldMatch::Exact(vec![key]),
        _ => FieldMatch::Ternary {
            value: vec![key],
            mask: vec![0xff, 0xff],
        },
    };
    let key = spec.key(&[field_match], Priority(1)).expect("fits");
    let new_entry = NewEntry {
        key,
        target: action(number),
        state: None,
        constant: false,
    };
    TableSetOp::Table(table, TableOp::Insert(new_entry))
}

fn find(set: &TableSet, table: TableId, key: u8) -> Option<(EntryHandle, Target)> {
    let entry = set.table(table)?.lookup(&[0, key])?;
    Some((entry.handle(), entry.target().clone()))
}

/// Checks that both tables have the same entries and default action, and returns the default action. The tables differ
/// only if a batch is partly visible.
fn common_default(snapshot: &Snapshot<TableSet>) -> Option<Target> {
    let [exact, ternary] = TABLES.map(|table| {
        let entries = (0..KEYS).map(move |key| find(snapshot, table, key));
        (
            snapshot
                .table(table)
                .expect("two tables")
                .default_target()
                .cloned(),
            entries.collect::<Vec<_>>(),
        )
    });
    assert_eq!(exact, ternary, "version {}", snapshot.version());
    exact.0
}

fn read_until(done: &AtomicBool, reader: &Reader<TableSet>) -> u64 {
    let mut latest_version = 0;
    loop {
        // The flag is read before the snapshot, so the last snapshot contains all batches.
        let is_last = done.load(Ordering::Acquire);
        let snapshot = reader.snapshot();
        assert!(snapshot.version() >= latest_version, "versions never decrease");
        latest_version = snapshot.version();
        let default = common_default(&snapshot);
        if latest_version > 0 {
            assert_eq!(
                default,
                Some(action(latest_version as u32)),
                "the default action names its version"
            );
        }
        if is_last {
            return latest_version;
        }
        // The reader holds no snapshot while it yields, so the writer need not wait for the reader.
        drop(snapshot);
        std::thread::yield_now();
    }
}

/// Writes a batch with the same changes to both tables; the default action names the version. If `is_dropped` is true,
/// the batch is dropped before its last change.
fn write(publisher: &mut Publisher<TableSet>, version: u32, is_dropped: bool) {
    let mut batch = publisher.begin();
    for key in (0..KEYS).filter(|key| (u32::from(*key) + version).is_multiple_of(3)) {
        for table in TABLES {
            let op = match find(batch.state(), table, key) {
                None => insert(batch.state(), table, key, version),
                Some((handle, _)) if version.is_multiple_of(2) => {
                    TableSetOp::Table(table, TableOp::Delete(handle))
                }
                Some((handle, _)) => TableSetOp::Table(table, TableOp::Modify(handle, action(version))),
            };
            batch.apply(op).expect("fits what the batch sees");
        }
    }
    batch
        .apply(TableSetOp::Table(
            TABLES[0],
            TableOp::SetDefault(Some(action(version))),
        ))
        .expect("free");
    if is_dropped {
        // The changes were applied to the copy that readers will see next, and must be undone.
        return;
    }
    batch
        .apply(TableSetOp::Table(
            TABLES[1],
            TableOp::SetDefault(Some(action(version))),
        ))
        .expect("free");
    assert_eq!(batch.commit(), u64::from(version));
}

#[test]
fn readers_never_see_half_a_batch() {
    let mut publisher = Publisher::new(two_tables());
    let done = AtomicBool::new(false);
    let batches = 300;
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (reader, done) = (publisher.reader(), &done);
                scope.spawn(move || read_until(done, &reader))
            })
            .collect();
        for version in 1..=batches {
            if version % 5 == 0 {
                write(&mut publisher, version, true);
            }
            write(&mut publisher, version, false);
        }
        done.store(true, Ordering::Release);
        for reader in readers {
            assert_eq!(reader.join().expect("no half batch"), u64::from(batches));
        }
    });
}

#[test]
fn snapshot_is_stable_and_delays_only_the_batch_after_the_next() {
    let mut publisher = Publisher::new(two_tables());
    let old = publisher.reader().snapshot();
    write(&mut publisher, 1, false);
    assert_eq!(old.version(), 0);
    assert_eq!(common_default(&old), None);
    assert_eq!(common_default(&publisher.current()), Some(action(1)));
    assert!(publisher.try_begin().is_none(), "a reader still uses the copy");
    drop(old);
    assert!(publisher.try_begin().is_some());
    write(&mut publisher, 2, false);
    assert_eq!(common_default(&publisher.current()), Some(action(2)));
}

#[test]
fn batches_are_atomic() {
    let mut publisher = Publisher::new(two_tables());
    write(&mut publisher, 1, false);
    let free = (0..KEYS)
        .find(|key| find(&publisher.current(), TABLES[0], *key).is_none())
        .expect("a free key");
    let ops = |second_key: u8| {
        let current = publisher.current();
        vec![
            insert(&current, TABLES[0], free, 5),
            insert(&current, TABLES[1], free, 5),
            insert(&current, TABLES[0], second_key, 5),
            insert(&current, TABLES[1], second_key, 5),
        ]
    };
    let (invalid, valid) = (ops(free), ops(200));
    let error = publisher
        .all_or_nothing(invalid)
        .expect_err("the key is inserted twice");
    assert!(
        matches!(
            error,
            BatchError {
                index: 2,
                error: TableSetError::Table(_)
            }
        ),
        "the index must be the index of the first invalid operation: {error}"
    );
    assert_eq!(find(&publisher.current(), TABLES[0], free), None);
    assert_eq!(publisher.current().version(), 1, "nothing was published");
    publisher.all_or_nothing(valid).expect("fits");
    assert_eq!(
        find(&publisher.current(), TABLES[0], free).map(|(_, target)| target),
        Some(action(5))
    );
    common_default(&publisher.current());
}

#[test]
fn part_of_a_batch_can_be_rolled_back() {
    let mut publisher = Publisher::new(two_tables());
    let mut batch = publisher.begin();
    for table in TABLES {
        batch.apply(insert(batch.state(), table, 1, 1)).expect("free");
    }
    let change_count = batch.changes().len();
    batch.apply(insert(batch.state(), TABLES[0], 2, 1)).expect("free");
    batch.undo_to(change_count);
    assert_eq!(find(batch.state(), TABLES[0], 2), None);
    batch.commit();
    assert_eq!(common_default(&publisher.current()), None);
    assert!(find(&publisher.current(), TABLES[1], 1).is_some());
}

#[test]
fn both_copies_share_their_entries() {
    let mut publisher = Publisher::new(two_tables());
    let op = insert(&publisher.current(), TABLES[0], 1, 1);
    let mut batch = publisher.begin();
    let Ok(TableSetChange::Table(_, TableChange::Inserted(entry))) = batch.apply(op) else {
        panic!("not inserted")
    };
    batch.commit();
    let batch = publisher.begin();
    let copy = batch
        .state()
        .table(TABLES[0])
        .and_then(|table| table.iter().next())
        .expect("caught up");
    assert!(Arc::ptr_eq(copy, &entry));
}

#[test]
fn empty_batch_creates_no_version() {
    let mut publisher = Publisher::new(two_tables());
    assert_eq!(publisher.begin().commit(), 0);
    write(&mut publisher, 1, false);
    assert_eq!(publisher.begin().commit(), 1);
    assert_eq!(publisher.current().version(), 1);
}
