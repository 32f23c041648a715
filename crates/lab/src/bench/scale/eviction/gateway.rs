//! A gateway with its controller, and the devices that come to it, on one clock that the bench sets.

use std::collections::BTreeMap;

use linewarden_controller::{Controller, Leases, Link, Policy, Reported};
use linewarden_dataplane::Config;
use linewarden_dataplane::host::Moment;
use linewarden_gateway::{Answer, Ask, Clock, Eviction, Node, Settings};
use linewarden_protocol::device::{Device, DeviceConfig, GatewayPolicy, Output};
use linewarden_protocol::ids::{DeviceId, GatewayId, Mode, Suite};
use linewarden_registry::{BootId, Registry};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tokio::runtime::Runtime;

use super::plane::{Plane, address};
use super::{Outcome, row_key};
use crate::bench::{BenchError, keys};
use crate::fleet::device_id;

/// Between one access and the next, ms: a device of 10,000 comes about once an hour.
const ACCESS_EVERY_MS: u64 = 400;
/// How often gateway and devices look at the clock while a handshake is under way, ms.
const STEP_MS: u64 = 10;

/// One gateway with nobody in it at first.
pub(super) struct Gateway<'r> {
    runtime: &'r Runtime,
    link: Link,
    leases: Leases,
    node: Node,
    plane: Plane,
    now_ms: u64,
    /// Devices in a handshake, by id.
    active: BTreeMap<u64, Visit>,
    rng: ChaCha8Rng,
    pub(super) outcome: Outcome,
}

/// A device in a handshake.
struct Visit {
    device: Device,
    /// A message of it took the slow path.
    missed: bool,
}

impl<'r> Gateway<'r> {
    pub(super) fn start(
        runtime: &'r Runtime,
        registry: &Registry,
        id: GatewayId,
        places: u32,
        eviction: Eviction,
    ) -> Result<Self, BenchError> {
        let config = Config {
            gateway_id: id,
            miss_per_s: 1000,
            ..keys::config(places, 2)
        };
        let settings = Settings {
            eviction,
            // Nothing is revoked here, and a poll costs more than a handshake.
            feed_poll_ms: 60_000,
            ..Settings::for_plane(&config)
        };
        let controller = Controller::new(registry.clone(), Policy::default());
        let link = runtime.block_on(controller.connect(id, 0))?;
        let now_ms = 1000;
        let plane = Plane::new(&config, moment(now_ms))?;
        let node = Node::new(Box::new(plane.clone()), settings)
            .map_err(|error| BenchError::Contradiction(error.to_string()))?;
        let mut gateway = Self {
            runtime,
            leases: link.held(),
            link,
            node,
            plane,
            now_ms,
            active: BTreeMap::new(),
            rng: ChaCha8Rng::seed_from_u64(2),
            outcome: Outcome::default(),
        };
        gateway.settle_down()?;
        Ok(gateway)
    }

    /// A device starts, and authenticates if it can; what takes longer goes on during the next ones.
    pub(super) fn access(&mut self, device: u32) -> Result<(), BenchError> {
        let at_ms = self.now_ms + ACCESS_EVERY_MS;
        while self.now_ms < at_ms {
            self.now_ms = match self.active.is_empty() {
                true => at_ms,
                false => self.now_ms + STEP_MS,
            };
            self.plane.inner().now = moment(self.now_ms);
            self.poll();
            self.settle_down()?;
        }
        let id = device_id(device);
        let mut device = Device::new(DeviceConfig {
            device: id,
            suite: Suite::SipHash128,
            mode: Mode::Key,
            gateways: GatewayPolicy::ANY,
            bound_mac: None,
        });
        let output = device
            .start(self.rng.random(), self.now_ms)
            .map_err(|error| BenchError::Contradiction(error.to_string()))?;
        self.outcome.accesses += 1;
        let visit = Visit {
            device,
            missed: false,
        };
        self.outcome.unanswered += u64::from(self.active.insert(id.0, visit).is_some());
        self.act(id.0, output);
        self.settle_down()
    }

    /// What is due by the devices' clocks.
    fn poll(&mut self) {
        let due: Vec<u64> = self.active.keys().copied().collect();
        for id in due {
            if let Some(visit) = self.active.get_mut(&id) {
                let output = visit.device.poll(self.now_ms);
                self.act(id, output);
            }
        }
    }

    /// Datagrams, questions and answers until nothing more happens at this moment.
    fn settle_down(&mut self) -> Result<(), BenchError> {
        loop {
            let delivered = self.deliver();
            let clock = clock(self.now_ms);
            let rng = &mut self.rng;
            let asks = self.node.tick(clock, &mut || Some(rng.random()));
            if asks.is_empty() && !delivered && self.plane.inner().replies.is_empty() {
                return Ok(());
            }
            for ask in asks {
                let answer = self.answer(ask)?;
                self.node.answer(answer, clock);
            }
        }
    }

    /// Replies to their devices; whether there were any.
    fn deliver(&mut self) -> bool {
        let mut any = false;
        loop {
            let replies = std::mem::take(&mut self.plane.inner().replies);
            if replies.is_empty() {
                return any;
            }
            any = true;
            for (id, payload) in replies {
                if let Some(visit) = self.active.get_mut(&id)
                    && let Ok(output) = visit.device.handle(&payload, &address(id), self.now_ms)
                {
                    self.act(id, output);
                }
            }
        }
    }

    /// Does what a device wants; a handshake that has ended is counted.
    fn act(&mut self, id: u64, mut output: Output) {
        let Some(mut visit) = self.active.remove(&id) else {
            return;
        };
        loop {
            output = match output {
                Output::Transmit(message) => {
                    let mut plane = self.plane.inner();
                    plane.receive(message);
                    visit.missed |= std::mem::take(&mut plane.missed).contains(&id);
                    visit.device.poll(self.now_ms)
                }
                Output::EvaluatePuf(_) => {
                    let key = row_key(DeviceId(id));
                    visit.device.puf_result(Ok(key), self.now_ms)
                }
                Output::Authenticated(_) => {
                    self.outcome.hits += u64::from(!visit.missed);
                    return;
                }
                Output::Failed { .. } | Output::NeedNonce | Output::SessionExpired => {
                    self.outcome.unanswered += 1;
                    return;
                }
                Output::Postponed { .. } | Output::None => {
                    self.active.insert(id, visit);
                    return;
                }
            };
        }
    }

    fn answer(&mut self, ask: Ask) -> Result<Answer, BenchError> {
        let (runtime, link) = (self.runtime, &self.link);
        Ok(match ask {
            Ask::Enter => Answer::Entered(Ok(link.number())),
            Ask::Resume => Answer::Chunk(Ok(runtime.block_on(self.leases.next_chunk())?)),
            Ask::Lease(wants) => Answer::Rows(Ok(runtime.block_on(link.lease(&wants))?)),
            Ask::Receive { knocks, fresh } => {
                Answer::Receptions(Ok(runtime.block_on(link.receive(&knocks, fresh))?))
            }
            Ask::Settle(settlements) => Answer::Settled(Ok(runtime.block_on(link.settle(&settlements))?)),
            Ask::Plan(_) | Ask::Provers { .. } | Ask::Appraise(_) => {
                return Err(BenchError::Contradiction("nobody is attested here".to_owned()));
            }
            Ask::Evidence { .. } => {
                return Err(BenchError::Contradiction(
                    "nobody asks for evidence here".to_owned(),
                ));
            }
            Ask::ProverIds { since } => Answer::ProverIds(Ok(runtime.block_on(link.prover_ids(since))?)),
            Ask::Report(openings) => {
                // One gateway: nobody is elsewhere.
                Answer::Reported {
                    result: Ok(vec![Reported::Newest; openings.len()]),
                    at_ns: 0,
                }
            }
            Ask::Changes { since } => {
                let at_ns = self.now_ms.saturating_mul(1_000_000);
                let now = controller_clock(at_ns);
                Answer::Changes {
                    result: Ok(runtime.block_on(link.changes(since, Some(now)))?),
                    at_ns,
                    scrutiny: None,
                }
            }
        })
    }
}

fn clock(now_ms: u64) -> Clock {
    let now_ns = now_ms.saturating_mul(1_000_000);
    Clock {
        monotonic_ns: now_ns,
        boot_ns: now_ns,
    }
}

fn controller_clock(boot_ns: u64) -> linewarden_registry::Moment {
    linewarden_registry::Moment {
        boot: BootId([1; 16]),
        ns: i64::try_from(boot_ns).unwrap_or(i64::MAX),
    }
}

fn moment(now_ms: u64) -> Moment {
    Moment {
        monotonic_ns: now_ms.saturating_mul(1_000_000),
        boot_ns: now_ms.saturating_mul(1_000_000),
    }
}
