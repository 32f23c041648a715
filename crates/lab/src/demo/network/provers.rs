//! The provers on the link.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use linewarden_protocol::verdict::Verdict;

use super::steps::{drain_service_queue, ignore_progress, short_run};
use crate::demo::DemoError;
use crate::demo::attest::{AccessAttempt, ExpectedAccess, ProverEnvironment};
use crate::demo::fleets::service;
use crate::demo::gateway::DemoGateway;
use crate::fleet::{Exchange, Fleet, Progress, RunOptions};
use crate::service::EchoService;

/// The provers on the link.
pub(super) struct LinkProvers<'a> {
    pub(super) fleet: &'a mut Fleet,
    pub(super) ips: HashMap<u32, IpAddr>,
    pub(super) gateway: &'a DemoGateway,
    /// The service, if the data plane has a gate.
    pub(super) service: Option<&'a EchoService>,
    pub(super) stop: &'a AtomicBool,
}

impl ProverEnvironment for LinkProvers<'_> {
    fn run_until(
        &mut self,
        limit: Duration,
        is_reached: &mut dyn FnMut() -> bool,
    ) -> Result<bool, DemoError> {
        let is_done = AtomicBool::new(false);
        let mut was_reached = false;
        self.fleet.run_attestation(&mut RunOptions {
            timeout: limit,
            ..short_run(&is_done, &mut |_| {
                if !was_reached && is_reached() {
                    was_reached = true;
                    is_done.store(true, Ordering::Relaxed);
                }
            })
        })?;
        Ok(was_reached)
    }

    fn attempt_access(&mut self, index: u32, expected: ExpectedAccess) -> Result<AccessAttempt, DemoError> {
        Ok(match expected {
            ExpectedAccess::Denied => AccessAttempt {
                delivered: self.count_delivered(index)?,
                session: self.reauthenticate(index)?,
            },
            ExpectedAccess::Granted => AccessAttempt {
                session: self.authenticate(&AtomicBool::new(false), &mut ignore_progress, index)?,
                delivered: self.count_delivered(index)?,
            },
        })
    }
}

impl LinkProvers<'_> {
    /// All devices send datagrams to the service. Returns how many datagrams of device `index` arrive.
    fn count_delivered(&mut self, index: u32) -> Result<Option<u64>, DemoError> {
        let Some(echo) = self.service else {
            return Ok(None);
        };
        let attempt = Exchange {
            attempts: 3,
            timeout: Duration::from_millis(100),
            ..Exchange::to(service)
        };
        let ip = self.ips.get(&index).copied();
        let count_arrived = || {
            drain_service_queue(echo)?;
            let traffic = echo.traffic();
            Ok::<_, DemoError>(ip.and_then(|ip| traffic.sources.get(&ip).copied()).unwrap_or(0))
        };
        let before = count_arrived()?;
        self.fleet
            .exchange(&attempt, &mut short_run(self.stop, &mut ignore_progress))?;
        Ok(Some(count_arrived()? - before))
    }

    /// Power-cycles the device, which requests a session until the gateway refuses the request. Returns whether the device
    /// got a session.
    fn reauthenticate(&mut self, index: u32) -> Result<bool, DemoError> {
        let demo_gateway = self.gateway;
        let refusals = || {
            let counters = demo_gateway.gateway.counters();
            counters.map_or(0, |counters| counters.get(Verdict::DropRevoked))
        };
        let before = refusals();
        self.fleet.power_cycle_device(index);
        let is_refused = AtomicBool::new(false);
        let mut check = |_: Progress| {
            if refusals() > before {
                is_refused.store(true, Ordering::Relaxed);
            }
        };
        self.authenticate(&is_refused, &mut check, index)
    }

    /// Every device without a session requests a session. Returns whether device `index` has a session afterwards.
    fn authenticate(
        &mut self,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(Progress),
        index: u32,
    ) -> Result<bool, DemoError> {
        self.fleet.authenticate(&mut short_run(stop, progress))?;
        Ok(self.fleet.session(index).is_some())
    }
}
