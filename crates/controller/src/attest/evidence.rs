//! Evidence documents that devices send in chunks, and their appraisal (LAP/1 1.7.6).

use std::collections::{BTreeMap, HashMap};

use linewarden_protocol::attest::{PeriodStart, quote_nonce};
use linewarden_protocol::ids::{DeviceId, Period};
use linewarden_protocol::ticket::{ChunkAck, EvidenceChunk, Outcome, ReportId};
use linewarden_registry::{DeviceError, ProverRecord, RegistryError};
use linewarden_tpm::enroll::Binding;
use linewarden_tpm::evidence::{CheckedEvidence, Evidence, EvidenceError};
use zeroize::Zeroizing;

use crate::link::Controller;

/// Maximum size of all incomplete documents together, bytes. Above this limit, the oldest incomplete documents are
/// discarded.
const BYTES_MAX: usize = 64 << 20;
/// Minimum interval between two stored documents of one device, seconds. Each stored document is a database write.
const STORE_INTERVAL_S: u64 = 10;

/// An incomplete document.
#[derive(Debug)]
struct PartialDocument {
    report: ReportId,
    /// Length of the complete document, bytes.
    total: u32,
    /// The bytes received until now.
    bytes: Vec<u8>,
    /// Sequence number of the document.
    sequence: u64,
}

/// The most recently stored document of a device.
#[derive(Debug)]
struct StoredDocument {
    report: ReportId,
    stored_at_s: u64,
    /// How often a newer document was deferred since this document was stored.
    deferred: u32,
}

/// Incomplete documents, one for each device.
#[derive(Debug, Default)]
pub(crate) struct EvidenceInbox {
    partial: HashMap<DeviceId, PartialDocument>,
    /// The device of each incomplete document, by sequence number: the oldest document first.
    by_sequence: BTreeMap<u64, DeviceId>,
    /// The most recently stored document of each device, for a repeated chunk after a lost response.
    stored: HashMap<DeviceId, StoredDocument>,
    /// Total size of the incomplete documents, bytes.
    bytes: usize,
    next_sequence: u64,
}

impl EvidenceInbox {
    /// Receives a chunk. Returns the acknowledgment and, after the last chunk, the whole document. A repeated chunk and
    /// a chunk at a wrong offset are acknowledged with the number of bytes received. If the device's previous document
    /// was stored too recently, the last chunk is deferred: the acknowledgment is that of a chunk at a wrong offset, and
    /// the inbox keeps the bytes of the earlier chunks.
    pub(crate) fn receive_chunk(
        &mut self,
        device: DeviceId,
        chunk: &EvidenceChunk<'_>,
        now_s: u64,
    ) -> (ChunkAck, Option<Vec<u8>>) {
        let stored = self.stored.get(&device);
        if stored.is_some_and(|stored| stored.report == chunk.report()) {
            return (chunk_ack(Outcome::Done, chunk.total()), None);
        }
        let is_different =
            |partial: &PartialDocument| partial.report != chunk.report() || partial.total != chunk.total();
        if self.partial.get(&device).is_none_or(is_different) {
            self.discard(device);
            self.next_sequence += 1;
            let new_document = PartialDocument {
                report: chunk.report(),
                total: chunk.total(),
                bytes: Vec::new(),
                sequence: self.next_sequence,
            };
            self.partial.insert(device, new_document);
            self.by_sequence.insert(self.next_sequence, device);
        }
        let Some(partial) = self.partial.get_mut(&device) else {
            return (chunk_ack(Outcome::Refused, 0), None);
        };
        let received = partial.bytes.len() as u32;
        if chunk.offset() != received {
            return (chunk_ack(Outcome::OutOfSequence, received), None);
        }
        let is_last = partial.bytes.len() + chunk.bytes().len() >= partial.total as usize;
        // The code uses `abs_diff`, because the clock may have been set back.
        let is_too_soon =
            |stored: &&mut StoredDocument| now_s.abs_diff(stored.stored_at_s) < STORE_INTERVAL_S;
        if let Some(stored) = self
            .stored
            .get_mut(&device)
            .filter(|stored| is_last && is_too_soon(stored))
        {
            stored.deferred = stored.deferred.saturating_add(1);
            return (chunk_ack(Outcome::OutOfSequence, received), None);
        }
        partial.bytes.extend_from_slice(chunk.bytes());
        self.bytes += chunk.bytes().len();
        let received = partial.bytes.len() as u32;
        if received < partial.total {
            self.discard_above_limit();
            return (chunk_ack(Outcome::Done, received), None);
        }
        let document = self.discard(device).unwrap_or_default();
        match ReportId::of_document(&document) == chunk.report() {
            true => (chunk_ack(Outcome::Done, received), Some(document)),
            false => (chunk_ack(Outcome::Refused, 0), None),
        }
    }

    /// Records that the document was stored.
    pub(crate) fn record_stored(&mut self, device: DeviceId, report: ReportId, now_s: u64) {
        let stored = StoredDocument {
            report,
            stored_at_s: now_s,
            deferred: 0,
        };
        let previous = self.stored.insert(device, stored);
        let deferred = previous.map_or(0, |previous| previous.deferred);
        if deferred > 0 {
            tracing::info!(device_id = %device, count = deferred, "device sends evidence faster than the controller stores it; documents deferred");
        }
    }

    /// Removes the incomplete document of a device, and returns the document's bytes.
    fn discard(&mut self, device: DeviceId) -> Option<Vec<u8>> {
        let partial = self.partial.remove(&device)?;
        self.by_sequence.remove(&partial.sequence);
        self.bytes = self.bytes.saturating_sub(partial.bytes.len());
        Some(partial.bytes)
    }

    /// Discards the oldest documents until the total size is at most [`BYTES_MAX`].
    fn discard_above_limit(&mut self) {
        while self.bytes > BYTES_MAX {
            let Some((_, device)) = self.by_sequence.pop_first() else {
                return;
            };
            self.discard(device);
        }
    }
}

fn chunk_ack(outcome: Outcome, received: u32) -> ChunkAck {
    ChunkAck { outcome, received }
}

/// The reason why a document is not stored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// The registry failed; the device sends the document again.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The document is not evidence, or contains a false claim.
    #[error("{0}")]
    Rejected(String),
}

impl Controller {
    /// Receives a chunk of a device's evidence. A whole document is stored only if no claim in it is provably false.
    pub(crate) async fn receive_evidence(
        &self,
        device: DeviceId,
        chunk: &EvidenceChunk<'_>,
        now_s: u64,
    ) -> Result<ChunkAck, RegistryError> {
        let (ack, document) = self.evidence_inbox().receive_chunk(device, chunk, now_s);
        let Some(document) = document else {
            return Ok(ack);
        };
        match self.check_and_store(device, &document, now_s).await {
            Ok(()) => {
                self.evidence_inbox().record_stored(device, chunk.report(), now_s);
                Ok(ack)
            }
            Err(StoreError::Registry(error)) => Err(error),
            Err(StoreError::Rejected(reason)) => {
                tracing::warn!(device_id = %device, reason, "evidence of a device rejected");
                Ok(ChunkAck {
                    outcome: Outcome::Refused,
                    received: 0,
                })
            }
        }
    }

    async fn check_and_store(&self, device: DeviceId, document: &[u8], now_s: u64) -> Result<(), StoreError> {
        let rejected = |reason: &dyn ToString| StoreError::Rejected(reason.to_string());
        let prover = match self.registry().prover(device).await {
            Ok(Some(prover)) if !prover.removed => prover,
            Ok(_) => return Err(rejected(&"the device is not attested")),
            Err(error) => return Err(error.into()),
        };
        let evidence = Evidence::read(document).map_err(|error| rejected(&error))?;
        let period = self.registry().period(Period(evidence.period)).await?;
        let Some(period) = period.filter(|period| period.started_at_s.is_some()) else {
            return Err(rejected(&"evidence is of an unknown period"));
        };
        let start = PeriodStart {
            period: period.number,
            salt: period.salt,
        };
        if let Some(newest) = self.newest_valid_evidence(device).await? {
            if *newest == *document {
                return Ok(());
            }
            // A replayed older document must not become the newest document.
            let newest_period = Evidence::read(&newest).map(|newest| newest.period);
            if newest_period.is_ok_and(|newest_period| evidence.period < newest_period) {
                return Err(rejected(&"evidence is older than the stored evidence"));
            }
        }
        examine(&prover, &evidence, &start).map_err(|error| rejected(&error))?;
        self.registry().store_evidence(device, document, now_s).await?;
        Ok(())
    }

    /// Returns the newest stored document of a device, or the previous document if the newest document is damaged.
    /// `None` if the previous document is damaged, too, or does not exist.
    async fn newest_valid_evidence(
        &self,
        device: DeviceId,
    ) -> Result<Option<Zeroizing<Vec<u8>>>, RegistryError> {
        let newest = match self.registry().evidence(device).await {
            Err(error @ RegistryError::Device(DeviceError::DamagedRecord { .. })) => {
                tracing::error!(%error, device_id = %device, "stored evidence is damaged; the next document replaces it");
                self.registry().previous_evidence(device).await
            }
            newest => newest,
        };
        match newest {
            Err(RegistryError::Device(DeviceError::DamagedRecord { .. })) => Ok(None),
            newest => Ok(newest?.map(|(_, document)| document)),
        }
    }
}

/// Examines evidence of a prover.
///
/// # Errors
/// The first false claim.
pub fn examine(
    prover: &ProverRecord,
    evidence: &Evidence,
    start: &PeriodStart,
) -> Result<CheckedEvidence, EvidenceError> {
    // The registry authenticates the binding. A binding that cannot be decoded was stored by a newer version, and
    // proves nothing.
    let binding: Option<Binding> = prover
        .binding
        .as_deref()
        .and_then(|binding| serde_json::from_slice(binding).ok());
    evidence.check(binding.as_ref(), &quote_nonce(prover.device, start))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use linewarden_measurement::HashAlgorithm;
    use linewarden_measurement::configuration::Configuration;
    use linewarden_measurement::pcr::PcrValues;
    use linewarden_protocol::attest::AttestationKey;
    use linewarden_protocol::ids::Suite;
    use linewarden_protocol::keys::RowKey;
    use linewarden_registry::{Credentials, DeviceRecord, MasterKey, NewGroup, NewProver, Registry};
    use linewarden_tpm::Protection;
    use linewarden_tpm::enroll::Version;
    use linewarden_types::{GroupName, GroupPolicy};
    use sqlx::{Connection as _, Executor as _, SqliteConnection};

    use super::*;
    use crate::link::Policy;

    const DEVICE: DeviceId = DeviceId(1);

    fn send(
        inbox: &mut EvidenceInbox,
        document: &[u8],
        offset: usize,
        length: usize,
    ) -> (ChunkAck, Option<Vec<u8>>) {
        send_at(inbox, document, offset..offset + length, 100)
    }

    fn send_at(
        inbox: &mut EvidenceInbox,
        document: &[u8],
        range: std::ops::Range<usize>,
        now_s: u64,
    ) -> (ChunkAck, Option<Vec<u8>>) {
        let chunk = EvidenceChunk::new(
            ReportId::of_document(document),
            document.len() as u32,
            range.start as u32,
            &document[range],
        );
        inbox.receive_chunk(DEVICE, &chunk.unwrap(), now_s)
    }

    #[test]
    fn chunks_in_order_complete_the_document() {
        let document: Vec<u8> = (0..=200).collect();
        let mut inbox = EvidenceInbox::default();
        assert_eq!(
            send(&mut inbox, &document, 0, 150).0,
            chunk_ack(Outcome::Done, 150)
        );
        // The response is lost: the device repeats the chunk, and continues at the acknowledged offset.
        assert_eq!(
            send(&mut inbox, &document, 0, 150).0,
            chunk_ack(Outcome::OutOfSequence, 150)
        );
        assert_eq!(
            send(&mut inbox, &document, 160, 10).0,
            chunk_ack(Outcome::OutOfSequence, 150)
        );
        let (ack, document_sent) = send(&mut inbox, &document, 150, 51);
        assert_eq!(
            (ack, document_sent),
            (chunk_ack(Outcome::Done, 201), Some(document))
        );
        assert_eq!(inbox.bytes, 0);
        // The response to the last chunk is lost: the stored document is acknowledged again.
        inbox.record_stored(
            DEVICE,
            ReportId::of_document(&(0..=200).collect::<Vec<u8>>()),
            100,
        );
        let document: Vec<u8> = (0..=200).collect();
        assert_eq!(
            send(&mut inbox, &document, 150, 51),
            (chunk_ack(Outcome::Done, 201), None)
        );
    }

    #[test]
    fn a_new_document_replaces_the_previous_one() {
        let mut inbox = EvidenceInbox::default();
        send(&mut inbox, &[1; 100], 0, 60);
        assert_eq!(
            send(&mut inbox, &[2; 100], 60, 40).0,
            chunk_ack(Outcome::OutOfSequence, 0)
        );
        assert_eq!(inbox.bytes, 0);
        assert_eq!(send(&mut inbox, &[2; 100], 0, 40).0, chunk_ack(Outcome::Done, 40));
    }

    #[test]
    fn a_document_that_does_not_match_its_id_is_rejected() {
        let mut inbox = EvidenceInbox::default();
        let chunk = EvidenceChunk::new(ReportId([7; 16]), 3, 0, &[1, 2, 3]).unwrap();
        assert_eq!(
            inbox.receive_chunk(DEVICE, &chunk, 100),
            (chunk_ack(Outcome::Refused, 0), None)
        );
    }

    #[test]
    fn total_size_of_incomplete_documents_is_limited() {
        let mut inbox = EvidenceInbox::default();
        let bytes = vec![0; linewarden_protocol::ticket::CHUNK_BYTES_MAX];
        for device in 1..=100_000 {
            let chunk = EvidenceChunk::new(ReportId([1; 16]), 1 << 20, 0, &bytes).unwrap();
            inbox.receive_chunk(DeviceId(device), &chunk, 100);
            assert!(inbox.bytes <= BYTES_MAX);
        }
        assert!(!inbox.partial.contains_key(&DeviceId(1)));
        assert!(inbox.partial.contains_key(&DeviceId(100_000)));
    }

    #[test]
    fn one_document_per_device_is_stored_in_ten_seconds_and_the_next_is_deferred() {
        let (first, second) = ([1; 100], [2; 100]);
        let mut inbox = EvidenceInbox::default();
        assert!(send_at(&mut inbox, &first, 0..100, 100).1.is_some());
        inbox.record_stored(DEVICE, ReportId::of_document(&first), 100);
        assert_eq!(
            send_at(&mut inbox, &second, 0..60, 101).0,
            chunk_ack(Outcome::Done, 60)
        );
        for now_s in [101, 105, 109] {
            let deferred = send_at(&mut inbox, &second, 60..100, now_s);
            assert_eq!(deferred, (chunk_ack(Outcome::OutOfSequence, 60), None), "{now_s}");
        }
        assert_eq!(inbox.stored[&DEVICE].deferred, 3);
        assert!(send_at(&mut inbox, &second, 60..100, 110).1.is_some());
        inbox.record_stored(DEVICE, ReportId::of_document(&second), 110);
        // The device sends one document of a single chunk each second.
        let stored = (110..210).filter(|now_s| {
            let document = [*now_s as u8; 10];
            let is_complete = send_at(&mut inbox, &document, 0..10, *now_s).1.is_some();
            if is_complete {
                inbox.record_stored(DEVICE, ReportId::of_document(&document), *now_s);
            }
            is_complete
        });
        assert_eq!(stored.count(), 9);
        // A chunk of another device.
        let chunk = EvidenceChunk::new(ReportId::of_document(&first), 100, 0, &first).unwrap();
        assert!(inbox.receive_chunk(DeviceId(2), &chunk, 110).1.is_some());
        // The clock was set back.
        assert!(send_at(&mut inbox, &first, 0..100, 50).1.is_some());
    }

    fn evidence(period: u64) -> Vec<u8> {
        let pcrs = PcrValues::new(HashAlgorithm::Sha256);
        let evidence = Evidence {
            version: Version,
            period,
            configuration: Configuration::new(pcrs, BTreeMap::new()).unwrap().encode(),
            event_log: None,
            quote: None,
            protection: Protection::Software,
        };
        serde_json::to_vec(&evidence).unwrap()
    }

    /// Creates a registry in a file, with a prover and three periods that have started.
    async fn controller(directory: &Path) -> Controller {
        let key = MasterKey::from_bytes([7; 32]);
        let registry = Registry::create(directory.join("fleet.registry"), &key)
            .await
            .unwrap();
        let device = DeviceRecord {
            device: DEVICE,
            name: String::new(),
            suite: Suite::SipHash128,
            enrolled_at_s: 0,
            puf_profile: String::new(),
            credentials: Credentials::Key(RowKey::from_bytes([1; 16])),
        };
        registry.enroll(device).await.unwrap();
        let group = NewGroup {
            name: GroupName::new("pumps").unwrap(),
            policy: GroupPolicy::default(),
            reference: None,
            roll_out: None,
        };
        registry.set_group(&group, 1).await.unwrap();
        let prover = NewProver {
            device: DEVICE,
            group: group.name,
            key: AttestationKey::from_bytes([2; 32]),
            protection: linewarden_registry::Protection::Software,
            binding: None,
            overlay: None,
            location: None,
            port: 20_554,
            enrolled_period: Period(0),
        };
        registry.enroll_prover(prover, 1).await.unwrap();
        for period in 1..=3 {
            let after = Some(Period(period - 1));
            registry.create_period(after, [3; 8], 1).await.unwrap();
            registry.start_period(Period(period), 1).await.unwrap();
        }
        Controller::new(registry, Policy::default())
    }

    async fn submit(controller: &Controller, period: u64, now_s: u64) -> Outcome {
        let document = evidence(period);
        let length = document.len() as u32;
        let chunk = EvidenceChunk::new(ReportId::of_document(&document), length, 0, &document).unwrap();
        controller
            .receive_evidence(DEVICE, &chunk, now_s)
            .await
            .unwrap()
            .outcome
    }

    #[tokio::test]
    async fn damaged_evidence_is_replaced_by_the_next_document_but_not_by_an_older_one() {
        let directory = tempfile::tempdir().unwrap();
        let controller = controller(directory.path()).await;
        assert_eq!(submit(&controller, 2, 100).await, Outcome::Done);
        assert_eq!(submit(&controller, 3, 200).await, Outcome::Done);
        let damage = async |statement: &'static str| {
            let path = directory.path().join("fleet.registry");
            let mut file = SqliteConnection::connect(path.to_str().unwrap()).await.unwrap();
            file.execute(statement).await.unwrap();
            file.close().await.unwrap();
            controller.registry().evidence(DEVICE).await.unwrap_err();
        };
        damage("UPDATE evidence SET at_s = 1 WHERE number = 2").await;
        assert_eq!(submit(&controller, 1, 300).await, Outcome::Refused);
        assert_eq!(
            submit(&controller, 2, 400).await,
            Outcome::Done,
            "the document before the damaged one"
        );
        // A restarted controller has no record of stored documents.
        let controller = Controller::new(controller.registry().clone(), Policy::default());
        assert_eq!(submit(&controller, 3, 500).await, Outcome::Done);
        let (stored_at_s, document) = controller.registry().evidence(DEVICE).await.unwrap().unwrap();
        assert_eq!((stored_at_s, &*document), (500, &evidence(3)));
        damage("UPDATE evidence SET number = 'last' WHERE number = 3").await;
        let controller = Controller::new(controller.registry().clone(), Policy::default());
        assert_eq!(submit(&controller, 3, 600).await, Outcome::Done);
        assert_eq!(
            controller.registry().evidence(DEVICE).await.unwrap().unwrap().0,
            600
        );
    }
}
