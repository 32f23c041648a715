//! The gateway audit log: which devices were admitted or rejected, why, and by which gateway; one JSON object in each
//! line.
//!
//! The node creates [`AuditRecord`]s in an `AuditBuffer`, with a rate limit for each kind; [`AuditLog`] writes them
//! on a thread of its own. No other thread waits for the disk: lost records are counted, and the count is written
//! later. No record contains a key, a tag or a PUF response; a session is named by a digest.

mod buffer;
mod log;
mod record;

pub(crate) use buffer::AuditBuffer;
pub use log::{AuditLog, AuditOptions, AuditState};
pub(crate) use record::session_name;
pub use record::{AuditEvent, AuditRecord, Binding, CloseReason};
