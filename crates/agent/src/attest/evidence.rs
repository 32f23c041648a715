//! Decides when evidence is sent to the controller, and handles the responses (LAP/1 1.7.6).

use linewarden_measurement::pcr::PcrValues;
use linewarden_protocol::attest::{ConfigurationHash, PeriodStart};
use linewarden_protocol::ticket::ChunkAck;
use linewarden_tpm::Protection;
use linewarden_tpm::enroll::Version;
use linewarden_tpm::evidence::{Evidence, EvidenceQuote};

use super::delivery::{Delivery, DeliveryState, Document};
use super::measurement::{MeasureError, Measurement};
use super::options::AttestOptions;
use super::responder::BACKOFF_MS;
use super::state::State;
use crate::event::AgentEvent;
use crate::retry::RetryTimer;

/// A document that waits for its quote.
#[derive(Clone)]
struct Draft {
    start: PeriodStart,
    h: ConfigurationHash,
    values: PcrValues,
    evidence: Evidence,
    /// The configuration changed, so the document is sent even without a quote.
    is_changed: bool,
    retry: RetryTimer,
}

/// Creates and delivers evidence documents.
pub(crate) struct EvidenceReporter {
    send_log: bool,
    quote_every: u64,
    protection: Protection,
    draft: Option<Draft>,
    delivery: Delivery,
    /// A configuration whose evidence the controller has refused permanently, or whose document is too long.
    rejected_configuration: Option<ConfigurationHash>,
}

impl EvidenceReporter {
    pub(crate) fn new(options: &AttestOptions, protection: Protection) -> Self {
        Self {
            send_log: options.send_log,
            quote_every: match protection {
                Protection::Tpm => options.quote_every,
                Protection::Software => 0,
            },
            protection,
            draft: None,
            delivery: Delivery::default(),
            rejected_configuration: None,
        }
    }

    /// Handles a measurement. Returns an event if the document cannot be sent.
    pub(crate) fn on_measurement(
        &mut self,
        start: PeriodStart,
        h: ConfigurationHash,
        measurement: &Measurement,
        state: &State,
    ) -> Option<AgentEvent> {
        let is_known =
            state.accepted.as_deref() == Some(&h.to_string()) || self.rejected_configuration == Some(h);
        let is_changed = self.send_log && !is_known;
        let needs_quote = !measurement.configuration.pcrs().selection().is_empty()
            && is_due(self.quote_every, start.period.0, state.quoted_period);
        if !is_changed && !needs_quote {
            return None;
        }
        let log = measurement.replayed().filter(|_| self.send_log);
        let draft = Draft {
            start,
            h,
            values: measurement.configuration.pcrs().clone(),
            evidence: Evidence {
                version: Version,
                period: start.period.0,
                configuration: measurement.configuration.encode(),
                event_log: log.map(|(bytes, _)| bytes.clone()),
                quote: None,
                protection: self.protection,
            },
            is_changed,
            retry: RetryTimer::new(BACKOFF_MS),
        };
        if needs_quote {
            self.draft = Some(draft);
            return None;
        }
        self.draft = None;
        self.send(draft)
    }

    /// When a quote is due.
    pub(crate) fn quote_deadline(&self) -> Option<u64> {
        self.draft.as_ref().map(|draft| draft.retry.due_ms())
    }

    /// The values to quote, if a quote is due.
    pub(crate) fn quote_due(&self, now_ms: u64) -> Option<(PeriodStart, PcrValues)> {
        let draft = self.draft.as_ref().filter(|draft| draft.retry.is_due(now_ms))?;
        Some((draft.start, draft.values.clone()))
    }

    /// Handles a quote or its failure; returns an event for a failure. A failed quote is retried until the period ends.
    /// If the configuration has changed, the document is sent at the first failure, without a quote.
    pub(crate) fn on_quote(
        &mut self,
        start: PeriodStart,
        quote: Result<EvidenceQuote, MeasureError>,
        now_ms: u64,
        random: u64,
    ) -> Option<AgentEvent> {
        let mut draft = self.draft.take_if(|draft| draft.start == start)?;
        let error = match quote {
            Ok(quote) => {
                draft.evidence.quote = Some(quote);
                return self.send(draft);
            }
            Err(error) => error,
        };
        let retry_in_ms = draft.retry.fail(now_ms, random);
        let send_failure = match std::mem::take(&mut draft.is_changed) {
            true => self.send(draft.clone()),
            false => None,
        };
        self.draft = Some(draft);
        send_failure.or(Some(AgentEvent::AttestationFailed {
            reason: format!("no quote: {error}"),
            retry_in_ms: Some(retry_in_ms),
        }))
    }

    fn send(&mut self, draft: Draft) -> Option<AgentEvent> {
        let Draft {
            start, h, evidence, ..
        } = draft;
        let document = |evidence: &Evidence| Document {
            // Serializing numbers, texts and bytes cannot fail.
            bytes: serde_json::to_vec(evidence).unwrap_or_default(),
            period: start.period,
            h,
            has_quote: evidence.quote.is_some(),
        };
        let Err(undelivered) = self.delivery.enqueue(document(&evidence)) else {
            return None;
        };
        let without_log = Evidence {
            event_log: None,
            ..evidence
        };
        match self.delivery.enqueue(document(&without_log)) {
            Ok(()) => None,
            Err(_) => {
                self.rejected_configuration = Some(h);
                Some(AgentEvent::EvidenceNotAccepted {
                    reason: format!(
                        "document of {} B is too long for the controller: list fewer files",
                        undelivered.bytes.len()
                    ),
                    retry_in_ms: None,
                })
            }
        }
    }

    pub(crate) fn next_piece(&mut self, now_ms: u64) -> Option<Vec<u8>> {
        self.delivery.next_piece(now_ms)
    }

    pub(crate) fn piece_deadline(&self) -> Option<u64> {
        self.delivery.deadline()
    }

    /// Handles the response to a piece; results are stored in `state`.
    pub(crate) fn handle_response(
        &mut self,
        ack: Option<ChunkAck>,
        state: &mut State,
        now_ms: u64,
        random: u64,
    ) -> Option<AgentEvent> {
        match self.delivery.handle_response(ack, now_ms, random) {
            DeliveryState::InProgress => None,
            DeliveryState::Accepted(document) => {
                state.accepted = Some(document.h.to_string());
                if document.has_quote {
                    state.quoted_period = Some(document.period.0);
                }
                Some(AgentEvent::EvidenceAccepted {
                    period: document.period.0,
                    configuration: document.h.to_string(),
                    bytes: document.bytes.len(),
                    quote: document.has_quote,
                })
            }
            DeliveryState::Rejected(document) => {
                self.rejected_configuration = Some(document.h);
                Some(AgentEvent::EvidenceNotAccepted {
                    reason: "the controller refuses evidence of this configuration".to_owned(),
                    retry_in_ms: None,
                })
            }
            DeliveryState::Stalled(retry_in_ms) => Some(AgentEvent::EvidenceNotAccepted {
                reason: "no response from the controller, or no progress".to_owned(),
                retry_in_ms: Some(retry_in_ms),
            }),
        }
    }
}

/// Whether a quote is due in this period. Period numbers may decrease at a gateway of another registry.
fn is_due(every: u64, period: u64, last: Option<u64>) -> bool {
    every > 0 && last.is_none_or(|last| period < last || period - last >= every)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_are_due_at_the_configured_interval() {
        let due = |every, last| {
            (10..20)
                .filter(|period| is_due(every, *period, last))
                .collect::<Vec<u64>>()
        };
        assert!(due(0, None).is_empty());
        assert_eq!(due(1, Some(14)), [10, 11, 12, 13, 15, 16, 17, 18, 19]);
        assert_eq!(due(4, Some(10)), [14, 15, 16, 17, 18, 19]);
        assert_eq!(due(4, None).len(), 10);
        assert_eq!(due(4, Some(u64::MAX)).len(), 10);
    }
}
