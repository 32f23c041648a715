//! Delivery of an evidence document to the controller, in pieces (LAP/1 1.7.6).

use linewarden_protocol::attest::ConfigurationHash;
use linewarden_protocol::ids::Period;
use linewarden_protocol::ticket::{
    BODY_BYTES_MAX, BodyBuffer, CHUNK_BYTES_MAX, ChunkAck, EVIDENCE_BYTES_MAX, EvidenceChunk, Outcome,
    ReportId,
};

use crate::retry::RetryTimer;

/// Interval between two pieces, ms. A gateway relays at most ten tickets of a device per second, and the device needs some of
/// them for other requests.
const PIECE_INTERVAL_MS: u64 = 125;
/// First and longest delay after a stall, ms. A controller that accepts no evidence does not respond.
const RETRY_MS: (u64, u64) = (10_000, 600_000);
/// Responses without progress before a stall.
const STALLS_MAX: u32 = 4;

/// A document, with the values that the agent stores after the controller has accepted the document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Document {
    pub(crate) bytes: Vec<u8>,
    pub(crate) period: Period,
    pub(crate) h: ConfigurationHash,
    /// Whether the document contains a quote.
    pub(crate) has_quote: bool,
}

/// State of a delivery.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DeliveryState {
    /// In progress.
    InProgress,
    /// The controller has accepted the whole document.
    Accepted(Document),
    /// The controller has refused the document permanently.
    Rejected(Document),
    /// No response, or no progress; time to the next attempt, ms.
    Stalled(u64),
}

struct Transfer {
    document: Document,
    id: ReportId,
    total: u32,
    /// Number of bytes that the controller has acknowledged.
    offset: u32,
    /// Number of consecutive responses without progress.
    stalls: u32,
}

/// Delivers at most one document at a time: a newer document replaces an undelivered one.
pub(crate) struct Delivery {
    transfer: Option<Transfer>,
    next_piece_ms: u64,
    retry: RetryTimer,
}

impl Default for Delivery {
    fn default() -> Self {
        Self {
            transfer: None,
            next_piece_ms: 0,
            retry: RetryTimer::new(RETRY_MS),
        }
    }
}

impl Delivery {
    /// Starts the delivery of a document.
    ///
    /// # Errors
    /// Returns the document if it is too long.
    pub(crate) fn enqueue(&mut self, document: Document) -> Result<(), Document> {
        let Some(total) = u32::try_from(document.bytes.len())
            .ok()
            .filter(|total| (1..=EVIDENCE_BYTES_MAX).contains(total))
        else {
            return Err(document);
        };
        let id = ReportId::of_document(&document.bytes);
        if self.transfer.as_ref().is_none_or(|transfer| transfer.id != id) {
            self.transfer = Some(Transfer {
                document,
                id,
                total,
                offset: 0,
                stalls: 0,
            });
        }
        Ok(())
    }

    /// Time at which the next piece is due, ms; `None` without a document.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.transfer
            .as_ref()
            .map(|_| self.next_piece_ms.max(self.retry.due_ms()))
    }

    /// The body of the next ticket, if a piece is due.
    pub(crate) fn next_piece(&mut self, now_ms: u64) -> Option<Vec<u8>> {
        if self.deadline().is_none_or(|at_ms| at_ms > now_ms) {
            return None;
        }
        let transfer = self.transfer.as_ref()?;
        let rest = transfer
            .document
            .bytes
            .get(usize::try_from(transfer.offset).ok()?..)?;
        let bytes = rest.get(..CHUNK_BYTES_MAX).unwrap_or(rest);
        let piece = EvidenceChunk::new(transfer.id, transfer.total, transfer.offset, bytes)?;
        let mut buffer: BodyBuffer = [0; BODY_BYTES_MAX];
        let body = piece.write(&mut buffer)?.to_vec();
        self.next_piece_ms = now_ms.saturating_add(PIECE_INTERVAL_MS);
        Some(body)
    }

    /// Handles a response, or a timeout (`None`). `random` selects the delay after a stall.
    pub(crate) fn handle_response(
        &mut self,
        ack: Option<ChunkAck>,
        now_ms: u64,
        random: u64,
    ) -> DeliveryState {
        let Some(mut transfer) = self.transfer.take() else {
            return DeliveryState::InProgress;
        };
        let Some(ChunkAck { outcome, received }) = ack else {
            self.transfer = Some(transfer);
            return DeliveryState::Stalled(self.retry.fail(now_ms, random));
        };
        if outcome == Outcome::Refused {
            return DeliveryState::Rejected(transfer.document);
        }
        if outcome == Outcome::Done && received == transfer.total {
            self.retry.succeed();
            return DeliveryState::Accepted(transfer.document);
        }
        // A controller may lose its partial document once. Repeated losses count as a stall.
        let has_moved = received > transfer.offset && received < transfer.total;
        transfer.stalls = if has_moved { 0 } else { transfer.stalls + 1 };
        transfer.offset = if received < transfer.total { received } else { 0 };
        let is_stuck = transfer.stalls >= STALLS_MAX;
        if is_stuck {
            transfer.stalls = 0;
        }
        self.transfer = Some(transfer);
        match is_stuck {
            true => DeliveryState::Stalled(self.retry.fail(now_ms, random)),
            false => DeliveryState::InProgress,
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

    /// A controller that accepts consecutive pieces, and can lose all of them.
    fn acknowledge(stored: &mut Vec<u8>, body: &[u8]) -> ChunkAck {
        let piece = EvidenceChunk::parse(body).unwrap();
        let received = |stored: &Vec<u8>| u32::try_from(stored.len()).unwrap();
        if piece.offset() != received(stored) {
            return ChunkAck {
                outcome: Outcome::OutOfSequence,
                received: received(stored),
            };
        }
        stored.extend(piece.bytes());
        ChunkAck {
            outcome: Outcome::Done,
            received: received(stored),
        }
    }

    #[test]
    fn a_document_is_delivered_after_the_controller_has_lost_it_once() {
        let mut delivery = Delivery::default();
        let sent = document(10 * CHUNK_BYTES_MAX + 1);
        delivery.enqueue(sent.clone()).unwrap();
        let mut stored = Vec::new();
        let mut now_ms = 1_000;
        for piece in 0.. {
            assert_eq!(
                delivery.next_piece(now_ms - 1).is_none(),
                piece > 0,
                "not before it is due"
            );
            now_ms += if piece == 0 { PIECE_INTERVAL_MS } else { 0 };
            let body = delivery.next_piece(now_ms).unwrap();
            if piece == 5 {
                stored.clear();
            }
            match delivery.handle_response(Some(acknowledge(&mut stored, &body)), now_ms, 0) {
                DeliveryState::InProgress => {}
                DeliveryState::Accepted(document) => {
                    assert_eq!(document, sent);
                    assert_eq!(piece, 16, "eleven pieces, five of them twice, and one misplaced");
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
    fn timeouts_and_stalls_increase_the_delay() {
        let mut delivery = Delivery::default();
        delivery.enqueue(document(10)).unwrap();
        // Half of the longest delay, because the random number is 0.
        for expected in [5_000, 10_000, 20_000, 40_000, 80_000, 160_000, 300_000, 300_000] {
            assert_eq!(
                delivery.handle_response(None, 7, 0),
                DeliveryState::Stalled(expected)
            );
            assert!(delivery.next_piece(6 + expected).is_none());
        }
        let lost = ChunkAck {
            outcome: Outcome::OutOfSequence,
            received: 0,
        };
        let states: Vec<DeliveryState> = (0..4)
            .map(|_| delivery.handle_response(Some(lost), 7, 1 << 63))
            .collect();
        assert_eq!(states[..3], [const { DeliveryState::InProgress }; 3]);
        assert_eq!(states[3], DeliveryState::Stalled(450_000));
    }

    #[test]
    fn a_refused_or_too_long_document_is_dropped() {
        let mut delivery = Delivery::default();
        delivery.enqueue(document(10)).unwrap();
        let refused = ChunkAck {
            outcome: Outcome::Refused,
            received: 0,
        };
        assert_eq!(
            delivery.handle_response(Some(refused), 0, 0),
            DeliveryState::Rejected(document(10))
        );
        assert_eq!(delivery.deadline(), None);
        assert!(
            delivery
                .enqueue(document(EVIDENCE_BYTES_MAX as usize + 1))
                .is_err()
        );
    }
}
