//! Attestation in the demonstration: some devices prove round after round what they run, one is changed on disk, found, shut out
//! and let in again, while an attacker sends junk in everybody's name.
//!
//! The course of it is the same on every network; where the devices are, and how one of them tries to get in, is a [`Field`]'s.
//! What counts is read off the registry's rounds and appraisals, and off the gateway's counters.

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
    GroupName, GroupPolicy, Home as Whereabouts, NewGroup, NewProver, Protection, RoundRecord, State,
};

use self::software::Software;
use super::cast::now_s;
use super::home::Home;
use super::report::{AttackOutcome, AttestationReport};
use super::site::{GATEWAY_ID, Site};
use super::{Audience, DemoError, Options, Sabotage};
use crate::attackers::{JUNK_PROOFS, Junk};
use crate::fleet::{Attester, device_id};

/// How long a period lasts, seconds: what was changed is found in the next one.
pub(super) const PERIOD_S: u32 = 2;
/// Rounds in which all prove themselves, before anything is changed.
const QUIET_ROUNDS: u64 = 3;
/// How long each step may take.
const LIMIT: Duration = Duration::from_secs(60);
/// Rounds of which the registry knows.
const ROUNDS_MAX: u32 = 1_000;

/// A round a second; two silences of three quarantine.
fn policy() -> GroupPolicy {
    GroupPolicy {
        every_s: 1,
        jitter_s: 0,
        answer_ms: 800,
        silent: 2,
        of: 3,
        ..GroupPolicy::default()
    }
}

/// A device that is attested.
pub(super) struct Attested {
    pub(super) index: u32,
    pub(super) attester: Attester,
    address: IpAddr,
    port: u16,
    key: AttestationKey,
    period: Period,
    software: Software,
}

/// What a device got when it tried to get in.
pub(super) struct Tried {
    /// A session.
    pub(super) session: bool,
    /// Its datagrams that reached the service; nothing where there is no gate.
    pub(super) reached: Option<u64>,
}

/// What a device is expected to be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Expected {
    Out,
    In,
}

/// Where the provers are.
pub(super) trait Field {
    /// Lets them live, and answer, until `is_so`, which is asked ten times a second, or for `limit`. Says whether it is so.
    fn live(&mut self, limit: Duration, is_so: &mut dyn FnMut() -> bool) -> Result<bool, DemoError>;

    /// A device sends datagrams with the session that it believes to have, and then begins a new one; the others live on.
    fn try_to_get_in(&mut self, index: u32, expected: Expected) -> Result<Tried, DemoError>;
}

/// Installs the software of these devices, each with the address and the UDP port that it is asked at, and draws their keys.
pub(super) fn equip(
    home: &Home,
    devices: impl Iterator<Item = (u32, IpAddr, u16)>,
) -> Result<Vec<Attested>, DemoError> {
    let period = home.block_on(home.registry.newest_begun_period())?;
    let period = period.map_or(Period(0), |period| period.number);
    let paths = software::paths()?;
    let equip = |(index, address, port): (u32, IpAddr, u16)| {
        let root = root(home).join(index.to_string());
        let software = Software::install(root, index).map_err(DemoError::system("installing software"))?;
        let mut key = [0; 32];
        getrandom::fill(&mut key)?;
        let key = AttestationKey::from_bytes(key);
        let root = software.root.clone();
        Ok(Attested {
            index,
            attester: Attester::new(device_id(index), key.clone(), period, root, Arc::clone(&paths)),
            address,
            port,
            key,
            period,
            software,
        })
    };
    devices.map(equip).collect()
}

fn root(home: &Home) -> PathBuf {
    home.directory().join("devices")
}

/// One run of it.
pub(super) struct Act<'a> {
    home: &'a Home,
    site: &'a Site,
    options: &'a Options,
    group: GroupName,
    devices: Vec<DeviceId>,
    changed: Option<(u32, Software)>,
    /// Of another device, for [`Sabotage::SecondFile`].
    second: Option<Software>,
    before: Before,
    report: AttestationReport,
}

/// How things stood at the beginning.
struct Before {
    counters: Counters,
    quarantined: u64,
    readmitted: u64,
    revoked: u64,
}

impl<'a> Act<'a> {
    /// Enrols the devices as provers; the first of them is the one that will be changed. Nobody is asked yet.
    pub(super) fn enrol(
        home: &'a Home,
        site: &'a Site,
        options: &'a Options,
        attested: &[Attested],
    ) -> Result<Self, DemoError> {
        let status = site.gateway.status();
        let act = Self {
            home,
            site,
            options,
            group: GroupName::new("demonstration").map_err(|error| DemoError::Attest(error.to_string()))?,
            devices: attested.iter().map(|device| device_id(device.index)).collect(),
            changed: attested
                .first()
                .map(|first| (first.index, first.software.clone())),
            second: attested.get(1).map(|second| second.software.clone()),
            before: Before {
                counters: site.gateway.counters()?,
                quarantined: status.attest.quarantined,
                readmitted: status.attest.readmitted,
                revoked: status.revoked,
            },
            report: AttestationReport {
                provers: attested.len() as u64,
                ..AttestationReport::default()
            },
        };
        act.set_reference(None)?;
        let provers: Vec<NewProver> = attested
            .iter()
            .map(|device| {
                Ok(NewProver {
                    device: device_id(device.index),
                    group: act.group.clone(),
                    key: device.key.clone(),
                    protection: Protection::Software,
                    binding: None,
                    overlay: Some(device.software.overlay()?.encode()),
                    home: Some(Whereabouts {
                        gateway: GATEWAY_ID,
                        address: device.address,
                    }),
                    port: device.port,
                    enrolled_period: device.period,
                })
            })
            .collect::<Result<_, DemoError>>()?;
        home.block_on(home.registry.enrol_provers(provers, now_s()))?;
        Ok(act)
    }

    /// Nobody is asked without one.
    fn set_reference(&self, reference: Option<Vec<u8>>) -> Result<(), DemoError> {
        let group = NewGroup {
            name: self.group.clone(),
            policy: policy(),
            reference,
            roll_out: None,
        };
        let set = self.home.registry.set_group(&group, now_s());
        self.home.block_on(set).map(drop)
    }

    /// Everything, up to provers that nobody asks any more; and what the gateway counted meanwhile.
    pub(super) fn run(
        mut self,
        field: &mut dyn Field,
        audience: &mut Audience<'_>,
    ) -> Result<(AttestationReport, Counters), DemoError> {
        let paths: Arc<[FilePath]> = software::paths()?;
        let image = Software::image(root(self.home).join("image"))
            .map_err(DemoError::system("installing software"))?;
        self.set_reference(Some(image.reference(&paths)?.encode()))?;
        self.story(field, audience)?;
        self.take_stock()?;
        self.withdraw(field, audience)?;
        let after = self.site.gateway.counters()?;
        Ok((self.report, after.since(&self.before.counters)))
    }

    fn story(&mut self, field: &mut dyn Field, audience: &mut Audience<'_>) -> Result<(), DemoError> {
        let enough = |act: &Self| Ok(act.quiet_rounds(0)?.len() as u64 >= QUIET_ROUNDS);
        self.report.all_proved = self.until(field, audience, enough)?;
        let Some((index, software)) = self.changed.clone().filter(|_| self.report.all_proved) else {
            return Ok(());
        };
        self.change(index, &software, field, audience)?;
        if self.report.quarantined {
            self.put_right(index, &software, field, audience)?;
        }
        audience.check()
    }

    /// Until the changed device is out.
    fn change(
        &mut self,
        index: u32,
        software: &Software,
        field: &mut dyn Field,
        audience: &mut Audience<'_>,
    ) -> Result<(), DemoError> {
        let changed = match self.options.sabotage {
            Some(Sabotage::FileLeftAlone) => Ok(()),
            Some(Sabotage::SecondFile) => {
                let mut both = self.second.iter().chain([software]);
                both.try_for_each(Software::tamper)
            }
            _ => software.tamper(),
        };
        changed.map_err(DemoError::system("changing a device's software"))?;
        let (began, changed_after) = (Instant::now(), self.last_round()?);
        let (device, revoked) = (device_id(index), self.before.revoked);
        let is_out = move |act: &Self| {
            let has_learnt = act.site.gateway.status().revoked > revoked;
            Ok(has_learnt && act.state(device)? == Some(State::Quarantined))
        };
        self.report.quarantined = self.until(field, audience, is_out)?;
        if !self.report.quarantined {
            return Ok(());
        }
        self.report.quarantined_after_s = began.elapsed().as_secs_f64();
        self.note_finding(device, changed_after)?;
        let tried = field.try_to_get_in(index, Expected::Out)?;
        self.report.reached_after = tried.reached;
        self.report.authenticated_after = tried.session;
        audience.check()
    }

    /// Until it is in again.
    fn put_right(
        &mut self,
        index: u32,
        software: &Software,
        field: &mut dyn Field,
        audience: &mut Audience<'_>,
    ) -> Result<(), DemoError> {
        software
            .restore()
            .map_err(DemoError::system("restoring a device's software"))?;
        let (began, before) = (Instant::now(), self.before.readmitted);
        let is_in = move |act: &Self| Ok(act.site.gateway.status().attest.readmitted > before);
        self.report.readmitted = self.until(field, audience, is_in)?;
        if self.report.readmitted {
            self.report.readmitted_after_s = began.elapsed().as_secs_f64();
            let tried = field.try_to_get_in(index, Expected::In)?;
            self.report.back_in = tried.session && tried.reached != Some(0);
        }
        Ok(())
    }

    /// Lets the field live until something is so.
    fn until(
        &self,
        field: &mut dyn Field,
        audience: &mut Audience<'_>,
        is_so: impl Fn(&Self) -> Result<bool, DemoError>,
    ) -> Result<bool, DemoError> {
        let mut failed = None;
        let lived = field.live(LIMIT.min(self.options.limit), &mut || match audience
            .check()
            .and_then(|()| is_so(self))
        {
            Ok(is_so) => is_so,
            Err(error) => {
                failed = Some(error);
                true
            }
        })?;
        failed.map_or(Ok(lived), Err)
    }

    /// The rounds above a number, newest first.
    fn rounds(&self, above: u32) -> Result<Vec<RoundRecord>, DemoError> {
        let registry = &self.home.registry;
        let mut rounds = self
            .home
            .block_on(registry.rounds(Some(GATEWAY_ID), ROUNDS_MAX))?;
        rounds.retain(|round| round.group == self.group && round.asked > 0 && round.number > above);
        Ok(rounds)
    }

    /// Those in which every prover was asked and none was silent.
    fn quiet_rounds(&self, above: u32) -> Result<Vec<RoundRecord>, DemoError> {
        let mut rounds = self.rounds(above)?;
        rounds.retain(|round| u64::from(round.asked) == self.report.provers && round.silent == 0);
        Ok(rounds)
    }

    fn last_round(&self) -> Result<u32, DemoError> {
        Ok(self.rounds(0)?.first().map_or(0, |round| round.number))
    }

    fn state(&self, device: DeviceId) -> Result<Option<State>, DemoError> {
        let appraisal = self.home.block_on(self.home.registry.appraisal(device))?;
        Ok(appraisal.map(|appraisal| appraisal.state))
    }

    /// How many rounds it took.
    fn note_finding(&mut self, device: DeviceId, changed_after: u32) -> Result<(), DemoError> {
        let appraisal = self.home.block_on(self.home.registry.appraisal(device))?;
        let rounds = self.rounds(changed_after)?;
        let up_to = |last: u32| rounds.iter().filter(|round| round.number <= last).count() as u64;
        let silent = rounds.iter().filter(|round| round.silent > 0);
        let found = silent.map(|round| round.number).min();
        self.report.found_after_rounds = found.map_or(0, up_to);
        self.report.quarantined_after_rounds = appraisal.map_or(0, |found| up_to(found.since_round));
        Ok(())
    }

    /// What the whole act came to.
    fn take_stock(&mut self) -> Result<(), DemoError> {
        let status = self.site.gateway.status().attest;
        let quarantines = status.quarantined.saturating_sub(self.before.quarantined);
        self.report.wrongly_quarantined = quarantines.saturating_sub(self.report.quarantined.into());
        self.report.rounds = self.rounds(0)?.len() as u64;
        let mut last_ms: Vec<u32> = self
            .quiet_rounds(0)?
            .iter()
            .map(|round| round.last_verdict_ms)
            .collect();
        last_ms.sort_unstable();
        self.report.last_proof_ms = last_ms.get(last_ms.len() / 2).copied().unwrap_or(0);
        self.report.last_proof_max_ms = last_ms.last().copied().unwrap_or(0);
        Ok(())
    }

    /// Nobody is a prover any more: what comes next takes devices' power away.
    fn withdraw(&self, field: &mut dyn Field, audience: &mut Audience<'_>) -> Result<(), DemoError> {
        for device in &self.devices {
            self.home.block_on(self.home.registry.remove_prover(*device))?;
        }
        let are_gone = |act: &Self| Ok(act.site.gateway.status().attest.provers == 0);
        match self.until(field, audience, are_gone)? {
            true => Ok(()),
            false => Err(DemoError::Attest(
                "the gateway goes on asking provers that were removed".to_owned(),
            )),
        }
    }
}

/// Adds what came of the junk, and says it as an attack's outcome.
pub(super) fn note_junk(report: &mut AttestationReport, junk: Junk, since: &Counters) -> AttackOutcome {
    report.proofs_ok = since.get(Verdict::ProofOk);
    report.requests_heard = junk.heard;
    report.junk_sent = junk.sent;
    report.drop_proof = since.get(Verdict::DropProof);
    report.drop_round = since.get(Verdict::DropRound);
    report.drop_proved = since.get(Verdict::DropProved);
    report.drop_late = since.get(Verdict::DropLate);
    let refused = report.drop_proof + report.drop_round + report.drop_proved + report.drop_late;
    let is_seen = junk.sent > 0 && refused > 0;
    AttackOutcome {
        name: JUNK_PROOFS,
        attempts: junk.sent,
        successes: report.wrongly_quarantined,
        inconclusive: (!is_seen).then(|| "the gateway has seen no junk".to_owned()),
        ..AttackOutcome::default()
    }
}
