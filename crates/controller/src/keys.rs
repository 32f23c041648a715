//! Derivation of one gateway's keys from row keys. Row keys do not leave the controller (LAP/1 1.1).

use std::ops::Range;

use linewarden_protocol::gateway::Row;
use linewarden_protocol::ids::{GatewayId, Mode, RowIndex};
use linewarden_protocol::keys::AuthKey;
use linewarden_registry::{Credentials, DeviceInfo};
use linewarden_types::Provision;

/// A device's credentials, from which one gateway's keys are derived.
pub(crate) struct Keys<'a> {
    pub(crate) info: &'a DeviceInfo,
    pub(crate) credentials: &'a Credentials,
    pub(crate) gateway: GatewayId,
}

impl Keys<'_> {
    pub(crate) fn row(&self, idx: RowIndex) -> Option<Row> {
        let (challenge, row_key) = match self.credentials {
            Credentials::Key(key) => ([0; 8], key),
            Credentials::Pool { .. } => {
                let row = self.credentials.row(idx)?;
                (row.challenge, &row.row_key)
            }
        };
        Some(Row {
            challenge,
            auth_key: AuthKey::derive(row_key, self.info.suite, self.info.mode, idx, self.gateway),
        })
    }

    /// Returns the provision of a range of rows; in key mode, only one row, with the number `rows.start`.
    pub(crate) fn provision(&self, rows: Range<u32>, mark: RowIndex) -> Provision {
        let end = match self.info.mode {
            Mode::Key => rows.start.saturating_add(1),
            Mode::Pool => rows.end,
        };
        Provision {
            device: self.info.device,
            mode: self.info.mode,
            epoch: self.info.epoch,
            first: RowIndex(rows.start),
            rows: (rows.start..end)
                .map_while(|idx| self.row(RowIndex(idx)))
                .collect(),
            mark,
        }
    }
}
