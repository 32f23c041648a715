//! Parts that writes share: the reason, and the lifetime of an idempotency key.

use serde::{Deserialize, Serialize};

/// The reason of an action, stored in the registry audit log.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// The reason, for display.
    pub reason: String,
}

/// Time after which a request without a response counts as abandoned: a repeated request is then carried out.
pub const ABANDONED_AFTER_S: u64 = 120;
