//! What proves on a simulated device what it runs (LAP/1 3.2): files of its own on disk, measured when a period begins.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use linewarden_measurement::HashAlgorithm;
use linewarden_measurement::configuration::{Configuration, ConfigurationError};
use linewarden_measurement::files::{self, FilePath, FilesError, Limits};
use linewarden_measurement::pcr::PcrValues;
use linewarden_protocol::attest::prover::{Answer, AskedBy, Prover, Refusal};
use linewarden_protocol::attest::{AttestationKey, ConfigurationHash};
use linewarden_protocol::frame::write;
use linewarden_protocol::ids::{DeviceId, Period};
use linewarden_protocol::keys::SessionKey;
use linewarden_protocol::wire::{ATTEST_PORT, Proof};
use zerocopy::IntoBytes as _;

use super::crew::{Crew, Stamp};
use crate::address::Family;

/// Why it is not known what a device runs.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// A file.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// There is too much of it.
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
}

/// What lies at these paths below `root`, which stands for `/`. Simulated devices have no TPM, so no PCRs.
///
/// # Errors
/// What cannot be read.
pub fn measure(root: &Path, paths: &[FilePath]) -> Result<Configuration, MeasureError> {
    let entries = files::measure(root, paths, Limits::default())?;
    Ok(Configuration::new(
        PcrValues::new(HashAlgorithm::Sha256),
        entries,
    )?)
}

/// Why a request gets no proof.
#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    /// It is refused, as by any device.
    #[error("refused: {}", .0.name())]
    Refused(Refusal),
    /// The device does not know what it runs.
    #[error(transparent)]
    Unmeasured(#[from] MeasureError),
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
    /// With the key and the newest period of its enrolment, and what it measures: these paths below `root`.
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

    /// The proof that a request asks for, under the session's key or the request key, whichever it is tagged with. Measures when
    /// another period has begun, and then not again.
    ///
    /// # Errors
    /// [`Unanswered`]: nothing is sent then.
    pub fn answer(&mut self, request: &[u8], session: Option<&SessionKey>) -> Result<Proof, Unanswered> {
        let in_session = session.map(AskedBy::Session);
        match self.answer_by(request, true, in_session) {
            // A gateway that has closed the session asks like one that never had it.
            Err(Unanswered::Refused(_)) => self.answer_by(request, false, None),
            answered => answered,
        }
    }

    /// Without a session the key is the request key.
    fn answer_by(
        &mut self,
        request: &[u8],
        in_session: bool,
        key: Option<AskedBy<'_>>,
    ) -> Result<Proof, Unanswered> {
        let screened = self.prover.screen(request, in_session)?;
        let (gateway, period) = screened.asks();
        let request_key = self.key.for_requests(self.device, gateway, period);
        let key = match in_session {
            true => key,
            false => Some(AskedBy::Request(&request_key)),
        };
        let (start, asked) = match self.prover.answer(screened.verify(key)?) {
            Answer::Proof(proof) => return Ok(proof),
            Answer::Period(start, asked) => (start, asked),
        };
        let h = ConfigurationHash(measure(&self.root, &self.paths)?.hash().0);
        let key = self.key.for_period(self.device, &start, &h);
        self.prover.begin(&asked, &key);
        match self.prover.answer(asked) {
            Answer::Proof(proof) => Ok(proof),
            Answer::Period(..) => Err(Refusal::NoKey.into()),
        }
    }
}

impl From<Refusal> for Unanswered {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl Crew {
    /// Answers a request to a device that proves what it runs.
    pub(super) fn on_attest_request(&mut self, place: u32, payload: &[u8]) {
        let Some(seat) = self.seats.get_mut(place as usize) else {
            return;
        };
        let Some(attester) = &mut seat.attester else {
            return;
        };
        self.report.asked += 1;
        let session = seat.device.session().map(|session| session.key());
        let Ok(proof) = attester.answer(payload, session) else {
            self.report.unanswered += 1;
            return;
        };
        let family = if seat.ip.is_ipv4() { Family::V4 } else { Family::V6 };
        let from = seat.address.endpoint(family, ATTEST_PORT);
        let to = (self.gateway)(family);
        self.batch_with(Stamp::None, |out| {
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

    struct Field {
        root: tempfile::TempDir,
        attester: Attester,
        key: AttestationKey,
        paths: Arc<[FilePath]>,
    }

    fn field() -> Field {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("program"), "one").unwrap();
        let paths: Arc<[FilePath]> = [FilePath::new("/program").unwrap()].into();
        let key = AttestationKey::from_bytes([7; 32]);
        Field {
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

    impl Field {
        fn ask(&mut self, round: &Round, session: Option<&SessionKey>) -> [u8; 64] {
            let request = match session {
                Some(key) => round.request(DEVICE, key),
                None => {
                    let key = self.key.for_requests(DEVICE, round.gateway, round.start.period);
                    round.request_without_session(DEVICE, &key)
                }
            };
            self.attester.answer(request.as_bytes(), session).unwrap().proof
        }

        /// What the verifier expects of what lies on disk now.
        fn expected(&self, round: &Round) -> [u8; 64] {
            let h = measure(self.root.path(), &self.paths).unwrap().hash();
            let key = self.key.for_period(DEVICE, &round.start, &ConfigurationHash(h.0));
            key.for_gateway(round.gateway).prove(round)
        }
    }

    #[test]
    fn it_proves_what_lay_on_disk_when_the_period_began() {
        let mut field = field();
        let session = SessionKey::from_bytes([9; 16]);
        let first = round(1, 1);
        assert_eq!(field.ask(&first, Some(&session)), field.expected(&first));
        let before = field.expected(&round(2, 1));
        fs::write(field.root.path().join("program"), "two").unwrap();
        assert_eq!(field.ask(&round(2, 1), Some(&session)), before);
        let next = round(3, 2);
        assert_ne!(before, field.expected(&round(2, 1)));
        assert_eq!(field.ask(&next, Some(&session)), field.expected(&next));
    }

    #[test]
    fn without_a_session_and_past_one_that_the_gateway_has_closed_it_answers_under_the_request_key() {
        let mut field = field();
        let first = round(1, 1);
        assert_eq!(field.ask(&first, None), field.expected(&first));
        let second = round(2, 1);
        let key = field
            .key
            .for_requests(DEVICE, second.gateway, second.start.period);
        let request = second.request_without_session(DEVICE, &key);
        let old = SessionKey::from_bytes([9; 16]);
        let proof = field.attester.answer(request.as_bytes(), Some(&old)).unwrap();
        assert_eq!(proof.proof, field.expected(&second));
    }

    #[test]
    fn nobody_else_gets_a_proof() {
        let mut field = field();
        let other = SessionKey::from_bytes([1; 16]);
        let request = round(1, 1).request(DEVICE, &other);
        let session = SessionKey::from_bytes([9; 16]);
        for session in [None, Some(&session)] {
            let answer = field.attester.answer(request.as_bytes(), session);
            assert!(
                matches!(answer, Err(Unanswered::Refused(Refusal::WrongTag))),
                "{answer:?}"
            );
        }
    }
}
