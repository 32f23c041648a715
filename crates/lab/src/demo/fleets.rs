//! The honest devices on the link, by group, and the service as they reach it.

use std::net::IpAddr;

use linewarden_protocol::frame::write::Endpoint;
use linewarden_protocol::ids::DeviceId;

use super::cast::{Cast, Groups};
use super::{DemoError, Options};
use crate::address::{DeviceAddress, Family, GATEWAY, SERVICE};
use crate::fleet::{Fleet, FleetOptions, Member, device_id};
use crate::topology::Lab;

/// The echo service's port.
pub(super) const ECHO_PORT: u16 = 7007;
/// IP versions of the devices that nobody listens to, in turn.
const FAMILIES: [Family; 4] = [Family::V4, Family::V4, Family::V4, Family::V6];

/// The honest devices, by group.
pub(super) struct Fleets {
    pub(super) witnesses: Fleet,
    pub(super) sampled: Fleet,
    pub(super) attested: Fleet,
    pub(super) crowd: Fleet,
}

impl Fleets {
    pub(super) fn new(
        lab: &Lab,
        options: &Options,
        cast: &mut Cast,
        workers: usize,
    ) -> Result<Self, DemoError> {
        let groups = Groups::of(options);
        let fleet = |number: u8, members: &mut Vec<Member>, first_index: u32, workers: usize| {
            let mut nonce_seed = [number; 32];
            getrandom::fill(&mut nonce_seed)?;
            let witnesses = first_index == 0;
            let fleet_options = FleetOptions {
                workers,
                first_index,
                families: if witnesses {
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
            witnesses: fleet(1, &mut cast.witnesses, 0, 1)?,
            sampled: fleet(2, &mut cast.sampled, groups.witnesses, 1)?,
            attested: fleet(4, &mut cast.attested, groups.attested_from(), 1)?,
            crowd: fleet(3, &mut cast.crowd, groups.crowd_from(), workers)?,
        })
    }

    pub(super) fn all(&self) -> [&Fleet; 4] {
        [&self.witnesses, &self.sampled, &self.attested, &self.crowd]
    }

    /// Every device, and the row that the session which it believes to have was opened with.
    pub(super) fn sessions(&self) -> Vec<(DeviceId, Option<u32>)> {
        let of = |fleet: &Fleet, index| fleet.session(index).map(|session| session.idx.0);
        self.all()
            .into_iter()
            .flat_map(|fleet| {
                fleet
                    .indices()
                    .map(move |index| (device_id(index), of(fleet, index)))
            })
            .collect()
    }

    /// The address that a device sends from.
    pub(super) fn ip(&self, index: u32) -> IpAddr {
        let family = if self.witnesses.indices().any(|witness| witness == index) {
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

/// The service as the devices reach it.
pub(super) fn service(family: Family) -> Endpoint {
    Endpoint {
        mac: GATEWAY.mac.0,
        ..SERVICE.endpoint(family, ECHO_PORT)
    }
}
