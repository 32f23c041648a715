//! Modular arithmetic for RSA, and for the verification of ECDSA signatures on P-256 and of Ed25519 signatures. The
//! crate computes on single numbers and on eight numbers side by side.
//!
//! The crate does not parse or pad messages, generate keys, or create signatures on the curves: see
//! `linewarden-signatures`.
//!
//! | module | purpose |
//! |---|---|
//! | [`Backend`] | vector instructions of this CPU; [`Backend::widest`] is `None` if single numbers are faster |
//! | [`rsa`] | public and private operation of RSA with 2,048 and 3,072 bits, products modulo n of many factors |
//! | [`p256`], [`edwards`] | verification equations of signatures, with precomputed tables for frequent signers |
//! | [`Modulus`], `adx` | Montgomery multiplication of single numbers in 64-bit limbs, least significant first |
//! | `simd` | vectors with one word of each of eight numbers, on AVX-512 IFMA, AVX2 or portable code; long numbers |
//! | `elliptic` | eight numbers of 260 bits in five vectors, for both curves and the orders of their groups |
//! | [`run_and_wipe_stack`] | wiping of stack frames and vector registers after computations with secrets |
//!
//! The private operation of RSA runs in constant time, is blinded, and wipes its stack; verification handles no secrets. `unsafe` code is
//! limited to vector instructions (`simd`, `elliptic`), `adx`, and `stack`.
//!
//! ```
//! use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
//! use linewarden_arithmetic::Backend;
//! use linewarden_arithmetic::edwards::{PublicKey, Request, Signer, hash, verify};
//!
//! let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
//! let signature = pair.sign(b"hello");
//! let (r, s) = signature.as_ref().split_at(32);
//! let r: &[u8; 32] = r.try_into().unwrap();
//! let s: &[u8; 32] = s.try_into().unwrap();
//!
//! let key: [u8; 32] = pair.public_key().as_ref().try_into().unwrap();
//! let key = PublicKey::from_bytes(&key).unwrap();
//! let hash = hash(r, &key, b"hello");
//! let request = Request { signer: Signer::Plain(&key), r, s, hash: &hash };
//! let backend = Backend::widest().unwrap_or(Backend::PORTABLE);
//! assert_eq!(verify(backend, &[request]), [true]);
//! ```

// For modules shared by unit tests and integration tests.
#[cfg(test)]
extern crate self as linewarden_arithmetic;

#[cfg(target_arch = "x86_64")]
mod adx;
pub mod edwards;
mod elliptic;
mod limbs;
mod modulus;
pub mod p256;
pub mod rsa;
mod simd;
mod stack;
#[cfg(test)]
mod testing;

pub use modulus::{Modulus, ModulusError};
pub use simd::Backend;
pub use stack::run_and_wipe_stack;
