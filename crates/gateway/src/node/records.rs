//! What the node tells the audit record of its devices.

use linewarden_dataplane::Event;
use linewarden_protocol::ids::{DeviceId, Mode, SessionId};

use super::Node;
use crate::audit::{Binding, Happening, session_name};

impl Node {
    /// A session was opened. What it is bound to is in the data plane, unless it is another one by now.
    pub(super) fn record_session(&mut self, event: &Event, session: SessionId) {
        if !self.trail.is_on() {
            return;
        }
        let view = self.plane.session(event.device).filter(|view| view.id == session);
        let binding = view.map(|view| Binding {
            port: view.port,
            vlans: view.vlans.into_iter().flatten().collect(),
            mac: view.is_bound.then(|| {
                let [a, b, c, d, e, f] = view.mac;
                format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
            }),
        });
        let mode = self
            .devices
            .get(&event.device)
            .map_or(Mode::Pool, |held| held.mode);
        self.trail.note(Happening::Session {
            device: event.device,
            mode,
            row: event.idx,
            session: session_name(session),
            address: event.from,
            ingress: event.ingress,
            binding,
        });
    }

    /// Devices were let in again, all of which that is not told yet or this one.
    pub(super) fn record_let_in(&mut self, device: Option<DeviceId>) {
        for device in self.barred.take_let_in(device) {
            self.status.attest.reopened += 1;
            tracing::info!(%device, "let in again");
            self.trail.note(Happening::Reopened { device });
        }
    }

    /// A device was revoked; `shut_out` says that it was in the data plane.
    pub(super) fn record_revoked(&mut self, device: DeviceId, shut_out: bool) {
        self.trail.note(Happening::Revoked { device, shut_out });
    }
}
