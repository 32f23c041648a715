//! What a simulated device is made of.

use linewarden_protocol::device::{DeviceConfig, PufFailed, PufQuery};
use linewarden_protocol::ids::{Mode, RowIndex};
use linewarden_protocol::keys::RowKey;
use linewarden_puf::Puf;
use linewarden_puf::extractor::{HelperData, PoolHelper, reproduce_puf};
use linewarden_puf::health::HealthTest;

/// The public helper data that a device stores.
#[derive(Clone, Debug)]
pub enum Credential {
    /// Of a strong PUF: rows.
    Pool(PoolHelper),
    /// Of a weak PUF: one key.
    Key(HelperData),
}

impl Credential {
    /// The mode that it is for.
    #[must_use]
    pub fn mode(&self) -> Mode {
        match self {
            Self::Pool(_) => Mode::Pool,
            Self::Key(_) => Mode::Key,
        }
    }
}

/// A device: who it is, what it stores, and its PUF.
pub struct Member {
    /// Identity and policy. `bound_mac` is set by the fleet to the device's own MAC address if it is `Some`.
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
    /// Reads the PUF and rebuilds the key that the gateway's CHALLENGE asks for, as the agent on a real device does.
    ///
    /// # Errors
    /// The reading failed its health test, had too many errors, or is of a row that was never enrolled.
    pub fn row_key(&mut self, query: &PufQuery) -> Result<RowKey, PufFailed> {
        let health = HealthTest::default();
        let puf = self.puf.as_mut();
        let (suite, device) = (self.config.suite, self.config.device);
        match &self.credential {
            Credential::Pool(helper) => {
                let RowIndex(idx) = query.idx;
                let secret = helper
                    .reproduce(idx, query.challenge, puf, &health)
                    .map_err(|_| PufFailed)?;
                let digest = helper.digest(idx).ok_or(PufFailed)?;
                Ok(RowKey::for_row(
                    secret.expose(),
                    &digest,
                    suite,
                    device,
                    query.idx,
                ))
            }
            Credential::Key(helper) => {
                let secret = reproduce_puf(puf, helper, &health).map_err(|_| PufFailed)?;
                Ok(RowKey::for_device(
                    secret.expose(),
                    &helper.digest(),
                    suite,
                    device,
                ))
            }
        }
    }
}
