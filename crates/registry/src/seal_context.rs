//! The associated data that binds a sealed credential to its device.

use std::ops::Range;

use linewarden_protocol::ids::{DeviceId, Mode, Suite};

use crate::conversion::mode_to_column;
use crate::device::DeviceInfo;

/// The values to which a sealed credential is bound: the credential does not open for another device, mode, suite, epoch
/// or range of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SealContext {
    pub(crate) device: DeviceId,
    pub(crate) mode: Mode,
    pub(crate) suite: Suite,
    pub(crate) epoch: u32,
    /// The pool's row numbers; empty in key mode.
    pub(crate) indices: Range<u32>,
}

impl SealContext {
    /// Table and version of the byte form.
    const LABEL: &[u8] = b"linewarden registry table credential v1";

    pub(crate) fn of(info: &DeviceInfo) -> Self {
        let indices = match info.mode {
            Mode::Pool => info.indices(),
            Mode::Key => 0..0,
        };
        Self {
            device: info.device,
            mode: info.mode,
            suite: info.suite,
            epoch: info.epoch,
            indices,
        }
    }

    pub(crate) fn rows_total(&self) -> u32 {
        self.indices.end.saturating_sub(self.indices.start)
    }

    /// `label | device_id u64 | mode u8 | suite u8 | epoch u32 | first_idx u32 | rows_total u32`, big-endian.
    pub(crate) fn aad(&self) -> Vec<u8> {
        let mut aad = Self::LABEL.to_vec();
        aad.extend_from_slice(&self.device.0.to_be_bytes());
        aad.extend_from_slice(&mode_to_column(self.mode).to_be_bytes()[1..]);
        aad.push(self.suite.number());
        aad.extend_from_slice(&self.epoch.to_be_bytes());
        aad.extend_from_slice(&self.indices.start.to_be_bytes());
        aad.extend_from_slice(&self.rows_total().to_be_bytes());
        aad
    }
}
