//! XForró: 24-byte nonces, which may be random, and the AEAD based on it.

use chacha20poly1305::ChaChaPoly1305;
use cipher::consts::{U24, U32, U64};
use cipher::{
    BlockSizeUser, Iv, IvSizeUser, Key, KeyIvInit, KeySizeUser, StreamCipherClosure, StreamCipherCore,
    StreamCipherCoreWrapper, StreamCipherSeekCore,
};
use zeroize::{Zeroize as _, ZeroizeOnDrop};

use crate::backend::Backend;
use crate::matrix::{Matrix, hforro, words};
use crate::rounds::R14;
use crate::stream::ForroCore;

/// Forró14 with a key that [`hforro`] derives from the given key and the first 16 bytes of the nonce. The last 8 bytes
/// are the nonce of Forró14.
pub type XForro14 = StreamCipherCoreWrapper<XForro14Core>;

/// Authenticated encryption with associated data: [`XForro14`] and Poly1305, composed like XChaCha20-Poly1305
/// (draft-irtf-cfrg-xchacha-03; RFC 8439 2.8). Use each nonce for one message only. With random nonces, 2^80 messages
/// under one key give a collision probability of 2^-33.
pub type XForro14Poly1305 = ChaChaPoly1305<XForro14, U24>;

/// [`XForro14`] at block level.
#[derive(Clone, Debug)]
pub struct XForro14Core(ForroCore<R14>);

impl XForro14Core {
    /// Replaces the backend, for comparisons.
    #[must_use]
    pub fn with_backend(self, backend: Backend) -> Self {
        Self(self.0.with_backend(backend))
    }
}

impl KeySizeUser for XForro14Core {
    type KeySize = U32;
}

impl IvSizeUser for XForro14Core {
    type IvSize = U24;
}

impl BlockSizeUser for XForro14Core {
    type BlockSize = U64;
}

impl KeyIvInit for XForro14Core {
    fn new(key: &Key<Self>, nonce: &Iv<Self>) -> Self {
        let (input, tail) = nonce.split_ref::<cipher::consts::U16>();
        let mut derived = hforro::<R14>(key.as_ref(), input.as_ref());
        let [n0, n1] = words::<8, 2>(tail.as_ref());
        let matrix = Matrix::with_input(&derived, [0, 0, n0, n1]);
        derived.zeroize();
        Self(ForroCore::from_matrix(matrix))
    }
}

impl StreamCipherCore for XForro14Core {
    fn remaining_blocks(&self) -> Option<usize> {
        self.0.remaining_blocks()
    }

    fn process_with_backend(&mut self, closure: impl StreamCipherClosure<BlockSize = U64>) {
        self.0.process_with_backend(closure);
    }
}

impl StreamCipherSeekCore for XForro14Core {
    type Counter = u64;

    fn get_block_pos(&self) -> u64 {
        self.0.get_block_pos()
    }

    fn set_block_pos(&mut self, block: u64) {
        self.0.set_block_pos(block);
    }
}

impl ZeroizeOnDrop for XForro14Core {}
