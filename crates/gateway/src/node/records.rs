//! The audit record of a session.

use linewarden_dataplane::Event;
use linewarden_protocol::ids::{Mode, SessionId};

use super::context::Context;
use crate::audit::{AuditEvent, Binding, session_name};

/// Records a session of a device in this mode. The binding of the session is read from the data plane, unless the session has
/// changed.
pub(super) fn record_session(event: &Event, session: SessionId, mode: Mode, context: &mut Context) {
    if !context.audit.is_on() {
        return;
    }
    let view = context
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
    context.audit.record(AuditEvent::Session {
        device: event.device,
        mode,
        row: event.idx,
        session: session_name(session),
        address: event.source,
        ingress: event.ingress,
        binding,
    });
}
