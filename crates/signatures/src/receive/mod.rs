//! From a datagram to a verified message: the checks before and after a lane.
//!
//! ```text
//! datagram ─► Receiver::screen ─► Checked ─► a lane: does the equation hold? ─► Receiver::accept ─► Verified
//!                  │ form, signer, revocation, layout, time, replay, ranges           │ equation; again revocation, time, replay
//!                  └──────────────────────── Refusal ────────────────────────────────┘
//! ```
//!
//! All lanes agree on which signatures are valid, since every check except the signature's equation is made here.

mod checked;
mod receiver;
mod replay;
mod signers;
mod window;

pub use checked::Checked;
pub(crate) use receiver::check_plain_payload;
pub use receiver::{KEY_MEMORY_DEFAULT_BYTES, Receiver, Verified};
pub use replay::{REPLAY_MEMORY_DEFAULT, ReplayMemory};
pub use signers::{SignerError, Signers};
pub use window::Window;
