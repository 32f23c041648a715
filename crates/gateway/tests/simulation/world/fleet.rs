//! What the devices are to run, what they run, and the controller's verifier.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use linewarden_controller::Link;
use linewarden_controller::attest::{Appraised, Verifier};
use linewarden_gateway::{Answer, Ask};
use linewarden_measurement::HashAlgorithm;
use linewarden_measurement::configuration::Configuration;
use linewarden_measurement::files::{ContentHash, FileEntry, FilePath, Mode as FileMode};
use linewarden_measurement::pcr::PcrValues;
use linewarden_protocol::attest::ConfigurationHash;
use linewarden_protocol::frame::ip_from_bytes;
use linewarden_protocol::ids::{DeviceId, GatewayId, Period};
use linewarden_protocol::wire::{ATTEST_PORT, PROOF_BYTES};
use linewarden_registry::{
    GroupName, GroupPolicy, Home, NewGroup, NewProver, Protection, Registry, RegistryError, Reopen, RollOut,
};
use rand::{Rng, RngExt as _};

use super::book::Book;
use super::controller::failed;
use super::{GATEWAYS, Rule, World};
use crate::prover::Attester;
use crate::station::Station;

/// Room for provers in a data plane; none ever leaves.
pub(super) const PROVERS: u32 = 16;
/// How long a period lasts.
pub(super) const PERIOD_S: u32 = 3;
/// How often each device is asked, and how long it has to answer.
pub(super) const EVERY_S: u32 = 1;
pub(super) const ANSWER_MS: u32 = 300;
/// What a device runs that somebody has changed.
const CHANGED: u8 = 0xff;

/// What runs where a file has that content.
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

/// What the group's devices may run, as the registry has it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Reference {
    base: u8,
    /// What is being rolled out, and until when by the controller's clock.
    rolled_out: Option<(u8, u64)>,
}

impl Reference {
    fn accepts(self, wall_s: u64) -> BTreeSet<u8> {
        let rolled_out = self.rolled_out.filter(|(_, until_s)| wall_s < *until_s);
        let rolled_out = rolled_out.map(|(content, _)| content);
        rolled_out.into_iter().chain([self.base]).collect()
    }
}

/// From some moment on: what may be accepted, and what must be. Between a command and its confirmation nobody knows.
struct Accepted {
    from_ms: u64,
    may: BTreeSet<u8>,
    must: BTreeSet<u8>,
}

pub(super) struct Fleet {
    pub(super) policy: GroupPolicy,
    reference: Reference,
    /// What the operator has ordered and was not confirmed yet.
    ordered: Option<Reference>,
    accepted: Vec<Accepted>,
    /// Whom the operator wants to let in again.
    to_readmit: Vec<DeviceId>,
    pub(super) book: Book,
    /// PROOFs that an eavesdropper has recorded, and requests.
    pub(super) proofs: Vec<[u8; PROOF_BYTES]>,
    pub(super) questions: Vec<[u8; 64]>,
}

fn name() -> GroupName {
    GroupName::new("sensors").unwrap()
}

impl Fleet {
    pub(super) fn new(rng: &mut impl Rng) -> Self {
        let reopen = match rng.random_ratio(3, 4) {
            true => Reopen::Automatic,
            false => Reopen::ByCommand,
        };
        Self {
            policy: GroupPolicy {
                every_s: EVERY_S,
                jitter_s: 0,
                answer_ms: ANSWER_MS,
                silent: 2,
                of: 3,
                late_is_silent: rng.random_ratio(1, 4),
                reopen,
            },
            reference: Reference {
                base: 1,
                rolled_out: None,
            },
            ordered: None,
            accepted: Vec::new(),
            to_readmit: Vec::new(),
            book: Book::default(),
            proofs: Vec::new(),
            questions: Vec::new(),
        }
    }

    /// What every device may run, and need not be rolled out.
    pub(super) fn base(&self) -> ConfigurationHash {
        hash(self.reference.base)
    }

    /// The first configuration of every device.
    pub(super) fn first() -> ConfigurationHash {
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

    /// Makes all devices provers.
    pub(super) async fn enrol(&self, registry: &Registry, stations: &[Station], rng: &mut impl Rng) {
        registry.set_group(&self.group(self.reference), 0).await.unwrap();
        for station in stations {
            let address: IpAddr = ip_from_bytes(station.address());
            let prover = NewProver {
                device: station.id,
                group: name(),
                key: Attester::key(station.id),
                protection: Protection::Software,
                binding: None,
                overlay: None,
                home: Some(Home {
                    gateway: GatewayId(rng.random_range(0..GATEWAYS) as u32 + 1),
                    address,
                }),
                port: ATTEST_PORT,
                enrolled_period: Period(0),
            };
            registry.enrol_prover(prover, 0).await.unwrap();
        }
    }

    /// Takes notice of what is accepted now.
    fn note(&mut self, now_ms: u64, wall_s: u64) {
        let confirmed = self.reference.accepts(wall_s);
        let ordered = self.ordered.map(|ordered| ordered.accepts(wall_s));
        let ordered = ordered.unwrap_or_else(|| confirmed.clone());
        let accepted = Accepted {
            from_ms: now_ms,
            may: confirmed.union(&ordered).copied().collect(),
            must: confirmed.intersection(&ordered).copied().collect(),
        };
        let is_known = |last: &Accepted| last.may == accepted.may && last.must == accepted.must;
        if !self.accepted.last().is_some_and(is_known) {
            self.accepted.push(accepted);
        }
    }

    /// What was accepted at some moment since then.
    fn since(&self, from_ms: u64) -> impl Iterator<Item = &Accepted> {
        let first = self.accepted.iter().rposition(|at| at.from_ms <= from_ms);
        self.accepted.iter().skip(first.unwrap_or(0))
    }

    /// Whether h was accepted at some moment since then, as far as anybody can know.
    pub(super) fn may_accept(&self, h: &ConfigurationHash, from_ms: u64) -> bool {
        self.since(from_ms)
            .flat_map(|at| &at.may)
            .any(|content| hash(*content) == *h)
    }

    /// Whether h was accepted at every moment since then.
    pub(super) fn must_accept(&self, h: &ConfigurationHash, from_ms: u64) -> bool {
        self.since(from_ms)
            .all(|at| at.must.iter().any(|content| hash(*content) == *h))
    }
}

impl World {
    /// The operator's side of a step.
    pub(super) fn administer(&mut self) {
        let (now_ms, wall_s) = (self.now_ms, self.wall_s());
        self.fleet.note(now_ms, wall_s);
        if !self.office.is_open {
            return;
        }
        let registry = self.office.registry();
        if let Some(ordered) = self.fleet.ordered {
            let group = self.fleet.group(ordered);
            if self.runtime.block_on(registry.set_group(&group, wall_s)).is_ok() {
                self.fleet.reference = ordered;
                self.fleet.ordered = None;
                self.fleet.note(now_ms, wall_s);
            }
        }
        let to_readmit = std::mem::take(&mut self.fleet.to_readmit);
        for device in to_readmit {
            match self.readmit(device) {
                Ok(()) | Err(RegistryError::Revoked { .. }) => self.fleet.book.let_in(device),
                Err(_) => self.fleet.to_readmit.push(device),
            }
        }
    }

    /// Not one that is in no quarantine: a transaction that changes nothing is rolled back in the background, at no certain moment.
    fn readmit(&self, device: DeviceId) -> Result<(), RegistryError> {
        let registry = self.office.registry();
        let info = self.runtime.block_on(registry.get(device))?;
        if info.quarantine.is_some() {
            self.runtime.block_on(registry.readmit(device))?;
        }
        Ok(())
    }

    /// The operator lets a device in again, as soon as he can.
    pub(super) fn let_in(&mut self, device: DeviceId) {
        self.fleet.book.let_in(device);
        self.fleet.to_readmit.push(device);
    }

    /// Something befalls a device, or what devices are to run.
    pub(super) fn change_something(&mut self) {
        if !self.rng.random_ratio(1, 60) {
            return;
        }
        let station = self.rng.random_range(0..self.stations.len());
        let Reference { base, rolled_out } = self.fleet.reference;
        match self.rng.random_range(0..8) {
            0 | 1 => self.tamper(station),
            2 | 3 => self.mend(station),
            4 if rolled_out.is_none() => {
                let until_s = self.wall_s().saturating_add(self.rng.random_range(1..8));
                self.order(base, Some((base + 1, until_s)));
            }
            4 | 5 => {
                if let Some((content, _)) = rolled_out {
                    self.tally_of_fleet.updated += 1;
                    self.run(station, content);
                }
            }
            6 => {
                if let Some((content, _)) = rolled_out {
                    let is_kept = self.rng.random_ratio(1, 2);
                    self.order(if is_kept { content } else { base }, None);
                }
            }
            _ => {
                let device = self.stations[station].id;
                self.let_in(device);
            }
        }
    }

    fn order(&mut self, base: u8, rolled_out: Option<(u8, u64)>) {
        if self.fleet.ordered.is_none() {
            self.tally_of_fleet.ordered += 1;
            self.fleet.ordered = Some(Reference { base, rolled_out });
            self.fleet.note(self.now_ms, self.wall_s());
        }
    }

    /// Somebody changes what a device runs.
    pub(super) fn tamper(&mut self, station: usize) {
        self.tally_of_fleet.tampered += 1;
        self.run(station, CHANGED);
    }

    /// A device runs what it is to run.
    pub(super) fn mend(&mut self, station: usize) {
        self.tally_of_fleet.mended += 1;
        self.run(station, self.fleet.reference.base);
    }

    /// Either the device is started again with it, or it is seen when the next period begins.
    fn run(&mut self, station: usize, content: u8) {
        let is_booted = self.calm || self.rng.random_ratio(1, 2);
        let attester = &mut self.stations[station].attester;
        attester.runs = hash(content);
        if is_booted {
            attester.boot();
        }
    }

    /// No roll-out, and every device runs what it is to run.
    pub(super) fn mend_all(&mut self) {
        if let Some(ordered) = self.fleet.ordered {
            self.fleet.reference = ordered;
        }
        let base = self.fleet.reference.base;
        self.fleet.ordered = Some(Reference {
            base,
            rolled_out: None,
        });
        self.administer();
        for station in 0..self.stations.len() {
            self.mend(station);
        }
    }

    /// The controller's verifier answers.
    pub(super) fn attest(&mut self, at: usize, link: &Link, ask: Ask) -> Answer {
        let mut ask = ask;
        if let Ask::Appraise(round) = &mut ask {
            // As a hash table has them, another order each time.
            round.verdicts.sort_unstable_by_key(|verdict| verdict.device);
            if self.without == Some(Rule::Silence) {
                self.fleet.book.silence(self.processes[at].id(), round);
            }
            self.look_at_outcome(at, round);
        }
        if self.processes[at].verifier.is_none() {
            match self.runtime.block_on(Verifier::open(link.clone())) {
                Ok(verifier) => self.processes[at].verifier = Some(verifier),
                Err(error) => return failed(&ask, error.into()),
            }
        }
        let wall_s = self.wall_s();
        let process = &mut self.processes[at];
        let Some(verifier) = &mut process.verifier else {
            unreachable!()
        };
        match ask {
            Ask::Plan(wish) => {
                process.planned_ms[0] = self.now_ms;
                let rng = &mut self.rng;
                let plan = self
                    .runtime
                    .block_on(verifier.plan(wish, wall_s, &mut || Some(rng.random())));
                Answer::Plan(plan.map_err(Into::into))
            }
            Ask::Provers { start, since } => {
                let mut provers = self.runtime.block_on(verifier.provers(start, since));
                if self.without == Some(Rule::Reference) {
                    let provisions = provers.iter_mut().flat_map(|provers| &mut provers.provisions);
                    for provision in provisions {
                        let (device, gateway) = (provision.device, process.id());
                        let k2 = Attester::key(device).for_period(device, &start, &hash(CHANGED));
                        if let Some(keys) = &mut provision.keys {
                            keys.alternate = Some(k2.for_gateway(gateway));
                        }
                    }
                }
                Answer::Provers(provers.map_err(Into::into))
            }
            Ask::Appraise(_) if self.without == Some(Rule::Decision) => {
                Answer::Appraised(Ok(Appraised::default()))
            }
            Ask::Appraise(mut round) => {
                if self.without == Some(Rule::Readmission) {
                    let book = &self.fleet.book;
                    round
                        .verdicts
                        .retain(|verdict| !book.out().any(|out| out == verdict.device));
                }
                let boot_ns = process.clock.clock(self.now_ms).boot_ns;
                let age_s = boot_ns.saturating_sub(round.ended_ns) / 1_000_000_000;
                let ended_s = match self.without {
                    Some(Rule::Ended) => wall_s.saturating_add(self.fleet.policy.good_for_s()),
                    _ => wall_s.saturating_sub(age_s),
                };
                let appraised = self.runtime.block_on(verifier.appraise(&round, ended_s, wall_s));
                match &appraised {
                    Ok(appraised) => self.look_at_decisions(at, &round, appraised),
                    Err(_) => self.fleet.book.unsure(&round),
                }
                Answer::Appraised(appraised.map_err(Into::into))
            }
            ask => unreachable!("{ask:?}"),
        }
    }
}
