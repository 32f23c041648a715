//! Allowed and current configurations of devices, and the controller's verifier.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use linewarden_controller::Link;
use linewarden_controller::attest::Verifier;
use linewarden_measurement::HashAlgorithm;
use linewarden_measurement::configuration::Configuration;
use linewarden_measurement::files::{ContentHash, FileEntry, FilePath, Mode as FileMode};
use linewarden_measurement::pcr::PcrValues;
use linewarden_protocol::attest::ConfigurationHash;
use linewarden_protocol::frame::ip_from_bytes;
use linewarden_protocol::ids::{DeviceId, GatewayId, Period};
use linewarden_protocol::wire::{ATTEST_PORT, PROOF_BYTES};
use linewarden_registry::{
    DeviceError, NewGroup, NewProver, Protection, ProverLocation, Registry, RegistryError, RollOut,
};
use linewarden_types::{
    AppraiseRound, ControllerRequest, ControllerResponse, GetPlan, GroupName, GroupPolicy, ListProvers,
    ReleaseMode, RoundAppraisal,
};
use rand::{Rng, RngExt as _};

use super::controller::link_error;
use super::rounds::RoundRecords;
use super::{GATEWAYS, Mechanism, Simulation};
use crate::prover::SimulatedProver;
use crate::simulated_device::SimulatedDevice;

/// Maximum number of provers in a data plane. A prover never leaves a data plane.
pub(super) const PROVERS: u32 = 16;
/// Duration of a period.
pub(super) const PERIOD_S: u32 = 3;
/// Interval of rounds.
pub(super) const EVERY_S: u32 = 1;
/// Maximum time of a device to respond to a challenge.
pub(super) const PROOF_TIMEOUT_MS: u32 = 300;
/// The file content of a changed device.
const CHANGED: u8 = 0xff;

/// The configuration with that file content.
pub(super) fn configuration(content: u8) -> Configuration {
    let entry = FileEntry::File {
        mode: FileMode::new(0o755).unwrap(),
        content: ContentHash([content; 32]),
    };
    let files = BTreeMap::from([(FilePath::new(b"/usr/bin/sensord").unwrap(), entry)]);
    Configuration::new(PcrValues::new(HashAlgorithm::Sha256), files).unwrap()
}

pub(super) fn hash(content: u8) -> ConfigurationHash {
    ConfigurationHash(configuration(content).hash().0)
}

/// Allowed configurations of the group, as in the registry.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Reference {
    base: u8,
    /// The configuration that is rolled out, and the end of the roll-out by the controller's clock in s.
    rolled_out: Option<(u8, u64)>,
}

impl Reference {
    fn accepts(self, wall_s: u64) -> BTreeSet<u8> {
        let rolled_out = self.rolled_out.filter(|(_, until_s)| wall_s < *until_s);
        let rolled_out = rolled_out.map(|(content, _)| content);
        rolled_out.into_iter().chain([self.base]).collect()
    }
}

/// From `from_ms` on: configurations that may be accepted, and configurations that must be accepted. The two sets
/// differ between a command and its confirmation.
struct AcceptedConfigurations {
    from_ms: u64,
    may: BTreeSet<u8>,
    must: BTreeSet<u8>,
}

pub(super) struct Fleet {
    pub(super) policy: GroupPolicy,
    reference: Reference,
    /// A command of the operator without a confirmation.
    pending_reference: Option<Reference>,
    accepted: Vec<AcceptedConfigurations>,
    /// Devices whose release the controller has not confirmed.
    releases_pending: Vec<DeviceId>,
    pub(super) rounds: RoundRecords,
    /// PROOFs and challenges that an eavesdropper has recorded.
    pub(super) proofs: Vec<[u8; PROOF_BYTES]>,
    pub(super) requests: Vec<[u8; 64]>,
}

fn name() -> GroupName {
    GroupName::new("sensors").unwrap()
}

impl Fleet {
    pub(super) fn new(rng: &mut impl Rng) -> Self {
        let release_mode = match rng.random_ratio(3, 4) {
            true => ReleaseMode::Automatic,
            false => ReleaseMode::Manual,
        };
        Self {
            policy: GroupPolicy {
                every_s: EVERY_S,
                jitter_s: 0,
                proof_timeout_ms: PROOF_TIMEOUT_MS,
                missed_limit: 2,
                window_rounds: 3,
                late_is_missed: rng.random_ratio(1, 4),
                release_mode,
            },
            reference: Reference {
                base: 1,
                rolled_out: None,
            },
            pending_reference: None,
            accepted: Vec::new(),
            releases_pending: Vec::new(),
            rounds: RoundRecords::default(),
            proofs: Vec::new(),
            requests: Vec::new(),
        }
    }

    /// The base configuration, which is always allowed.
    pub(super) fn base(&self) -> ConfigurationHash {
        hash(self.reference.base)
    }

    /// The first configuration of every device.
    pub(super) fn initial_configuration() -> ConfigurationHash {
        hash(1)
    }

    fn group(&self, reference: Reference) -> NewGroup {
        NewGroup {
            name: name(),
            policy: self.policy,
            reference: Some(configuration(reference.base).encode()),
            roll_out: reference.rolled_out.map(|(content, until_s)| RollOut {
                reference: configuration(content).encode(),
                until_s,
            }),
        }
    }

    /// Enrolls all devices as provers.
    pub(super) async fn enroll(&self, registry: &Registry, devices: &[SimulatedDevice], rng: &mut impl Rng) {
        registry.set_group(&self.group(self.reference), 0).await.unwrap();
        for simulated in devices {
            let address: IpAddr = ip_from_bytes(simulated.address());
            let prover = NewProver {
                device: simulated.id,
                group: name(),
                key: SimulatedProver::key(simulated.id),
                protection: Protection::Software,
                binding: None,
                overlay: None,
                location: Some(ProverLocation {
                    gateway: GatewayId(rng.random_range(0..GATEWAYS) as u32 + 1),
                    address,
                }),
                port: ATTEST_PORT,
                enrolled_period: Period(0),
            };
            registry.enroll_prover(prover, 0).await.unwrap();
        }
    }

    /// Records the configurations that are accepted from now on.
    fn record_accepted(&mut self, now_ms: u64, wall_s: u64) {
        let confirmed = self.reference.accepts(wall_s);
        let pending = self.pending_reference.map(|pending| pending.accepts(wall_s));
        let pending = pending.unwrap_or_else(|| confirmed.clone());
        let accepted = AcceptedConfigurations {
            from_ms: now_ms,
            may: confirmed.union(&pending).copied().collect(),
            must: confirmed.intersection(&pending).copied().collect(),
        };
        let is_known = |last: &AcceptedConfigurations| last.may == accepted.may && last.must == accepted.must;
        if !self.accepted.last().is_some_and(is_known) {
            self.accepted.push(accepted);
        }
    }

    /// Configurations that were accepted at `from_ms` or later.
    fn since(&self, from_ms: u64) -> impl Iterator<Item = &AcceptedConfigurations> {
        let first = self
            .accepted
            .iter()
            .rposition(|accepted| accepted.from_ms <= from_ms);
        self.accepted.iter().skip(first.unwrap_or(0))
    }

    /// Whether h may have been accepted at `from_ms` or at some later time.
    pub(super) fn may_accept(&self, h: &ConfigurationHash, from_ms: u64) -> bool {
        self.since(from_ms)
            .flat_map(|accepted| &accepted.may)
            .any(|content| hash(*content) == *h)
    }

    /// Whether h was accepted at `from_ms` and at every later time.
    pub(super) fn must_accept(&self, h: &ConfigurationHash, from_ms: u64) -> bool {
        self.since(from_ms)
            .all(|accepted| accepted.must.iter().any(|content| hash(*content) == *h))
    }
}

impl Simulation {
    /// Does the operator's part of a step.
    pub(super) fn administer(&mut self) {
        let (now_ms, wall_s) = (self.now_ms, self.wall_s());
        self.fleet.record_accepted(now_ms, wall_s);
        if !self.controller_host.is_open {
            return;
        }
        let registry = self.controller_host.registry();
        if let Some(pending) = self.fleet.pending_reference {
            let group = self.fleet.group(pending);
            if self.runtime.block_on(registry.set_group(&group, wall_s)).is_ok() {
                self.fleet.reference = pending;
                self.fleet.pending_reference = None;
                self.fleet.record_accepted(now_ms, wall_s);
            }
        }
        let releases = std::mem::take(&mut self.fleet.releases_pending);
        for device in releases {
            match self.release_now(device) {
                Ok(()) | Err(RegistryError::Device(DeviceError::Revoked { .. })) => {
                    self.fleet.rounds.record_release(device)
                }
                Err(_) => self.fleet.releases_pending.push(device),
            }
        }
    }

    /// Releases a device if it is in quarantine. Otherwise the registry would roll back a transaction without changes in the
    /// background, at a time that the seed does not determine.
    fn release_now(&self, device: DeviceId) -> Result<(), RegistryError> {
        let registry = self.controller_host.registry();
        let info = self.runtime.block_on(registry.get(device))?;
        if info.quarantine.is_some() {
            self.runtime.block_on(registry.release(device))?;
        }
        Ok(())
    }

    /// Releases a device, as soon as the controller responds.
    pub(super) fn release(&mut self, device: DeviceId) {
        self.fleet.rounds.record_release(device);
        self.fleet.releases_pending.push(device);
    }

    /// Changes a device, or the allowed configurations.
    pub(super) fn change_device(&mut self) {
        if !self.rng.random_ratio(1, 60) {
            return;
        }
        let device_index = self.rng.random_range(0..self.devices.len());
        let Reference { base, rolled_out } = self.fleet.reference;
        match self.rng.random_range(0..8) {
            0 | 1 => self.tamper(device_index),
            2 | 3 => self.remediate(device_index),
            4 if rolled_out.is_none() => {
                let until_s = self.wall_s().saturating_add(self.rng.random_range(1..8));
                self.request_reference(base, Some((base + 1, until_s)));
            }
            4 | 5 => {
                if let Some((content, _)) = rolled_out {
                    self.fleet_tally.updated += 1;
                    self.set_content(device_index, content);
                }
            }
            6 => {
                if let Some((content, _)) = rolled_out {
                    let is_kept = self.rng.random_ratio(1, 2);
                    self.request_reference(if is_kept { content } else { base }, None);
                }
            }
            _ => {
                let device = self.devices[device_index].id;
                self.release(device);
            }
        }
    }

    fn request_reference(&mut self, base: u8, rolled_out: Option<(u8, u64)>) {
        if self.fleet.pending_reference.is_none() {
            self.fleet_tally.reference_changes += 1;
            self.fleet.pending_reference = Some(Reference { base, rolled_out });
            self.fleet.record_accepted(self.now_ms, self.wall_s());
        }
    }

    /// Changes a device's content.
    pub(super) fn tamper(&mut self, device_index: usize) {
        self.fleet_tally.tampered += 1;
        self.set_content(device_index, CHANGED);
    }

    /// Restores a device's allowed content.
    pub(super) fn remediate(&mut self, device_index: usize) {
        self.fleet_tally.remediated += 1;
        self.set_content(device_index, self.fleet.reference.base);
    }

    /// Changes the content of a device. Some devices restart and measure the change at once; other devices measure the
    /// change in the next period.
    fn set_content(&mut self, device_index: usize, content: u8) {
        let is_restarted = self.is_calm || self.rng.random_ratio(1, 2);
        let prover = &mut self.devices[device_index].prover;
        prover.configuration = hash(content);
        if is_restarted {
            prover.boot();
        }
    }

    /// Ends the roll-out, and restores all devices.
    pub(super) fn remediate_all(&mut self) {
        if let Some(pending) = self.fleet.pending_reference {
            self.fleet.reference = pending;
        }
        let base = self.fleet.reference.base;
        self.fleet.pending_reference = Some(Reference {
            base,
            rolled_out: None,
        });
        self.administer();
        for device_index in 0..self.devices.len() {
            self.remediate(device_index);
        }
    }

    /// Serves a request to the verifier.
    pub(super) fn attest(
        &mut self,
        process_index: usize,
        link: &Link,
        request: ControllerRequest,
    ) -> ControllerResponse {
        let mut request = request;
        if let ControllerRequest::AppraiseRound(AppraiseRound { round, .. }) = &mut request {
            // The node's order comes from a hash table, and differs in each run.
            round
                .observations
                .sort_unstable_by_key(|observation| observation.device);
            if self.without == Some(Mechanism::MissedProof) {
                self.fleet
                    .rounds
                    .mark_missed(self.processes[process_index].id(), round);
            }
            self.check_outcome(process_index, round);
        }
        if self.processes[process_index].verifier.is_none() {
            match self.runtime.block_on(Verifier::open(link.clone())) {
                Ok(verifier) => self.processes[process_index].verifier = Some(verifier),
                Err(error) => return request.kind().failed(link_error(error)),
            }
        }
        let wall_s = self.wall_s();
        let process = &mut self.processes[process_index];
        let Some(verifier) = &mut process.verifier else {
            unreachable!()
        };
        verifier.set_link(link.clone());
        match request {
            ControllerRequest::GetPlan(GetPlan(plan_request)) => {
                process.planned_ms[0] = self.now_ms;
                let rng = &mut self.rng;
                let plan = self
                    .runtime
                    .block_on(verifier.plan(plan_request, wall_s, &mut || Some(rng.random())));
                ControllerResponse::GetPlan(plan.map_err(link_error))
            }
            ControllerRequest::ListProvers(ListProvers { start, since }) => {
                let mut provers = self.runtime.block_on(verifier.provers(start, since));
                if self.without == Some(Mechanism::Reference) {
                    let provisions = provers.iter_mut().flat_map(|provers| &mut provers.provisions);
                    for provision in provisions {
                        let (device, gateway) = (provision.device, process.id());
                        let k2 = SimulatedProver::key(device).for_period(device, &start, &hash(CHANGED));
                        if let Some(keys) = &mut provision.keys {
                            keys.alternate = Some(k2.for_gateway(gateway));
                        }
                    }
                }
                ControllerResponse::ListProvers(provers.map_err(link_error))
            }
            ControllerRequest::AppraiseRound(_) if self.without == Some(Mechanism::Decision) => {
                ControllerResponse::AppraiseRound(Ok(RoundAppraisal::default()))
            }
            ControllerRequest::AppraiseRound(AppraiseRound {
                mut round,
                age_ns,
                at_ns,
            }) => {
                if self.without == Some(Mechanism::Release) {
                    let rounds = &self.fleet.rounds;
                    round.observations.retain(|observation| {
                        !rounds.quarantined().any(|device| device == observation.device)
                    });
                }
                let boot_ns = process.clock.clock(self.now_ms).boot_ns;
                let age_s = (age_ns + (boot_ns - at_ns)) / 1_000_000_000;
                let ended_s = match self.without {
                    Some(Mechanism::RoundAge) => wall_s.saturating_add(self.fleet.policy.validity_s()),
                    _ => wall_s.saturating_sub(age_s),
                };
                let appraisal = self
                    .runtime
                    .block_on(verifier.appraise_round(&round, ended_s, wall_s));
                match &appraisal {
                    Ok(appraisal) => self.check_decisions(process_index, &round, appraisal),
                    Err(_) => self.fleet.rounds.forget_uncertain(&round),
                }
                ControllerResponse::AppraiseRound(appraisal.map_err(link_error))
            }
            request => unreachable!("{request:?}"),
        }
    }
}
