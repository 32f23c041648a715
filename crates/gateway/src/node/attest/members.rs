//! The provers of this gateway: how each is asked, and whose keys are in the data plane.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use linewarden_controller::attest::{Plan, ProverProvision, Provers, Seen, Verdict};
use linewarden_dataplane::{ProverError, ProverSet};
use linewarden_protocol::attest::{PeriodStart, RequestKey, Round};
use linewarden_protocol::ids::{DeviceId, Period};
use linewarden_protocol::wire::AttestRequest;
use linewarden_registry::EnrolledAt;

use super::schedule::Schedule;

/// Of the periods with even numbers and of those with odd ones, as in the data plane.
const LANES: usize = 2;

/// How a prover is asked.
#[derive(Debug)]
struct Member {
    group: u32,
    enrolled_at: EnrolledAt,
    port: u16,
    /// Where it is asked without a session: where it was last, or where it was enrolled.
    address: Option<IpAddr>,
    /// Where it has proven something: that there is a way to there is not of its making.
    proved: Option<IpAddr>,
    keys: [Option<Key>; LANES],
}

/// What a prover is asked by in a period, without a session.
#[derive(Debug)]
struct Key {
    period: Period,
    /// Whose key it is, and that which the data plane holds of this period: that of the other period may be an older one's.
    enrolled_at: EnrolledAt,
    request: RequestKey,
}

/// How a prover is asked in a round.
#[derive(Debug)]
pub(super) struct Way {
    pub(super) to: SocketAddr,
    pub(super) request: AttestRequest,
    /// If there is no way to there, the device is not to blame. It chooses the address of its sessions, and could choose one to
    /// which nothing can be sent; but not one where it has proven something.
    pub(super) is_excused: bool,
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
    /// Provers for which the data plane has no room, and how many it was told of last.
    refused: HashSet<DeviceId>,
    refused_told: usize,
}

fn lane(period: Period) -> usize {
    usize::from(period.0 & 1 == 1)
}

/// A prover that is to be asked in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Queued {
    pub(super) device: DeviceId,
    /// As of the beginning of the round.
    pub(super) enrolled_at: EnrolledAt,
}

impl Member {
    fn key(&self, period: Period) -> Option<&Key> {
        let key = self.keys.get(lane(period)).and_then(Option::as_ref);
        key.filter(|key| key.period == period)
    }

    /// Whether it is not to blame if nothing can be sent to where it is asked: it has proven something there. Any other address it may
    /// have chosen, in a session that is over as well.
    fn is_excused(&self, address: IpAddr) -> bool {
        self.proved == Some(address)
    }

    /// Where it is asked without a session: where it was last, but the last time of a round where it has proven something. Who has
    /// caught a RESPONSE and sent it from an address of his own has made that the session's: asked there alone the device could
    /// never prove itself again.
    fn without_session(&self, is_last: bool) -> Option<IpAddr> {
        let last = self.address?;
        let proved = self.proved.filter(|_| is_last);
        Some(proved.unwrap_or(last))
    }
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

    /// Takes a part of the provers; how many have no room.
    pub(super) fn take(&mut self, provers: Provers, held: &mut dyn ProverSet, schedule: &Schedule) -> u64 {
        let lane = lane(provers.start.period);
        let expected = self.loaded.get_mut(lane).and_then(Option::as_mut);
        // Keys by which other configurations are proven than the plan has it are asked for again, after the next one.
        let is_expected =
            |loaded: &&mut Loaded| (loaded.start, loaded.references) == (provers.start, provers.references);
        let Some(loaded) = expected.filter(is_expected) else {
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
            if let Err(ProverError::Switch) = installed {
                // It is not for want of room; the data plane has ended.
                break;
            }
            if let Err(error) = installed {
                tracing::debug!(%error, %device, "a prover is left out");
                self.refused.insert(device);
                continue;
            }
            self.refused.remove(&device);
            self.admit(group, provision, provers.start.period);
        }
        // One that is lost ends by itself.
        if let Err(error) = held.commit() {
            tracing::error!(%error, "keys of provers are not in force");
        }
        if !provers.more {
            self.tell_refused();
        }
        self.refused.len() as u64
    }

    /// Once for all of them, and again when there are others more or fewer.
    fn tell_refused(&mut self) {
        let devices = self.refused.len();
        if devices > 0 && devices != self.refused_told {
            tracing::error!(
                devices,
                "provers are left out: there is no room for their keys; raise [attest] provers"
            );
        }
        self.refused_told = devices;
    }

    fn admit(&mut self, group: u32, provision: ProverProvision, period: Period) {
        let member = self.members.entry(provision.device).or_insert(Member {
            group,
            enrolled_at: provision.enrolled_at,
            port: provision.port,
            address: None,
            proved: None,
            keys: [None, None],
        });
        member.group = group;
        member.port = provision.port;
        if member.enrolled_at != provision.enrolled_at {
            member.enrolled_at = provision.enrolled_at;
            (member.address, member.proved) = (None, None);
        }
        // Where it was seen here is newer than what the registry knows.
        member.address = member.address.or(provision.address);
        let proved = provision.address.filter(|_| provision.is_answering);
        member.proved = member.proved.or(proved);
        if let Some(key) = member.keys.get_mut(lane(period)) {
            *key = provision.keys.is_some().then_some(Key {
                period,
                enrolled_at: provision.enrolled_at,
                request: provision.request_key,
            });
        }
    }

    /// Takes notice of where provers have proven something.
    pub(super) fn keep_proved(&mut self, verdicts: &[Verdict]) {
        for verdict in verdicts.iter().filter(|verdict| verdict.seen != Seen::Silent) {
            let member = self.members.get_mut(&verdict.device);
            if let Some(member) = member.filter(|member| member.enrolled_at == verdict.enrolled_at) {
                member.proved = Some(verdict.address);
                member.address = member.address.and(member.proved);
            }
        }
    }

    /// Another gateway asks it now.
    pub(super) fn leave(&mut self, device: DeviceId) {
        if let Some(member) = self.members.get_mut(&device) {
            member.address = None;
        }
    }

    /// The provers of a group that can prove something in a period, and by which enrolment: without a reference value there are none.
    pub(super) fn of_group(&self, group: u32, period: Period) -> Vec<Queued> {
        let of_group = self.members.iter().filter(|(_, member)| member.group == group);
        let provable = of_group.filter_map(|(device, member)| Some((device, member.key(period)?)));
        provable
            .map(|(device, key)| Queued {
                device: *device,
                enrolled_at: key.enrolled_at,
            })
            .collect()
    }

    /// What a prover is asked and where, if `session` is what it is asked in the session that it has here; `None`: there is no way to
    /// it from here, or nothing that it could prove, or it has been enrolled anew since the round began, and might have proven
    /// something in it by its old key. `is_last` is the last time in this
    /// round: under the request key, for a device may have lost the session that is here, or have one elsewhere that this gateway
    /// has not heard of.
    pub(super) fn request(
        &mut self,
        session: Option<(IpAddr, AttestRequest)>,
        asked: Queued,
        round: &Round,
        is_last: bool,
    ) -> Option<Way> {
        let device = asked.device;
        let member = self.members.get_mut(&device)?;
        if member.enrolled_at != asked.enrolled_at {
            return None;
        }
        member.address = session.map(|(address, _)| address).or(member.address);
        let key = member.key(round.start.period)?;
        let (address, request) = match session.filter(|_| !is_last) {
            Some(in_session) => in_session,
            None => {
                let address = member.without_session(is_last)?;
                (address, round.request_without_session(device, &key.request))
            }
        };
        Some(Way {
            to: SocketAddr::new(address, member.port),
            request,
            is_excused: member.is_excused(address),
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may")]
mod tests {
    use linewarden_protocol::attest::AttestationKey;
    use linewarden_protocol::gateway::Configuration;
    use linewarden_protocol::ids::GatewayId;
    use linewarden_registry::GroupName;

    use super::*;

    const DEVICE: DeviceId = DeviceId(1);
    const HOME: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const ELSEWHERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(255, 255, 255, 255));

    fn members(is_answering: bool) -> Members {
        let key = AttestationKey::from_bytes([1; 32]);
        let provision = ProverProvision {
            device: DEVICE,
            group: GroupName::new("pumps").unwrap(),
            enrolled_at: EnrolledAt(1),
            port: 9,
            keys: None,
            request_key: key.for_requests(DEVICE, GatewayId(1), Period(1)),
            address: Some(HOME),
            is_answering,
        };
        let mut members = Members::default();
        members.admit(0, provision, Period(1));
        members
    }

    fn is_excused(members: &Members, address: IpAddr) -> bool {
        members.members.get(&DEVICE).unwrap().is_excused(address)
    }

    fn verdict(seen: Seen) -> Verdict {
        Verdict {
            device: DEVICE,
            enrolled_at: EnrolledAt(1),
            seen,
            address: ELSEWHERE,
        }
    }

    /// A device that must not be asked any more could open its sessions at an address to which nothing can be sent.
    #[test]
    fn a_device_is_not_excused_where_it_has_proven_nothing() {
        let mut members = members(true);
        assert!(is_excused(&members, HOME));
        assert!(!is_excused(&members, ELSEWHERE));
        members.keep_proved(&[verdict(Seen::Silent)]);
        assert!(!is_excused(&members, ELSEWHERE));
        members.keep_proved(&[verdict(Seen::Ok(Configuration::Current))]);
        assert!(is_excused(&members, ELSEWHERE));
    }

    /// As when somebody has caught its RESPONSE and sent it from an address of his own.
    #[test]
    fn who_is_silent_where_its_session_was_is_asked_where_it_has_proven_something() {
        let mut members = members(true);
        let mut asked_at = |change: fn(&mut Member)| {
            let member = members.members.get_mut(&DEVICE).unwrap();
            change(member);
            [false, true].map(|is_last| member.without_session(is_last))
        };
        let (home, elsewhere) = (Some(HOME), Some(ELSEWHERE));
        assert_eq!(asked_at(|_| ()), [home; 2]);
        let both = asked_at(|member| member.address = Some(ELSEWHERE));
        assert_eq!(both, [elsewhere, home]);
        let nowhere = asked_at(|member| member.address = None);
        assert_eq!(nowhere, [None; 2], "another gateway asks it");
        let member = members.members.get_mut(&DEVICE).unwrap();
        member.address = elsewhere;
        let proven = Verdict {
            address: HOME,
            ..verdict(Seen::Ok(Configuration::Current))
        };
        members.keep_proved(&[proven]);
        assert_eq!(members.members.get(&DEVICE).unwrap().address, home);
    }

    #[test]
    fn one_that_was_moved_is_asked_where_it_is_now() {
        let mut members = members(true);
        let key = AttestationKey::from_bytes([1; 32]);
        let mut provision = ProverProvision {
            device: DEVICE,
            group: GroupName::new("pumps").unwrap(),
            enrolled_at: EnrolledAt(1),
            port: 9,
            keys: None,
            request_key: key.for_requests(DEVICE, GatewayId(1), Period(2)),
            address: Some(ELSEWHERE),
            is_answering: false,
        };
        members.admit(0, provision.clone(), Period(2));
        let address = |members: &Members| members.members.get(&DEVICE).unwrap().address;
        assert_eq!(address(&members), Some(HOME), "the same enrolment, seen here");
        provision.enrolled_at = EnrolledAt(2);
        members.admit(0, provision, Period(2));
        assert_eq!(address(&members), Some(ELSEWHERE));
        assert!(!is_excused(&members, HOME));
    }

    #[test]
    fn where_it_was_silent_before_the_gateway_started_it_has_proven_nothing() {
        assert!(!is_excused(&members(false), HOME));
    }
}
