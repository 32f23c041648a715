//! Cost of table lookups: `cargo run --release -p linewarden-switch --example table_cost`.
//!
//! Looks up keys of entries in random order, so that branch predictors and caches do not know the next key. Prints the minimum
//! of several runs in ns per lookup, including access to the entry.

use linewarden_switch::tables::{
    ActionCall, ActionData, ActionId, DefaultPolicy, FieldMatch, HashSeed, KeyField, KeySpec, MatchKind,
    NewEntry, Priority, Publisher, Table, TableChange, TableError, TableOp, TableSpec, Target, TargetKind,
};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

const RUNS: usize = 20;
const LOOKUPS: usize = 1 << 16;

fn main() -> Result<(), Box<dyn Error>> {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    println!("{:<44} {:>9} {:>9}", "table", "entries", "ns");
    for count in [1_000, 1_000_000] {
        exact(&mut rng, "exact, 48 bits", &[48], count)?;
    }
    exact(
        &mut rng,
        "exact, 32 + 32 + 16 + 16 + 8 bits",
        &[32, 32, 16, 16, 8],
        1_000,
    )?;
    exact(&mut rng, "exact, 128 + 128 bits", &[128, 128], 1_000)?;
    for count in [10, 1_000, 100_000] {
        prefixes(&mut rng, "longest prefix, 32 bits, /8 to /32", 32, 8..=32, count)?;
    }
    prefixes(&mut rng, "longest prefix, 32 bits, /24", 32, 24..=24, 1_000)?;
    for count in [10, 1_000, 100_000] {
        prefixes(
            &mut rng,
            "longest prefix, 128 bits, /32 to /64",
            128,
            32..=64,
            count,
        )?;
    }
    ternary(&mut rng, "ternary, 104 bits, 1 mask", 1, 1_000)?;
    ternary(
        &mut rng,
        "ternary, 104 bits, 10 masks, priorities mixed",
        10,
        1_000,
    )?;
    ternary(
        &mut rng,
        "ternary, 104 bits, 10 masks, priorities mixed",
        10,
        10_000,
    )?;
    updates(&mut rng)
}

fn table(fields: &[(MatchKind, u32)], size: usize) -> Result<Table, Box<dyn Error>> {
    let fields = fields
        .iter()
        .map(|(kind, bits)| KeyField::new("field", *kind, *bits))
        .collect();
    let spec = TableSpec {
        name: "measured".into(),
        key: KeySpec::new(fields)?,
        size: u32::try_from(size)?,
        targets: TargetKind::Action,
        stateful: false,
        initial_default: None,
        default_policy: DefaultPolicy::Free,
    };
    Ok(Table::new(Arc::new(spec), &HashSeed::random()))
}

fn insert(table: &mut Table, matches: &[FieldMatch], priority: i32) -> Result<(), Box<dyn Error>> {
    let data = ActionData::from_slice(&priority.to_be_bytes());
    let new_entry = NewEntry {
        key: table.spec().key.key(matches, Priority(priority))?,
        target: Target::Action(ActionCall {
            action: ActionId(1),
            data,
        }),
        state: None,
        constant: false,
    };
    // Random keys may repeat.
    table.insert(new_entry).map(|_| ()).or_else(|error| match error {
        TableError::AlreadyExists { .. } => Ok(()),
        other => Err(other.into()),
    })
}

fn value(rng: &mut ChaCha8Rng, bits: u32) -> u128 {
    rng.random::<u128>() >> (128 - bits)
}

fn bytes(value: u128, bits: u32) -> Vec<u8> {
    value
        .to_be_bytes()
        .into_iter()
        .skip(16 - bits.div_ceil(8) as usize)
        .collect()
}

fn exact(rng: &mut ChaCha8Rng, name: &str, bits: &[u32], count: usize) -> Result<(), Box<dyn Error>> {
    let fields: Vec<_> = bits.iter().map(|bits| (MatchKind::Exact, *bits)).collect();
    let mut table = table(&fields, count)?;
    let mut keys = Vec::with_capacity(count);
    for _ in 0..count {
        let parts: Vec<Vec<u8>> = bits.iter().map(|bits| bytes(value(rng, *bits), *bits)).collect();
        keys.push(parts.concat());
        insert(
            &mut table,
            &parts.into_iter().map(FieldMatch::Exact).collect::<Vec<_>>(),
            0,
        )?;
    }
    measure(rng, name, &table, &keys);
    Ok(())
}

fn prefixes(
    rng: &mut ChaCha8Rng,
    name: &str,
    bits: u32,
    lengths: std::ops::RangeInclusive<u32>,
    count: usize,
) -> Result<(), Box<dyn Error>> {
    let mut table = table(&[(MatchKind::Lpm, bits)], count)?;
    let mut keys = Vec::with_capacity(count);
    // Addresses in use share their first bits.
    let common = 0x2001_0db8_u128 << 96;
    for _ in 0..count {
        let prefix_bits = rng.random_range(lengths.clone());
        let random_bits = value(rng, bits);
        let address = if bits == 128 {
            common | (random_bits >> 24)
        } else {
            random_bits
        };
        let host_bits = if prefix_bits == bits {
            0
        } else {
            address & (u128::MAX >> (128 - bits + prefix_bits))
        };
        insert(
            &mut table,
            &[FieldMatch::Lpm {
                value: bytes(address ^ host_bits, bits),
                prefix_bits,
            }],
            0,
        )?;
        keys.push(bytes(address, bits));
    }
    measure(rng, name, &table, &keys);
    keys.truncate(64);
    measure(rng, "  64 of these addresses", &table, &keys);
    Ok(())
}

/// Five-tuple as in access control lists.
const FIVE_TUPLE: [u32; 5] = [32, 32, 16, 16, 8];

fn ternary(rng: &mut ChaCha8Rng, name: &str, masks: usize, count: usize) -> Result<(), Box<dyn Error>> {
    let mut table = table(&FIVE_TUPLE.map(|bits| (MatchKind::Ternary, bits)), count)?;
    let masks: Vec<[u128; 5]> = (0..masks)
        .map(|index| {
            FIVE_TUPLE.map(|bits| {
                if index == 0 || rng.random_bool(0.7) {
                    u128::MAX >> (128 - bits)
                } else {
                    0
                }
            })
        })
        .collect();
    let mut keys = Vec::with_capacity(count);
    for _ in 0..count {
        let mask = masks.get(rng.random_range(0..masks.len())).ok_or("no masks")?;
        let mut key = Vec::new();
        let mut matches = Vec::new();
        for (bits, mask) in FIVE_TUPLE.into_iter().zip(mask) {
            let value = value(rng, bits);
            key.extend(bytes(value, bits));
            matches.push(FieldMatch::Ternary {
                value: bytes(value & mask, bits),
                mask: bytes(*mask, bits),
            });
        }
        insert(&mut table, &matches, rng.random_range(1..1_000))?;
        keys.push(key);
    }
    measure(rng, name, &table, &keys);
    Ok(())
}

fn measure(rng: &mut ChaCha8Rng, name: &str, table: &Table, keys: &[Vec<u8>]) {
    let length = keys.first().map_or(1, Vec::len);
    let lookup_keys: Vec<u8> = (0..LOOKUPS)
        .filter_map(|_| keys.get(rng.random_range(0..keys.len())))
        .flat_map(|key| key.iter().copied())
        .collect();
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let start = Instant::now();
        let mut sum = 0;
        for key in lookup_keys.chunks_exact(length) {
            if let Some(Target::Action(call)) = table.lookup(black_box(key)).map(|entry| entry.target()) {
                sum += u64::from(call.action.0) + u64::from(call.data.first().copied().unwrap_or(0));
            }
        }
        black_box(sum);
        best = best.min(start.elapsed().as_secs_f64());
    }
    println!(
        "{name:<44} {:>9} {:>9.1}",
        table.len(),
        best * 1e9 / LOOKUPS as f64
    );
}

/// Measures a snapshot, and a batch with one change in a table of a million entries: the table is not copied.
fn updates(rng: &mut ChaCha8Rng) -> Result<(), Box<dyn Error>> {
    let mut table = table(&[(MatchKind::Exact, 48)], 1_000_001)?;
    for _ in 0..1_000_000 {
        insert(&mut table, &[FieldMatch::Exact(bytes(value(rng, 48), 48))], 0)?;
    }
    let entries = table.len();
    let key = table.spec().key.clone();
    let mut publisher = Publisher::new(table);
    let reader = publisher.reader();
    let snapshot_ns = best_of(|| {
        black_box(reader.snapshot().version());
        Ok(())
    })?;
    println!("{:<44} {entries:>9} {snapshot_ns:>9.1}", "a snapshot");
    let batch_ns = best_of(|| {
        let matches = [FieldMatch::Exact(bytes(value(rng, 48), 48))];
        let new_entry = NewEntry {
            key: key.key(&matches, Priority(0))?,
            target: Target::Action(ActionCall {
                action: ActionId(1),
                data: ActionData::new(),
            }),
            state: None,
            constant: false,
        };
        let mut batch = publisher.begin();
        let TableChange::Inserted(entry) = batch.apply(TableOp::Insert(new_entry))? else {
            return Ok(());
        };
        batch.commit();
        publisher.all_or_nothing([TableOp::Delete(entry.handle())])?;
        Ok(())
    })?;
    println!(
        "{:<44} {entries:>9} {batch_ns:>9.1}",
        "two batches, one insertion and one deletion"
    );
    Ok(())
}

/// Minimum time of a call over several runs, in ns.
fn best_of(mut call: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    const CALLS: usize = 10_000;
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let start = Instant::now();
        for _ in 0..CALLS {
            call()?;
        }
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best * 1e9 / CALLS as f64)
}
