//! Known-answer tests: a device must recognize valid and invalid signatures before its results are trusted.
//!
//! `known_answers.json` has, for each scheme that a device verifies, a signer whose private key was discarded, and a message of the signer
//! with a payload of one byte.

use std::sync::Arc;

use super::device::{GpuVerifier, verify_on_device};
use super::placement::{KeyMemory, KeyPlacement};
use crate::gpu::{Goal, Gpu, GpuUnavailable};
use crate::key::PublicKey;
use crate::message::{Envelope, HEADER_BYTES};
use crate::receive::{Checked, Receiver, ReplayMemory, Signers, Window};
use crate::store::Revocations;

const FILE: &str = include_str!("known_answers.json");

/// Memory for one key of each scheme.
const MEMORY: KeyMemory = KeyMemory {
    table_bytes: 16 << 20,
    rsa_keys: 1,
    p256_keys: 1,
};

#[derive(serde::Deserialize)]
struct Entry {
    signer: serde_json::Value,
    message: String,
}

/// A signed message, and two forgeries of this message: one with another payload, one with another signature.
struct KnownAnswer {
    signed: Checked,
    forged: [Checked; 2],
}

/// Verifies with every kernel for large and small batches. No two batches have the same expected results, so
/// that results which one batch leaves on the device are wrong for every other batch.
///
/// # Errors
/// The device fails, or returns a wrong result.
pub(super) fn test_with_known_answers(gpu: Gpu) -> Result<Gpu, GpuUnavailable> {
    let known_answers = load_known_answers().ok_or(GpuUnavailable::SelfTestFailed)?;
    let placement = KeyPlacement::new(known_answers.iter().map(|answer| answer.signed.key()), MEMORY);
    let mut device = GpuVerifier::new(gpu, Arc::new(placement));
    match verify_known_answers(&mut device, &known_answers) {
        Ok(()) => Ok(device.gpu),
        Err(error) => Err(device.gpu.close_after(error)),
    }
}

fn verify_known_answers(
    device: &mut GpuVerifier,
    known_answers: &[KnownAnswer],
) -> Result<(), GpuUnavailable> {
    let goals = [Goal::Throughput, Goal::Latency];
    let length = goals.len() * known_answers.len();
    let batches = goals
        .iter()
        .flat_map(|goal| known_answers.iter().map(move |answer| (goal, answer)));
    for (number, (goal, answer)) in batches.enumerate() {
        device.goal = *goal;
        let [odd, even] = &answer.forged;
        let messages = (0..length).map(|index| match (index == number, index % 2) {
            (true, _) => answer.signed.clone(),
            (false, 0) => even.clone(),
            (false, _) => odd.clone(),
        });
        let messages: Vec<Checked> = messages.collect();
        let mut results = vec![false; length];
        let unsupported = verify_on_device(device, &messages, &mut results)?;
        let is_correct = (0..)
            .zip(&results)
            .all(|(index, result)| *result == (index == number));
        if !unsupported.is_empty() || !is_correct {
            return Err(GpuUnavailable::SelfTestFailed);
        }
    }
    Ok(())
}

fn load_known_answers() -> Option<Vec<KnownAnswer>> {
    let entries: Vec<Entry> = serde_json::from_str(FILE).ok()?;
    let mut signers = Signers::default();
    for entry in &entries {
        signers
            .add(PublicKey::from_json(&entry.signer.to_string()).ok()?)
            .ok()?;
    }
    let replays = ReplayMemory::new(Window::DEFAULT, 0, [0; 16]);
    let receiver = Receiver::new(signers, Revocations::default(), Window::DEFAULT, replays);
    let known_answers = entries.iter().map(|entry| {
        let signed = hex::decode(&entry.message).ok()?;
        let time = Envelope::parse(&signed).ok()?.stamp.time;
        let forged = |index: usize| {
            let mut forged = signed.clone();
            *forged.get_mut(index)? ^= 2;
            receiver.screen(forged, time).ok()
        };
        Some(KnownAnswer {
            forged: [forged(HEADER_BYTES)?, forged(signed.len().checked_sub(1)?)?],
            signed: receiver.screen(signed, time).ok()?,
        })
    });
    known_answers.collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ffi::c_void;
    use std::sync::Mutex;

    use super::*;
    use crate::gpu::Emulation;
    use crate::gpu::kernels::KernelInfo;
    use crate::lane::{BatchLane, SingleLane, Verifier};
    use crate::scheme::Scheme;

    #[test]
    fn cpu_lanes_pass_the_known_answer_tests() {
        let known_answers = load_known_answers().unwrap();
        let device_schemes = Scheme::ALL
            .into_iter()
            .filter(|scheme| *scheme != Scheme::Ed25519);
        for scheme in device_schemes {
            let scheme_answers = known_answers
                .iter()
                .filter(|answer| answer.signed.key().scheme() == scheme);
            assert_eq!(scheme_answers.count(), 1, "{scheme}");
        }
        let mut lanes: Vec<Box<dyn Verifier>> = vec![Box::new(SingleLane::default())];
        lanes.extend(BatchLane::widest().map(|batch_lane| Box::new(batch_lane) as Box<dyn Verifier>));
        for lane in &mut lanes {
            for KnownAnswer {
                signed,
                forged: [payload, signature],
            } in &known_answers
            {
                let mut results = Vec::new();
                let messages = [signed, payload, signature].map(Clone::clone);
                lane.verify(&messages, &mut results).unwrap();
                assert_eq!(results, [true, false, false], "{}", lane.name());
            }
        }
    }

    /// A kernel that does nothing does not overwrite earlier results.
    #[test]
    fn every_kernel_that_does_nothing_is_detected() {
        let launched = Arc::new(Mutex::new(BTreeSet::new()));
        let names = Arc::clone(&launched);
        let full_device = device(move |kernel, _| {
            names.lock().unwrap().insert(kernel.name);
            true
        });
        test_with_known_answers(full_device).unwrap();
        let launched = launched.lock().unwrap().clone();
        // PSS and RA of two sizes and P-256, each for throughput and for latency; tables of P-256; hashes of two sizes.
        assert_eq!(launched.len(), 13, "{launched:?}");
        for skipped in launched {
            let result = test_with_known_answers(device(move |kernel, _| kernel.name != skipped));
            assert!(matches!(result, Err(GpuUnavailable::SelfTestFailed)), "{skipped}");
        }
    }

    #[test]
    fn a_device_without_response_is_reported_as_unresponsive() {
        let unresponsive = Emulation {
            completed_waits: 0,
            ..Emulation::default()
        };
        let result = test_with_known_answers(Gpu::emulated(unresponsive).unwrap());
        assert!(
            matches!(&result, Err(GpuUnavailable::Unresponsive(_))),
            "{result:?}"
        );
    }

    /// A device that executes the kernels for which `runs` returns true.
    fn device(runs: impl Fn(&KernelInfo, usize) -> bool + Send + Sync + 'static) -> Gpu {
        let launcher = move |kernel: &'static KernelInfo, items: usize, arguments: *const c_void| {
            if runs(kernel, items) {
                // SAFETY: the caller of the launch guarantees valid arguments and arrays.
                unsafe { kernel.run_on_host(arguments) };
            }
        };
        Gpu::emulated_by(Emulation::default(), Box::new(launcher)).unwrap()
    }
}
