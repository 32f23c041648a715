//! Evidence as it comes in, piece by piece, and what is found in it (LAP/1 1.7.6).

use std::collections::{BTreeMap, HashMap};

use linewarden_protocol::attest::{PeriodStart, quote_nonce};
use linewarden_protocol::ids::{DeviceId, Period};
use linewarden_protocol::ticket::{Outcome, Piece, ReportId, Taken};
use linewarden_registry::{ProverRecord, RegistryError};
use linewarden_tpm::enrol::Binding;
use linewarden_tpm::evidence::{Evidence, EvidenceError, Examined};
use zeroize::Zeroizing;

use crate::link::Controller;

/// Bytes of all documents that are on their way; of more, the one that has been waiting longest is forgotten.
const BYTES_MAX: usize = 64 << 20;
/// Of a device one document is kept in so long, s: each is a write.
const KEEP_EVERY_S: u64 = 10;

/// A document of which pieces have come.
#[derive(Debug)]
struct Partial {
    report: ReportId,
    total: u32,
    bytes: Vec<u8>,
    /// Its number among those that were begun.
    begun: u64,
}

/// The last document of a device that was kept.
#[derive(Debug)]
struct Kept {
    report: ReportId,
    at_s: u64,
    /// How often the end of another one has come too soon since.
    held_back: u32,
}

/// Documents on their way, one a device.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    partial: HashMap<DeviceId, Partial>,
    /// By when they were begun.
    order: BTreeMap<u64, DeviceId>,
    /// Of each device: the answer to the last piece may be lost.
    kept: HashMap<DeviceId, Kept>,
    bytes: usize,
    begun: u64,
}

impl Inbox {
    /// Takes a piece: the answer, and the whole document with its last one. A piece that came before is answered like one that is
    /// out of place: with how much is here. So is the last one of a document that comes too soon after another of the device:
    /// what is here stays, and it is taken later.
    pub(crate) fn take(
        &mut self,
        device: DeviceId,
        piece: &Piece<'_>,
        now_s: u64,
    ) -> (Taken, Option<Vec<u8>>) {
        let kept = self.kept.get(&device);
        if kept.is_some_and(|kept| kept.report == piece.report()) {
            return (taken(Outcome::Done, piece.total()), None);
        }
        let is_other = |partial: &Partial| partial.report != piece.report() || partial.total != piece.total();
        if self.partial.get(&device).is_none_or(is_other) {
            self.forget(device);
            self.begun += 1;
            let begun = Partial {
                report: piece.report(),
                total: piece.total(),
                bytes: Vec::new(),
                begun: self.begun,
            };
            self.partial.insert(device, begun);
            self.order.insert(self.begun, device);
        }
        let Some(partial) = self.partial.get_mut(&device) else {
            return (taken(Outcome::Refused, 0), None);
        };
        let received = partial.bytes.len() as u32;
        if piece.offset() != received {
            return (taken(Outcome::Misplaced, received), None);
        }
        let is_last = partial.bytes.len() + piece.bytes().len() >= partial.total as usize;
        // Also after a clock that was set back.
        let is_too_soon = |kept: &&mut Kept| now_s.abs_diff(kept.at_s) < KEEP_EVERY_S;
        if let Some(kept) = self
            .kept
            .get_mut(&device)
            .filter(|kept| is_last && is_too_soon(kept))
        {
            kept.held_back = kept.held_back.saturating_add(1);
            return (taken(Outcome::Misplaced, received), None);
        }
        partial.bytes.extend_from_slice(piece.bytes());
        self.bytes += piece.bytes().len();
        let received = partial.bytes.len() as u32;
        if received < partial.total {
            self.make_room();
            return (taken(Outcome::Done, received), None);
        }
        let document = self.forget(device).unwrap_or_default();
        match ReportId::of(&document) == piece.report() {
            true => (taken(Outcome::Done, received), Some(document)),
            false => (taken(Outcome::Refused, 0), None),
        }
    }

    /// This document is where it belongs.
    pub(crate) fn keep(&mut self, device: DeviceId, report: ReportId, now_s: u64) {
        let kept = Kept {
            report,
            at_s: now_s,
            held_back: 0,
        };
        let before = self.kept.insert(device, kept);
        let held_back = before.map_or(0, |before| before.held_back);
        if held_back > 0 {
            tracing::info!(%device, held_back, "it sends evidence more often than that is kept");
        }
    }

    fn forget(&mut self, device: DeviceId) -> Option<Vec<u8>> {
        let partial = self.partial.remove(&device)?;
        self.order.remove(&partial.begun);
        self.bytes = self.bytes.saturating_sub(partial.bytes.len());
        Some(partial.bytes)
    }

    fn make_room(&mut self) {
        while self.bytes > BYTES_MAX {
            let Some((_, device)) = self.order.pop_first() else {
                return;
            };
            self.forget(device);
        }
    }
}

fn taken(outcome: Outcome, received: u32) -> Taken {
    Taken { outcome, received }
}

/// Why a document is not kept.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unbelieved {
    /// The registry failed: the device sends it again.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// It is no evidence, or shows something that is not so.
    #[error("{0}")]
    Refused(String),
}

impl Controller {
    /// Takes a piece of a device's evidence. A whole document is kept only if nothing in it is a lie that shows.
    pub(crate) async fn take_evidence(
        &self,
        device: DeviceId,
        piece: &Piece<'_>,
        now_s: u64,
    ) -> Result<Taken, RegistryError> {
        let (taken, document) = self.inbox().take(device, piece, now_s);
        let Some(document) = document else {
            return Ok(taken);
        };
        match self.keep_evidence(device, &document, now_s).await {
            Ok(()) => {
                self.inbox().keep(device, piece.report(), now_s);
                Ok(taken)
            }
            Err(Unbelieved::Registry(error)) => Err(error),
            Err(Unbelieved::Refused(why)) => {
                tracing::warn!(%device, why, "its evidence is refused");
                Ok(Taken {
                    outcome: Outcome::Refused,
                    received: 0,
                })
            }
        }
    }

    async fn keep_evidence(&self, device: DeviceId, document: &[u8], now_s: u64) -> Result<(), Unbelieved> {
        let refused = |why: &dyn ToString| Unbelieved::Refused(why.to_string());
        let prover = match self.registry().prover(device).await {
            Ok(Some(prover)) if !prover.removed => prover,
            Ok(_) => return Err(refused(&"the device is not attested")),
            Err(error) => return Err(error.into()),
        };
        let evidence = Evidence::read(document).map_err(|error| refused(&error))?;
        let period = self.registry().period(Period(evidence.period)).await?;
        let Some(period) = period.filter(|period| period.begun_at_s.is_some()) else {
            return Err(refused(&"it is of a period that is not known"));
        };
        let start = PeriodStart {
            period: period.number,
            salt: period.salt,
        };
        if let Some(newest) = self.sound_evidence(device).await? {
            if *newest == *document {
                return Ok(());
            }
            // A recorded one, sent again, would be shown as new.
            let kept = Evidence::read(&newest).map(|newest| newest.period);
            if kept.is_ok_and(|kept| evidence.period < kept) {
                return Err(refused(&"it is older than what is here"));
            }
        }
        examine(&prover, &evidence, &start).map_err(|error| refused(&error))?;
        self.registry().put_evidence(device, document, now_s).await?;
        Ok(())
    }

    /// The newest document of a device that opens. One that does not is in nobody's way: the next takes its place.
    async fn sound_evidence(&self, device: DeviceId) -> Result<Option<Zeroizing<Vec<u8>>>, RegistryError> {
        let newest = match self.registry().evidence(device).await {
            Err(error @ RegistryError::DamagedRecord { .. }) => {
                tracing::error!(%error, "the next takes its place");
                self.registry().evidence_before(device).await
            }
            newest => newest,
        };
        match newest {
            Err(RegistryError::DamagedRecord { .. }) => Ok(None),
            newest => Ok(newest?.map(|(_, document)| document)),
        }
    }
}

/// Looks at evidence of a prover.
///
/// # Errors
/// The first thing in it that cannot be believed.
pub fn examine(
    prover: &ProverRecord,
    evidence: &Evidence,
    start: &PeriodStart,
) -> Result<Examined, EvidenceError> {
    // The registry authenticates it: one that cannot be read was stored by a newer program, and shows nothing.
    let binding: Option<Binding> = prover
        .binding
        .as_deref()
        .and_then(|binding| serde_json::from_slice(binding).ok());
    evidence.examine(binding.as_ref(), &quote_nonce(prover.device, start))
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
    use linewarden_registry::{
        Credentials, DeviceRecord, GroupName, GroupPolicy, MasterKey, NewGroup, NewProver, Registry,
    };
    use linewarden_tpm::Protection;
    use linewarden_tpm::enrol::Version;
    use sqlx::{Connection as _, Executor as _, SqliteConnection};

    use super::*;
    use crate::link::Policy;

    const DEVICE: DeviceId = DeviceId(1);

    fn send(inbox: &mut Inbox, document: &[u8], offset: usize, length: usize) -> (Taken, Option<Vec<u8>>) {
        send_at(inbox, document, offset..offset + length, 100)
    }

    fn send_at(
        inbox: &mut Inbox,
        document: &[u8],
        range: std::ops::Range<usize>,
        now_s: u64,
    ) -> (Taken, Option<Vec<u8>>) {
        let piece = Piece::new(
            ReportId::of(document),
            document.len() as u32,
            range.start as u32,
            &document[range],
        );
        inbox.take(DEVICE, &piece.unwrap(), now_s)
    }

    #[test]
    fn pieces_in_their_order_make_the_document() {
        let document: Vec<u8> = (0..=200).collect();
        let mut inbox = Inbox::default();
        assert_eq!(send(&mut inbox, &document, 0, 150).0, taken(Outcome::Done, 150));
        // Lost on its way back: the device sends it once more, and goes on where it is told.
        assert_eq!(
            send(&mut inbox, &document, 0, 150).0,
            taken(Outcome::Misplaced, 150)
        );
        assert_eq!(
            send(&mut inbox, &document, 160, 10).0,
            taken(Outcome::Misplaced, 150)
        );
        let (answer, whole) = send(&mut inbox, &document, 150, 51);
        assert_eq!((answer, whole), (taken(Outcome::Done, 201), Some(document)));
        assert_eq!(inbox.bytes, 0);
        // The answer to the last piece is lost: what was kept is not asked for once more.
        inbox.keep(DEVICE, ReportId::of(&(0..=200).collect::<Vec<u8>>()), 100);
        let document: Vec<u8> = (0..=200).collect();
        assert_eq!(
            send(&mut inbox, &document, 150, 51),
            (taken(Outcome::Done, 201), None)
        );
    }

    #[test]
    fn a_new_document_takes_the_place_of_the_one_before() {
        let mut inbox = Inbox::default();
        send(&mut inbox, &[1; 100], 0, 60);
        assert_eq!(
            send(&mut inbox, &[2; 100], 60, 40).0,
            taken(Outcome::Misplaced, 0)
        );
        assert_eq!(inbox.bytes, 0);
        assert_eq!(send(&mut inbox, &[2; 100], 0, 40).0, taken(Outcome::Done, 40));
    }

    #[test]
    fn what_is_not_what_it_says_is_refused() {
        let mut inbox = Inbox::default();
        let piece = Piece::new(ReportId([7; 16]), 3, 0, &[1, 2, 3]).unwrap();
        assert_eq!(
            inbox.take(DEVICE, &piece, 100),
            (taken(Outcome::Refused, 0), None)
        );
    }

    #[test]
    fn many_unfinished_documents_find_an_end() {
        let mut inbox = Inbox::default();
        let bytes = vec![0; linewarden_protocol::ticket::PIECE_BYTES_MAX];
        for device in 1..=100_000 {
            let piece = Piece::new(ReportId([1; 16]), 1 << 20, 0, &bytes).unwrap();
            inbox.take(DeviceId(device), &piece, 100);
            assert!(inbox.bytes <= BYTES_MAX);
        }
        assert!(!inbox.partial.contains_key(&DeviceId(1)));
        assert!(inbox.partial.contains_key(&DeviceId(100_000)));
    }

    #[test]
    fn of_a_device_one_document_is_kept_in_ten_seconds_and_nothing_of_the_next_is_lost() {
        let (first, second) = ([1; 100], [2; 100]);
        let mut inbox = Inbox::default();
        assert!(send_at(&mut inbox, &first, 0..100, 100).1.is_some());
        inbox.keep(DEVICE, ReportId::of(&first), 100);
        assert_eq!(
            send_at(&mut inbox, &second, 0..60, 101).0,
            taken(Outcome::Done, 60)
        );
        for now_s in [101, 105, 109] {
            let held_back = send_at(&mut inbox, &second, 60..100, now_s);
            assert_eq!(held_back, (taken(Outcome::Misplaced, 60), None), "{now_s}");
        }
        assert_eq!(inbox.kept[&DEVICE].held_back, 3);
        assert!(send_at(&mut inbox, &second, 60..100, 110).1.is_some());
        inbox.keep(DEVICE, ReportId::of(&second), 110);
        // One of a single piece, again and again.
        let kept = (110..210).filter(|now_s| {
            let document = [*now_s as u8; 10];
            let whole = send_at(&mut inbox, &document, 0..10, *now_s).1.is_some();
            if whole {
                inbox.keep(DEVICE, ReportId::of(&document), *now_s);
            }
            whole
        });
        assert_eq!(kept.count(), 9);
        // Of another device.
        let piece = Piece::new(ReportId::of(&first), 100, 0, &first).unwrap();
        assert!(inbox.take(DeviceId(2), &piece, 110).1.is_some());
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

    /// A registry in a file, in which the device is a prover and three periods have begun.
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
        registry.enrol(device).await.unwrap();
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
            home: None,
            port: 20_554,
            enrolled_period: Period(0),
        };
        registry.enrol_prover(prover, 1).await.unwrap();
        for period in 1..=3 {
            let after = Some(Period(period - 1));
            registry.draw_period(after, [3; 8], 1).await.unwrap();
            registry.begin_period(Period(period), 1).await.unwrap();
        }
        Controller::new(registry, Policy::default())
    }

    async fn take(controller: &Controller, period: u64, now_s: u64) -> Outcome {
        let document = evidence(period);
        let length = document.len() as u32;
        let piece = Piece::new(ReportId::of(&document), length, 0, &document).unwrap();
        controller
            .take_evidence(DEVICE, &piece, now_s)
            .await
            .unwrap()
            .outcome
    }

    #[tokio::test]
    async fn damaged_evidence_gives_way_to_the_next_and_to_none_that_is_older_than_what_is_sound() {
        let directory = tempfile::tempdir().unwrap();
        let controller = controller(directory.path()).await;
        assert_eq!(take(&controller, 2, 100).await, Outcome::Done);
        assert_eq!(take(&controller, 3, 200).await, Outcome::Done);
        let damage = async |statement: &'static str| {
            let path = directory.path().join("fleet.registry");
            let mut file = SqliteConnection::connect(path.to_str().unwrap()).await.unwrap();
            file.execute(statement).await.unwrap();
            file.close().await.unwrap();
            controller.registry().evidence(DEVICE).await.unwrap_err();
        };
        damage("UPDATE evidence SET at_s = 1 WHERE number = 2").await;
        assert_eq!(take(&controller, 1, 300).await, Outcome::Refused);
        assert_eq!(
            take(&controller, 2, 400).await,
            Outcome::Done,
            "the same as before it"
        );
        // Of a new start, which does not remember what it has taken.
        let controller = Controller::new(controller.registry().clone(), Policy::default());
        assert_eq!(take(&controller, 3, 500).await, Outcome::Done);
        let (at_s, kept) = controller.registry().evidence(DEVICE).await.unwrap().unwrap();
        assert_eq!((at_s, &*kept), (500, &evidence(3)));
        damage("UPDATE evidence SET number = 'last' WHERE number = 3").await;
        let controller = Controller::new(controller.registry().clone(), Policy::default());
        assert_eq!(take(&controller, 3, 600).await, Outcome::Done);
        assert_eq!(
            controller.registry().evidence(DEVICE).await.unwrap().unwrap().0,
            600
        );
    }
}
