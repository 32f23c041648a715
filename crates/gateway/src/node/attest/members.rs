//! The provers of this gateway: how each is asked, and whose keys are in the data plane.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use linewarden_controller::attest::{Plan, ProverProvision, Provers};
use linewarden_dataplane::{DataPlane, Provers as Held};
use linewarden_protocol::attest::{PeriodStart, RequestKey, Round};
use linewarden_protocol::ids::{DeviceId, Period};
use linewarden_protocol::wire::AttestRequest;

use super::schedule::Schedule;

/// Of the periods with even numbers and of those with odd ones, as in the data plane.
const LANES: usize = 2;

/// How a prover is asked.
#[derive(Debug)]
struct Member {
    group: u32,
    port: u16,
    /// Where it is asked without a session: where it was last, or where it was enrolled.
    address: Option<IpAddr>,
    keys: [Option<(Period, RequestKey)>; LANES],
}

/// How far the keys of a period are here.
#[derive(Clone, Copy, Debug)]
struct Loaded {
    start: PeriodStart,
    /// Of provers and groups.
    upto: u64,
    /// How far it will be with the last part of what was asked for.
    asked: u64,
    /// The reference values that the keys know.
    references: u64,
}

#[derive(Debug, Default)]
pub(super) struct Members {
    members: HashMap<DeviceId, Member>,
    loaded: [Option<Loaded>; LANES],
    /// Provers for which the data plane has no room.
    refused: HashSet<DeviceId>,
}

fn lane(period: Period) -> usize {
    usize::from(period.0 & 1 == 1)
}

impl Members {
    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether all keys of that period are here, as the plan knows provers and reference values.
    pub(super) fn has_keys(&self, start: &PeriodStart, plan: &Plan) -> bool {
        let loaded = self.loaded.get(lane(start.period)).and_then(Option::as_ref);
        loaded.is_some_and(|loaded| {
            loaded.start == *start && loaded.references == plan.references && loaded.upto >= plan.revision
        })
    }

    /// Which keys to ask for: those of a period, of provers that have changed since a revision. `busy` are being proven.
    pub(super) fn wanted(&mut self, plan: &Plan, busy: &[Period]) -> Option<(PeriodStart, u64)> {
        let references = plan.references;
        for start in [plan.running, plan.next] {
            let is_in_the_way = busy
                .iter()
                .any(|busy| *busy != start.period && lane(*busy) == lane(start.period));
            if is_in_the_way {
                continue;
            }
            let fresh = Loaded {
                start,
                upto: 0,
                asked: 0,
                references,
            };
            let Some(place) = self.loaded.get_mut(lane(start.period)) else {
                continue;
            };
            let loaded = place.get_or_insert(fresh);
            if loaded.start != start {
                *loaded = fresh;
            }
            // All keys anew.
            if loaded.references != references {
                *loaded = Loaded {
                    references,
                    upto: 0,
                    ..*loaded
                };
            }
            if loaded.upto < plan.revision {
                loaded.asked = plan.revision;
                return Some((start, loaded.upto));
            }
        }
        None
    }

    /// Takes a part of the provers; for how many there is no room by now.
    pub(super) fn take(&mut self, provers: Provers, held: &mut Held, schedule: &Schedule) -> u64 {
        let lane = lane(provers.start.period);
        let expected = self.loaded.get_mut(lane).and_then(Option::as_mut);
        let Some(loaded) = expected.filter(|loaded| loaded.start == provers.start) else {
            return self.refused.len() as u64;
        };
        // A change of a group leaves no trace among the provers.
        loaded.upto = match provers.more {
            true => provers.upto,
            false => provers.upto.max(loaded.asked),
        };
        for device in provers.removed {
            self.members.remove(&device);
            self.refused.remove(&device);
            held.wipe(device);
        }
        for provision in provers.provisions {
            let device = provision.device;
            let Some(group) = schedule.id(&provision.group) else {
                continue;
            };
            let installed = match &provision.keys {
                Some(keys) => held.install(device, provers.start.period, keys),
                // Without a reference value nothing is proven, not even by an older key.
                None => {
                    held.wipe(device);
                    Ok(())
                }
            };
            if let Err(error) = installed {
                // It is met again with the next period's keys.
                if self.refused.insert(device) {
                    tracing::error!(%error, "a prover is left out");
                }
                continue;
            }
            self.refused.remove(&device);
            self.admit(group, provision, provers.start.period);
        }
        self.refused.len() as u64
    }

    fn admit(&mut self, group: u32, provision: ProverProvision, period: Period) {
        let member = self.members.entry(provision.device).or_insert(Member {
            group,
            port: provision.port,
            address: None,
            keys: [None, None],
        });
        member.group = group;
        member.port = provision.port;
        // Where it was seen here is newer than what the registry knows.
        member.address = member.address.or(provision.address);
        if let Some(key) = member.keys.get_mut(lane(period)) {
            *key = provision
                .keys
                .is_some()
                .then_some((period, provision.request_key));
        }
    }

    /// Another gateway asks it now.
    pub(super) fn leave(&mut self, device: DeviceId) {
        if let Some(member) = self.members.get_mut(&device) {
            member.address = None;
        }
    }

    /// The provers of a group that can prove something in a period: without a reference value there are none.
    pub(super) fn of_group(&self, group: u32, period: Period) -> Vec<DeviceId> {
        let has_key = |member: &Member| {
            let key = member.keys.get(lane(period)).and_then(Option::as_ref);
            key.is_some_and(|(of, _)| *of == period)
        };
        let of_group = |member: &Member| member.group == group && has_key(member);
        let members = self.members.iter().filter(|(_, member)| of_group(member));
        members.map(|(device, _)| *device).collect()
    }

    /// What a prover is asked and where; `None`: there is no way to it from here, or nothing that it could prove.
    pub(super) fn request(
        &mut self,
        plane: &dyn DataPlane,
        device: DeviceId,
        round: &Round,
        now_s: u32,
    ) -> Option<(SocketAddr, AttestRequest)> {
        let member = self.members.get_mut(&device)?;
        let key = member.keys.get(lane(round.start.period))?.as_ref();
        let (_, key) = key.filter(|(period, _)| *period == round.start.period)?;
        let (address, request) = match plane.session_request(device, round, now_s) {
            Some((address, request)) => {
                member.address = Some(address);
                (address, request)
            }
            None => (member.address?, round.request_without_session(device, key)),
        };
        Some((SocketAddr::new(address, member.port), request))
    }
}
