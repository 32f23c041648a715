//! What a data plane runs, who says so, and whether that is what it should run (RATS, RFC 9334).
//!
//! ```text
//!  data plane                                                  appraiser
//!  entries, cells ── encoding ── lthash ── state::Measured       Reference ── appraisal ── EAR
//!                                               │                               ▲
//!                                    Snapshot   ├── statement (COSE, EAT) ──────┤ pulled, with a nonce
//!                                               └── inband (option, clone) ─────┘ in packets, with a tag
//! ```
//!
//! * [`encoding`]: one way to write each thing that behaviour depends on; [`lthash`]: hashes of sets of them, one change at a
//!   time; [`state`]: what a running data plane is measured to be.
//! * [`inband`]: evidence in packets; [`statement`]: evidence that is asked for, signed by [`keys`]; [`appraisal`]: what differs from
//!   reference values.
//!
//! No I/O, no clock, no randomness but where a key is made. **What it is not**: who measures is the same process that forwards; a TPM's key
//! and a measured boot below it say which process that is.

pub mod appraisal;
pub mod encoding;
mod ids;
pub mod inband;
pub mod keys;
pub mod lthash;
pub mod state;
pub mod statement;

pub use ids::{BootCount, Sequence, SwitchId};
pub use lthash::Digest;
