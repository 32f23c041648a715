//! Appraisal: comparison of statements with reference values.
//!
//! A [`Reference`] is read from a file with a hash and an optional signature. [`appraise`] compares the reference with a
//! verified statement and names the program, tables, entries, register arrays and cells that differ. The result is
//! exported as the claims of an EAR.

mod compare;
mod ear;
mod reference;

pub use compare::{Appraisal, Difference, EntryChange, appraise};
pub use ear::Ear;
pub use reference::{REFERENCE_BYTES_MAX, Reference, ReferenceError, ReferenceObject};
