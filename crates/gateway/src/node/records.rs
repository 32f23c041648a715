//! Audit records about devices.

use linewarden_dataplane::Event;
use linewarden_protocol::ids::{DeviceId, Mode, SessionId};

use super::Node;
use crate::audit::{AuditEvent, Binding, session_name};

impl Node {
    /// Records a session. Its binding is read from the data plane, unless the session has changed.
    pub(super) fn record_session(&mut self, event: &Event, session: SessionId) {
        if !self.audit.is_on() {
            return;
        }
        let view = self
            .data_plane
            .session(event.device)
            .filter(|view| view.id == session);
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
            .map_or(Mode::Pool, |entry| entry.mode);
        self.audit.record(AuditEvent::Session {
            device: event.device,
            mode,
            row: event.idx,
            session: session_name(session),
            address: event.source,
            ingress: event.ingress,
            binding,
        });
    }

    /// Records deferred releases: the release of `device`, or all releases if `device` is `None`.
    pub(super) fn record_released(&mut self, device: Option<DeviceId>) {
        for device in self.blocked.take_released(device) {
            self.status.attest.released += 1;
            tracing::info!(device_id = %device, "device released");
            self.audit.record(AuditEvent::Released { device });
        }
    }

    /// Records that a device is blocked; `was_installed` is whether the device was in the data plane.
    pub(super) fn record_blocked(&mut self, device: DeviceId, was_installed: bool) {
        self.audit.record(AuditEvent::Blocked {
            device,
            was_installed,
        });
    }
}
