//! Whether a device tells signatures that hold from such as do not: what it says is believed, so it is asked what is known first.
//!
//! `known_answers.json`: for each scheme that a device verifies a signer, whose private key is forgotten, and a message of its with a payload
//! of one byte.

use std::sync::Arc;

use super::device::Device;
use super::on_device;
use super::places::{KeyMemory, Places};
use crate::gpu::{Goal, Gpu, NoGpu};
use crate::key::PublicKey;
use crate::message::{Envelope, HEADER_BYTES};
use crate::receive::{Checked, Receiver, ReplayMemory, Signers, Window};
use crate::store::Revocations;

const FILE: &str = include_str!("known_answers.json");

/// For one key of each scheme.
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

/// A message of a scheme as it was signed, with another payload, and with another signature.
struct Known {
    signed: Checked,
    forged: [Checked; 2],
}

/// Verifies with every kernel for many messages and for few. No two batches have the same answer: what one leaves on the device is wrong
/// for all others.
///
/// # Errors
/// The device fails, or is wrong about one.
pub(super) fn known_answers(gpu: Gpu) -> Result<Gpu, NoGpu> {
    let known = known().ok_or(NoGpu::Wrong)?;
    let places = Places::new(known.iter().map(|known| known.signed.key()), MEMORY);
    let mut device = Device::new(gpu, Arc::new(places));
    match ask(&mut device, &known) {
        Ok(()) => Ok(device.gpu),
        Err(error) => Err(error.closing(device.gpu)),
    }
}

fn ask(device: &mut Device, known: &[Known]) -> Result<(), NoGpu> {
    let goals = [Goal::Throughput, Goal::Latency];
    let length = goals.len() * known.len();
    let batches = goals
        .iter()
        .flat_map(|goal| known.iter().map(move |known| (goal, known)));
    for (number, (goal, known)) in batches.enumerate() {
        device.goal = *goal;
        let [odd, even] = &known.forged;
        let messages = (0..length).map(|place| match (place == number, place % 2) {
            (true, _) => known.signed.clone(),
            (false, 0) => even.clone(),
            (false, _) => odd.clone(),
        });
        let messages: Vec<Checked> = messages.collect();
        let mut holds = vec![false; length];
        let others = on_device(device, &messages, &mut holds)?;
        let is_right = (0..)
            .zip(&holds)
            .all(|(place, holds)| *holds == (place == number));
        if !others.is_empty() || !is_right {
            return Err(NoGpu::Wrong);
        }
    }
    Ok(())
}

fn known() -> Option<Vec<Known>> {
    let entries: Vec<Entry> = serde_json::from_str(FILE).ok()?;
    let mut signers = Signers::default();
    for entry in &entries {
        signers
            .add(PublicKey::from_json(&entry.signer.to_string()).ok()?)
            .ok()?;
    }
    let replays = ReplayMemory::new(Window::DEFAULT, 0, [0; 16]);
    let receiver = Receiver::new(signers, Revocations::default(), Window::DEFAULT, replays);
    let known = entries.iter().map(|entry| {
        let signed = hex::decode(&entry.message).ok()?;
        let time = Envelope::parse(&signed).ok()?.stamp.time;
        let forged = |at: usize| {
            let mut forged = signed.clone();
            *forged.get_mut(at)? ^= 2;
            receiver.screen(forged, time).ok()
        };
        Some(Known {
            forged: [forged(HEADER_BYTES)?, forged(signed.len().checked_sub(1)?)?],
            signed: receiver.screen(signed, time).ok()?,
        })
    });
    known.collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ffi::c_void;
    use std::sync::Mutex;

    use super::*;
    use crate::gpu::Emulation;
    use crate::gpu::kernels::KernelInfo;
    use crate::lane::{Eight, OneByOne, Verifier};
    use crate::scheme::Scheme;

    #[test]
    fn processors_know_the_answers() {
        let known = known().unwrap();
        let of_devices = Scheme::ALL
            .into_iter()
            .filter(|scheme| *scheme != Scheme::Ed25519);
        for scheme in of_devices {
            let of_scheme = known.iter().filter(|known| known.signed.key().scheme() == scheme);
            assert_eq!(of_scheme.count(), 1, "{scheme}");
        }
        let mut lanes: Vec<Box<dyn Verifier>> = vec![Box::new(OneByOne::default())];
        lanes.extend(Eight::widest().map(|eight| Box::new(eight) as Box<dyn Verifier>));
        for lane in &mut lanes {
            for Known {
                signed,
                forged: [payload, signature],
            } in &known
            {
                let mut holds = Vec::new();
                let messages = [signed, payload, signature].map(Clone::clone);
                lane.verify(&messages, &mut holds).unwrap();
                assert_eq!(holds, [true, false, false], "{}", lane.name());
            }
        }
    }

    /// A kernel that does nothing leaves what was there.
    #[test]
    fn a_kernel_that_does_not_know_is_found_whichever_it_is() {
        let launched = Arc::new(Mutex::new(BTreeSet::new()));
        let names = Arc::clone(&launched);
        let of_all = device(move |kernel, _| {
            names.lock().unwrap().insert(kernel.name);
            true
        });
        known_answers(of_all).unwrap();
        let launched = launched.lock().unwrap().clone();
        // PSS and RA of two sizes and P-256 by throughput and by latency, P-256's tables, hashes of two sizes.
        assert_eq!(launched.len(), 13, "{launched:?}");
        for spoilt in launched {
            let found = known_answers(device(move |kernel, _| kernel.name != spoilt));
            assert!(matches!(found, Err(NoGpu::Wrong)), "{spoilt}");
        }
    }

    #[test]
    fn a_device_that_does_not_answer_hangs() {
        let silent = Emulation {
            answers: 0,
            ..Emulation::default()
        };
        let found = known_answers(Gpu::emulated(silent).unwrap());
        assert!(matches!(&found, Err(NoGpu::Hangs(_))), "{found:?}");
    }

    /// Runs those kernels of which this says so.
    fn device(runs: impl Fn(&KernelInfo, usize) -> bool + Send + Sync + 'static) -> Gpu {
        let launcher = move |kernel: &'static KernelInfo, items: usize, arguments: *const c_void| {
            if runs(kernel, items) {
                // SAFETY: whoever launches vouches for the arguments and what they name.
                unsafe { kernel.run_on_host(arguments) };
            }
        };
        Gpu::emulated_by(Emulation::default(), Box::new(launcher)).unwrap()
    }
}
