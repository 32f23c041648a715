//! Who signs what a gateway's data plane runs: the gateway itself, by the kernel's word, or the switch.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use linewarden_dataplane::{Measurement, p4runtime};
use linewarden_evidence::statement::Nonce;
use linewarden_p4runtime::evidence::{AskError, Client, Listing};
use linewarden_tls::ClientTls;

use crate::attester::{Attester, AttesterError, Shown};

/// A switch that says nothing for so long is asked anew: its TPM takes its time.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// A switch that has changed must not fill this machine's memory: a bridge of 65,536 entries is 5 MB.
const INVENTORY_BYTES_MAX: usize = 64 << 20;

/// Where statements come from.
#[derive(Clone)]
pub enum EvidenceSource {
    /// This process, which has a key, signs what it has measured.
    Gateway(Arc<Mutex<Attester>>),
    /// The switch measures itself, and has the key.
    Switch(SwitchAttester),
}

/// A P4 switch that gives evidence beside P4Runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchAttester {
    /// Where.
    pub address: SocketAddr,
    /// As which it proves itself; in the clear if `None`.
    pub tls: Option<ClientTls>,
}

/// Why there is no statement.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ShowError {
    #[error(transparent)]
    Attester(#[from] AttesterError),
    #[error(transparent)]
    Switch(#[from] AskError),
    #[error("the switch has not answered for {} s", ANSWER_MAX.as_secs())]
    Silent,
    #[error("the thread that was to sign is gone: {0}")]
    Ended(#[from] tokio::task::JoinError),
    /// The data plane and its configuration do not go together.
    #[error("nothing was measured that could be signed here")]
    Unmeasured,
}

impl EvidenceSource {
    /// A statement in answer to this nonce: of what was measured, or of the switch as it is now.
    pub(crate) async fn show(
        &self,
        nonce: Nonce,
        measurement: Option<Box<Measurement>>,
    ) -> Result<Shown, ShowError> {
        match (self, measurement) {
            (Self::Gateway(attester), Some(measurement)) => {
                let attester = Arc::clone(attester);
                // A TPM takes its time, and others wait on this thread.
                let sign = move || {
                    let mut attester = attester.lock().unwrap_or_else(PoisonError::into_inner);
                    attester.show(nonce, *measurement)
                };
                Ok(tokio::task::spawn_blocking(sign).await??)
            }
            (Self::Switch(switch), None) => {
                let shown = tokio::time::timeout(ANSWER_MAX, switch.show(nonce)).await;
                Ok(shown.map_err(|_| ShowError::Silent)??)
            }
            _ => Err(ShowError::Unmeasured),
        }
    }
}

impl SwitchAttester {
    /// Without the entries of what a gateway changes all the time, which no reference values have.
    async fn show(&self, nonce: Nonce) -> Result<Shown, AskError> {
        let mut client = Client::connect(self.address, self.tls.as_ref())
            .await?
            .with_inventory_max(INVENTORY_BYTES_MAX);
        let listing = Listing::AllBut(p4runtime::changing_objects());
        let attested = client.attest(nonce.0, listing).await?;
        Ok(Shown {
            statement: attested.statement,
            inventory: attested.inventory.unwrap_or_default(),
        })
    }
}
