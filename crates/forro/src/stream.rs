//! The stream cipher, with the traits of the `cipher` crate.

use core::marker::PhantomData;

use cipher::consts::{U8, U12, U32, U64};
use cipher::{
    BlockSizeUser, Iv, IvSizeUser, Key, KeyIvInit, KeySizeUser, StreamCipherClosure, StreamCipherCore,
    StreamCipherCoreWrapper, StreamCipherSeekCore,
};
use zeroize::ZeroizeOnDrop;

use crate::backend::{Backend, BlockCounter};
use crate::matrix::{Matrix, words};
use crate::rounds::{R6, R10, R14, Rounds};

/// Forró of 14 rounds with an 8-byte nonce: the cipher. At most 2^64 blocks under a key and nonce.
pub type Forro14 = StreamCipherCoreWrapper<ForroCore<R14>>;
/// 10 rounds: only for measurements.
pub type Forro10 = StreamCipherCoreWrapper<ForroCore<R10>>;
/// 6 rounds: only for measurements.
pub type Forro6 = StreamCipherCoreWrapper<ForroCore<R6>>;
/// 14 rounds with a 12-byte nonce, in the layout of ChaCha20 in RFC 8439. At most 2^32 blocks under a key and nonce.
pub type Forro14Ietf = StreamCipherCoreWrapper<ForroIetfCore<R14>>;

/// The block-level cipher with a 64-bit counter.
#[derive(Clone)]
pub struct ForroCore<R: Rounds> {
    matrix: Matrix,
    backend: Backend,
    rounds: PhantomData<R>,
}

impl<R: Rounds> ForroCore<R> {
    pub(crate) fn from_matrix(matrix: Matrix) -> Self {
        Self {
            matrix,
            backend: Backend::widest(),
            rounds: PhantomData,
        }
    }

    /// Replaces the backend, for comparisons.
    #[must_use]
    pub fn with_backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }
}

/// The block-level cipher with a 32-bit counter.
#[derive(Clone)]
pub struct ForroIetfCore<R: Rounds> {
    matrix: Matrix,
    backend: Backend,
    rounds: PhantomData<R>,
}

impl<R: Rounds> ForroIetfCore<R> {
    /// Replaces the backend, for comparisons.
    #[must_use]
    pub fn with_backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }
}

macro_rules! stream_cipher {
    ($core:ident, $iv:ty, $counter:ty, $nonce:ident => $input:expr) => {
        impl<R: Rounds> KeySizeUser for $core<R> {
            type KeySize = U32;
        }

        impl<R: Rounds> IvSizeUser for $core<R> {
            type IvSize = $iv;
        }

        impl<R: Rounds> BlockSizeUser for $core<R> {
            type BlockSize = U64;
        }

        impl<R: Rounds> KeyIvInit for $core<R> {
            fn new(key: &Key<Self>, $nonce: &Iv<Self>) -> Self {
                Self {
                    matrix: Matrix::with_input(key.as_ref(), $input),
                    backend: Backend::widest(),
                    rounds: PhantomData,
                }
            }
        }

        impl<R: Rounds> StreamCipherCore for $core<R> {
            fn remaining_blocks(&self) -> Option<usize> {
                usize::try_from(<$counter>::MAX - self.get_block_pos()).ok()
            }

            fn process_with_backend(&mut self, closure: impl StreamCipherClosure<BlockSize = U64>) {
                self.backend
                    .process::<R, $counter>(&mut self.matrix, closure);
            }
        }

        impl<R: Rounds> StreamCipherSeekCore for $core<R> {
            type Counter = $counter;

            fn get_block_pos(&self) -> $counter {
                <$counter>::read(&self.matrix)
            }

            fn set_block_pos(&mut self, block: $counter) {
                block.write(&mut self.matrix);
            }
        }

        /// Does not print the key.
        impl<R: Rounds> core::fmt::Debug for $core<R> {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(concat!(stringify!($core), " { .. }"))
            }
        }

        // The matrix type wipes itself; there are no other secrets.
        impl<R: Rounds> ZeroizeOnDrop for $core<R> {}
    };
}

stream_cipher!(ForroCore, U8, u64, nonce => {
    let [n0, n1] = words::<8, 2>(nonce.as_ref());
    [0, 0, n0, n1]
});
stream_cipher!(ForroIetfCore, U12, u32, nonce => {
    let [n0, n1, n2] = words::<12, 3>(nonce.as_ref());
    [0, n0, n1, n2]
});
