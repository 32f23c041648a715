//! From a datagram to a verified message: what is checked before a lane computes, and what after it.
//!
//! ```text
//! datagram ─► Receiver::screen ─► Checked ─► a lane: does the equation hold? ─► Receiver::admit ─► Verified
//!                  │ form, signer, revocation, layout, time, replay, ranges           │ equation, replay
//!                  └──────────────────────── Refusal ────────────────────────────────┘
//! ```
//!
//! What makes a signature valid is one thing on all lanes, because all but the equation is checked here, once.

mod checked;
mod receiver;
mod replay;
mod signers;

pub use checked::Checked;
pub(crate) use receiver::plain_shape;
pub use receiver::{KEY_MEMORY_DEFAULT_BYTES, Receiver, Verified, Window};
pub use replay::{REPLAY_MEMORY_DEFAULT, ReplayMemory};
pub use signers::{SignerError, Signers};
