//! Tables of the controller service: API users, event log, gateways, signers, stored responses.

mod event_log;
mod gateways;
mod idempotency;
mod signers;
mod users;

pub use event_log::{Action, Actor, EventFilter, EventLogEntry, EventLogPage, EventLogReader, NewEvent};
pub use gateways::{CLOCK_SKEW_MAX_MS, GatewayRecord, GatewayState};
pub use idempotency::{IdempotencyState, RESPONSES_KEPT_S, StoredResponse};
pub use signers::SignerRecord;
pub use users::{Role, User};

use crate::error::{DatabaseError, RegistryError, Result, ServiceError};
use crate::sql::Connection;
use crate::store::Registry;

/// Maximum length of a reason, and of the details of an event, bytes.
const TEXT_BYTES_MAX: usize = 4_096;

/// Validates a text.
fn check_text(field: &'static str, text: &str, bytes_max: usize) -> Result<()> {
    crate::device::check_text(text, bytes_max, true)
        .map_err(|problem| RegistryError::Service(ServiceError::InvalidField { field, problem }))
}

fn invalid_field(field: &'static str, problem: impl Into<String>) -> RegistryError {
    RegistryError::Service(ServiceError::InvalidField {
        field,
        problem: problem.into(),
    })
}

fn damaged_record(name: impl Into<String>) -> RegistryError {
    RegistryError::Database(DatabaseError::Damaged {
        detail: format!("{} does not authenticate", name.into()),
    })
}

/// Errors of records that do not authenticate, for [`Registry::check`].
pub(crate) async fn damaged_entries(
    registry: &Registry,
    connection: &mut Connection,
) -> Result<Vec<RegistryError>> {
    let mut damaged = event_log::damaged(registry, connection).await?;
    damaged.extend(users::damaged_users(registry, connection).await?);
    damaged.extend(gateways::damaged_gateway_records(registry, connection).await?);
    damaged.extend(signers::damaged_signers(registry, connection).await?);
    Ok(damaged)
}

/// The text of a column; empty if the column is not valid UTF-8.
fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_default()
}
