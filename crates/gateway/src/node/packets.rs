//! What packets have left for the node: events of devices that are here, messages of devices that are not.

use linewarden_controller::Reception;
use linewarden_dataplane::{DataPlaneError, Event, EventKind, Miss};

use super::devices::State;
use super::{Node, visitors};
use crate::audit::Happening;

/// The log's target for wrong tags, so that whoever sends them himself can leave them out.
pub const WRONG_TAGS: &str = "linewarden_gateway::wrong_tags";

impl Node {
    pub(super) fn take_events(&mut self) {
        let mut events = Vec::new();
        let drained = self.plane.drain_events(&mut |event| events.push(event));
        self.note_draining(drained);
        events.iter().for_each(|event| self.take_event(event));
    }

    fn note_draining(&mut self, drained: Result<(), DataPlaneError>) {
        let failing = drained.is_err();
        if let Err(error) = drained
            && !self.status.events_failing
        {
            tracing::error!(%error, "the data plane's events cannot be read; trying on");
        }
        self.status.events_failing = failing;
    }

    fn take_event(&mut self, event: &Event) {
        match event.kind {
            EventKind::Session(opening) => {
                self.status.sessions_opened += 1;
                self.record_session(event, opening.session);
                self.note_opening(event.device, opening);
                tracing::debug!(device = %event.device, idx = %event.idx, from = %event.from, "session");
            }
            EventKind::RowsLow | EventKind::RowsOut => self.want(event.device),
            EventKind::WrongTag => {
                self.status.wrong_tags += 1;
                self.trail.note(Happening::WrongTag {
                    device: event.device,
                    row: event.idx,
                    address: event.from,
                    ingress: event.ingress,
                });
                tracing::warn!(
                    target: WRONG_TAGS,
                    device = %event.device,
                    idx = %event.idx,
                    from = %event.from,
                    "wrong tag"
                );
            }
            EventKind::WrongProof(round) => {
                self.status.wrong_proofs += 1;
                self.trail.note(Happening::WrongProof {
                    device: event.device,
                    round: round.0,
                    address: event.from,
                    ingress: event.ingress,
                });
                tracing::debug!(device = %event.device, %round, from = %event.from, "wrong proof");
            }
        }
    }

    pub(super) fn take_misses(&mut self) {
        let mut misses = Vec::new();
        let drained = self.plane.drain_misses(&mut |miss| misses.push(miss));
        if let Err(error) = drained {
            tracing::debug!(%error, "messages of unknown devices cannot be read");
        }
        for miss in misses {
            match self.devices.get(&miss.device()).map(|held| held.state) {
                _ if self.stopping => {}
                None => {
                    if let Some(turned_away) = self.visitors.queue(miss) {
                        self.turn_away(&turned_away);
                    }
                }
                // It came while another message of it was on its way.
                Some(State::Installed) => self.replay(miss),
                // The device repeats; it has a place then, or is gone.
                Some(_) => {}
            }
        }
    }

    pub(super) fn receive(&mut self, miss: Miss, reception: Reception) {
        match reception {
            Reception::Silence => {}
            Reception::Challenge(challenge) => self.plane.send(&miss, &challenge),
            Reception::Nak(nak) => {
                self.plane.send(&miss, &nak);
                self.note_unserved(miss.device());
            }
            Reception::NakByStatement(nak) => {
                self.plane.send(&miss, &nak);
                self.note_stated_beyond(miss.device());
            }
            Reception::Admit(provision) => {
                self.status.admitted += 1;
                self.trail.note(Happening::Admitted {
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

    /// Nobody has time for it; its device repeats it.
    pub(super) fn turn_away(&mut self, miss: &Miss) {
        self.status.visitors_turned_away += 1;
        if visitors::is_response(miss) {
            self.plane.expect(miss);
        }
    }

    pub(super) fn replay(&mut self, miss: Miss) {
        if let Err(error) = self.plane.replay(miss) {
            self.status.replays_failed += 1;
            tracing::debug!(%error, "a message could not be handed on; its device repeats it");
        }
    }
}
