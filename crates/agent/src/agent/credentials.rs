//! Updates helper data and rows after sessions and offers.

use linewarden_protocol::ids::RowIndex;

use super::Agent;
use crate::event::{AgentEvent, EventSink};
use crate::keyring::CredentialSet;
use crate::renewal::{Renewal, RenewalOptions};

impl Agent {
    /// Logs a spent row, once per session.
    pub(super) fn report_spent_row(&mut self, row: RowIndex) {
        let spent = self.handshake.diagnosis.record_spent_row(row);
        if !std::mem::replace(&mut self.session_state.is_spent_row_reported, true) {
            tracing::warn!("{spent}");
        }
    }

    /// Updates the helper data after a session was opened: the key that opened the session is the key in the registry.
    pub(super) fn confirm_credentials(&mut self, sink: EventSink<'_>) {
        let Some(session) = self.device.session() else {
            return;
        };
        match self
            .options
            .keyring
            .identify_opening_set(session, self.device.config())
        {
            CredentialSet::Pending => self.confirm_key(sink),
            CredentialSet::Current => {}
            CredentialSet::Previous(number) => self.restore_previous_key(number, sink),
        }
    }

    /// Makes previous helper data current, because the registry was restored to an earlier state. A renewal then sends the
    /// newer key to the registry again.
    fn restore_previous_key(&mut self, number: usize, sink: EventSink<'_>) {
        if let Err(error) = self.options.keyring.restore(number) {
            sink(&AgentEvent::RenewalFailed {
                reason: format!("replacing the helper data by previous ones failed: {error}"),
            });
            return;
        }
        let renewal = self
            .renewal
            .get_or_insert_with(|| Renewal::new(RenewalOptions::default()));
        renewal.mark_unconfirmed();
        sink(&AgentEvent::PreviousKeyInRegistry);
    }

    /// Makes the pending helper data current, because the registry has the new key.
    fn confirm_key(&mut self, sink: EventSink<'_>) {
        let promoted = self.options.keyring.promote();
        if let Some(renewal) = &mut self.renewal {
            renewal.confirm(promoted.is_ok());
        }
        sink(&match promoted {
            Ok(()) => AgentEvent::KeyRenewed,
            Err(error) => AgentEvent::RenewalFailed {
                reason: format!("replacing the helper data by the new ones failed: {error}"),
            },
        });
    }
}
