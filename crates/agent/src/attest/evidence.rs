//! When the controller is told what the device runs, and what it is told (LAP/1 1.7.6).

use linewarden_measurement::pcr::PcrValues;
use linewarden_protocol::attest::{ConfigurationHash, PeriodStart};
use linewarden_protocol::ticket::Taken;
use linewarden_tpm::Protection;
use linewarden_tpm::enrol::Version;
use linewarden_tpm::evidence::{Evidence, EvidenceQuote};

use super::AttestOptions;
use super::answers::{PAUSE_MS, Pause};
use super::delivery::{Delivered, Delivery, Document};
use super::state::State;
use super::subject::{MeasureError, Measured};
use crate::report::Report;

/// A document that waits for its quote.
#[derive(Clone)]
struct Draft {
    start: PeriodStart,
    h: ConfigurationHash,
    values: PcrValues,
    evidence: Evidence,
    /// It is worth sending without a quote, too.
    has_news: bool,
    pause: Pause,
}

/// Makes documents, and sends them.
pub(crate) struct Evidencer {
    send_log: bool,
    quote_every: u64,
    protection: Protection,
    draft: Option<Draft>,
    delivery: Delivery,
    /// The controller does not want to know of this one.
    refused: Option<ConfigurationHash>,
}

impl Evidencer {
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
            refused: None,
        }
    }

    /// A measurement was made: what follows from it. Something to tell if the document cannot be sent.
    pub(crate) fn measured(
        &mut self,
        start: PeriodStart,
        h: ConfigurationHash,
        measured: &Measured,
        state: &State,
        now_ms: u64,
    ) -> Option<Report> {
        let is_known = state.taken.as_deref() == Some(&h.to_string()) || self.refused == Some(h);
        let has_news = self.send_log && !is_known;
        let wants_quote = !measured.configuration.pcrs().selection().is_empty()
            && is_due(self.quote_every, start.period.0, state.quoted);
        if !has_news && !wants_quote {
            return None;
        }
        let log = measured.replayed().filter(|_| self.send_log);
        let draft = Draft {
            start,
            h,
            values: measured.configuration.pcrs().clone(),
            evidence: Evidence {
                version: Version,
                period: start.period.0,
                configuration: measured.configuration.encode(),
                event_log: log.map(|(bytes, _)| bytes.clone()),
                quote: None,
                protection: self.protection,
            },
            has_news,
            pause: Pause::default(),
        };
        if wants_quote {
            self.draft = Some(Draft {
                pause: Pause::until(now_ms),
                ..draft
            });
            return None;
        }
        self.draft = None;
        self.send(draft)
    }

    /// When a quote is to be made.
    pub(crate) fn quote_deadline(&self) -> Option<u64> {
        self.draft.as_ref().map(|draft| draft.pause.until_ms)
    }

    /// What is to be quoted, if it is time to.
    pub(crate) fn quote_due(&self, now_ms: u64) -> Option<(PeriodStart, PcrValues)> {
        let draft = self.draft.as_ref().filter(|draft| draft.pause.is_over(now_ms))?;
        Some((draft.start, draft.values.clone()))
    }

    /// A quote was made, or not. One that fails is tried again until the period is over; what has changed is sent
    /// meanwhile.
    pub(crate) fn quoted(
        &mut self,
        start: PeriodStart,
        quote: Result<EvidenceQuote, MeasureError>,
        now_ms: u64,
    ) -> Option<Report> {
        let mut draft = self.draft.take_if(|draft| draft.start == start)?;
        let error = match quote {
            Ok(quote) => {
                draft.evidence.quote = Some(quote);
                return self.send(draft);
            }
            Err(error) => error,
        };
        let retry_in_ms = draft.pause.lengthen(now_ms, PAUSE_MS);
        let unsent = match std::mem::take(&mut draft.has_news) {
            true => self.send(draft.clone()),
            false => None,
        };
        self.draft = Some(draft);
        unsent.or(Some(Report::NotAttesting {
            why: format!("no quote: {error}"),
            retry_in_ms: Some(retry_in_ms),
        }))
    }

    fn send(&mut self, draft: Draft) -> Option<Report> {
        let Draft {
            start, h, evidence, ..
        } = draft;
        let document = |evidence: &Evidence| Document {
            // Numbers, texts and bytes: nothing that JSON does not have.
            bytes: serde_json::to_vec(evidence).unwrap_or_default(),
            period: start.period,
            h,
            has_quote: evidence.quote.is_some(),
        };
        let Err(whole) = self.delivery.put(document(&evidence)) else {
            return None;
        };
        let without_log = Evidence {
            event_log: None,
            ..evidence
        };
        match self.delivery.put(document(&without_log)) {
            Ok(()) => None,
            Err(_) => {
                self.refused = Some(h);
                Some(Report::EvidenceNotTaken {
                    why: format!(
                        "{} B are more than the controller takes: list fewer files",
                        whole.bytes.len()
                    ),
                    retry_in_ms: None,
                })
            }
        }
    }

    pub(crate) fn question(&mut self, now_ms: u64) -> Option<Vec<u8>> {
        self.delivery.question(now_ms)
    }

    pub(crate) fn question_deadline(&self) -> Option<u64> {
        self.delivery.deadline()
    }

    /// What became of a piece; what is to be remembered goes into `state`.
    pub(crate) fn answered(
        &mut self,
        taken: Option<Taken>,
        state: &mut State,
        now_ms: u64,
    ) -> Option<Report> {
        match self.delivery.told(taken, now_ms) {
            Delivered::NotYet => None,
            Delivered::Taken(document) => {
                state.taken = Some(document.h.to_string());
                if document.has_quote {
                    state.quoted = Some(document.period.0);
                }
                Some(Report::EvidenceTaken {
                    period: document.period.0,
                    configuration: document.h.to_string(),
                    bytes: document.bytes.len(),
                    quote: document.has_quote,
                })
            }
            Delivered::Refused(document) => {
                self.refused = Some(document.h);
                Some(Report::EvidenceNotTaken {
                    why: "the controller does not want it".to_owned(),
                    retry_in_ms: None,
                })
            }
            Delivered::Stuck(retry_in_ms) => Some(Report::EvidenceNotTaken {
                why: "the controller does not answer, or does not get on".to_owned(),
                retry_in_ms: Some(retry_in_ms),
            }),
        }
    }
}

/// Whether a quote is due in this period. Numbers that fall back were a gateway's own, in a session.
fn is_due(every: u64, period: u64, last: Option<u64>) -> bool {
    every > 0 && last.is_none_or(|last| period < last || period - last >= every)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_are_due_every_so_many_periods() {
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
