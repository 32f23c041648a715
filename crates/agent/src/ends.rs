//! The device's ends of its sessions' DATA: datagrams are sealed under the newest session, and opened under that one and,
//! for a moment, under the one before.

use std::net::{IpAddr, SocketAddr};

use linewarden_protocol::data::{Channel, Route};
use linewarden_protocol::device::Device;
use linewarden_protocol::device_end::{Delivered, DeviceEnd, EndError};
use linewarden_protocol::ids::SessionId;
use linewarden_protocol::keys::SessionKey;

use crate::link::wire_address;

/// Both ends, each with its session's numbers.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    current: Option<DeviceEnd>,
    previous: Option<DeviceEnd>,
}

impl Ends {
    /// Seals a datagram from `own` to UDP port `to.port()` of `to.ip()`; the message's length, or `None` without a session.
    pub(crate) fn seal(
        &mut self,
        device: &Device,
        own: IpAddr,
        to: SocketAddr,
        payload: &[u8],
        out: &mut [u8],
    ) -> Option<Result<usize, EndError>> {
        self.follow(device);
        let session = device.session()?;
        let channel = channel(device, own, session.id, session.key());
        let route = Route {
            source: channel.addr,
            destination: wire_address(to.ip()),
        };
        let end = self.current.as_mut()?;
        Some(end.seal(&channel, &route, to.port(), payload, out))
    }

    /// Opens what has come from `from` to the address `own`; `None` if it is of no session, altered, or was seen before.
    pub(crate) fn open<'m>(
        &mut self,
        device: &Device,
        own: IpAddr,
        from: SocketAddr,
        message: &'m [u8],
    ) -> Option<Delivered<'m>> {
        self.follow(device);
        let route = Route {
            source: wire_address(from.ip()),
            destination: wire_address(own),
        };
        let current = device.session().map(|session| (session.id, session.key()));
        let previous = device.previous().map(|previous| (previous.id, previous.key()));
        let ends = [(current, &mut self.current), (previous, &mut self.previous)];
        ends.into_iter().find_map(|(session, end)| {
            let ((id, key), end) = session.zip(end.as_mut())?;
            let channel = channel(device, own, id, key);
            end.open(&channel, &route, from.port(), message).ok()
        })
    }

    /// Whether the session should be renewed, because its numbers come to an end.
    pub(crate) fn is_nearly_exhausted(&self) -> bool {
        self.current.as_ref().is_some_and(DeviceEnd::is_nearly_exhausted)
    }

    /// Each session has numbers of its own, and those taken under the one before stay taken.
    fn follow(&mut self, device: &Device) {
        let session = device.session().map(|session| session.id);
        if self.current.as_ref().map(DeviceEnd::session) != session {
            self.previous = self.current.take();
            self.current = session.map(DeviceEnd::new);
        }
        // No datagram passed under a session that has come and gone since the last one.
        let previous = device.previous().map(|previous| previous.id);
        if self.previous.as_ref().map(DeviceEnd::session) != previous {
            self.previous = previous.map(DeviceEnd::new);
        }
    }
}

fn channel<'k>(device: &Device, own: IpAddr, session: SessionId, key: &'k SessionKey) -> Channel<'k> {
    Channel {
        suite: device.config().suite,
        device: device.config().device,
        session,
        addr: wire_address(own),
        key,
    }
}
