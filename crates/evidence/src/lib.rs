//! Attestation of data planes (RATS, RFC 9334): measurement of the running state, signed statements, evidence in packets, and
//! appraisal against reference values.
//!
//! ```text
//!  data plane                                                    appraiser
//!  entries, cells ── encoding ── lthash ── state::MeasuredState    Reference ── appraisal ── EAR
//!                                               │                                 ▲
//!                                    Snapshot   ├── statement (COSE, EAT) ────────┤ requested, with a nonce
//!                                               └── inband (option, clone) ───────┘ in packets, with a tag
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`encoding`] | canonical encodings of everything that the behavior of a data plane depends on |
//! | [`lthash`] | incremental hashes of sets of encodings |
//! | [`state`] | the measured state of a running data plane |
//! | [`statement`], [`keys`] | signed statements on request, and their keys |
//! | [`inband`] | evidence in packets |
//! | [`appraisal`], [`CHANGING_OBJECTS`] | differences from reference values; objects that gateways change in a switch |
//!
//! The crate uses no I/O, no clock, and no random source except for key generation. **Limits:** the process that measures is
//! the process that forwards. A key in a TPM and a measured boot prove which process that is.
//!
//! ```
//! use linewarden_evidence::lthash::{DigestKind, Expansion, LtHash};
//!
//! let mut set = LtHash::EMPTY;
//! set.add(&Expansion::of(b"entry"));
//! set.remove(&Expansion::of(b"entry"));
//! assert_eq!(set.digest(DigestKind::Object), LtHash::EMPTY.digest(DigestKind::Object));
//! ```

pub mod appraisal;
pub mod encoding;
mod ids;
pub mod inband;
pub mod keys;
pub mod lthash;
mod p4_gateway;
pub mod state;
pub mod statement;

pub use ids::{BootCount, Sequence, SwitchId};
pub use lthash::Digest;
pub use p4_gateway::CHANGING_OBJECTS;
