//! Numbers modulo odd moduli, one by one and eight at a time: RSA, ECDSA's verification on P-256, Ed25519's on edwards25519.
//!
//! | module | what |
//! |---|---|
//! | [`Backend`] | which vectors this CPU has: [`Backend::widest`]; none means that one number at a time is faster |
//! | [`rsa`] | the public and the private operation of 2,048 and 3,072 bits, products of many factors |
//! | [`p256`], [`edwards`] | equations of signatures, with tables for signers that are known |
//! | `eight` | words of eight numbers side by side, on AVX-512 IFMA, AVX2 or neither; long numbers of them |
//! | `five` | numbers of 260 bits of such words, for both curves and the orders of their groups |
//! | `modulus`, `adx` | one number at a time, in 64-bit limbs, least significant first: Montgomery multiplication |
//!
//! No messages, no padding, no keys are made here; on the curves nothing is signed. RSA's private operation takes the same time whatever its
//! secrets are, is blinded, and wipes its stack ([`wiped`]); verification has no secrets. `unsafe` are the vectors' instructions (`eight`,
//! `five`), `adx`, and `stack`.

// For modules that tests of the crate and tests beside it share.
#[cfg(test)]
extern crate self as linewarden_arithmetic;

#[cfg(target_arch = "x86_64")]
mod adx;
pub mod edwards;
mod eight;
mod five;
mod limbs;
mod modulus;
pub mod p256;
pub mod rsa;
mod stack;
#[cfg(test)]
mod testing;

pub use eight::Backend;
pub use modulus::{Modulus, ModulusError};
pub use stack::wiped;
