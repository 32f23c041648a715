//! The device's endpoints for the DATA of its sessions. Datagrams are sealed under the newest session. Received
//! datagrams are opened under the newest session and, for a moment, under the previous session.

use std::net::{IpAddr, SocketAddr};

use linewarden_protocol::data::{Channel, Route};
use linewarden_protocol::data_endpoint::{DataEndpoint, DataEndpointError, ReceivedDatagram};
use linewarden_protocol::device::Device;
use linewarden_protocol::ids::SessionId;
use linewarden_protocol::keys::SessionKey;

use crate::link::wire_address;

/// Endpoints of the current and previous session, each with its sequence numbers.
#[derive(Debug, Default)]
pub(crate) struct SessionEndpoints {
    current: Option<DataEndpoint>,
    previous: Option<DataEndpoint>,
}

impl SessionEndpoints {
    /// Seals a datagram from `device_address` to UDP port `to.port()` of `to.ip()`; returns the message's length, or
    /// `None` without a session.
    pub(crate) fn seal(
        &mut self,
        device: &Device,
        device_address: IpAddr,
        to: SocketAddr,
        payload: &[u8],
        out: &mut [u8],
    ) -> Option<Result<usize, DataEndpointError>> {
        self.update_sessions(device);
        let session = device.session()?;
        let channel = channel(device, device_address, session.id, session.key());
        let route = Route {
            source: channel.addr,
            destination: wire_address(to.ip()),
        };
        let endpoint = self.current.as_mut()?;
        Some(endpoint.seal(&channel, &route, to.port(), payload, out))
    }

    /// Opens a message from `from` to the address `device_address`; `None` if the message is of no session, was
    /// altered, or was received before.
    pub(crate) fn open<'m>(
        &mut self,
        device: &Device,
        device_address: IpAddr,
        from: SocketAddr,
        message: &'m [u8],
    ) -> Option<ReceivedDatagram<'m>> {
        self.update_sessions(device);
        let route = Route {
            source: wire_address(from.ip()),
            destination: wire_address(device_address),
        };
        let current = device.session().map(|session| (session.id, session.key()));
        let previous = device
            .previous_session()
            .map(|previous| (previous.id, previous.key()));
        let endpoints = [(current, &mut self.current), (previous, &mut self.previous)];
        endpoints.into_iter().find_map(|(session, endpoint)| {
            let ((id, key), endpoint) = session.zip(endpoint.as_mut())?;
            let channel = channel(device, device_address, id, key);
            endpoint.open(&channel, &route, from.port(), message).ok()
        })
    }

    /// Whether the session should be renewed because its sequence numbers run out.
    pub(crate) fn is_nearly_exhausted(&self) -> bool {
        self.current
            .as_ref()
            .is_some_and(DataEndpoint::is_nearly_exhausted)
    }

    /// Replaces the endpoints after a change of sessions. Each session has its own sequence numbers; the received
    /// numbers of the previous session stay recorded.
    fn update_sessions(&mut self, device: &Device) {
        let session = device.session().map(|session| session.id);
        if self.current.as_ref().map(DataEndpoint::session) != session {
            self.previous = self.current.take();
            self.current = session.map(DataEndpoint::new);
        }
        // No datagram passed in a session that began and ended since the last call, so a new endpoint is correct for
        // that session.
        let previous = device.previous_session().map(|previous| previous.id);
        if self.previous.as_ref().map(DataEndpoint::session) != previous {
            self.previous = previous.map(DataEndpoint::new);
        }
    }
}

fn channel<'k>(
    device: &Device,
    device_address: IpAddr,
    session: SessionId,
    key: &'k SessionKey,
) -> Channel<'k> {
    Channel {
        suite: device.config().suite,
        device: device.config().device,
        session,
        addr: wire_address(device_address),
        key,
    }
}
