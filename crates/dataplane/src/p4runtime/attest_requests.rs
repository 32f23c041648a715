//! Sends ATTEST_REQUESTs through the switch (LAP/1 3.2). The gateway builds the frames and sends them by packet-out to the
//! port from which the device's session was opened.
//!
//! A switch has no neighbor table and does not answer ARP. Only the device's messages reveal the location of the device:
//! the RESPONSE of its session or, for a device that is not installed, its latest messages.

use std::net::{IpAddr, SocketAddr};

use linewarden_protocol::attest::Round;
use linewarden_protocol::frame::ip_from_bytes;
use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::keys::SessionKey;
use linewarden_protocol::wire::AttestRequest;

use super::P4Runtime;
use super::error::SwitchError;
use super::location::DeviceLocation;
use super::switch_connection::DEVICES_PER_READ;
use crate::error::DataPlaneError;
use crate::miss::Miss;

/// Maximum number of requests per call of [`P4Runtime::send_requests`]. The locations for a call are read from the switch
/// together. A call ends at a request without a location.
const REQUESTS_PER_CALL: usize = 16;

impl P4Runtime {
    /// See [`crate::Attestation::session_requests`].
    pub(super) fn requests_in_sessions(
        &self,
        devices: &[DeviceId],
        round: &Round,
        now_s: u32,
    ) -> Result<Vec<Option<(IpAddr, AttestRequest)>>, SwitchError> {
        self.check_usable()?;
        let mut requests = Vec::with_capacity(devices.len());
        for batch in devices.chunks(DEVICES_PER_READ) {
            let cells = || batch.iter().filter_map(|device| self.active_cell(*device));
            let names = [
                "session_ids",
                "session_key0s",
                "session_key1s",
                "addresses",
                "session_ends",
            ];
            let register_cells: Vec<_> = cells().flat_map(|cell| names.map(|name| (name, cell))).collect();
            let values = self.connection.read_cells(&register_cells)?;
            // Another authentication may complete between the two reads. Each authentication changes the session id first,
            // so a changed id marks the values of the first read as invalid.
            let ids_after = self.connection.read_column("session_ids", cells())?;
            let mut values = values.as_chunks().0.iter().zip(ids_after);
            let request = |device: &DeviceId| {
                self.active_cell(*device)?;
                let (registers, id_after) = values.next()?;
                self.request_from_registers(registers, id_after, *device, round, now_s)
            };
            requests.extend(batch.iter().map(request));
        }
        Ok(requests)
    }

    /// The cell of a device that is installed and not revoked.
    pub(super) fn active_cell(&self, device: DeviceId) -> Option<u32> {
        let entry = self.table.devices.get(&device);
        entry.filter(|entry| !entry.is_revoked).map(|entry| entry.cell)
    }

    fn request_from_registers(
        &self,
        &[id, key0, key1, address, until_us]: &[u128; 5],
        id_after: u128,
        device: DeviceId,
        round: &Round,
        now_s: u32,
    ) -> Option<(IpAddr, AttestRequest)> {
        let is_live = self.clock.boot_us(until_us as u64) > u64::from(now_s) * 1_000_000;
        if id == 0 || id != id_after || !is_live {
            return None;
        }
        let key = SessionKey::from_bytes((key0 << 64 | key1).to_be_bytes());
        Some((ip_from_bytes(address.to_be_bytes()), round.request(device, &key)))
    }

    /// Sends at most [`REQUESTS_PER_CALL`] requests in order, until a request has no location. Returns the number of sent
    /// requests.
    pub(super) fn send_requests(
        &mut self,
        requests: &[(SocketAddr, AttestRequest)],
    ) -> Result<usize, DataPlaneError> {
        let is_known = |(_, request): &&(SocketAddr, AttestRequest)| {
            let device = request.header.device();
            self.table.devices.contains_key(&device) || self.provers.locations(device).is_some()
        };
        let count = requests
            .iter()
            .take(REQUESTS_PER_CALL)
            .take_while(is_known)
            .count();
        let batch = requests.get(..count).unwrap_or_default();
        let locations = self.locations_of(batch);
        let locations = self.record_failure(locations)?;
        let mut sent = 0;
        for ((to, request), locations) in batch.iter().zip(locations) {
            if locations.is_empty() {
                break;
            }
            // A location of another address family is skipped.
            let frames = locations.iter().filter_map(|location| {
                let frame = location.frame(*to, request)?;
                Some((location.origin.ingress, frame))
            });
            for (port, frame) in frames {
                self.record_failure(self.connection.packet_out(port, 0, frame))?;
            }
            sent += 1;
        }
        match requests.get(sent) {
            Some((to, request)) if sent == 0 => Err(DataPlaneError::DeviceLocationUnknown {
                device: request.header.device(),
                address: to.ip(),
            }),
            _ => Ok(sent),
        }
    }

    /// The possible locations of the device of each request: all locations where the device was seen under the
    /// requested address, because another sender may have used the device's id; otherwise the location of the device's
    /// latest session. A device that ever had a session therefore always has a location: if the device has moved to
    /// another address, the round counts the device as missed, not as unreachable.
    fn locations_of(
        &mut self,
        requests: &[(SocketAddr, AttestRequest)],
    ) -> Result<Vec<Vec<DeviceLocation>>, SwitchError> {
        let devices = requests.iter().map(|(_, request)| request.header.device());
        let cells = devices.filter_map(|device| Some(self.table.devices.get(&device)?.cell));
        let mut session_locations = self.read_locations(cells)?.into_iter();
        let mut locations = Vec::with_capacity(requests.len());
        for (to, request) in requests {
            let device = request.header.device();
            if self.table.devices.contains_key(&device)
                && let Some(location) = session_locations.next().flatten()
            {
                self.provers.record_session(device, location);
            }
            let prover_locations = self.provers.locations(device);
            locations.push(
                prover_locations
                    .map(|known| known.locations_at(to.ip()))
                    .unwrap_or_default(),
            );
        }
        Ok(locations)
    }

    /// The location of each device according to the registers.
    fn read_locations(
        &self,
        cells: impl Iterator<Item = u32>,
    ) -> Result<Vec<Option<DeviceLocation>>, SwitchError> {
        self.check_usable()?;
        let names = ["addresses", "places", "gateway_macs", "gateway_addresses"];
        let cells: Vec<_> = cells.flat_map(|cell| names.map(|name| (name, cell))).collect();
        let values = self.connection.read_cells(&cells)?;
        let values = values.as_chunks().0.iter();
        Ok(values.map(DeviceLocation::of_session).collect())
    }

    /// Saves the location of the session before the session is removed from the switch, so that a revoked device can still
    /// receive requests and prove its configuration.
    pub(super) fn save_location(&mut self, device: DeviceId) -> Result<(), SwitchError> {
        let entry = self.table.devices.get(&device);
        if let Some(entry) = entry.filter(|_| self.provers.has(device))
            && let Some(location) = self.read_locations(std::iter::once(entry.cell))?.pop().flatten()
        {
            self.provers.record_session(device, location);
        }
        Ok(())
    }

    /// Records where a message of a prover that is not installed came from. The sender may be another device.
    pub(super) fn record_unverified_location(&mut self, miss: &Miss, frame: &[u8], ingress: u16) {
        let device = miss.device();
        if self.provers.has(device)
            && !self.table.devices.contains_key(&device)
            && let Some(location) = DeviceLocation::of_frame(frame, ingress)
        {
            self.provers.record_unverified(device, location);
        }
    }
}
