//! A document of evidence on its way to the controller, a piece at a time (LAP/1 1.7.6).

use linewarden_protocol::attest::ConfigurationHash;
use linewarden_protocol::ids::Period;
use linewarden_protocol::ticket::{
    BODY_BYTES_MAX, Bodies, EVIDENCE_BYTES_MAX, Outcome, PIECE_BYTES_MAX, Piece, ReportId, Taken,
};

use super::answers::Pause;

/// Between two pieces, ms: a desk takes ten tickets a second of a device, and there are other questions.
const PIECE_EVERY_MS: u64 = 125;
/// First and longest pause after it was left for later, ms. A controller that takes no evidence is silent.
const LATER_MS: (u64, u64) = (10_000, 600_000);
/// Answers without progress before it is left for later.
const STALLS_MAX: u32 = 4;

/// A document with what is to be remembered once it was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Document {
    pub(crate) bytes: Vec<u8>,
    pub(crate) period: Period,
    pub(crate) h: ConfigurationHash,
    /// Whether there is a quote in it.
    pub(crate) has_quote: bool,
}

/// What became of a document.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Delivered {
    /// It is under way.
    NotYet,
    /// The controller has all of it.
    Taken(Document),
    /// The controller never will.
    Refused(Document),
    /// There is no answer, or no progress; it is tried again after so long, ms.
    Stuck(u64),
}

struct UnderWay {
    document: Document,
    id: ReportId,
    total: u32,
    offset: u32,
    stalls: u32,
}

/// At most one document at a time: a newer one takes its place.
#[derive(Default)]
pub(crate) struct Delivery {
    under_way: Option<UnderWay>,
    next_ms: u64,
    pause: Pause,
}

impl Delivery {
    /// Sends this one.
    ///
    /// # Errors
    /// The document, which is longer than any that is taken.
    pub(crate) fn put(&mut self, document: Document) -> Result<(), Document> {
        let Some(total) = u32::try_from(document.bytes.len())
            .ok()
            .filter(|total| (1..=EVIDENCE_BYTES_MAX).contains(total))
        else {
            return Err(document);
        };
        let id = ReportId::of(&document.bytes);
        if self.under_way.as_ref().is_none_or(|under_way| under_way.id != id) {
            self.under_way = Some(UnderWay {
                document,
                id,
                total,
                offset: 0,
                stalls: 0,
            });
        }
        Ok(())
    }

    /// When there is a piece to be sent.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.under_way
            .as_ref()
            .map(|_| self.next_ms.max(self.pause.until_ms))
    }

    /// The body of the next question, if it is time for one.
    pub(crate) fn question(&mut self, now_ms: u64) -> Option<Vec<u8>> {
        if self.deadline().is_none_or(|at_ms| at_ms > now_ms) {
            return None;
        }
        let under_way = self.under_way.as_ref()?;
        let rest = under_way
            .document
            .bytes
            .get(usize::try_from(under_way.offset).ok()?..)?;
        let bytes = rest.get(..PIECE_BYTES_MAX).unwrap_or(rest);
        let piece = Piece::new(under_way.id, under_way.total, under_way.offset, bytes)?;
        let mut room: Bodies = [0; BODY_BYTES_MAX];
        let body = piece.write(&mut room)?.to_vec();
        self.next_ms = now_ms.saturating_add(PIECE_EVERY_MS);
        Some(body)
    }

    /// Goes on after an answer, or after none.
    pub(crate) fn told(&mut self, taken: Option<Taken>, now_ms: u64) -> Delivered {
        let Some(mut under_way) = self.under_way.take() else {
            return Delivered::NotYet;
        };
        let Some(Taken { outcome, received }) = taken else {
            self.under_way = Some(under_way);
            return Delivered::Stuck(self.pause.lengthen(now_ms, LATER_MS));
        };
        if outcome == Outcome::Refused {
            return Delivered::Refused(under_way.document);
        }
        if outcome == Outcome::Done && received == under_way.total {
            self.pause = Pause::default();
            return Delivered::Taken(under_way.document);
        }
        // The controller may have lost what it had, once or twice, but not for ever.
        let has_moved = received > under_way.offset && received < under_way.total;
        under_way.stalls = if has_moved { 0 } else { under_way.stalls + 1 };
        under_way.offset = if received < under_way.total { received } else { 0 };
        let is_stuck = under_way.stalls >= STALLS_MAX;
        if is_stuck {
            under_way.stalls = 0;
        }
        self.under_way = Some(under_way);
        match is_stuck {
            true => Delivered::Stuck(self.pause.lengthen(now_ms, LATER_MS)),
            false => Delivered::NotYet,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(length: usize) -> Document {
        Document {
            bytes: (0..length).map(|n| n as u8).collect(),
            period: Period(3),
            h: ConfigurationHash([1; 32]),
            has_quote: false,
        }
    }

    /// A controller that takes what follows, and forgets everything at some pieces.
    fn taken(stored: &mut Vec<u8>, body: &[u8]) -> Taken {
        let piece = Piece::parse(body).unwrap();
        let received = |stored: &Vec<u8>| u32::try_from(stored.len()).unwrap();
        if piece.offset() != received(stored) {
            return Taken {
                outcome: Outcome::Misplaced,
                received: received(stored),
            };
        }
        stored.extend(piece.bytes());
        Taken {
            outcome: Outcome::Done,
            received: received(stored),
        }
    }

    #[test]
    fn a_document_arrives_whole_though_the_controller_forgets_once() {
        let mut delivery = Delivery::default();
        let sent = document(10 * PIECE_BYTES_MAX + 1);
        delivery.put(sent.clone()).unwrap();
        let mut stored = Vec::new();
        let mut now_ms = 1_000;
        for piece in 0.. {
            assert_eq!(
                delivery.question(now_ms - 1).is_none(),
                piece > 0,
                "no sooner than its time"
            );
            now_ms += if piece == 0 { PIECE_EVERY_MS } else { 0 };
            let body = delivery.question(now_ms).unwrap();
            if piece == 5 {
                stored.clear();
            }
            match delivery.told(Some(taken(&mut stored, &body)), now_ms) {
                Delivered::NotYet => {}
                Delivered::Taken(document) => {
                    assert_eq!(document, sent);
                    assert_eq!(
                        piece, 16,
                        "eleven pieces, five of them twice, and one that did not follow"
                    );
                    break;
                }
                other => panic!("{other:?}"),
            }
            now_ms = delivery.deadline().unwrap();
        }
        assert_eq!(stored, sent.bytes);
        assert_eq!(delivery.deadline(), None);
    }

    #[test]
    fn no_answer_and_no_progress_make_it_wait_longer_each_time() {
        let mut delivery = Delivery::default();
        delivery.put(document(10)).unwrap();
        for expected in [10_000, 20_000, 40_000, 80_000, 160_000, 320_000, 600_000, 600_000] {
            assert_eq!(delivery.told(None, 7), Delivered::Stuck(expected));
            assert!(delivery.question(6 + expected).is_none());
        }
        let lost = Taken {
            outcome: Outcome::Misplaced,
            received: 0,
        };
        let answers: Vec<Delivered> = (0..4).map(|_| delivery.told(Some(lost), 7)).collect();
        assert_eq!(answers[..3], [const { Delivered::NotYet }; 3]);
        assert_eq!(answers[3], Delivered::Stuck(600_000));
    }

    #[test]
    fn what_is_refused_or_too_long_is_given_up() {
        let mut delivery = Delivery::default();
        delivery.put(document(10)).unwrap();
        let refused = Taken {
            outcome: Outcome::Refused,
            received: 0,
        };
        assert_eq!(delivery.told(Some(refused), 0), Delivered::Refused(document(10)));
        assert_eq!(delivery.deadline(), None);
        assert!(delivery.put(document(EVIDENCE_BYTES_MAX as usize + 1)).is_err());
    }
}
