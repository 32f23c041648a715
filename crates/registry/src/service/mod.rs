//! What running as a service rests on: who may ask for what, what happened, which gateways there are, whose signatures are believed.

mod answers;
mod gateways;
mod journal;
mod signers;
mod users;

pub use answers::{ANSWERS_KEPT_S, Answered, Kept};
pub use gateways::{GatewayEntry, GatewayState, NOTED_AHEAD_MS};
pub use journal::{Act, Actor, Entry, Follower, JournalFilter, JournalPage, Note};
pub use signers::SignerEntry;
pub use users::{Role, User};

use crate::error::{RegistryError, Result};
use crate::sql::Connection;
use crate::store::Registry;

/// Texts of people: a name, a reason.
const TEXT_BYTES_MAX: usize = 4_096;

/// Refuses what must not be stored.
fn check(field: &'static str, text: &str, bytes_max: usize) -> Result<()> {
    crate::device::check_text(text, bytes_max, true)
        .map_err(|problem| RegistryError::InvalidEntry { field, problem })
}

fn invalid(field: &'static str, problem: impl Into<String>) -> RegistryError {
    RegistryError::InvalidEntry {
        field,
        problem: problem.into(),
    }
}

fn damaged(what: impl Into<String>) -> RegistryError {
    RegistryError::Damaged {
        detail: format!("{} does not authenticate", what.into()),
    }
}

/// What does not authenticate, for [`Registry::check`].
pub(crate) async fn damaged_entries(
    registry: &Registry,
    connection: &mut Connection,
) -> Result<Vec<RegistryError>> {
    let mut found = journal::damaged(registry, connection).await?;
    found.extend(users::damaged_users(registry, connection).await?);
    found.extend(gateways::damaged_book(registry, connection).await?);
    found.extend(signers::damaged_signers(registry, connection).await?);
    Ok(found)
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_default()
}
