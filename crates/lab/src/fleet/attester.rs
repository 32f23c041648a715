//! The prover of a simulated device (LAP/1 3.2): it measures the device's files on disk when a key period begins.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use linewarden_measurement::HashAlgorithm;
use linewarden_measurement::configuration::{Configuration, ConfigurationError};
use linewarden_measurement::files::{self, FilePath, FilesError, Limits};
use linewarden_measurement::pcr::PcrValues;
use linewarden_protocol::attest::prover::{ProofOutcome, Prover, Refusal, RequestTagKey};
use linewarden_protocol::attest::{AttestationKey, ConfigurationHash};
use linewarden_protocol::frame::write;
use linewarden_protocol::ids::{DeviceId, Period};
use linewarden_protocol::keys::SessionKey;
use linewarden_protocol::wire::{ATTEST_PORT, Proof};
use zerocopy::IntoBytes as _;

use super::worker_devices::{SendStamp, WorkerDevices};
use crate::address::Family;

/// Why the measurement of a device's software failed.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// A file cannot be read.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// The configuration is too large.
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
}

/// Measures the files at these paths below `root`, which represents `/`. Simulated devices have no TPM and so no PCRs.
///
/// # Errors
/// A path cannot be read, or the configuration is too large.
pub fn measure(root: &Path, paths: &[FilePath]) -> Result<Configuration, MeasureError> {
    let entries = files::measure(root, paths, Limits::default())?;
    Ok(Configuration::new(
        PcrValues::new(HashAlgorithm::Sha256),
        entries,
    )?)
}

/// Why the device sends no PROOF for a request.
#[derive(Debug, thiserror::Error)]
pub enum NoProof {
    /// The device refuses the request.
    #[error("attestation request refused: {}", .0.name())]
    Refused(Refusal),
    /// The device cannot measure its software.
    #[error(transparent)]
    MeasurementFailed(#[from] MeasureError),
}

/// A simulated device as a prover.
pub struct Attester {
    device: DeviceId,
    key: AttestationKey,
    root: PathBuf,
    paths: Arc<[FilePath]>,
    prover: Prover,
}

impl fmt::Debug for Attester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Attester({}, {})", self.device, self.root.display())
    }
}

impl Attester {
    /// A prover with its key, the newest period at enrollment, and the measured paths below `root`.
    #[must_use]
    pub fn new(
        device: DeviceId,
        key: AttestationKey,
        period: Period,
        root: PathBuf,
        paths: Arc<[FilePath]>,
    ) -> Self {
        Self {
            device,
            key,
            root,
            paths,
            prover: Prover::new(device, period),
        }
    }

    /// The PROOF for a request that is tagged with the session key or with the request key. Measures the files once in each
    /// period.
    ///
    /// # Errors
    /// [`NoProof`]: the device sends no PROOF.
    pub fn respond(&mut self, request: &[u8], session: Option<&SessionKey>) -> Result<Proof, NoProof> {
        let in_session = session.map(RequestTagKey::Session);
        match self.respond_with(request, true, in_session) {
            // A gateway that has closed the session tags its requests with the request key.
            Err(NoProof::Refused(_)) => self.respond_with(request, false, None),
            result => result,
        }
    }

    /// Without `in_session`, the tag key is the request key.
    fn respond_with(
        &mut self,
        request: &[u8],
        in_session: bool,
        key: Option<RequestTagKey<'_>>,
    ) -> Result<Proof, NoProof> {
        let screened = self.prover.screen(request, in_session)?;
        let (gateway, period) = screened.gateway_and_period();
        let request_key = self.key.for_requests(self.device, gateway, period);
        let key = match in_session {
            true => key,
            false => Some(RequestTagKey::Request(&request_key)),
        };
        let (start, request) = match self.prover.respond(screened.verify(key)?) {
            ProofOutcome::Proof(proof) => return Ok(proof),
            ProofOutcome::MeasurementNeeded(start, request) => (start, request),
        };
        let h = ConfigurationHash(measure(&self.root, &self.paths)?.hash().0);
        let key = self.key.for_period(self.device, &start, &h);
        self.prover.begin_period(&request, &key);
        match self.prover.respond(request) {
            ProofOutcome::Proof(proof) => Ok(proof),
            ProofOutcome::MeasurementNeeded(..) => Err(Refusal::NoKey.into()),
        }
    }
}

impl From<Refusal> for NoProof {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl WorkerDevices {
    /// Handles an attestation request to a device with a prover.
    pub(super) fn on_attest_request(&mut self, slot_index: u32, payload: &[u8]) {
        let Some(slot) = self.slots.get_mut(slot_index as usize) else {
            return;
        };
        let Some(attester) = &mut slot.attester else {
            return;
        };
        self.report.attest_requests += 1;
        let session = slot.device.session().map(|session| session.key());
        let Ok(proof) = attester.respond(payload, session) else {
            self.report.attest_requests_without_proof += 1;
            return;
        };
        let family = if slot.ip.is_ipv4() { Family::V4 } else { Family::V6 };
        let from = slot.address.endpoint(family, ATTEST_PORT);
        let to = (self.gateway)(family);
        self.queue_frame(SendStamp::None, |out| {
            write::udp(out, &from, &to, [0; 2], proof.as_bytes())
        });
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use linewarden_protocol::attest::{PeriodStart, Round};
    use linewarden_protocol::ids::{GatewayId, RoundNumber};

    use super::*;

    const DEVICE: DeviceId = DeviceId(5);

    fn round(number: u32, period: u64) -> Round {
        Round {
            gateway: GatewayId(1),
            number: RoundNumber(number),
            nonce: u64::from(number).to_be_bytes(),
            start: PeriodStart {
                period: Period(period),
                salt: period.to_be_bytes(),
            },
        }
    }

    struct TestProver {
        root: tempfile::TempDir,
        attester: Attester,
        key: AttestationKey,
        paths: Arc<[FilePath]>,
    }

    fn test_prover() -> TestProver {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("program"), "one").unwrap();
        let paths: Arc<[FilePath]> = [FilePath::new("/program").unwrap()].into();
        let key = AttestationKey::from_bytes([7; 32]);
        TestProver {
            attester: Attester::new(
                DEVICE,
                key.clone(),
                Period(1),
                root.path().to_owned(),
                Arc::clone(&paths),
            ),
            root,
            key,
            paths,
        }
    }

    impl TestProver {
        fn prove(&mut self, round: &Round, session: Option<&SessionKey>) -> [u8; 64] {
            let request = match session {
                Some(key) => round.request(DEVICE, key),
                None => {
                    let key = self.key.for_requests(DEVICE, round.gateway, round.start.period);
                    round.request_without_session(DEVICE, &key)
                }
            };
            self.attester.respond(request.as_bytes(), session).unwrap().proof
        }

        /// The PROOF that the verifier expects for the files on disk.
        fn expected(&self, round: &Round) -> [u8; 64] {
            let h = measure(self.root.path(), &self.paths).unwrap().hash();
            let key = self.key.for_period(DEVICE, &round.start, &ConfigurationHash(h.0));
            key.for_gateway(round.gateway).prove(round)
        }
    }

    #[test]
    fn a_proof_covers_the_files_on_disk_at_the_start_of_the_period() {
        let mut prover = test_prover();
        let session = SessionKey::from_bytes([9; 16]);
        let first = round(1, 1);
        assert_eq!(prover.prove(&first, Some(&session)), prover.expected(&first));
        let before = prover.expected(&round(2, 1));
        fs::write(prover.root.path().join("program"), "two").unwrap();
        assert_eq!(prover.prove(&round(2, 1), Some(&session)), before);
        let next = round(3, 2);
        assert_ne!(before, prover.expected(&round(2, 1)));
        assert_eq!(prover.prove(&next, Some(&session)), prover.expected(&next));
    }

    #[test]
    fn a_request_under_the_request_key_is_answered_without_and_with_a_closed_session() {
        let mut prover = test_prover();
        let first = round(1, 1);
        assert_eq!(prover.prove(&first, None), prover.expected(&first));
        let second = round(2, 1);
        let key = prover
            .key
            .for_requests(DEVICE, second.gateway, second.start.period);
        let request = second.request_without_session(DEVICE, &key);
        let closed_session = SessionKey::from_bytes([9; 16]);
        let proof = prover
            .attester
            .respond(request.as_bytes(), Some(&closed_session))
            .unwrap();
        assert_eq!(proof.proof, prover.expected(&second));
    }

    #[test]
    fn a_request_under_a_foreign_key_gets_no_proof() {
        let mut prover = test_prover();
        let foreign_key = SessionKey::from_bytes([1; 16]);
        let request = round(1, 1).request(DEVICE, &foreign_key);
        let session = SessionKey::from_bytes([9; 16]);
        for session in [None, Some(&session)] {
            let response = prover.attester.respond(request.as_bytes(), session);
            assert!(
                matches!(response, Err(NoProof::Refused(Refusal::WrongTag))),
                "{response:?}"
            );
        }
    }
}
