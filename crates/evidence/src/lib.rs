//! What a data plane runs, who says so, and whether that is what it should run (RATS, RFC 9334).

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
