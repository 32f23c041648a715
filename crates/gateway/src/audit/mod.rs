//! The audit record: who was let in, who was not, why, and by which gateway; one line of JSON each.
//!
//! The node makes [`Record`]s as values (`Trail`), at most so many of each kind a second; [`AuditLog`] writes them on a
//! thread of its own. Nobody waits for a disk: what cannot be written is counted, and told when it can. No record holds a
//! key, a tag or a PUF's response; a session is named by a digest.

mod log;
mod record;
mod trail;

pub use log::{AuditLog, AuditOptions, AuditState};
pub(crate) use record::session_name;
pub use record::{Binding, CloseReason, Happening, Record};
pub(crate) use trail::Trail;
