//! Sources of signed evidence about the data plane: the gateway, which measures the kernel, or the switch.

#[cfg(feature = "full")]
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
#[cfg(feature = "full")]
use std::time::Duration;

use linewarden_dataplane::Measurement;
#[cfg(feature = "full")]
use linewarden_evidence::CHANGING_OBJECTS;
use linewarden_evidence::statement::Nonce;
#[cfg(feature = "full")]
use linewarden_p4runtime::evidence::{Client, EvidenceClientError, InventoryScope};
#[cfg(feature = "full")]
use linewarden_tls::ClientTls;

use crate::attester::{Attester, AttesterError, SignedEvidence};

#[cfg(feature = "full")]
/// Timeout of evidence requests to the switch. A TPM needs seconds.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

#[cfg(feature = "full")]
/// Maximum size of an inventory from the switch, bytes. A bridge of 65,536 entries takes 5 MB.
const INVENTORY_BYTES_MAX: usize = 64 << 20;

/// The source of evidence.
#[derive(Clone)]
pub enum EvidenceSource {
    /// This process signs its measurements with its key.
    Gateway(Arc<Mutex<Attester>>),
    /// The switch measures itself and signs.
    #[cfg(feature = "full")]
    Switch(SwitchAttester),
}

#[cfg(feature = "full")]
/// A P4 switch that serves evidence beside P4Runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchAttester {
    /// The address of the service.
    pub address: SocketAddr,
    /// TLS identity of the gateway; plain text if `None`.
    pub tls: Option<ClientTls>,
}

/// The reason why no evidence was created.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EvidenceError {
    #[error(transparent)]
    Attester(#[from] AttesterError),
    #[cfg(feature = "full")]
    #[error(transparent)]
    Switch(#[from] EvidenceClientError),
    #[cfg(feature = "full")]
    #[error("no evidence received from the switch for {} s", RESPONSE_TIMEOUT.as_secs())]
    Timeout,
    #[error("the signing thread has ended: {0}")]
    TaskFailed(#[from] tokio::task::JoinError),
    /// The measurement does not match the source.
    #[error("no measurement for this evidence source")]
    NotMeasured,
}

impl EvidenceSource {
    /// Returns signed evidence with this nonce: of the measurement, or of the switch's current state.
    pub(crate) async fn statement(
        &self,
        nonce: Nonce,
        measurement: Option<Box<Measurement>>,
    ) -> Result<SignedEvidence, EvidenceError> {
        match (self, measurement) {
            (Self::Gateway(attester), Some(measurement)) => {
                let attester = Arc::clone(attester);
                // A TPM needs seconds, and this thread serves other requests.
                let sign = move || {
                    let mut attester = attester.lock().unwrap_or_else(PoisonError::into_inner);
                    attester.sign(nonce, *measurement)
                };
                Ok(tokio::task::spawn_blocking(sign).await??)
            }
            #[cfg(feature = "full")]
            (Self::Switch(switch), None) => {
                let result = tokio::time::timeout(RESPONSE_TIMEOUT, switch.statement(nonce)).await;
                Ok(result.map_err(|_| EvidenceError::Timeout)??)
            }
            _ => Err(EvidenceError::NotMeasured),
        }
    }
}

#[cfg(feature = "full")]
impl SwitchAttester {
    /// Returns the switch's evidence, without entries that the gateway changes all the time: no reference value
    /// contains them.
    async fn statement(&self, nonce: Nonce) -> Result<SignedEvidence, EvidenceClientError> {
        let mut client = Client::connect(self.address, self.tls.as_ref())
            .await?
            .with_inventory_max(INVENTORY_BYTES_MAX);
        let scope = InventoryScope::AllExcept(CHANGING_OBJECTS.map(str::to_owned).to_vec());
        let evidence = client.attest(nonce.0, scope).await?;
        Ok(SignedEvidence {
            statement: evidence.statement,
            inventory: evidence.inventory.unwrap_or_default(),
        })
    }
}
