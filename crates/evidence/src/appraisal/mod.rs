//! Is that what it should be? Statements against reference values, with what differs by name.
//!
//! [`Reference`]s are read from signed or hashed files, [`appraise`] compares one with a statement that was verified and says which
//! program, table, entry, register array or cell is another one. The outcome leaves as the claims of an EAR.

mod compare;
mod ear;
mod reference;

pub use compare::{Appraisal, Difference, EntryChange, appraise};
pub use ear::Ear;
pub use reference::{REFERENCE_BYTES_MAX, Reference, ReferenceError, ReferenceObject};
