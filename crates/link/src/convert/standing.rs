//! What a controller wants to see of a gateway, and how the gateway stands.

use linewarden_controller::trust::{Scrutiny, Standing};
use linewarden_evidence::statement::Nonce;

use super::{Malformed, optional};
use crate::proto;

/// `fence`: the one from now on, if it was raised.
pub(crate) fn scrutiny_to_wire(scrutiny: &Scrutiny, fence: Option<u64>) -> proto::Scrutiny {
    use proto::scrutiny::Standing as Wire;
    let (standing, why) = match &scrutiny.standing {
        Standing::Unproven => (Wire::Unproven, ""),
        Standing::Trusted => (Wire::Trusted, ""),
        Standing::Distrusted { why } => (Wire::Distrusted, why.as_str()),
    };
    proto::Scrutiny {
        nonce: scrutiny
            .nonce
            .map_or_else(Vec::new, |Nonce(nonce)| nonce.to_vec()),
        standing: standing.into(),
        why: why.to_owned(),
        fence: fence.unwrap_or_default(),
    }
}

/// The scrutiny, and the fence from now on, if it was raised.
pub(crate) fn scrutiny_from_wire(scrutiny: proto::Scrutiny) -> Result<(Scrutiny, Option<u64>), Malformed> {
    use proto::scrutiny::Standing as Wire;
    let standing = match scrutiny.standing() {
        Wire::Unproven => Standing::Unproven,
        Wire::Trusted => Standing::Trusted,
        Wire::Distrusted => Standing::Distrusted {
            why: scrutiny.why.clone(),
        },
        Wire::Unspecified => return Err(Malformed("how the gateway stands")),
    };
    let nonce = optional(&scrutiny.nonce, "a nonce")?.map(Nonce);
    let fence = Some(scrutiny.fence).filter(|fence| *fence != 0);
    Ok((Scrutiny { nonce, standing }, fence))
}
