//! What a session, or an offer, says of the device's helper data and rows.

use linewarden_protocol::ids::RowIndex;

use super::{Agent, Sink};
use crate::keyring::Set;
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

    /// A session shows which of the helper data's keys the registry has.
    pub(super) fn settle(&mut self, sink: Sink<'_>) {
        let Some(session) = self.device.session() else {
            return;
        };
        match self.options.keyring.opened(session, self.device.config()) {
            Set::Pending => self.confirm_key(sink),
            Set::Current => {}
            Set::Previous(number) => self.fall_back(number, sink),
        }
    }

    /// The registry was restored to an earlier state: it gets the newer key again.
    fn fall_back(&mut self, number: usize, sink: Sink<'_>) {
        if let Err(error) = self.options.keyring.restore(number) {
            sink(&Report::NotRenewed {
                why: format!("the previous helper data cannot take the newer ones' place: {error}"),
            });
            return;
        }
        let renewal = self
            .renewal
            .get_or_insert_with(|| Renewal::new(RenewalOptions::default()));
        renewal.reopen();
        sink(&Report::OlderKey);
    }

    /// The registry has the new key.
    fn confirm_key(&mut self, sink: Sink<'_>) {
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
