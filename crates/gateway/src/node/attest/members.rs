//! The provers of this gateway: their keys in the data plane, and how they are challenged.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use linewarden_dataplane::{ProverError, ProverSet};
use linewarden_protocol::attest::{PeriodStart, RequestKey, Round};
use linewarden_protocol::ids::{DeviceId, Period};
use linewarden_protocol::wire::AttestRequest;
use linewarden_types::{EnrollmentTime, Plan, ProofOutcome, ProverObservation, ProverProvision, Provers};

use super::schedule::Schedule;

/// Number of periods with keys: one period with an even and one with an odd number, as in the data plane.
const PARITIES: usize = 2;

/// A prover of this gateway.
#[derive(Debug)]
struct Member {
    group: u32,
    enrolled_at: EnrollmentTime,
    port: u16,
    /// The address of challenges without a session: the last known address, or the address at enrollment. `None` if no
    /// address is known, or if another gateway challenges the prover.
    address: Option<IpAddr>,
    /// The address from which the prover has sent a proof: the address is reachable, not invented.
    proven_address: Option<IpAddr>,
    keys: [Option<PeriodKey>; PARITIES],
}

/// The request key of a period, for challenges without a session.
#[derive(Debug)]
struct PeriodKey {
    period: Period,
    /// The enrollment of this key and of the data plane's key of this period. The key of the other period may be of
    /// an earlier enrollment.
    enrolled_at: EnrollmentTime,
    request: RequestKey,
}

/// A challenge to a prover.
#[derive(Debug)]
pub(super) struct ProverRequest {
    pub(super) to: SocketAddr,
    pub(super) request: AttestRequest,
    /// Whether the device does not count as missed if nothing can be sent to the address. A device can choose any
    /// address for its sessions, but an address from which it has sent a proof is reachable.
    pub(super) is_excused: bool,
}

/// Progress of loading a period's keys.
#[derive(Clone, Copy, Debug)]
struct LoadedKeys {
    start: PeriodStart,
    /// The revision of provers and groups that was loaded.
    upto: u64,
    /// The revision that is loaded after the last part of the current request.
    requested_upto: u64,
    /// Digest of the reference values from which the keys were derived.
    reference_digest: u64,
}

/// All provers of this gateway, and the progress of loading their keys.
#[derive(Debug, Default)]
pub(super) struct Members {
    members: HashMap<DeviceId, Member>,
    loaded: [Option<LoadedKeys>; PARITIES],
    /// Provers for which the data plane has no room.
    without_room: HashSet<DeviceId>,
    /// Number of provers without room in the last log message.
    without_room_logged: usize,
}

fn parity(period: Period) -> usize {
    usize::from(period.0 & 1 == 1)
}

/// A prover that is to be challenged in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueuedProver {
    pub(super) device: DeviceId,
    /// The prover's enrollment at the start of the round.
    pub(super) enrolled_at: EnrollmentTime,
}

impl Member {
    fn key(&self, period: Period) -> Option<&PeriodKey> {
        let key = self.keys.get(parity(period)).and_then(Option::as_ref);
        key.filter(|key| key.period == period)
    }

    /// Whether the device does not count as missed if nothing can be sent to this address: only if it has sent a proof
    /// from this address. The device may have chosen any other address, even in an expired session.
    fn is_excused(&self, address: IpAddr) -> bool {
        self.proven_address == Some(address)
    }

    /// Returns the address of a challenge without a session: the last known address. For the last challenge of a round
    /// (`is_last`), returns the address from which the device has sent a proof, if any. An attacker who replays a
    /// RESPONSE from another address determines the session's address; a device that is challenged only at that address
    /// could never send a proof again.
    fn address_without_session(&self, is_last: bool) -> Option<IpAddr> {
        let last_known = self.address?;
        let proven = self.proven_address.filter(|_| is_last);
        Some(proven.unwrap_or(last_known))
    }
}

impl Members {
    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether all keys of a period are loaded, at the plan's revision and reference values.
    pub(super) fn has_keys(&self, start: &PeriodStart, plan: &Plan) -> bool {
        let loaded = self.loaded.get(parity(start.period)).and_then(Option::as_ref);
        loaded.is_some_and(|loaded| {
            loaded.start == *start
                && loaded.reference_digest == plan.reference_digest
                && loaded.upto >= plan.revision
        })
    }

    /// Returns a period whose keys must be requested, and the revision up to which these keys are loaded. Records the
    /// request. `None` if all keys are loaded. The keys of `periods_in_use` must not be replaced.
    pub(super) fn keys_to_request(
        &mut self,
        plan: &Plan,
        periods_in_use: &[Period],
    ) -> Option<(PeriodStart, u64)> {
        let reference_digest = plan.reference_digest;
        for start in [plan.running, plan.next] {
            let is_conflicting = periods_in_use
                .iter()
                .any(|period| *period != start.period && parity(*period) == parity(start.period));
            if is_conflicting {
                continue;
            }
            let unloaded = LoadedKeys {
                start,
                upto: 0,
                requested_upto: 0,
                reference_digest,
            };
            let Some(entry) = self.loaded.get_mut(parity(start.period)) else {
                continue;
            };
            let loaded = entry.get_or_insert(unloaded);
            if loaded.start != start {
                *loaded = unloaded;
            }
            // With other reference values, all keys are requested again.
            if loaded.reference_digest != reference_digest {
                *loaded = LoadedKeys {
                    reference_digest,
                    upto: 0,
                    ..*loaded
                };
            }
            if loaded.upto < plan.revision {
                loaded.requested_upto = plan.revision;
                return Some((start, loaded.upto));
            }
        }
        None
    }

    /// Adds a part of the provers; returns for how many provers in total the data plane has no room.
    pub(super) fn accept(
        &mut self,
        provers: Provers,
        prover_set: &mut dyn ProverSet,
        schedule: &Schedule,
    ) -> u64 {
        let parity_index = parity(provers.start.period);
        let expected = self.loaded.get_mut(parity_index).and_then(Option::as_mut);
        // Keys of reference values that differ from the plan's are ignored; the next plan causes another request.
        let is_expected = |loaded: &&mut LoadedKeys| {
            (loaded.start, loaded.reference_digest) == (provers.start, provers.reference_digest)
        };
        let Some(loaded) = expected.filter(is_expected) else {
            return self.without_room.len() as u64;
        };
        // A change of a group changes no prover record, so the last part may end at an earlier revision.
        loaded.upto = match provers.has_more {
            true => provers.up_to_revision,
            false => provers.up_to_revision.max(loaded.requested_upto),
        };
        for device in provers.removed {
            self.members.remove(&device);
            self.without_room.remove(&device);
            prover_set.wipe(device);
        }
        for provision in provers.provisions {
            let device = provision.device;
            let Some(group) = schedule.id(&provision.group) else {
                continue;
            };
            let result = match &provision.keys {
                Some(keys) => prover_set.install(device, provers.start.period, keys),
                // Without a reference value no proof is valid, not even with an older key.
                None => {
                    prover_set.wipe(device);
                    Ok(())
                }
            };
            if let Err(ProverError::SwitchFailed) = result {
                // The data plane has ended; the error does not mean a lack of room.
                break;
            }
            if let Err(error) = result {
                tracing::debug!(%error, device_id = %device, "data plane has no room for the key of a device");
                self.without_room.insert(device);
                continue;
            }
            self.without_room.remove(&device);
            self.insert(group, provision, provers.start.period);
        }
        // If the commit fails, the data plane has ended.
        if let Err(error) = prover_set.commit() {
            tracing::error!(%error, action = "restart the gateway", "activating attestation keys in the data plane failed");
        }
        if !provers.has_more {
            self.log_without_room();
        }
        self.without_room.len() as u64
    }

    /// Logs the provers without room in one message, and again when their number changes.
    fn log_without_room(&mut self) {
        let devices = self.without_room.len();
        if devices > 0 && devices != self.without_room_logged {
            tracing::error!(
                count = devices,
                action = "raise [attest] provers, and restart the gateway",
                "data plane has no room for the attestation keys of some devices; these devices are not attested"
            );
        }
        self.without_room_logged = devices;
    }

    fn insert(&mut self, group: u32, provision: ProverProvision, period: Period) {
        let member = self.members.entry(provision.device).or_insert(Member {
            group,
            enrolled_at: provision.enrolled_at,
            port: provision.port,
            address: None,
            proven_address: None,
            keys: [None, None],
        });
        member.group = group;
        member.port = provision.port;
        if member.enrolled_at != provision.enrolled_at {
            member.enrolled_at = provision.enrolled_at;
            (member.address, member.proven_address) = (None, None);
        }
        // An address that this gateway has seen is newer than the registry's address.
        member.address = member.address.or(provision.address);
        let proven = provision.address.filter(|_| provision.is_responsive);
        member.proven_address = member.proven_address.or(proven);
        if let Some(key) = member.keys.get_mut(parity(period)) {
            *key = provision.keys.is_some().then_some(PeriodKey {
                period,
                enrolled_at: provision.enrolled_at,
                request: provision.request_key,
            });
        }
    }

    /// Records the addresses from which provers have sent proofs.
    pub(super) fn record_proofs(&mut self, observations: &[ProverObservation]) {
        for observation in observations
            .iter()
            .filter(|observation| observation.outcome != ProofOutcome::Missed)
        {
            let member = self.members.get_mut(&observation.device);
            if let Some(member) = member.filter(|member| member.enrolled_at == observation.enrolled_at) {
                member.proven_address = Some(observation.address);
                member.address = member.address.and(member.proven_address);
            }
        }
    }

    /// Discards the address of a prover that another gateway challenges now.
    pub(super) fn forget_address(&mut self, device: DeviceId) {
        if let Some(member) = self.members.get_mut(&device) {
            member.address = None;
        }
    }

    /// Returns the provers of a group with a key of the period, and their enrollments. Without a reference
    /// value, no prover has a key.
    pub(super) fn of_group(&self, group: u32, period: Period) -> Vec<QueuedProver> {
        let of_group = self.members.iter().filter(|(_, member)| member.group == group);
        let provable = of_group.filter_map(|(device, member)| Some((device, member.key(period)?)));
        provable
            .map(|(device, key)| QueuedProver {
                device: *device,
                enrolled_at: key.enrolled_at,
            })
            .collect()
    }

    /// Returns the challenge to a prover. `session` is the challenge in the prover's session at this gateway, if any.
    /// `None` if there is no address or key, or if the prover was enrolled again during the round and could prove
    /// with its old key. The last challenge of a round (`is_last`) uses the request key, because the device may have
    /// lost the session, or have one at another gateway.
    pub(super) fn request(
        &mut self,
        session: Option<(IpAddr, AttestRequest)>,
        queued: QueuedProver,
        round: &Round,
        is_last: bool,
    ) -> Option<ProverRequest> {
        let device = queued.device;
        let member = self.members.get_mut(&device)?;
        if member.enrolled_at != queued.enrolled_at {
            return None;
        }
        member.address = session.map(|(address, _)| address).or(member.address);
        let key = member.key(round.start.period)?;
        let (address, request) = match session.filter(|_| !is_last) {
            Some(in_session) => in_session,
            None => {
                let address = member.address_without_session(is_last)?;
                (address, round.request_without_session(device, &key.request))
            }
        };
        Some(ProverRequest {
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
    use linewarden_types::GroupName;

    use super::*;

    const DEVICE: DeviceId = DeviceId(1);
    const FIRST_ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const OTHER_ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(255, 255, 255, 255));

    fn members(is_responsive: bool) -> Members {
        let key = AttestationKey::from_bytes([1; 32]);
        let provision = ProverProvision {
            device: DEVICE,
            group: GroupName::new("pumps").unwrap(),
            enrolled_at: EnrollmentTime(1),
            port: 9,
            keys: None,
            request_key: key.for_requests(DEVICE, GatewayId(1), Period(1)),
            address: Some(FIRST_ADDRESS),
            is_responsive,
        };
        let mut members = Members::default();
        members.insert(0, provision, Period(1));
        members
    }

    fn is_excused(members: &Members, address: IpAddr) -> bool {
        members.members.get(&DEVICE).unwrap().is_excused(address)
    }

    fn observation(outcome: ProofOutcome) -> ProverObservation {
        ProverObservation {
            device: DEVICE,
            enrolled_at: EnrollmentTime(1),
            outcome,
            address: OTHER_ADDRESS,
        }
    }

    /// A device could avoid challenges by opening its sessions at an unreachable address.
    #[test]
    fn a_device_is_not_excused_at_an_address_without_a_proof() {
        let mut members = members(true);
        assert!(is_excused(&members, FIRST_ADDRESS));
        assert!(!is_excused(&members, OTHER_ADDRESS));
        members.record_proofs(&[observation(ProofOutcome::Missed)]);
        assert!(!is_excused(&members, OTHER_ADDRESS));
        members.record_proofs(&[observation(ProofOutcome::Ok(Configuration::Current))]);
        assert!(is_excused(&members, OTHER_ADDRESS));
    }

    /// An attacker changes the session address by a replay of the RESPONSE from another address.
    #[test]
    fn a_prover_without_proof_at_its_session_address_is_challenged_at_its_proven_address() {
        let mut members = members(true);
        let mut challenged_at = |change: fn(&mut Member)| {
            let member = members.members.get_mut(&DEVICE).unwrap();
            change(member);
            [false, true].map(|is_last| member.address_without_session(is_last))
        };
        let (first_address, other_address) = (Some(FIRST_ADDRESS), Some(OTHER_ADDRESS));
        assert_eq!(challenged_at(|_| ()), [first_address; 2]);
        let addresses = challenged_at(|member| member.address = Some(OTHER_ADDRESS));
        assert_eq!(addresses, [other_address, first_address]);
        let unknown_address = challenged_at(|member| member.address = None);
        assert_eq!(
            unknown_address, [None; 2],
            "another gateway challenges the prover"
        );
        let member = members.members.get_mut(&DEVICE).unwrap();
        member.address = other_address;
        let proven = ProverObservation {
            address: FIRST_ADDRESS,
            ..observation(ProofOutcome::Ok(Configuration::Current))
        };
        members.record_proofs(&[proven]);
        assert_eq!(members.members.get(&DEVICE).unwrap().address, first_address);
    }

    #[test]
    fn a_moved_prover_is_challenged_at_its_new_address() {
        let mut members = members(true);
        let key = AttestationKey::from_bytes([1; 32]);
        let mut provision = ProverProvision {
            device: DEVICE,
            group: GroupName::new("pumps").unwrap(),
            enrolled_at: EnrollmentTime(1),
            port: 9,
            keys: None,
            request_key: key.for_requests(DEVICE, GatewayId(1), Period(2)),
            address: Some(OTHER_ADDRESS),
            is_responsive: false,
        };
        members.insert(0, provision.clone(), Period(2));
        let address = |members: &Members| members.members.get(&DEVICE).unwrap().address;
        assert_eq!(
            address(&members),
            Some(FIRST_ADDRESS),
            "the same enrollment, seen here"
        );
        provision.enrolled_at = EnrollmentTime(2);
        members.insert(0, provision, Period(2));
        assert_eq!(address(&members), Some(OTHER_ADDRESS));
        assert!(!is_excused(&members, FIRST_ADDRESS));
    }

    #[test]
    fn address_is_not_proven_if_the_prover_was_not_responsive() {
        assert!(!is_excused(&members(false), FIRST_ADDRESS));
    }
}
