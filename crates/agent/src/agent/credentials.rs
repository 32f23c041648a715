//! What a session, or an offer, says of the device's helper data and rows.

use linewarden_protocol::ids::RowIndex;

use super::{Agent, Sink};
use crate::renewal::{Renewal, RenewalOptions};
use crate::report::Report;

impl Agent {
    /// Once for each session.
    pub(super) fn tell_spent(&mut self, row: RowIndex) {
        let spent = self.answers.note_spent(row);
        if !std::mem::replace(&mut self.told_of_spent_row, true) {
            tracing::warn!("{spent}");
        }
    }

    /// A session that the helper data of before the last renewal have opened shows that the registry was put back: it gets the newer key
    /// again.
    pub(super) fn fall_back(&mut self, sink: Sink<'_>) {
        match self.options.keyring.settle() {
            Ok(false) => {}
            Ok(true) => {
                let renewal = self
                    .renewal
                    .get_or_insert_with(|| Renewal::new(RenewalOptions::default()));
                renewal.reopen();
                sink(&Report::OlderKey);
            }
            Err(error) => sink(&Report::NotRenewed {
                why: format!("the helper data of before cannot take the newer ones' place: {error}"),
            }),
        }
    }

    /// A session that new helper data have opened shows that the registry has their key.
    pub(super) fn confirm_key(&mut self, sink: Sink<'_>) {
        if !self.options.keyring.has_used_pending() {
            return;
        }
        let promoted = self.options.keyring.promote();
        if let Some(renewal) = &mut self.renewal {
            renewal.confirmed(promoted.is_ok());
        }
        sink(&match promoted {
            Ok(()) => Report::KeyRenewed,
            Err(error) => Report::NotRenewed {
                why: format!("the new helper data cannot take the old ones' place: {error}"),
            },
        });
    }
}
