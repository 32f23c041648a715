//! The demonstration in the private network.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::verdict::Verdict;
use linewarden_protocol::wire::ATTEST_PORT;

use super::attest::{self, Act, Expected, Field, Tried};
use super::cast::Cast;
use super::fleets::{ECHO_PORT, Fleets, service};
use super::home::Home;
use super::latency::{self, Measured};
use super::report::{AttackOutcome, Quantiles, Report, RevocationReport, ServiceReport};
use super::siege::Siege;
use super::site::{self, Site};
use super::{Audience, Backend, DemoError, Event, Options, Sabotage, Stage, judge};
use crate::address::{DEVICES_MAX, DeviceAddress};
use crate::attackers::{Capture, Captured, JunkProofs, PUPPETS, PUPPETS_FROM, Puppet, Station};
use crate::capability::{self, FOR_LOAD_GENERATOR};
use crate::fleet::{Exchange, Fleet, Progress, Report as FleetReport, Run, device_id};
use crate::iproute;
use crate::service::EchoService;
use crate::topology::{Lab, Middle, Topology};

/// Between two looks at what the attackers have done.
const GLANCE: Duration = Duration::from_millis(100);
/// How long devices may take to get through the gate, or to authenticate beside a revoked one.
const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn run(options: &Options, audience: &mut Audience<'_>) -> Result<Report, DemoError> {
    let has_bpf = capability::require(FOR_LOAD_GENERATOR).is_ok();
    audience.stage(Stage::Building)?;
    let lab = build(options, has_bpf)?;
    audience.stage(Stage::Enrolling)?;
    let mut cast = Cast::enrol(options, true, audience)?;
    audience.stage(Stage::Registering)?;
    let records = std::mem::take(&mut cast.records);
    let enrolled = records.len() as u32;
    let home = Home::create(records, audience)?;

    let workers = workers();
    let mut show = Show {
        options,
        lab: &lab,
        home: &home,
        enrolled,
        fleets: Fleets::new(&lab, options, &mut cast, workers)?,
        report: Report::new(options, workers),
        revoked: 0,
    };
    let site = show.start_gateway(options.backend, audience)?;
    show.main_act(&site, cast, audience)?;
    show.measure(options.backend, audience)?;
    site.stop()?;
    show.compare(has_bpf, audience)?;
    Ok(show.report.conclude())
}

/// Threads that play the fleet: half of the processors, the rest is for the verifier and the attackers.
fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, |cpus| (cpus.get() / 2).clamp(1, 8))
}

/// The network, with a neighbour entry for every device: the kernel's table of unresolved ones is small and shared by
/// the whole machine.
fn build(options: &Options, has_bpf: bool) -> Result<Lab, DemoError> {
    let lab = Lab::build(&Topology {
        middle: match options.backend {
            Backend::Xdp | Backend::Host => Middle::Router,
            Backend::P4 => Middle::Switch,
        },
        device_host: false,
        permanent_neighbours: options.devices,
        devices_end_accepts_xdp: has_bpf,
        ..Topology::default()
    })?;
    let (netns, end) = lab.gateway_stack();
    let mut script = String::new();
    let puppets = PUPPETS_FROM..PUPPETS_FROM + PUPPETS;
    // The last address is the one from which attackers probe whether the gateway is through with their messages.
    for device in puppets.chain([DEVICES_MAX - 1]).map(DeviceAddress::new) {
        let (ip, mac, dev) = (device.v4(), device.mac(), &end.name);
        // Writing to a String cannot fail.
        let _ = writeln!(script, "neigh replace {ip} lladdr {mac} dev {dev} nud permanent");
    }
    iproute::batch(netns, &script)?;
    Ok(lab)
}

/// A run under way.
struct Show<'a> {
    options: &'a Options,
    lab: &'a Lab,
    home: &'a Home,
    enrolled: u32,
    fleets: Fleets,
    report: Report,
    /// Devices revoked so far.
    revoked: u64,
}

impl Show<'_> {
    fn start_gateway(&self, backend: Backend, audience: &mut Audience<'_>) -> Result<Site, DemoError> {
        audience.stage(Stage::Loading)?;
        let config = site::config(self.options, backend, site::lab_addresses(), self.enrolled)?;
        let (plane, switch) = site::plane(self.lab, backend, &config)?;
        let wanted = u64::from(self.enrolled) - self.revoked;
        let home = self.home;
        let gateway = self.lab.gateway.run(|| site::gateway(plane, &config, home))??;
        Site::load(gateway, switch, wanted, audience)
    }

    fn has_gate(&self) -> bool {
        self.options.backend.has_gate()
    }

    /// What the data plane of the main run cannot do, or this network not show.
    fn say_what_is_left_out(&mut self) {
        if !self.has_gate() {
            self.report.left_out.extend([
                "the gate and the service behind it: the host data plane sees only what is sent to it".to_owned(),
                "a victim's RESPONSE from another MAC with the victim's own IP address: the host data plane sees no \
                 frames, and takes the datagram for the victim's, whose session it opens"
                    .to_owned(),
            ]);
        }
    }

    /// Everything that is shown on the data plane of the main run, but its quiet latency.
    fn main_act(&mut self, site: &Site, cast: Cast, audience: &mut Audience<'_>) -> Result<(), DemoError> {
        self.say_what_is_left_out();
        let echo = EchoService::start(self.lab, ECHO_PORT)?;
        let mut books = ServiceReport::default();
        if self.has_gate() {
            self.try_closed_gate(&echo, &mut books, audience)?;
        }
        audience.stage(Stage::Authenticating)?;
        let captured = self.overhear_witnesses(audience)?;
        if self.options.sabotage == Some(Sabotage::RevokeBeforeTurn) {
            self.revoke(site, self.options.devices - 1)?;
        }
        let absent = cast.absent.clone();
        self.authenticate_under_attack(site, &echo, cast, captured, audience)?;
        let (audit, authenticated) = judge::audit(site, self.fleets.sessions(), &absent)?;
        self.report.audit = audit;
        self.report.authenticated = authenticated;
        if self.has_gate() {
            self.reach_service(&echo, &mut books, audience)?;
            self.report.service = Some(books);
        }
        self.show_attestation(site, &echo, audience)?;
        self.show_revocation(site, &echo, audience)
    }

    /// Nobody has authenticated: nothing may get through.
    fn try_closed_gate(
        &mut self,
        echo: &EchoService,
        books: &mut ServiceReport,
        audience: &mut Audience<'_>,
    ) -> Result<(), DemoError> {
        let attempt = Exchange {
            attempts: 2,
            patience: Duration::from_millis(50),
            ..Exchange::to(service)
        };
        let tried = self
            .fleets
            .witnesses
            .exchange(&attempt, &mut brief(audience.stop, &mut nobody))?;
        books.tried_before = tried.sent;
        books.reached_before = devices_datagrams(echo)?;
        audience.check()
    }

    /// The witnesses authenticate while the attackers listen.
    fn overhear_witnesses(&mut self, audience: &mut Audience<'_>) -> Result<Captured, DemoError> {
        let capture = Capture::start(self.lab, self.options.devices as usize)?;
        let witnesses = &mut self.fleets.witnesses;
        let report = witnesses.authenticate(&mut Run {
            limit: self.options.limit,
            ..brief(audience.stop, &mut nobody)
        })?;
        let captured = capture.finish()?;
        audience.check()?;
        let heard = captured
            .values()
            .filter(|heard| heard.response.is_some() && heard.ack.is_some())
            .count();
        let wanted = report.authenticated as usize;
        if heard < wanted {
            return Err(DemoError::NotOverheard { heard, wanted });
        }
        Ok(captured)
    }

    /// All others authenticate while the attackers attack.
    fn authenticate_under_attack(
        &mut self,
        site: &Site,
        echo: &EchoService,
        cast: Cast,
        captured: Captured,
        audience: &mut Audience<'_>,
    ) -> Result<(), DemoError> {
        let probe = cast.absent.first().copied().unwrap_or(DeviceId(1));
        let siege = Siege {
            station: Station::new(self.lab, probe)?,
            captured,
            absent: cast.absent,
            victims: self.fleets.witnesses.indices().map(device_id).collect(),
            puppets: cast.puppets.into_iter().map(Puppet::new).collect(),
            clones: cast.clones,
            service: self.has_gate().then_some((echo, ECHO_PORT)),
            sees_frames: self.options.backend.has_gate(),
            effort: self.options.effort,
            seed: self.options.seed,
        };
        let call_off = AtomicBool::new(false);
        let stop = audience.stop;
        let (tell, told) = mpsc::channel();
        let fleet_reports = std::thread::scope(|scope| {
            let attackers = scope.spawn(|| {
                let tell = tell;
                siege.run(site, [stop, &call_off], &tell);
            });
            let reports = self.authenticate_crowd(&told, audience);
            if reports.is_err() {
                call_off.store(true, Ordering::Relaxed);
            } else {
                self.await_attackers(&told, audience);
            }
            attackers.join().map_err(|_| DemoError::Panicked)?;
            reports
        })?;
        audience.check()?;
        let site_counters = site.gateway.counters()?;
        self.report.count_verdicts(&site_counters);
        self.note_rates(&fleet_reports);
        Ok(())
    }

    /// Runs all but the witnesses, one group after the other.
    fn authenticate_crowd(
        &mut self,
        told: &Receiver<AttackOutcome>,
        audience: &mut Audience<'_>,
    ) -> Result<Vec<FleetReport>, DemoError> {
        let devices = self.report.devices;
        let before = self.fleets.witnesses.indices().count() as u64;
        let started = Instant::now();
        let mut reports: Vec<FleetReport> = Vec::new();
        let Self {
            fleets,
            report,
            options,
            ..
        } = self;
        for fleet in [&mut fleets.sampled, &mut fleets.attested, &mut fleets.crowd] {
            let through: u64 = reports.iter().map(|report| report.authenticated).sum();
            let network_ns: f64 = reports.iter().map(|report| sum_ns(&report.network_ns)).sum();
            let stop = audience.stop;
            reports.push(fleet.authenticate(&mut Run {
                window: options.window,
                limit: options.limit,
                stop,
                progress: &mut |progress: Progress| {
                    let now = through + progress.authenticated;
                    audience.tell(Event::Fleet {
                        authenticated: before + now,
                        devices,
                        per_s: now as f64 / started.elapsed().as_secs_f64().max(1e-3),
                        latency_us: (network_ns + progress.network_ns as f64) / now.max(1) as f64 / 1e3,
                    });
                    note_attacks(told, &mut report.attacks, audience);
                },
            })?);
        }
        Ok(reports)
    }

    fn await_attackers(&mut self, told: &Receiver<AttackOutcome>, audience: &mut Audience<'_>) {
        audience.tell(Event::Stage(Stage::Attacking));
        loop {
            match told.recv_timeout(GLANCE) {
                Ok(outcome) => note_attack(outcome, &mut self.report.attacks, audience),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn note_rates(&mut self, reports: &[FleetReport]) {
        let merged = |pick: fn(&FleetReport) -> &Histogram<u64>| {
            let mut sum: Option<Histogram<u64>> = None;
            for report in reports {
                match &mut sum {
                    // All have the same bounds, so nothing can be out of range.
                    Some(sum) => drop(sum.add(pick(report))),
                    None => sum = Some(pick(report).clone()),
                }
            }
            sum.map_or_else(Quantiles::default, |sum| Quantiles::of_ns(&sum))
        };
        self.report.latency_us = merged(|report| &report.network_ns);
        self.report.latency_with_puf_us = merged(|report| &report.latency_ns);
        let authenticated: u64 = reports.iter().map(|report| report.authenticated).sum();
        let elapsed: Duration = reports.iter().map(|report| report.elapsed).sum();
        self.report.auth_per_s = authenticated as f64 / elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
    }

    /// Every device sends a datagram to the service. By the service's own books each must have reached it.
    fn reach_service(
        &mut self,
        echo: &EchoService,
        books: &mut ServiceReport,
        audience: &mut Audience<'_>,
    ) -> Result<(), DemoError> {
        audience.stage(Stage::Reaching)?;
        let total = self.report.devices;
        let mut done = 0;
        let window = self.options.window;
        let fleets = &mut self.fleets;
        let groups = [
            &mut fleets.witnesses,
            &mut fleets.sampled,
            &mut fleets.attested,
            &mut fleets.crowd,
        ];
        for fleet in groups {
            fleet.exchange(
                &Exchange::to(service),
                &mut Run {
                    window,
                    ..brief(audience.stop, &mut nobody)
                },
            )?;
            done += fleet.indices().count() as u64;
            audience.progress(done, total);
        }
        audience.check()?;
        fence(echo)?;
        let reached = echo.reached();
        for fleet in self.fleets.all() {
            for index in fleet.indices().filter(|index| fleet.session(*index).is_some()) {
                let arrived = reached.sources.contains_key(&self.fleets.ip(index));
                if arrived && fleet.got_echo(index) {
                    books.reached += 1;
                } else {
                    books.unreached += 1;
                }
            }
        }
        books.strangers = judge::strangers(&reached, &judge::honest_addresses(&self.fleets));
        Ok(())
    }

    fn revoke(&mut self, site: &Site, index: u32) -> Result<Duration, DemoError> {
        // A quarantine, too, counts as one at the gateway.
        let before = site.gateway.status().revoked;
        self.home.revoke(device_id(index))?;
        self.revoked += 1;
        site.await_revocations(before + 1)
    }

    /// Some devices prove what they run; one of them is changed, found, shut out, put right and let in again.
    fn show_attestation(
        &mut self,
        site: &Site,
        echo: &EchoService,
        audience: &mut Audience<'_>,
    ) -> Result<(), DemoError> {
        audience.stage(Stage::Attesting)?;
        let indices = self.fleets.attested.indices();
        let places = indices.map(|index| (index, self.fleets.ip(index), ATTEST_PORT));
        let devices = attest::equip(self.home, places)?;
        let act = Act::enrol(self.home, site, self.options, &devices)?;
        let ips = devices
            .iter()
            .map(|device| (device.index, self.fleets.ip(device.index)));
        let ips: HashMap<u32, IpAddr> = ips.collect();
        for device in devices {
            self.fleets.attested.set_attester(device.index, device.attester);
        }
        let junk = JunkProofs::start(self.lab, self.options.seed)?;
        let mut field = OnTheLink {
            fleet: &mut self.fleets.attested,
            ips,
            site,
            service: self.options.backend.has_gate().then_some(echo),
            stop: audience.stop,
        };
        let (mut books, counted) = act.run(&mut field, audience)?;
        let outcome = attest::note_junk(&mut books, junk.finish()?, &counted);
        note_attack(outcome, &mut self.report.attacks, audience);
        self.report.attestation = Some(books);
        Ok(())
    }

    /// The first device is revoked: its session must end, and no new one begin, while all others go on.
    fn show_revocation(
        &mut self,
        site: &Site,
        echo: &EchoService,
        audience: &mut Audience<'_>,
    ) -> Result<(), DemoError> {
        const LOST: u32 = 0;
        audience.stage(Stage::Revoking)?;
        fence(echo)?;
        let from_lost = |echo: &EchoService, ip| echo.reached().sources.get(&ip).copied().unwrap_or(0);
        let ip = self.fleets.ip(LOST);
        let before = from_lost(echo, ip);
        let line_before = site.line(device_id(LOST)).map(|line| line.commit.idx());
        let took = self.revoke(site, LOST)?;
        let mut books = RevocationReport {
            took_ms: took.as_secs_f64() * 1e3,
            ..RevocationReport::default()
        };
        if self.has_gate() {
            let attempt = Exchange {
                attempts: 3,
                patience: Duration::from_millis(100),
                ..Exchange::to(service)
            };
            self.fleets
                .witnesses
                .exchange(&attempt, &mut brief(audience.stop, &mut nobody))?;
            fence(echo)?;
            books.reached_after = from_lost(echo, ip) - before;
        }
        self.authenticate_again(site, audience)?;
        let witnesses = &self.fleets.witnesses;
        let line_after = site.line(device_id(LOST)).map(|line| line.commit.idx());
        books.authenticated_after = witnesses.session(LOST).is_some() || line_before != line_after;
        let others = || witnesses.indices().filter(|index| *index != LOST);
        books.others_authenticated = others()
            .filter(|index| witnesses.session(*index).is_some())
            .count() as u64;
        books.others_refused = others().count() as u64 - books.others_authenticated;
        self.report.revocation = Some(books);
        audience.check()
    }

    /// The witnesses lose their power and authenticate anew; ends when all but the revoked one have, and the gateway
    /// has seen that one try.
    fn authenticate_again(&mut self, site: &Site, audience: &mut Audience<'_>) -> Result<(), DemoError> {
        let refusals = || {
            site.gateway
                .counters()
                .map_or(0, |counters| counters.get(Verdict::DropRevoked))
        };
        let before = refusals();
        let enough = AtomicBool::new(false);
        let witnesses = &mut self.fleets.witnesses;
        witnesses.power_cycle();
        witnesses.authenticate(&mut Run {
            window: 16,
            limit: LIMIT,
            stop: &enough,
            progress: &mut |progress| {
                let others_are_through = progress.authenticated + 1 >= progress.devices;
                if others_are_through && refusals() > before || audience.check().is_err() {
                    enough.store(true, Ordering::Relaxed);
                }
            },
        })?;
        Ok(())
    }

    fn measure(&mut self, backend: Backend, audience: &mut Audience<'_>) -> Result<(), DemoError> {
        let Measured { pass, refused } =
            latency::measure(&mut self.fleets.sampled, backend, self.options, audience)?;
        let name = backend.name();
        self.report
            .refused(refused, &format!("devices refused one at a time by {name}"));
        self.report.comparison.push(pass);
        Ok(())
    }

    /// The same devices against the other data plane, in the same network: `xdp` needs nothing of it beside the devices' link.
    fn compare(&mut self, has_bpf: bool, audience: &mut Audience<'_>) -> Result<(), DemoError> {
        let other = self.options.backend.other();
        if other == Backend::Xdp && !has_bpf {
            self.report
                .left_out
                .push("the comparison with xdp: CAP_BPF is missing".to_owned());
            return Ok(());
        }
        self.lab
            .replace_switch()
            .map_err(|error| DemoError::Lab(error.into()))?;
        let site = self.start_gateway(other, audience)?;
        latency::introduce(&mut self.fleets.sampled, self.options, audience)?;
        self.measure(other, audience)?;
        site.stop()?;
        self.report
            .comparison
            .sort_by_key(|pass| pass.dataplane != Backend::Xdp.name());
        Ok(())
    }
}

/// The provers on the link.
struct OnTheLink<'a> {
    fleet: &'a mut Fleet,
    ips: HashMap<u32, IpAddr>,
    site: &'a Site,
    /// Behind the gate, if there is one.
    service: Option<&'a EchoService>,
    stop: &'a AtomicBool,
}

impl Field for OnTheLink<'_> {
    fn live(&mut self, limit: Duration, is_so: &mut dyn FnMut() -> bool) -> Result<bool, DemoError> {
        let enough = AtomicBool::new(false);
        let mut was_so = false;
        self.fleet.attest(&mut Run {
            limit,
            ..brief(&enough, &mut |_| {
                if !was_so && is_so() {
                    was_so = true;
                    enough.store(true, Ordering::Relaxed);
                }
            })
        })?;
        Ok(was_so)
    }

    fn try_to_get_in(&mut self, index: u32, expected: Expected) -> Result<Tried, DemoError> {
        Ok(match expected {
            Expected::Out => Tried {
                reached: self.knock(index)?,
                session: self.authenticate_anew(index)?,
            },
            Expected::In => Tried {
                session: self.authenticate(&AtomicBool::new(false), &mut nobody, index)?,
                reached: self.knock(index)?,
            },
        })
    }
}

impl OnTheLink<'_> {
    /// All send datagrams to the service; how many of this one's arrive.
    fn knock(&mut self, index: u32) -> Result<Option<u64>, DemoError> {
        let Some(service) = self.service else {
            return Ok(None);
        };
        let attempt = Exchange {
            attempts: 3,
            patience: Duration::from_millis(100),
            ..Exchange::to(self::service)
        };
        let ip = self.ips.get(&index).copied();
        let arrived = || {
            fence(service)?;
            let reached = service.reached();
            Ok::<_, DemoError>(ip.and_then(|ip| reached.sources.get(&ip).copied()).unwrap_or(0))
        };
        let before = arrived()?;
        self.fleet
            .exchange(&attempt, &mut brief(self.stop, &mut nobody))?;
        Ok(Some(arrived()? - before))
    }

    /// It loses its power and asks for another session, until the gateway has refused it.
    fn authenticate_anew(&mut self, index: u32) -> Result<bool, DemoError> {
        let site = self.site;
        let refusals = || {
            let counters = site.gateway.counters();
            counters.map_or(0, |counters| counters.get(Verdict::DropRevoked))
        };
        let before = refusals();
        self.fleet.power_cycle_device(index);
        let enough = AtomicBool::new(false);
        let mut look = |_: Progress| {
            if refusals() > before {
                enough.store(true, Ordering::Relaxed);
            }
        };
        self.authenticate(&enough, &mut look, index)
    }

    /// Whoever has no session asks for one; whether this one has got it.
    fn authenticate(
        &mut self,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(Progress),
        index: u32,
    ) -> Result<bool, DemoError> {
        self.fleet.authenticate(&mut brief(stop, progress))?;
        Ok(self.fleet.session(index).is_some())
    }
}

/// A run of a few devices.
fn brief<'a>(stop: &'a AtomicBool, progress: &'a mut dyn FnMut(Progress)) -> Run<'a> {
    Run {
        window: 16,
        limit: LIMIT,
        stop,
        progress,
    }
}

/// Watches a run that is over in no time.
fn nobody(_: Progress) {}

/// Waits until the service has counted all that lies in its queue.
fn fence(echo: &EchoService) -> Result<(), DemoError> {
    if echo.fence() {
        Ok(())
    } else {
        Err(DemoError::ServiceSilent)
    }
}

/// Datagrams that reached the service from anywhere but beside it.
fn devices_datagrams(echo: &EchoService) -> Result<u64, DemoError> {
    fence(echo)?;
    let reached = echo.reached();
    let outside = reached.sources.iter().filter(|(source, _)| !source.is_loopback());
    Ok(outside.map(|(_, datagrams)| datagrams).sum())
}

fn sum_ns(histogram: &Histogram<u64>) -> f64 {
    histogram.mean() * histogram.len() as f64
}

fn note_attacks(told: &Receiver<AttackOutcome>, into: &mut Vec<AttackOutcome>, audience: &mut Audience<'_>) {
    for outcome in told.try_iter() {
        note_attack(outcome, into, audience);
    }
}

fn note_attack(outcome: AttackOutcome, into: &mut Vec<AttackOutcome>, audience: &mut Audience<'_>) {
    audience.tell(Event::Attack(outcome.clone()));
    into.push(outcome);
}
