//! All lanes over the same messages, good and forged, of all schemes and in any mixture: they agree on every one.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

#[path = "../common/mod.rs"]
mod common;
mod graphics;

use common::{NOW, receiver, sign, stamp};
use linewarden_signatures::arith::Backend;
use linewarden_signatures::gpu::Emulation;
use linewarden_signatures::lane::{Eight, OneByOne};
use linewarden_signatures::receive::Checked;
use linewarden_signatures::scheme::Scheme;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// Messages that a receiver lets through to the lanes, and whether each is its signer's.
fn messages(random: &mut ChaCha8Rng, count: usize) -> Vec<(Checked, bool)> {
    let receiver = receiver();
    let mut messages = Vec::new();
    while messages.len() < count {
        let scheme = Scheme::ALL[random.random_range(0..6)];
        let mut bytes = sign(
            scheme,
            stamp(NOW, random.random_range(0..8)),
            random.random_range(0..200),
        );
        let good = random.random_range(0..3) != 0;
        if !good {
            // In the payload, the mask's name or the signature; what goes out of its range never comes to a lane.
            let place = random.random_range(21..bytes.len());
            bytes[place] ^= 1 << random.random_range(0..8);
        }
        if let Ok(checked) = receiver.screen(bytes, NOW) {
            messages.push((checked, good));
        }
    }
    messages
}

#[test]
fn lanes_agree_on_every_message() {
    let seed = std::env::var("LINEWARDEN_SEED").map_or(11, |seed| seed.parse().unwrap());
    println!("LINEWARDEN_SEED={seed}");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let messages = messages(&mut random, 300);
    let (messages, expected): (Vec<Checked>, Vec<bool>) = messages.into_iter().unzip();
    let mut one = OneByOne::default();
    let alone: Vec<bool> = messages.iter().map(|message| one.holds(message)).collect();
    assert_eq!(alone, expected);
    let mut device = graphics::emulated(Emulation::default(), graphics::MEMORY);
    assert_eq!(device.holds(&messages).unwrap(), expected, "emulated device");
    for size in 0..20 {
        let first = random.random_range(0..messages.len() - size);
        let some = first..first + size;
        let holds = device.holds(&messages[some.clone()]).unwrap();
        assert_eq!(holds, expected[some], "emulated device, {size}");
    }
    for backend in Backend::available() {
        let mut eight = Eight::on(backend);
        assert_eq!(eight.holds(&messages), expected, "{}", backend.name());
        // Batches of all small sizes, from anywhere.
        for size in 0..20 {
            let first = random.random_range(0..messages.len() - size);
            let some = first..first + size;
            assert_eq!(
                eight.holds(&messages[some.clone()]),
                expected[some],
                "{} of {size}",
                backend.name()
            );
        }
    }
}
