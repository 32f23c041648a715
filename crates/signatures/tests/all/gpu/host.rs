//! The kernels without a GPU: compiled for this CPU behind the same interface as a device, with the lanes of a group
//! executed one after another.
use std::time::Duration;

use crate::gpu::support;
use linewarden_arithmetic::rsa::Size;
use linewarden_signatures::gpu::{
    BatchError, BenchEnvironment, BenchKey, Emulation, Goal, Gpu, Plan, PssBatch, RaSigner, RsaKeys, Stage,
    host_layouts, layouts, measure, rows_of,
};

/// Runs a test on an emulated device with three streams and one block at a time, so that batches have many slices.
fn emulated(test: impl FnOnce(&mut Gpu)) {
    let emulation = Emulation {
        streams: 3,
        ..Emulation::default()
    };
    test(&mut Gpu::emulated(emulation).unwrap());
}

crate::gpu::support::all_cases!(emulated);

/// Tests a device that is lost at the first call, at the second call, and so on. Each time, the operation and its
/// repetition return an error and no result.
#[test]
fn a_lost_device_returns_errors_and_no_results() {
    let test_keys = support::keys::keys(Size::Bits2048);
    let key_of = [0, 1, 2, 0];
    let (digests, signatures) = ([[7; 32]; 4], [1; 4 * 256]);
    let mut failed_runs = 0;
    for calls in 0.. {
        let emulation = Emulation {
            calls,
            ..Emulation::default()
        };
        let outcome = Gpu::emulated(emulation)
            .map_err(BatchError::Lost)
            .and_then(|mut gpu| {
                let mut keys = gpu.rsa_keys(Size::Bits2048, 3)?;
                for (number, key) in test_keys.iter().enumerate() {
                    gpu.put_rsa_key(&mut keys, number, key.modulus())?;
                }
                let batch = PssBatch {
                    keys: &keys,
                    key_of: &key_of,
                    digests: &digests,
                    signatures: &signatures,
                };
                let first = gpu.verify_pss(&batch, Goal::Throughput);
                if let Err(error) = &first {
                    assert_eq!(
                        gpu.verify_pss(&batch, Goal::Throughput).as_ref(),
                        Err(error),
                        "stays lost"
                    );
                    assert!(matches!(error, BatchError::Lost(lost) if Some(lost) == gpu.lost()));
                }
                first
            });
        match outcome {
            Ok(results) => {
                assert_eq!(results, [false; 4]);
                break;
            }
            Err(BatchError::Lost(_)) => failed_runs += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(failed_runs > 20, "only {failed_runs} calls can fail");
}

/// The addresses of one device are invalid on another device.
#[test]
fn keys_of_another_device_are_refused() {
    let mut other_gpu = Gpu::emulated(Emulation::default()).unwrap();
    let keys = other_gpu.rsa_keys(Size::Bits2048, 1).unwrap();
    emulated(|gpu| {
        let batch = PssBatch {
            keys: &keys,
            key_of: &[0],
            digests: &[[0; 32]],
            signatures: &[0; 256],
        };
        assert!(matches!(
            gpu.verify_pss(&batch, Goal::Automatic),
            Err(BatchError::Malformed(_))
        ));
        assert_eq!(other_gpu.verify_pss(&batch, Goal::Automatic), Ok(vec![false]));
    });
}

/// A device and its memory may move to the thread that uses them.
#[test]
fn devices_can_be_sent_to_threads() {
    fn can_be_sent<T: Send>() {}
    can_be_sent::<Gpu>();
    can_be_sent::<RaSigner>();
    can_be_sent::<RsaKeys>();
}

macro_rules! offsets {
    ($($type:ty as $name:literal: $($field:ident)*;)*) => {
        vec![$(
            ($name.to_owned(), size_of::<$type>() as u64),
            $((format!("{}.{}", $name, stringify!($field)), std::mem::offset_of!($type, $field) as u64),)*
        )*]
    };
}

/// The C++ compiler and Rust agree on the layout of the structures.
#[test]
fn layouts_are_the_same_in_cpp_and_rust() {
    use layouts::{
        CrtArgs, CrtHalf, CrtKey, FdhArgs, LimitArgs, P256Args, P256TableArgs, ProbeArgs, PssArgs,
        RaSignArgs, RaVerifyArgs, RsaKey,
    };
    let mut rust_layouts = offsets! {
        RsaKey<64> as "RsaKey64": n r2 shift n0 prefix_bytes first_row prefix;
        RsaKey<96> as "RsaKey96": shift prefix;
        CrtHalf<32> as "CrtHalf32": modulus r2 exponent n0;
        CrtKey<32> as "CrtKey32": p q qinv q_shift;
        CrtKey<48> as "CrtKey48": q qinv q_shift;
        PssArgs as "PssArgs": keys key_of signatures digests verdicts count;
        RaVerifyArgs as "RaVerifyArgs": keys key_of signatures seeds digits offsets table verdicts count components;
        RaSignArgs as "RaSignArgs": keys key_of digits offsets table slots masks filled signatures statuses count components;
        FdhArgs as "FdhArgs": keys key_of messages lengths out count montgomery;
        CrtArgs as "CrtArgs": secrets keys key_of inputs powers halves out statuses count montgomery;
        P256Args as "P256Args": base_table tables key_of signatures digests verdicts count;
        P256TableArgs as "P256TableArgs": points numbers tables count places bits multiples;
        LimitArgs as "LimitArgs": cycles sink count rounds;
        ProbeArgs as "ProbeArgs": a b moduli n0 out count operation;
    };
    for (name, table) in [
        ("P256_BASE_TABLE", layouts::P256_BASE_TABLE),
        ("P256_KEY_TABLE", layouts::P256_KEY_TABLE),
    ] {
        let layouts::P256Table {
            places,
            bits,
            multiples,
        } = table;
        let fields = [("places", places), ("bits", bits), ("multiples", multiples)];
        rust_layouts.extend(fields.map(|(field, value)| (format!("{name}.{field}"), u64::from(value))));
    }
    let cpp_layouts: Vec<(String, u64)> = host_layouts()
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    assert_eq!(rust_layouts, cpp_layouts);
}

/// Every operation is measured, with a clock that advances by a millisecond at each call.
#[test]
fn all_operations_can_be_measured() {
    let key = &support::keys::keys(Size::Bits3072)[2];
    let key = BenchKey {
        modulus: key.modulus(),
        secret: key.secret(),
    };
    let plan = Plan {
        items: 2,
        duration: Duration::from_millis(2),
        components: &[1, 32],
        values: 1,
        stage: None,
    };
    let clock = |milliseconds: &mut u64| {
        *milliseconds += 1;
        Duration::from_millis(*milliseconds)
    };
    let (mut milliseconds, mut state) = (0, 1u8);
    let mut random = |bytes: &mut [u8]| {
        for byte in bytes {
            state = state.wrapping_mul(29).wrapping_add(17);
            *byte = state;
        }
    };
    emulated(|gpu| {
        let sources = BenchEnvironment {
            now: &mut || clock(&mut milliseconds),
            random: &mut random,
        };
        let short = Plan {
            components: &[1],
            ..plan
        };
        let (_, measurements) = measure(gpu, &[key], &short, sources).unwrap();
        let operations: Vec<&str> = measurements.iter().map(|row| row.operation.as_str()).collect();
        let expected = [
            "rsa-3072-pss-verify",
            "rsa-3072-private",
            "ra-3072-sign-1",
            "ra-3072-verify-1",
            "ecdsa-p256-verify",
        ];
        assert!(
            expected.iter().all(|operation| operations.contains(operation)),
            "{operations:?}"
        );
        // Four items in two milliseconds.
        assert!(
            measurements
                .iter()
                .all(|row| row.items_per_s == 2_000.0 && row.batches == 2),
            "{measurements:?}"
        );
        for (stage, operation) in [
            (Stage::Offline, "rsa-3072-private"),
            (Stage::Online, "ra-3072-sign-1"),
            (Stage::Verify, "ra-3072-verify-1"),
        ] {
            let sources = BenchEnvironment {
                now: &mut || clock(&mut milliseconds),
                random: &mut random,
            };
            let stage = Plan {
                stage: Some(stage),
                ..short
            };
            let (_, measurements) = measure(gpu, &[key], &stage, sources).unwrap();
            let operations: Vec<&str> = measurements.iter().map(|row| row.operation.as_str()).collect();
            assert_eq!(operations, [operation]);
        }
        let sources = BenchEnvironment {
            now: &mut || clock(&mut milliseconds),
            random: &mut random,
        };
        let rows = rows_of(gpu, &plan, sources).unwrap().rows;
        let names: Vec<&str> = rows.iter().map(|row| row.name).collect();
        assert_eq!(
            names,
            [
                "gpu.rsa2048_verify_per_s",
                "gpu.ra32_online_per_s",
                "gpu.ra32_verify_per_s",
                "gpu.rsa2048_sign_per_s",
                "gpu.p256_verify_per_s"
            ]
        );
    });
}
