//! The demonstration without rights: the `host` data plane on loopback, devices and attackers on UDP sockets.
//!
//! It shows less, and [`Report::left_out`] says what: no network of its own, so nobody is bound to a MAC address,
//! there is no gate, and attacks that need whole frames or somebody else's address are left out. What it shows is as
//! real as the rest: the same registry, node, data plane, device role and PUFs.

mod attest;
mod prover;
mod raid;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use linewarden_dataplane::host::{Host, HostOptions};
use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::verdict::Verdict;
use rand::SeedableRng as _;
use rand_chacha::ChaCha20Rng;

use self::prover::{End, Prover};
use self::raid::{NAMES, Raid};
use super::cast::Cast;
use super::home::Home;
use super::report::{AttackOutcome, LatencyPass, Quantiles, Report, RevocationReport};
use super::site::{self, Site};
use super::{Audience, Backend, DemoError, Event, Options, Sabotage, Stage, WITNESSES, judge};
use crate::attackers::{ALL, PUPPETS_FROM};
use crate::fleet::{Report as FleetReport, device_id};

/// How long a revoked device may try in vain.
const REFUSAL: Duration = Duration::from_secs(1);

pub(super) fn run(options: &Options, audience: &mut Audience<'_>) -> Result<Report, DemoError> {
    let mut report = Report::new(options, 1);
    say_what_is_left_out(&mut report);
    audience.stage(Stage::Enrolling)?;
    let mut cast = Cast::enrol(options, false, audience)?;
    audience.stage(Stage::Registering)?;
    let records = std::mem::take(&mut cast.records);
    let enrolled = records.len() as u32;
    let home = Home::create(records, audience)?;

    audience.stage(Stage::Loading)?;
    let mut config = site::config(options, Backend::Host, vec![Ipv4Addr::LOCALHOST.into()], enrolled)?;
    config.lap_port = free_port()?;
    // One thread, one queue: what was sent before a question has been seen when it is answered.
    let threads = HostOptions {
        threads: 1,
        ..HostOptions::default()
    };
    let plane = Host::start(&config, &threads)?;
    let gateway = site::gateway(Box::new(plane), &config, &home)?;
    let site = Site::load(gateway, None, enrolled.into(), audience)?;
    let gateway = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), config.lap_port);
    let mut show = Show {
        options,
        home: &home,
        gateway,
        provers: provers(&mut cast),
        rng: rng()?,
        waited: FleetReport::default(),
        report,
    };
    show.main_act(&site, cast, audience)?;
    site.stop()?;
    Ok(show.report.conclude())
}

fn say_what_is_left_out(report: &mut Report) {
    let missing = match crate::capability::require(crate::capability::FOR_NETWORK) {
        Err(missing) => missing
            .capabilities()
            .iter()
            .map(|needed| needed.name())
            .collect(),
        Ok(()) => Vec::new(),
    };
    let missing = missing.join(", ");
    let untried: Vec<&str> = ALL
        .iter()
        .map(|attack| attack.name)
        .filter(|name| !NAMES.contains(name))
        .collect();
    report.left_out = vec![
        format!("a network of its own ({missing} missing; run as root): devices are UDP sockets on loopback"),
        "the xdp data plane, and the comparison of latencies with it".to_owned(),
        "the gate and the service behind it, and sessions bound to MAC addresses, which loopback has not"
            .to_owned(),
        format!(
            "attacks that need whole frames, other senders' addresses or an open gate: {}",
            untried.join("; ")
        ),
    ];
}

/// A UDP port that nobody uses at this moment.
fn free_port() -> Result<u16, DemoError> {
    let probe = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.local_addr());
    Ok(probe
        .map_err(DemoError::system("finding a free UDP port"))?
        .port())
}

fn rng() -> Result<ChaCha20Rng, DemoError> {
    let mut seed = [0u8; 32];
    getrandom::fill(&mut seed)?;
    Ok(ChaCha20Rng::from_seed(seed))
}

/// The whole fleet in order of its indices.
fn provers(cast: &mut Cast) -> Vec<Prover> {
    let groups = [
        &mut cast.witnesses,
        &mut cast.sampled,
        &mut cast.attested,
        &mut cast.crowd,
    ];
    let members = groups.into_iter().flat_map(std::mem::take);
    (0..)
        .zip(members)
        .map(|(index, member)| Prover::new(member, index))
        .collect()
}

struct Show<'a> {
    options: &'a Options,
    home: &'a Home,
    gateway: SocketAddr,
    provers: Vec<Prover>,
    rng: ChaCha20Rng,
    /// Of the crowd.
    waited: FleetReport,
    report: Report,
}

impl Show<'_> {
    fn main_act(
        &mut self,
        site: &Site,
        mut cast: Cast,
        audience: &mut Audience<'_>,
    ) -> Result<(), DemoError> {
        audience.stage(Stage::Authenticating)?;
        let witnesses = WITNESSES as usize;
        let deadline = Instant::now() + self.options.limit;
        for at in 0..witnesses {
            self.authenticate(at, deadline)?;
        }
        if self.options.sabotage == Some(Sabotage::RevokeBeforeTurn) {
            self.home.revoke(device_id(self.options.devices - 1))?;
            site.await_revocations(1)?;
        }
        let absent = cast.absent.clone();
        self.authenticate_under_attack(site, &mut cast, audience)?;
        self.report.count_verdicts(&site.gateway.counters()?);
        let sessions: Vec<(DeviceId, Option<u32>)> = self
            .provers
            .iter()
            .map(|prover| (prover.id(), prover.session().map(|session| session.idx.0)))
            .collect();
        let (audit, authenticated) = judge::audit(site, sessions, &absent)?;
        self.report.audit = audit;
        self.report.authenticated = authenticated;
        self.show_attestation(site, audience)?;
        self.show_revocation(site, audience)
    }

    /// One handshake, on a socket of its own; `None` when the device was refused until the deadline.
    fn authenticate(&mut self, at: usize, deadline: Instant) -> Result<Option<prover::Timed>, DemoError> {
        let limit = deadline.saturating_duration_since(Instant::now());
        let Some(prover) = self.provers.get_mut(at) else {
            return Ok(None);
        };
        let handshake = prover
            .open(self.gateway)
            .and_then(|socket| prover.authenticate(&socket, &mut self.rng, limit, false));
        match handshake.map_err(DemoError::system("a device's socket on loopback"))? {
            End::Session(timed) => Ok(Some(timed)),
            End::Held(_) | End::Refused => Ok(None),
        }
    }

    fn authenticate_under_attack(
        &mut self,
        site: &Site,
        cast: &mut Cast,
        audience: &mut Audience<'_>,
    ) -> Result<(), DemoError> {
        let probe = cast.absent.first().copied().unwrap_or(DeviceId(1));
        let draws = ChaCha20Rng::seed_from_u64(self.options.seed);
        let mut raid = Raid::new(site, self.gateway, probe, self.options.effort, draws)?;
        let witnesses = self.provers.iter().take(WITNESSES as usize);
        raid.overheard = witnesses.clone().filter_map(|prover| prover.response).collect();
        raid.quiet = witnesses
            .map(Prover::id)
            .chain(cast.absent.iter().copied())
            .collect();
        let clones = std::mem::take(&mut cast.clones);
        let puppet = cast
            .puppets
            .pop()
            .map(|device| Prover::new(device.member, PUPPETS_FROM));
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            let attackers = scope.spawn(move || {
                if let Some(puppet) = puppet {
                    raid.run(clones, puppet, &|outcome| tell.send(outcome).is_ok());
                }
            });
            let crowd = self.authenticate_crowd(&told, audience);
            if crowd.is_ok() {
                audience.tell(Event::Stage(Stage::Attacking));
                for outcome in &told {
                    self.note(outcome, audience);
                }
            }
            drop(told);
            attackers.join().map_err(|_| DemoError::Panicked)?;
            crowd
        })
    }

    fn authenticate_crowd(
        &mut self,
        told: &Receiver<AttackOutcome>,
        audience: &mut Audience<'_>,
    ) -> Result<(), DemoError> {
        let started = Instant::now();
        let deadline = started + self.options.limit;
        let devices = self.provers.len();
        let mut through = 0u64;
        for at in WITNESSES as usize..devices {
            if let Some(timed) = self.authenticate(at, deadline)? {
                through += 1;
                self.waited.network_ns.saturating_record(timed.network.max(1));
                self.waited.latency_ns.saturating_record(timed.total.max(1));
            }
            if at % 64 == 0 || at + 1 == devices {
                audience.check()?;
                audience.tell(Event::Fleet {
                    authenticated: u64::from(WITNESSES) + through,
                    devices: devices as u64,
                    per_s: through as f64 / started.elapsed().as_secs_f64().max(1e-3),
                    latency_us: self.waited.network_ns.mean() / 1e3,
                });
                while let Ok(outcome) = told.try_recv() {
                    self.note(outcome, audience);
                }
            }
        }
        self.report.auth_per_s = through as f64 / started.elapsed().as_secs_f64().max(f64::MIN_POSITIVE);
        self.report.latency_us = Quantiles::of_ns(&self.waited.network_ns);
        self.report.latency_with_puf_us = Quantiles::of_ns(&self.waited.latency_ns);
        self.report.comparison = vec![LatencyPass::new(Backend::Host, &self.waited.network_ns)];
        Ok(())
    }

    fn note(&mut self, outcome: AttackOutcome, audience: &mut Audience<'_>) {
        audience.tell(Event::Attack(outcome.clone()));
        self.report.attacks.push(outcome);
    }

    /// The first device is revoked; it and the other witnesses try to authenticate anew.
    fn show_revocation(&mut self, site: &Site, audience: &mut Audience<'_>) -> Result<(), DemoError> {
        audience.stage(Stage::Revoking)?;
        let revoked_before = site.gateway.status().revoked;
        let refused = |site: &Site| {
            site.gateway
                .counters()
                .map(|counters| counters.get(Verdict::DropRevoked))
        };
        let refused_before = refused(site)?;
        let line_before = site.line(device_id(0));
        self.home.revoke(device_id(0))?;
        let took = site.await_revocations(revoked_before + 1)?;
        let line_after = |site: &Site| site.line(device_id(0)).map(|line| line.commit.idx());
        for prover in self.provers.iter_mut().take(WITNESSES as usize) {
            prover.power_cycle();
        }
        let got_session = self.authenticate(0, Instant::now() + REFUSAL)?.is_some();
        let deadline = Instant::now() + self.options.limit;
        let mut others = 0;
        for at in 1..WITNESSES as usize {
            others += u64::from(self.authenticate(at, deadline)?.is_some());
        }
        if refused(site)? == refused_before {
            self.report
                .refused(1, "the revoked device's attempts were never seen");
        }
        self.report.revocation = Some(RevocationReport {
            took_ms: took.as_secs_f64() * 1e3,
            reached_after: 0,
            authenticated_after: got_session || line_before.map(|line| line.commit.idx()) != line_after(site),
            others_authenticated: others,
            others_refused: u64::from(WITNESSES) - 1 - others,
        });
        audience.check()
    }
}
