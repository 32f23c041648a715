//! A waiting job.

use super::super::job::JobEntry;
use super::arena::Links;

/// A waiting job.
pub(super) struct Node<J> {
    pub(super) entry: JobEntry,
    pub(super) payload: J,
    pub(super) source_number: u32,
    pub(super) fifo: Links,
    pub(super) source_link: Links,
}
