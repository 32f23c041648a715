//! The legitimate devices on the link, by group, and the endpoint of the service as the devices see it.

use std::net::IpAddr;

use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::ids::DeviceId;

use super::participants::{Groups, Participants};
use super::{DemoError, Options};
use crate::address::{DeviceAddress, Family, GATEWAY, SERVICE};
use crate::fleet::{Fleet, FleetOptions, Member, device_id};
use crate::topology::Lab;

/// The echo service's port.
pub(super) const ECHO_PORT: u16 = 7007;
/// IP versions of the devices that are not captured, by index modulo 4.
const FAMILIES: [Family; 4] = [Family::V4, Family::V4, Family::V4, Family::V6];

/// The legitimate devices, by group.
pub(super) struct Fleets {
    pub(super) victims: Fleet,
    pub(super) latency_sample: Fleet,
    pub(super) provers: Fleet,
    /// All devices that are in no other group.
    pub(super) remaining: Fleet,
}

impl Fleets {
    pub(super) fn new(
        lab: &Lab,
        options: &Options,
        participants: &mut Participants,
        workers: usize,
    ) -> Result<Self, DemoError> {
        let groups = Groups::of(options);
        let fleet = |number: u8, members: &mut Vec<Member>, first_index: u32, workers: usize| {
            let mut nonce_seed = [number; 32];
            getrandom::fill(&mut nonce_seed)?;
            let is_captured = first_index == 0;
            let fleet_options = FleetOptions {
                workers,
                first_index,
                families: if is_captured {
                    vec![Family::V4]
                } else {
                    FAMILIES.to_vec()
                },
                fanout_group: u16::from(number),
                ..FleetOptions::new(nonce_seed)
            };
            Ok::<_, DemoError>(Fleet::new(lab, std::mem::take(members), &fleet_options)?)
        };
        Ok(Self {
            victims: fleet(1, &mut participants.victims, 0, 1)?,
            latency_sample: fleet(2, &mut participants.latency_sample, groups.victims, 1)?,
            provers: fleet(4, &mut participants.provers, groups.first_prover(), 1)?,
            remaining: fleet(3, &mut participants.remaining, groups.first_remaining(), workers)?,
        })
    }

    pub(super) fn all_fleets(&self) -> [&Fleet; 4] {
        [
            &self.victims,
            &self.latency_sample,
            &self.provers,
            &self.remaining,
        ]
    }

    /// Every device with the row that opened its session, from the device's own state.
    pub(super) fn sessions(&self) -> Vec<(DeviceId, Option<u32>)> {
        let session_row = |fleet: &Fleet, index| fleet.session(index).map(|session| session.idx.0);
        self.all_fleets()
            .into_iter()
            .flat_map(|fleet| {
                fleet
                    .indices()
                    .map(move |index| (device_id(index), session_row(fleet, index)))
            })
            .collect()
    }

    /// The address that a device sends from.
    pub(super) fn ip(&self, index: u32) -> IpAddr {
        let family = if self.victims.indices().any(|victim| victim == index) {
            Family::V4
        } else {
            FAMILIES
                .get(index as usize % FAMILIES.len())
                .copied()
                .unwrap_or(Family::V4)
        };
        DeviceAddress::new(index).endpoint(family, 0).ip
    }
}

/// The service's endpoint as the devices see it.
pub(super) fn service(family: Family) -> Endpoint {
    Endpoint {
        mac: GATEWAY.mac.0,
        ..SERVICE.endpoint(family, ECHO_PORT)
    }
}
