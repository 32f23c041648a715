//! Appraisal: comparison of statements with reference values.
//!
//! [`Reference`]s are read from signed or hashed files. [`appraise`] compares one with a verified statement and names
//! the program, tables, entries, register arrays and cells that differ. The result is exported as the claims of an
//! EAR.

mod compare;
mod ear;
mod reference;

pub use compare::{Appraisal, Difference, EntryChange, appraise};
pub use ear::Ear;
pub use reference::{REFERENCE_BYTES_MAX, Reference, ReferenceError, ReferenceObject};
