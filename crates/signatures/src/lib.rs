//! Signed broadcast messages: Rapid Authentication (RA) and plain signature schemes, on CPU and GPU lanes behind a scheduler.
//!
//! The crate signs messages, verifies received messages, and schedules both. The crate neither distributes keys nor
//! encrypts messages. The command line is in `linewarden signed`, which uses this crate.
//!
//! ```text
//! payloads ──► signing ──► scheduler ──► lanes ──► udp::UdpSender
//!                 │ signer: key, table, masks (store)
//!
//! udp::UdpReceiver ──► receive: checks ──► scheduler ──► lanes: signature ──► receive: replay ──► verified messages
//! ```
//!
//! | module | purpose |
//! |---|---|
//! | [`scheme`], [`message`], [`refusal`] | signature schemes, format of a message, reasons of refusals |
//! | [`ra`] | Rapid Authentication: layouts, hashes, masks, keys |
//! | [`key`] | keys of all schemes, in memory and as JSON |
//! | [`gpu`] | batches on a CUDA device |
//! | [`lane`] | verification of signatures: one at a time, eight at a time, on a GPU |
//! | [`receive`] | checks of a received message before and after a lane |
//! | [`scheduler`] | assignment of messages to lanes: queue, policies, the decisions without I/O, the engine with threads |
//! | [`calibration`] | cost of each lane, measured before the first message arrives |
//! | [`service`] | receiver, scheduler and lanes combined |
//! | `simulator` | with the feature `simulator`: the scheduler in virtual time: traffic, lanes with measured rates, reports, comparison of policies |
//! | [`signer`] | signing with a key, its table and its masks |
//! | [`signing`] | signer, scheduler and lanes combined; idle lanes make masks |
//! | [`store`] | files of private keys, tables, masks and revocations |
//! | [`udp`] | UDP datagrams in batches |
//! | [`bsm`] | part I of SAE J2735's Basic Safety Message: UPER and JSON |
//!
//! ```
//! use linewarden_signatures::key::{PrivateKey, PublicKey};
//! use linewarden_signatures::lane::SingleLane;
//! use linewarden_signatures::message::{PayloadKind, Priority, Stamp, TimeMs};
//! use linewarden_signatures::receive::{Receiver, ReplayMemory, Signers, Window};
//! use linewarden_signatures::scheme::Scheme;
//! use linewarden_signatures::signer::Signer;
//! use linewarden_signatures::store::Revocations;
//!
//! let key = PrivateKey::generate(Scheme::Ed25519, None)?;
//! let public = PublicKey::from_json(&key.public().to_json()?)?;
//!
//! let signer = Signer::new(key, None, None);
//! let now = TimeMs::since_2020(1_000_000);
//! let stamp = Stamp { time: now, priority: Priority::IMMEDIATE };
//! let message = signer.prepare(stamp, PayloadKind::Opaque, b"brake")?;
//! let signed = signer.sign(&[&message])?.remove(0);
//!
//! let mut signers = Signers::default();
//! signers.add(public)?;
//! let replays = ReplayMemory::new(Window::DEFAULT, 1_000, [0; 16]); // use a random key
//! let mut receiver = Receiver::new(signers, Revocations::default(), Window::DEFAULT, replays);
//! let checked = receiver.screen(signed.bytes, now)?;
//! let is_valid = SingleLane::default().verify_one(&checked);
//! let verified = receiver.accept(checked, is_valid, now)?;
//! assert_eq!(verified.message().payload(), b"brake");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(test)]
#[macro_use(test)]
extern crate linewarden_harness;

pub mod bsm;
pub mod calibration;
mod flood;
pub mod gpu;
pub mod key;
pub mod lane;
pub mod message;
pub mod ra;
mod range;
pub mod receive;
pub mod refusal;
mod reputation;
pub mod scheduler;
pub mod scheme;
pub mod service;
pub mod signer;
pub mod signing;
#[cfg(feature = "simulator")]
pub mod simulator;
mod source;
pub mod store;
pub mod udp;

/// Runs the unit tests.
#[cfg(test)]
fn main() -> std::process::ExitCode {
    linewarden_harness::main()
}
