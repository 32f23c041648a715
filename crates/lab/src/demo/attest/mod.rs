//! Attestation in the demonstration: some devices prove their configuration in every round. One device is changed on disk,
//! detected, quarantined, remediated and released, while an attacker sends forged PROOFs in the name of every device.
//!
//! The steps are the same on every network; a [`ProverEnvironment`] runs the devices and lets one device try to get
//! access. The results come from the registry's rounds and appraisals and from the gateway's counters.

mod software;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use linewarden_dataplane::Counters;
use linewarden_measurement::files::FilePath;
use linewarden_protocol::attest::AttestationKey;
use linewarden_protocol::ids::{DeviceId, Period};
use linewarden_protocol::verdict::Verdict;
use linewarden_registry::{
    AttestationState, NewGroup, NewProver, Protection, ProverLocation as ProverHome, RoundRecord,
};
use linewarden_types::{GroupName, GroupPolicy};

use self::software::Software;
use super::gateway::{DemoGateway, GATEWAY_ID};
use super::participants::now_s;
use super::registry_store::RegistryStore;
use super::report::{AttackOutcome, AttestationReport};
use super::{DemoError, InjectedFault, Options, RunControl};
use crate::attackers::{FORGED_PROOFS, ForgedProofCounts};
use crate::fleet::{Attester, device_id};

/// Length of a key period, seconds: a change is detected in the next period.
pub(super) const PERIOD_S: u32 = 2;
/// Complete rounds that are required before a device is changed.
const COMPLETE_ROUNDS_MIN: u64 = 3;
/// Timeout of each step.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of rounds that are read from the registry.
const ROUNDS_MAX: u32 = 1_000;

/// One round per second; two missed rounds of three quarantine a device.
fn policy() -> GroupPolicy {
    GroupPolicy {
        every_s: 1,
        jitter_s: 0,
        proof_timeout_ms: 800,
        missed_limit: 2,
        window_rounds: 3,
        ..GroupPolicy::default()
    }
}

/// A device that is attested.
pub(super) struct ProverDevice {
    pub(super) index: u32,
    pub(super) attester: Attester,
    address: IpAddr,
    port: u16,
    key: AttestationKey,
    period: Period,
    software: Software,
}

/// The result of a device's attempt to access the service.
pub(super) struct AccessAttempt {
    /// The device got a session.
    pub(super) session: bool,
    /// Datagrams of the device that reached the service; `None` without a gate.
    pub(super) delivered: Option<u64>,
}

/// Whether the device is expected to get access.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ExpectedAccess {
    Denied,
    Granted,
}

/// Runs the provers.
pub(super) trait ProverEnvironment {
    /// Runs the provers until `is_reached` returns true (checked ten times a second) or `limit` has passed. Returns the
    /// last value of `is_reached`.
    fn run_until(&mut self, limit: Duration, is_reached: &mut dyn FnMut() -> bool)
    -> Result<bool, DemoError>;

    /// Lets a device try to get a session and, if there is a gate, to send datagrams to the service. If access is expected
    /// to be denied, the datagrams come first, under the session that the device still has; else the session comes first.
    fn attempt_access(&mut self, index: u32, expected: ExpectedAccess) -> Result<AccessAttempt, DemoError>;
}

/// Installs the software of devices and draws their keys. `devices` contains the index, and the address and UDP port of
/// the requests.
pub(super) fn install_provers(
    store: &RegistryStore,
    devices: impl Iterator<Item = (u32, IpAddr, u16)>,
) -> Result<Vec<ProverDevice>, DemoError> {
    let period = store.block_on(store.registry.newest_started_period())?;
    let period = period.map_or(Period(0), |period| period.number);
    let paths = software::paths()?;
    let install = |(index, address, port): (u32, IpAddr, u16)| {
        let root = devices_directory(store).join(index.to_string());
        let software = Software::install(root, index).map_err(DemoError::system("installing software"))?;
        let mut key = [0; 32];
        getrandom::fill(&mut key)?;
        let key = AttestationKey::from_bytes(key);
        let root = software.root.clone();
        Ok(ProverDevice {
            index,
            attester: Attester::new(device_id(index), key.clone(), period, root, Arc::clone(&paths)),
            address,
            port,
            key,
            period,
            software,
        })
    };
    devices.map(install).collect()
}

fn devices_directory(store: &RegistryStore) -> PathBuf {
    store.directory().join("devices")
}

/// One run of the attestation scenario.
pub(super) struct AttestationScenario<'a> {
    store: &'a RegistryStore,
    gateway: &'a DemoGateway,
    options: &'a Options,
    group: GroupName,
    devices: Vec<DeviceId>,
    /// The device that is modified: index and software.
    modified: Option<(u32, Software)>,
    /// Software of another device, for [`InjectedFault::SecondFileChanged`].
    second_modified: Option<Software>,
    initial: InitialState,
    report: AttestationReport,
}

/// Counters at the beginning.
struct InitialState {
    counters: Counters,
    quarantined: u64,
    released: u64,
    revoked: u64,
}

impl<'a> AttestationScenario<'a> {
    /// Enrolls the devices as provers; the first device will be changed. No requests are sent yet.
    pub(super) fn enroll(
        store: &'a RegistryStore,
        demo_gateway: &'a DemoGateway,
        options: &'a Options,
        prover_devices: &[ProverDevice],
    ) -> Result<Self, DemoError> {
        let status = demo_gateway.gateway.status();
        let scenario = Self {
            store,
            gateway: demo_gateway,
            options,
            group: GroupName::new("demonstration").map_err(|error| DemoError::Attest(error.to_string()))?,
            devices: prover_devices
                .iter()
                .map(|device| device_id(device.index))
                .collect(),
            modified: prover_devices
                .first()
                .map(|first| (first.index, first.software.clone())),
            second_modified: prover_devices.get(1).map(|second| second.software.clone()),
            initial: InitialState {
                counters: demo_gateway.gateway.counters()?,
                quarantined: status.attest.quarantined,
                released: status.attest.remediated,
                revoked: status.revoked,
            },
            report: AttestationReport {
                provers: prover_devices.len() as u64,
                ..AttestationReport::default()
            },
        };
        scenario.set_reference(None)?;
        let provers: Vec<NewProver> = prover_devices
            .iter()
            .map(|device| {
                Ok(NewProver {
                    device: device_id(device.index),
                    group: scenario.group.clone(),
                    key: device.key.clone(),
                    protection: Protection::Software,
                    binding: None,
                    overlay: Some(device.software.overlay()?.encode()),
                    location: Some(ProverHome {
                        gateway: GATEWAY_ID,
                        address: device.address,
                    }),
                    port: device.port,
                    enrolled_period: device.period,
                })
            })
            .collect::<Result<_, DemoError>>()?;
        store.block_on(store.registry.enroll_provers(provers, now_s()))?;
        Ok(scenario)
    }

    /// Sets the group's reference value. Without a reference value the gateway sends no requests.
    fn set_reference(&self, reference: Option<Vec<u8>>) -> Result<(), DemoError> {
        let group = NewGroup {
            name: self.group.clone(),
            policy: policy(),
            reference,
            roll_out: None,
        };
        let set = self.store.registry.set_group(&group, now_s());
        self.store.block_on(set).map(drop)
    }

    /// Runs all steps and removes the provers. Returns the report and the increase of the gateway's counters.
    pub(super) fn run(
        mut self,
        provers: &mut dyn ProverEnvironment,
        control: &mut RunControl<'_>,
    ) -> Result<(AttestationReport, Counters), DemoError> {
        let paths: Arc<[FilePath]> = software::paths()?;
        let image = Software::image(devices_directory(self.store).join("image"))
            .map_err(DemoError::system("installing software"))?;
        self.set_reference(Some(image.reference(&paths)?.encode()))?;
        self.run_steps(provers, control)?;
        self.record_totals()?;
        self.remove_provers(provers, control)?;
        let after = self.gateway.gateway.counters()?;
        Ok((self.report, after.since(&self.initial.counters)))
    }

    fn run_steps(
        &mut self,
        provers: &mut dyn ProverEnvironment,
        control: &mut RunControl<'_>,
    ) -> Result<(), DemoError> {
        let enough = |scenario: &Self| Ok(scenario.complete_rounds(0)?.len() as u64 >= COMPLETE_ROUNDS_MIN);
        self.report.all_proved_initially = self.wait_until(provers, control, enough)?;
        let Some((index, software)) = self.modified.clone().filter(|_| self.report.all_proved_initially)
        else {
            return Ok(());
        };
        self.tamper(index, &software, provers, control)?;
        if self.report.quarantined {
            self.remediate(index, &software, provers, control)?;
        }
        control.check_stop()
    }

    /// Changes the device's software and waits until the device is quarantined.
    fn tamper(
        &mut self,
        index: u32,
        software: &Software,
        provers: &mut dyn ProverEnvironment,
        control: &mut RunControl<'_>,
    ) -> Result<(), DemoError> {
        let changed = match self.options.fault {
            Some(InjectedFault::FileUnchanged) => Ok(()),
            Some(InjectedFault::SecondFileChanged) => {
                let mut modified = self.second_modified.iter().chain([software]);
                modified.try_for_each(Software::tamper)
            }
            _ => software.tamper(),
        };
        changed.map_err(DemoError::system("changing a device's software"))?;
        let (start_time, round_at_change) = (Instant::now(), self.newest_round()?);
        let (device, revoked) = (device_id(index), self.initial.revoked);
        let is_quarantined = move |scenario: &Self| {
            let is_applied = scenario.gateway.gateway.status().revoked > revoked;
            Ok(is_applied && scenario.state(device)? == Some(AttestationState::Quarantined))
        };
        self.report.quarantined = self.wait_until(provers, control, is_quarantined)?;
        if !self.report.quarantined {
            return Ok(());
        }
        self.report.quarantined_after_s = start_time.elapsed().as_secs_f64();
        self.record_detection(device, round_at_change)?;
        let attempt = provers.attempt_access(index, ExpectedAccess::Denied)?;
        self.report.delivered_in_quarantine = attempt.delivered;
        self.report.authenticated_in_quarantine = attempt.session;
        control.check_stop()
    }

    /// Restores the device's software and waits until the device is released.
    fn remediate(
        &mut self,
        index: u32,
        software: &Software,
        provers: &mut dyn ProverEnvironment,
        control: &mut RunControl<'_>,
    ) -> Result<(), DemoError> {
        software
            .restore()
            .map_err(DemoError::system("restoring a device's software"))?;
        let (start_time, before) = (Instant::now(), self.initial.released);
        let is_released =
            move |scenario: &Self| Ok(scenario.gateway.gateway.status().attest.remediated > before);
        self.report.released = self.wait_until(provers, control, is_released)?;
        if self.report.released {
            self.report.released_after_s = start_time.elapsed().as_secs_f64();
            let attempt = provers.attempt_access(index, ExpectedAccess::Granted)?;
            self.report.access_restored = attempt.session && attempt.delivered != Some(0);
        }
        Ok(())
    }

    /// Runs the provers until a condition holds.
    fn wait_until(
        &self,
        provers: &mut dyn ProverEnvironment,
        control: &mut RunControl<'_>,
        is_reached: impl Fn(&Self) -> Result<bool, DemoError>,
    ) -> Result<bool, DemoError> {
        let mut failed = None;
        let is_done = provers.run_until(STEP_TIMEOUT.min(self.options.timeout), &mut || match control
            .check_stop()
            .and_then(|()| is_reached(self))
        {
            Ok(is_reached) => is_reached,
            Err(error) => {
                failed = Some(error);
                true
            }
        })?;
        failed.map_or(Ok(is_done), Err)
    }

    /// The rounds with numbers above `above`, newest first.
    fn rounds(&self, above: u32) -> Result<Vec<RoundRecord>, DemoError> {
        let registry = &self.store.registry;
        let mut rounds = self
            .store
            .block_on(registry.rounds(Some(GATEWAY_ID), ROUNDS_MAX))?;
        rounds.retain(|round| round.group == self.group && round.requested > 0 && round.number > above);
        Ok(rounds)
    }

    /// The rounds in which every prover received a request and sent a valid PROOF.
    fn complete_rounds(&self, above: u32) -> Result<Vec<RoundRecord>, DemoError> {
        let mut rounds = self.rounds(above)?;
        rounds.retain(|round| u64::from(round.requested) == self.report.provers && round.missed == 0);
        Ok(rounds)
    }

    /// The number of the newest round; 0 if there is no round.
    fn newest_round(&self) -> Result<u32, DemoError> {
        Ok(self.rounds(0)?.first().map_or(0, |round| round.number))
    }

    fn state(&self, device: DeviceId) -> Result<Option<AttestationState>, DemoError> {
        let appraisal = self.store.block_on(self.store.registry.appraisal(device))?;
        Ok(appraisal.map(|appraisal| appraisal.state))
    }

    /// Records after how many rounds the change was detected and the device quarantined.
    fn record_detection(&mut self, device: DeviceId, round_at_change: u32) -> Result<(), DemoError> {
        let appraisal = self.store.block_on(self.store.registry.appraisal(device))?;
        let rounds = self.rounds(round_at_change)?;
        let up_to = |last: u32| rounds.iter().filter(|round| round.number <= last).count() as u64;
        let missed_rounds = rounds.iter().filter(|round| round.missed > 0);
        let first_missed = missed_rounds.map(|round| round.number).min();
        self.report.detected_after_rounds = first_missed.map_or(0, up_to);
        self.report.quarantined_after_rounds = appraisal.map_or(0, |appraisal| up_to(appraisal.since_round));
        Ok(())
    }

    /// Records totals over all rounds.
    fn record_totals(&mut self) -> Result<(), DemoError> {
        let status = self.gateway.gateway.status().attest;
        let quarantines = status.quarantined.saturating_sub(self.initial.quarantined);
        self.report.wrongly_quarantined = quarantines.saturating_sub(self.report.quarantined.into());
        self.report.rounds = self.rounds(0)?.len() as u64;
        let mut last_ms: Vec<u32> = self
            .complete_rounds(0)?
            .iter()
            .map(|round| round.last_proof_ms)
            .collect();
        last_ms.sort_unstable();
        self.report.last_proof_median_ms = last_ms.get(last_ms.len() / 2).copied().unwrap_or(0);
        self.report.last_proof_max_ms = last_ms.last().copied().unwrap_or(0);
        Ok(())
    }

    /// Removes all provers, because the next stage power-cycles devices.
    fn remove_provers(
        &self,
        provers: &mut dyn ProverEnvironment,
        control: &mut RunControl<'_>,
    ) -> Result<(), DemoError> {
        for device in &self.devices {
            self.store.block_on(self.store.registry.remove_prover(*device))?;
        }
        let are_removed = |scenario: &Self| Ok(scenario.gateway.gateway.status().attest.provers == 0);
        match self.wait_until(provers, control, are_removed)? {
            true => Ok(()),
            false => Err(DemoError::Attest(
                "the gateway still sends requests to provers that were removed".to_owned(),
            )),
        }
    }
}

/// Records the effect of the forged PROOFs and returns it as an attack outcome.
pub(super) fn record_forged_proofs(
    report: &mut AttestationReport,
    forged: ForgedProofCounts,
    counters: &Counters,
) -> AttackOutcome {
    report.proofs_accepted = counters.get(Verdict::ProofOk);
    report.requests_overheard = forged.requests_overheard;
    report.forged_proofs_sent = forged.proofs_sent;
    report.drop_proof = counters.get(Verdict::DropProof);
    report.drop_round = counters.get(Verdict::DropRound);
    report.drop_proved = counters.get(Verdict::DropProved);
    report.drop_late = counters.get(Verdict::DropLate);
    let dropped = report.drop_proof + report.drop_round + report.drop_proved + report.drop_late;
    let was_dropped = forged.proofs_sent > 0 && dropped > 0;
    AttackOutcome {
        name: FORGED_PROOFS,
        attempts: forged.proofs_sent,
        successes: report.wrongly_quarantined,
        inconclusive: (!was_dropped).then(|| "the gateway has counted no forged PROOF".to_owned()),
        ..AttackOutcome::default()
    }
}
