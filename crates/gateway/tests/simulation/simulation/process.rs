//! Gateway processes: start, steps and end.

use linewarden_controller::Link;
use linewarden_controller::attest::Verifier;
use linewarden_dataplane::{Config, Gate, Geometry};
use linewarden_gateway::{Node, Settings};
use linewarden_protocol::ids::GatewayId;
use linewarden_protocol::verdict::Verdict;
use linewarden_types::{ControllerRequest, ControllerResponse};
use rand::RngExt as _;

use super::clock::HostClock;
use super::controller::admitted;
use super::fleet::{PERIOD_S, PROVERS};
use super::network::Packet;
use super::{MARK_BLOCK, Mechanism, RING, SESSION_LIFETIME_S, SLOTS, Simulation};
use crate::simulated_data_plane::SimulatedDataPlane;

/// A process of a gateway.
pub(super) struct Process {
    pub(super) gateway: usize,
    pub(super) number: u64,
    pub(super) node: Node,
    pub(super) settings: Settings,
    pub(super) data_plane: SimulatedDataPlane,
    pub(super) clock: HostClock,
    /// The process's registration, after its first request.
    pub(super) link: Option<Link>,
    /// The number of the controller start to which the link belongs.
    pub(super) linked_to: u64,
    /// Number of requests without a response.
    pub(super) abandoned_requests: u64,
    /// The verifier of the link, after the first request that needs it.
    pub(super) verifier: Option<Verifier>,
    /// Creation times of three plans: the requested plan, the current plan, and the current plan of the previous step.
    /// A challenge belongs to the third plan, because it is sent one step after the start of its round.
    pub(super) planned_ms: [u64; 3],
    /// Responses in flight, and their arrival times.
    pub(super) responses: Vec<(u64, ControllerResponse)>,
    /// The fencing token in the adopted memory; 0 for none.
    pub(super) adopted_from: u64,
    /// Whether the process was replaced or killed.
    pub(super) is_replaced: bool,
    /// Whether the process was killed. Its memory stays, and its data plane keeps running.
    pub(super) is_killed: bool,
}

impl Process {
    pub(super) fn id(&self) -> GatewayId {
        GatewayId(self.gateway as u32 + 1)
    }
}

pub(super) fn config(gateway: usize, attests: bool) -> Config {
    Config {
        gateway_id: GatewayId(gateway as u32 + 1),
        session_lifetime_s: SESSION_LIFETIME_S,
        lap_port: 20550,
        local: vec!["192.0.2.1".parse().unwrap()],
        device_prefixes: vec!["10.0.0.0/8".parse().unwrap()],
        follows_interfaces: false,
        other_addresses: Vec::new(),
        fragments: false,
        gate: Gate::Off,
        nak_per_s: 1000,
        alarm_per_s: 10,
        miss_per_s: 1000,
        low_rows: 2,
        low_credit: 1,
        geometry: Geometry {
            slots: SLOTS,
            ring: RING,
            hash_seed: [3, 4],
        },
        provers: if attests { PROVERS } else { 0 },
        inband_evidence: false,
        always_pass: Vec::new(),
        dhcp_servers: Vec::new(),
    }
}

impl Simulation {
    fn config(&self, gateway: usize) -> Config {
        config(gateway, self.attests)
    }

    /// Starts a process with new memory.
    pub(super) fn start(&mut self, gateway: usize) {
        let clock = HostClock::new(self.now_ms, &mut self.rng);
        let data_plane = SimulatedDataPlane::new(&self.config(gateway), clock.moment(self.now_ms));
        self.start_on(gateway, data_plane, clock);
    }

    /// Starts a process on the memory of a killed process, or on new memory if no process was killed. Returns an error if
    /// the start has ended a session.
    pub(super) fn start_on_adopted(&mut self, gateway: usize) -> Result<(), String> {
        let is_killed = |process: &Process| process.gateway == gateway && process.is_killed;
        let Some(process_index) = self.processes.iter().position(is_killed) else {
            self.start(gateway);
            return Ok(());
        };
        self.tally.adopted += 1;
        let killed = self.remove_process(process_index);
        let data_plane = SimulatedDataPlane::adopted(
            &killed.data_plane,
            &self.config(gateway),
            killed.clock.moment(self.now_ms),
        );
        let sessions_before = killed.data_plane.sessions(&self.devices);
        self.start_on(gateway, data_plane, killed.clock);
        let sessions_after = self
            .processes
            .last()
            .map(|process| process.data_plane.sessions(&self.devices));
        match sessions_after == Some(sessions_before) {
            true => Ok(()),
            false => Err(format!(
                "a process of gateway {} adopted memory, and sessions ended",
                gateway + 1
            )),
        }
    }

    fn start_on(&mut self, gateway: usize, data_plane: SimulatedDataPlane, clock: HostClock) {
        let previous_owner = {
            let mut inner = data_plane.0.lock().unwrap();
            inner.no_marks = self.without == Some(Mechanism::Mark);
            inner.no_wiping = self.without == Some(Mechanism::Wiping);
            inner.host.store().inherited_state().owner
        };
        let config = self.config(gateway);
        let settings = Settings {
            mark_block: MARK_BLOCK,
            feed_poll_ms: 400,
            attest_period_s: PERIOD_S,
            // Blocked devices are wiped at the next housekeeping, within 5 s. Blocks last longer.
            wipe_after_ms: 100,
            ..Settings::for_data_plane(&config)
        };
        self.processes_started += 1;
        self.processes.push(Process {
            gateway,
            number: self.processes_started,
            node: Node::new(Box::new(data_plane.of_node(&config)), settings).unwrap(),
            settings,
            data_plane,
            clock,
            link: None,
            abandoned_requests: 0,
            linked_to: 0,
            verifier: None,
            planned_ms: [0; 3],
            responses: Vec::new(),
            adopted_from: previous_owner,
            is_replaced: false,
            is_killed: false,
        });
    }

    /// Kills the process. Its memory stays, and its data plane keeps running; responses to the process are lost.
    pub(super) fn kill_process(&mut self, process_index: usize) {
        let process = &mut self.processes[process_index];
        process.is_killed = true;
        process.is_replaced = true;
        process.responses.clear();
    }

    pub(super) fn remove_process(&mut self, process_index: usize) -> Process {
        let process = self.processes.remove(process_index);
        let status = process.node.status();
        self.tally.evicted += status.evicted;
        self.tally.admitted += status.admitted;
        self.tally.rows_returned += status.rows_returned;
        process
    }

    /// Stops the process. In some cases, its report of unused rows does not reach the controller.
    pub(super) fn stop(&mut self, process_index: usize) {
        let (host, process) = (&mut self.controller_host, &mut self.processes[process_index]);
        let unused_rows = process.node.close();
        for unused in &unused_rows {
            host.forget_mark(process.id(), unused.device);
        }
        let process = &self.processes[process_index];
        let link = process
            .link
            .as_ref()
            .map(|link| self.link_with_count(process, link));
        let is_recorded = match link.filter(|_| self.controller_host.is_open && self.rng.random_ratio(9, 10))
        {
            Some(link) => self
                .runtime
                .block_on(async {
                    link.record_abandoned_requests().await?;
                    link.record_unused_rows(&unused_rows).await
                })
                .is_ok(),
            None => false,
        };
        self.losses += u32::from(!is_recorded);
        let undelivered = self.remove_process(process_index).responses;
        self.record_stranded_rows(undelivered.iter().flat_map(|(_, response)| admitted(response)));
    }

    pub(super) fn tick(&mut self, process_index: usize) -> Result<(), String> {
        let now_ms = self.now_ms;
        let process = &mut self.processes[process_index];
        let clock = process.clock.clock(now_ms);
        process.data_plane.set_clock(process.clock, now_ms, self.without);
        if process.is_killed {
            return self.collect(process_index);
        }
        process.planned_ms[2] = process.planned_ms[1];
        let responses = process.responses.extract_if(.., |(at_ms, _)| *at_ms <= now_ms);
        let responses: Vec<ControllerResponse> = responses.map(|(_, response)| response).collect();
        for response in responses {
            if matches!(response, ControllerResponse::GetPlan(Ok(Some(_)))) {
                process.planned_ms[1] = process.planned_ms[0];
            }
            process
                .node
                .handle_response(response, clock, self.retry_rng.random());
        }
        let rng = &mut self.rng;
        let requests = process.node.tick(clock, &mut || Some(rng.random()));
        process.data_plane.notice();
        let reports_unused = requests
            .iter()
            .any(|request| matches!(request, ControllerRequest::ReportUnusedRows(_)));
        if reports_unused && !self.is_calm && self.rng.random_ratio(1, 10) {
            return self.kill_before_return(process_index);
        }
        for request in requests {
            let response = self.request(process_index, request);
            let late = !self.is_calm && self.rng.random_ratio(1, 5);
            let delay_ms = if late { self.rng.random_range(0..300) } else { 0 };
            self.processes[process_index]
                .responses
                .push((now_ms + delay_ms, response));
        }
        self.collect(process_index)
    }

    /// Kills the process before it sends its report of unused rows. The next process adopts the memory.
    fn kill_before_return(&mut self, process_index: usize) -> Result<(), String> {
        self.tally.kills += 1;
        self.losses += 1;
        self.collect(process_index)?;
        if self.processes[process_index].is_replaced {
            return Ok(());
        }
        let gateway = self.processes[process_index].gateway;
        self.kill_process(process_index);
        self.start_on_adopted(gateway)
    }

    /// Applies other settings; returns an error if a session has ended.
    pub(super) fn reload(&mut self, process_index: usize) -> Result<(), String> {
        let process = &mut self.processes[process_index];
        let rng = &mut self.rng;
        let mut live = config(process.gateway, self.attests).live_settings();
        live.session_lifetime_s = rng.random_range(2..=2 * SESSION_LIFETIME_S);
        live.low_rows = rng.random_range(0..RING);
        live.low_credit = rng.random_range(0..4);
        let settings = Settings {
            mark_block: rng.random_range(live.low_credit + 1..=8),
            low_credit: live.low_credit,
            low_rows: live.low_rows,
            feed_poll_ms: rng.random_range(250..900),
            ..process.settings
        };
        self.tally.reloads += 1;
        let sessions_before = process.data_plane.sessions(&self.devices);
        let clock = process.clock.clock(self.now_ms);
        process
            .node
            .reconfigure(settings, &live, clock)
            .map_err(|error| format!("a reload was rejected: {error}"))?;
        process.settings = settings;
        match process.data_plane.sessions(&self.devices) == sessions_before {
            true => Ok(()),
            false => Err(format!(
                "process {} was reloaded, and sessions ended",
                process.number
            )),
        }
    }

    /// Collects and checks the results of the data plane, and sends its replies.
    fn collect(&mut self, process_index: usize) -> Result<(), String> {
        let process = &self.processes[process_index];
        let (number, gateway) = (process.number, process.gateway);
        let (accepted, replies, verdicts, closed, violation) = {
            let mut inner = process.data_plane.0.lock().unwrap();
            (
                std::mem::take(&mut inner.accepted),
                std::mem::take(&mut inner.replies),
                std::mem::take(&mut inner.verdicts),
                std::mem::take(&mut inner.closed),
                inner.violation.take(),
            )
        };
        self.tally.at_mark += verdicts
            .iter()
            .filter(|verdict| **verdict == Verdict::DropMark)
            .count() as u64;
        self.tally.closed += closed.len() as u64;
        for (device, session) in closed {
            self.session_locations
                .check_closed(device, session, gateway, &mut self.ledger.problem);
        }
        for (device, idx, tag) in accepted {
            self.tally.accepted += 1;
            self.session_locations
                .record_accepted(device, tag, gateway, self.now_ms);
            self.tally.accepted_alone += u64::from(!self.controller_host.is_healthy());
            let simulated = self
                .devices
                .iter()
                .find(|simulated| simulated.id == device)
                .unwrap();
            self.ledger
                .record_accepted(device, simulated.mode, idx, tag, number);
        }
        for reply in replies {
            let (to, port) = (reply.to.src_ip, reply.to.src_port);
            self.record_request(process_index, &reply.payload);
            if let Some(device_index) = self
                .devices
                .iter()
                .position(|simulated| simulated.address() == to)
            {
                let payload = Box::new(reply.payload);
                self.send(Packet::ToDevice {
                    device_index,
                    port,
                    payload,
                });
            }
        }
        match violation {
            Some(problem) => Err(format!("process {number}: {problem}")),
            None => self.check_keys(process_index),
        }
    }
}
