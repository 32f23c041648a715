//! Which gateways are trusted: what makes one so, what ends it, and what nobody can do to it from outside.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod links;
mod plane;
mod standing;

use linewarden_controller::trust::Standing;
use linewarden_protocol::ids::GatewayId;

const S: u64 = 1_000_000_000;
const EVERY: u64 = 60 * S;
const ANSWER: u64 = 10 * S;
const GATEWAY: GatewayId = GatewayId(5);

fn why(standing: &Standing) -> &str {
    match standing {
        Standing::Distrusted { why } => why,
        other => panic!("{other:?}"),
    }
}
