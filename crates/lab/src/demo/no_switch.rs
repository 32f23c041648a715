//! Replaces the P4 switch in a build without the feature `p4`.

use linewarden_dataplane::{Config, DataPlane};

use super::DemoError;
use crate::topology::Lab;

/// Why there is no switch.
#[derive(Debug, thiserror::Error)]
#[error("not part of this program; build it with the feature p4")]
pub struct SwitchError;

/// Never created.
pub(super) enum DemoSwitch {}

impl DemoSwitch {
    pub(super) fn stop(self) -> Result<(), SwitchError> {
        match self {}
    }
}

pub(super) fn start(_: &Lab, _: &Config) -> Result<(Box<dyn DataPlane>, DemoSwitch), DemoError> {
    Err(SwitchError.into())
}
