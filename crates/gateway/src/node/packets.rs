//! Events and messages from the data plane.

use linewarden_dataplane::{DataPlaneError, Event, EventKind, Miss};
use linewarden_types::AdmissionResponse;

use super::devices::State;
use super::{Node, admission_queue};
use crate::audit::AuditEvent;

/// Target of log messages about wrong tags, for log filters.
pub const WRONG_TAGS: &str = "linewarden_gateway::wrong_tags";

impl Node {
    pub(super) fn handle_events(&mut self) {
        let mut events = Vec::new();
        let result = self.data_plane.drain_events(&mut |event| events.push(event));
        self.note_drain_result(result);
        events.iter().for_each(|event| self.handle_event(event));
    }

    fn note_drain_result(&mut self, result: Result<(), DataPlaneError>) {
        let failing = result.is_err();
        if let Err(error) = result
            && !self.status.events_failing
        {
            tracing::error!(
                %error,
                action = "restart the gateway if the error persists",
                "reading events of the data plane failed; retrying; new rows are not requested until reading succeeds"
            );
        }
        self.status.events_failing = failing;
    }

    fn handle_event(&mut self, event: &Event) {
        match event.kind {
            EventKind::Session(opening) => {
                self.status.sessions_opened += 1;
                self.record_session(event, opening.session);
                self.record_opening(event.device, opening);
                tracing::debug!(device_id = %event.device, row = %event.idx, peer = %event.source, "session opened");
            }
            EventKind::RowsLow | EventKind::RowsExhausted => self.request_rows(event.device),
            EventKind::WrongTag => {
                self.status.wrong_tags += 1;
                self.audit.record(AuditEvent::WrongTag {
                    device: event.device,
                    row: event.idx,
                    address: event.source,
                    ingress: event.ingress,
                });
                tracing::warn!(
                    target: WRONG_TAGS,
                    device_id = %event.device,
                    row = %event.idx,
                    peer = %event.source,
                    action = "if the device is healthy, look for a forger at the address; otherwise check the PUF and the helper data of the device",
                    "message of a device has a wrong tag; the message was dropped"
                );
            }
            EventKind::WrongProof(round) => {
                self.status.wrong_proofs += 1;
                self.audit.record(AuditEvent::WrongProof {
                    device: event.device,
                    round: round.0,
                    address: event.source,
                    ingress: event.ingress,
                });
                tracing::debug!(device_id = %event.device, %round, peer = %event.source, "proof of a device has a wrong tag; the proof does not count");
            }
        }
    }

    pub(super) fn handle_misses(&mut self) {
        let mut misses = Vec::new();
        let result = self.data_plane.drain_misses(&mut |miss| misses.push(miss));
        if let Err(error) = result {
            tracing::debug!(%error, "reading messages of unknown devices failed");
        }
        for miss in misses {
            match self.devices.get(&miss.device()).map(|entry| entry.state) {
                _ if self.stopping => {}
                None => {
                    if let Some(replaced) = self.admission_queue.push(miss) {
                        self.drop_miss(&replaced);
                    }
                }
                // An earlier message of the device has caused its installation meanwhile.
                Some(State::Installed) => self.replay(miss),
                // The device sends its message again later; by then, the device has a slot or is removed.
                Some(_) => {}
            }
        }
    }

    pub(super) fn handle_admission(&mut self, miss: Miss, response: AdmissionResponse) {
        match response {
            AdmissionResponse::NoResponse => {}
            AdmissionResponse::Challenge(challenge) => self.data_plane.send_reply(&miss, &challenge),
            AdmissionResponse::Nak(nak) => {
                self.data_plane.send_reply(&miss, &nak);
                self.log_unserved(miss.device());
            }
            AdmissionResponse::NakForStatement(nak) => {
                self.data_plane.send_reply(&miss, &nak);
                self.log_stated_exhausted(miss.device());
            }
            AdmissionResponse::Admit(provision) => {
                self.status.admitted += 1;
                self.audit.record(AuditEvent::Admitted {
                    device: provision.device,
                    row: provision.first,
                    rows: provision.rows.len() as u64,
                    address: miss.source(),
                });
                if self.admit(provision) {
                    self.replay(miss);
                }
            }
        }
    }

    /// Drops a message; the device retries the message.
    pub(super) fn drop_miss(&mut self, miss: &Miss) {
        self.status.admissions_dropped += 1;
        if admission_queue::is_response(miss) {
            self.data_plane.expect_response(miss);
        }
    }

    pub(super) fn replay(&mut self, miss: Miss) {
        if let Err(error) = self.data_plane.replay(miss) {
            self.status.replays_failed += 1;
            tracing::debug!(%error, "handling a message again failed; the device retries the message");
        }
    }
}
