//! Forró: a stream cipher, its AEAD, and single blocks under many keys at once.
//!
//! Forró (Coutinho, Passos, Grados Vásquez, de Mendonça, de Sousa, Borges: *Latin Dances Reloaded*, Journal of
//! Cryptology 2023) is an ARX permutation of 16 words of 32 bits, like ChaCha. Its *pollination* passes a fifth word to
//! each quarter round. Changes spread faster, so 14 rounds replace 20 rounds of ChaCha, with 30 % fewer operations; but
//! the quarter rounds of a round depend on each other. A single block is therefore slower than ChaCha's on a wide CPU.
//! [`Backend`]s therefore fill the pipeline with 4 to 32 blocks side by side (the idea of the designers' *Xote*).
//!
//! | type | key | nonce | counter |
//! |---|---|---|---|
//! | [`Forro6`], [`Forro10`], [`Forro14`] | 32 B | 8 B | 64 bits |
//! | [`Forro14Ietf`] | 32 B | 12 B | 32 bits |
//! | [`XForro14`] | 32 B | 24 B | 64 bits |
//! | [`XForro14Poly1305`] | 32 B | 24 B | 2^32 − 2 blocks a message |
//! | [`Matrix`], [`blocks`] | the block function itself, for use as a PRF | | |
//! | [`Inputs`], [`matching_blocks`] | many blocks, only compared with given blocks | | |
//!
//! The cipher has 14 rounds. The best known attacks reach 5.5 rounds (with 2^225 operations) and 5 rounds (2^144). The
//! variants with 6 and 10 rounds exist for comparison with published measurements only. The crate does not manage keys
//! or nonces.
//!
//! ```
//! use linewarden_forro::{Matrix, R14};
//!
//! let block = Matrix::new(&[1; 32], 0, &[2; 8]).block::<R14>();
//! assert_eq!(block, Matrix::new(&[1; 32], 0, &[2; 8]).block::<R14>());
//! ```
//!
//! # Inputs chosen by an attacker
//! As a PRF, `block(key, counter, nonce)` is the function that the designers and others have analyzed, no matter which
//! party chooses counter and nonce: `attest/2` (LAP/1 3.2) has no other inputs and needs no further assumption.
//! The published protocol (3.1) replaces the four constant words by values that a prover or a network chooses. The result is
//! another function, whose security with chosen parameters was not analyzed: the constants prevent symmetric matrices,
//! and an all-zero matrix maps to itself. [`Matrix::from_words`] supports such matrices for compatibility; new protocols
//! should not need them.
#![no_std]

#[cfg(test)]
extern crate std;

mod backend;
mod inputs;
mod matrix;
mod permute;
mod rounds;
mod stream;
mod xforro;

pub use backend::{Backend, blocks, matching_blocks};
pub use cipher;
pub use inputs::Inputs;
pub use matrix::{Matrix, hforro};
pub use rounds::{R6, R10, R14, Rounds};
pub use stream::{Forro6, Forro10, Forro14, Forro14Ietf, ForroCore, ForroIetfCore};
pub use xforro::{XForro14, XForro14Core, XForro14Poly1305};

/// Bytes of a block of keystream.
pub const BLOCK_BYTES: usize = 64;
/// Bytes of a key.
pub const KEY_BYTES: usize = 32;
