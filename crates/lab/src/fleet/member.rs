//! The parts of a simulated device.

use linewarden_agent::Credential;
use linewarden_protocol::device::{DeviceConfig, PufFailed, PufQuery};
use linewarden_protocol::keys::RowKey;
use linewarden_puf::Puf;
use linewarden_puf::health::HealthTest;

/// A device: its identity, its stored credential and its PUF.
pub struct Member {
    /// Identity and policy. If `bound_mac` is `Some`, the fleet sets it to the device's own MAC address.
    pub config: DeviceConfig,
    /// Helper data.
    pub credential: Credential,
    /// The PUF.
    pub puf: Box<dyn Puf>,
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Member({}, {:?})", self.config.device, self.config.mode)
    }
}

impl Member {
    /// Reads the PUF and derives the key for the gateway's CHALLENGE, with the code of the agent on a real device.
    ///
    /// # Errors
    /// The reading failed its health test, had too many errors, or the row was never enrolled.
    pub fn row_key(&mut self, query: &PufQuery) -> Result<RowKey, PufFailed> {
        let (suite, device) = (self.config.suite, self.config.device);
        self.credential
            .row_key(self.puf.as_mut(), &HealthTest::default(), suite, device, query)
            .map_err(|_| PufFailed)
    }
}
