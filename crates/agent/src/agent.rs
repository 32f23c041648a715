//! The agent's event loop: connects the device state machine with a socket, a clock and a PUF.

mod credentials;
mod loss_reporter;
mod losses;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use linewarden_protocol::device::{Device, DeviceConfig, Output, Phase, PufFailed, PufQuery};
use linewarden_protocol::ticket::{ChunkAck, Kind};
use linewarden_protocol::wire::MESSAGE_BYTES;
use linewarden_puf::Puf;
use linewarden_puf::health::HealthTest;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::loss_reporter::LossReporter;
use crate::attest::{AttestOptions, Attestation};
use crate::device_socket::SealContext;
use crate::error::AgentError;
use crate::event::{AgentEvent, EventSink};
use crate::handshake_diagnosis::{HandshakeDiagnosis, MessageSummary, NakReason, ReasonText};
use crate::keyring::Keyring;
use crate::link::{Link, route_source, wire_address};
use crate::peer::{Peer, Peers};
use crate::renewal::{CredentialReader, NextAction, Renewal, RenewalOptions, TicketRequest};
use crate::retry::{self, RetryTimer};
use crate::ticket::{TicketClient, TicketResult};
use crate::time::boot_ms;
use crate::tunnel::{Tunnel, Tunnels};

/// Interval at which the route to the gateway is checked, ms.
const ROUTE_CHECK_MS: u64 = 5_000;
/// First and longest delay between attempts to open a socket, ms.
const RELINK_MS: (u64, u64) = (1_000, 30_000);

/// Settings of an agent, except its PUF.
#[derive(Debug)]
pub struct AgentOptions {
    /// The device, as enrolled.
    pub device: DeviceConfig,
    /// The device's helper data.
    pub keyring: Keyring,
    /// Renewal of rows or key; `None`: never.
    pub renewal: Option<RenewalOptions>,
    /// UDP port of the gateway for tickets.
    pub ticket_port: u16,
    /// Limits of a healthy PUF readout.
    pub health: HealthTest,
    /// Address of the gateway.
    pub gateway: SocketAddr,
    /// Tunnels through a sealed gate.
    pub tunnels: Vec<Tunnel>,
    /// Peer devices.
    pub peers: Vec<Peer>,
    /// UDP port for datagrams between devices.
    pub peer_port: u16,
    /// Attestation of the device; `None`: disabled.
    pub attest: Option<AttestOptions>,
    /// Exit after the first session and the requested renewal.
    pub once: bool,
    /// Exit if no session was opened within this time.
    pub session_timeout: Option<Duration>,
}

/// How a run of the agent ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunOutcome {
    /// Stopped through the file descriptor.
    Stopped,
    /// Session opened with `once`, and the requested renewal succeeded.
    Authenticated,
    /// Session opened with `once`, but the requested renewal failed.
    RenewalFailed,
    /// No session within the time limit.
    TimedOut,
}

/// The current or last handshake.
#[derive(Default)]
struct Handshake {
    /// Start, boot-time clock.
    started_ms: u64,
    /// Whether a NAK was reported.
    is_nak_reported: bool,
    diagnosis: HandshakeDiagnosis,
}

/// Observations since the last session opened.
#[derive(Default)]
struct SessionState {
    /// Whether a spent row was reported.
    is_spent_row_reported: bool,
    /// Whether the session's gateway seems to have lost the session. Until another session opens, the agent does not report
    /// the loss again, and the state machine's pauses determine the time of the next attempt.
    is_in_doubt: bool,
}

/// A device on Linux.
pub struct Agent {
    device: Device,
    puf: Box<dyn Puf>,
    options: AgentOptions,
    link: Option<Link>,
    tunnels: Tunnels,
    tickets: TicketClient,
    peers: Peers,
    attestation: Option<Attestation>,
    renewal: Option<Renewal>,
    relink: RetryTimer,
    route_check_at_ms: u64,
    handshake: Handshake,
    session_state: SessionState,
    authenticated: bool,
    loss_reporter: LossReporter,
}

impl Agent {
    /// Creates an agent; it does nothing before [`Agent::run`].
    #[must_use]
    pub fn new(options: AgentOptions, puf: Box<dyn Puf>) -> Self {
        let mut device = Device::new(options.device.clone());
        if let Some(spent) = options.keyring.spent() {
            device.raise_first_unanswered_row(spent.unanswered_from());
        }
        Self {
            device,
            puf,
            tickets: TicketClient::new(SocketAddr::new(options.gateway.ip(), options.ticket_port)),
            peers: Peers::empty(),
            attestation: None,
            renewal: options.renewal.map(Renewal::new),
            options,
            link: None,
            tunnels: Tunnels::empty(),
            relink: RetryTimer::new(RELINK_MS),
            route_check_at_ms: 0,
            handshake: Handshake::default(),
            session_state: SessionState::default(),
            authenticated: false,
            loss_reporter: LossReporter::default(),
        }
    }

    /// Authenticates and keeps the session open until `stop` becomes readable.
    ///
    /// # Errors
    /// [`AgentError`]: never caused by a network or gateway.
    pub fn run(&mut self, stop: BorrowedFd<'_>, sink: EventSink<'_>) -> Result<RunOutcome, AgentError> {
        self.tunnels = Tunnels::open(&self.options.tunnels, self.options.gateway.port())?;
        let device = self.options.device.device;
        self.peers = Peers::open(device, &self.options.peers, self.options.peer_port)?;
        let attest = self.options.attest.as_ref();
        self.attestation = attest
            .map(|attest| Attestation::start(attest, &self.options.device))
            .transpose()
            .map_err(AgentError::Attest)?;
        let outcome = self.run_until(stop, sink)?;
        if let Some(attestation) = &mut self.attestation {
            attestation.finish(sink);
        }
        self.report_losses(true, sink);
        if !self.options.tunnels.is_empty() {
            sink(&AgentEvent::TunnelStatistics(self.tunnels.counts()));
        }
        if outcome == RunOutcome::Stopped {
            sink(&AgentEvent::Stopped);
        }
        Ok(outcome)
    }

    fn run_until(&mut self, stop: BorrowedFd<'_>, sink: EventSink<'_>) -> Result<RunOutcome, AgentError> {
        let session_deadline_ms = self
            .options
            .session_timeout
            .map(|after| boot_ms().saturating_add(u64::try_from(after.as_millis()).unwrap_or(u64::MAX)));
        loop {
            self.maintain_link(sink)?;
            self.process_output(Output::None, sink)?;
            self.exchange_tickets(sink)?;
            if self.authenticated && self.options.once && !self.is_renewing() {
                return Ok(match self.renewal.as_ref().is_some_and(Renewal::has_failed) {
                    true => RunOutcome::RenewalFailed,
                    false => RunOutcome::Authenticated,
                });
            }
            let session_deadline_ms = session_deadline_ms.filter(|_| !self.authenticated);
            if session_deadline_ms.is_some_and(|at| at <= boot_ms()) {
                return Ok(RunOutcome::TimedOut);
            }
            if self.wait(stop, session_deadline_ms)? {
                return Ok(RunOutcome::Stopped);
            }
            self.receive(sink)?;
            self.forward_traffic(sink)?;
            self.report_losses(false, sink);
        }
    }

    /// Forwards datagrams of tunnels and peers, and handles attestation. Authenticates again if the gateway has lost the
    /// session, or if the sequence numbers of the session run out.
    fn forward_traffic(&mut self, sink: EventSink<'_>) -> Result<(), AgentError> {
        let device_address = self.link.as_ref().map(|link| link.local);
        if let Some(device_address) = device_address {
            let mut seal = SealContext {
                device: &self.device,
                tunnels: &mut self.tunnels,
                device_address,
            };
            self.peers.forward(&mut seal, boot_ms(), sink);
        }
        if let Some(attestation) = &mut self.attestation {
            attestation.poll(&self.device, device_address, boot_ms(), sink);
        }
        if self.detect_session_loss(sink) {
            return self.start_handshake(sink);
        }
        let is_renewal_due = self.tunnels.forward(&self.device, device_address, boot_ms());
        if is_renewal_due && self.device.phase() == Phase::Authenticated {
            return self.start_handshake(sink);
        }
        Ok(())
    }

    /// Detects that the session's gateway has lost the session: the device was quarantined or released, or the gateway has
    /// restarted. Before the session expires, the only sign is an attestation request of the kind that gateways send to
    /// devices without a session. Returns whether the device must authenticate again.
    fn detect_session_loss(&mut self, sink: EventSink<'_>) -> bool {
        let attestation = self.attestation.as_mut();
        let sessionless_gateway = attestation.and_then(Attestation::take_sessionless_gateway);
        let session_gateway = self.device.session().map(|session| session.gateway);
        let is_lost = sessionless_gateway.is_some()
            && sessionless_gateway == session_gateway
            && !self.session_state.is_in_doubt;
        if !is_lost || self.device.phase() != Phase::Authenticated {
            return false;
        }
        self.session_state.is_in_doubt = true;
        if let Some(gateway) = sessionless_gateway {
            sink(&AgentEvent::SessionLost {
                gateway_id: gateway.0,
            });
        }
        true
    }

    fn is_renewing(&self) -> bool {
        self.renewal.as_ref().is_some_and(Renewal::is_busy)
    }

    /// Sends tickets to the controller, and handles the responses.
    fn exchange_tickets(&mut self, sink: EventSink<'_>) -> Result<(), AgentError> {
        let device_address = self.link.as_ref().map(|link| link.local);
        if self.tickets.is_idle() && self.device.session().is_some() {
            let renewal = self.renewal.as_mut();
            let ticket =
                renewal.and_then(|renewal| renewal.first_request(&self.device, &self.options.keyring));
            match ticket {
                Some(ticket) => self.send_ticket(&ticket, sink),
                None => {
                    self.request_pair();
                    self.send_evidence_piece();
                }
            }
        }
        while let Some(result) = self
            .tickets
            .poll(&self.device, &mut self.tunnels, device_address, boot_ms())
        {
            let state = match result {
                TicketResult::Pair(pair_response, requested_ms) => {
                    self.peers.handle_response(pair_response, requested_ms, sink);
                    continue;
                }
                TicketResult::NoResponse(Kind::Pair) => continue,
                TicketResult::Evidence(ack) => {
                    self.handle_evidence_response(Some(ack), sink);
                    continue;
                }
                TicketResult::NoResponse(Kind::Evidence) => {
                    self.handle_evidence_response(None, sink);
                    continue;
                }
                TicketResult::State(state) => Some(state),
                TicketResult::NoResponse(_) => None,
            };
            let reader = CredentialReader {
                puf: &mut *self.puf,
                health: &self.options.health,
                keyring: &mut self.options.keyring,
            };
            let Some(renewal) = &mut self.renewal else {
                return Ok(());
            };
            match renewal.handle_response(state, &self.device, reader, sink) {
                NextAction::Wait => {}
                NextAction::Send(ticket) => self.send_ticket(&ticket, sink),
                NextAction::Reauthenticate if self.device.phase() == Phase::Authenticated => {
                    return self.start_handshake(sink);
                }
                NextAction::Reauthenticate => {}
            }
        }
        Ok(())
    }

    /// Sends the ticket of a renewal.
    fn send_ticket(&mut self, ticket: &TicketRequest, sink: EventSink<'_>) {
        let TicketRequest { kind, number, body } = ticket;
        if let Err(reason) = self.tickets.submit(&self.device, *kind, *number, body, boot_ms()) {
            sink(&AgentEvent::RenewalFailed { reason });
            if let Some(renewal) = &mut self.renewal {
                renewal.abandon();
            }
        }
    }

    /// Requests the key of a pair, if a request is due. A failed request is sent again later.
    fn request_pair(&mut self) {
        let Some(peer) = self.peers.next_request(boot_ms(), retry::random()) else {
            return;
        };
        let body = peer.0.to_be_bytes();
        if let Err(reason) = self.tickets.submit(&self.device, Kind::Pair, 0, &body, boot_ms()) {
            tracing::debug!(error = reason, peer_device_id = %peer, "pair request not sent; retrying later");
        }
    }

    /// Sends the next piece of evidence, if no other ticket is pending and a piece is due. A failed piece is sent again
    /// later.
    fn send_evidence_piece(&mut self) {
        let now_ms = boot_ms();
        let attestation = self.attestation.as_mut().filter(|_| self.tickets.is_idle());
        let Some(body) = attestation.and_then(|attestation| attestation.next_evidence_piece(now_ms)) else {
            return;
        };
        if let Err(reason) = self
            .tickets
            .submit(&self.device, Kind::Evidence, 0, &body, now_ms)
        {
            tracing::debug!(error = reason, "evidence not sent; retrying later");
        }
    }

    fn handle_evidence_response(&mut self, ack: Option<ChunkAck>, sink: EventSink<'_>) {
        if let Some(attestation) = &mut self.attestation {
            attestation.handle_evidence_response(ack, boot_ms(), sink);
        }
    }

    /// Opens the socket if there is none. Replaces the socket if the kernel selects another source address than before.
    fn maintain_link(&mut self, sink: EventSink<'_>) -> Result<(), AgentError> {
        let now_ms = boot_ms();
        if let Some(link) = &self.link {
            if now_ms < self.route_check_at_ms {
                return Ok(());
            }
            self.route_check_at_ms = now_ms.saturating_add(ROUTE_CHECK_MS);
            // A session survives a missing route, but not a change of the device's address.
            match route_source(self.options.gateway) {
                Ok(source) if source != link.local => sink(&AgentEvent::AddressChanged {
                    from: link.local,
                    to: source,
                }),
                _ => return Ok(()),
            }
            self.loss_reporter.closed_link_drops = self.link_drops();
            self.link = None;
            self.device.abandon();
            self.options.keyring.forget_handshake();
        }
        if !self.relink.is_due(now_ms) {
            return Ok(());
        }
        match Link::open(self.options.gateway) {
            Ok(link) => {
                sink(&AgentEvent::LinkOpened {
                    gateway: self.options.gateway,
                    address: link.local,
                });
                self.link = Some(link);
                self.relink.succeed();
                self.route_check_at_ms = now_ms.saturating_add(ROUTE_CHECK_MS);
                self.start_handshake(sink)
            }
            Err(error) => {
                sink(&AgentEvent::Unreachable {
                    error: error.to_string(),
                    retry_in_ms: self.relink.fail(now_ms, retry::random()),
                });
                Ok(())
            }
        }
    }

    /// Starts a handshake.
    fn start_handshake(&mut self, sink: EventSink<'_>) -> Result<(), AgentError> {
        let mut nonce = [0u8; 16];
        getrandom::fill(&mut nonce).map_err(AgentError::Entropy)?;
        self.handshake = Handshake {
            started_ms: boot_ms(),
            ..Handshake::default()
        };
        self.options.keyring.forget_handshake();
        let output = self
            .device
            .start(nonce, self.handshake.started_ms)
            .map_err(AgentError::Start)?;
        self.process_output(output, sink)
    }

    /// Executes outputs of the state machine until there are none.
    fn process_output(&mut self, mut output: Output, sink: EventSink<'_>) -> Result<(), AgentError> {
        loop {
            let now_ms = boot_ms();
            output = match output {
                Output::None => match self.device.poll(now_ms) {
                    Output::None => return Ok(()),
                    next => next,
                },
                Output::Transmit(message) => {
                    if let Some((_, row)) = self.device.responded_row() {
                        self.options.keyring.record_spent_row(row, false);
                    }
                    self.send(&message, sink);
                    Output::None
                }
                Output::EvaluatePuf(query) => self.evaluate(&query, sink),
                Output::NeedNonce => {
                    if self.link.is_none() {
                        return Ok(());
                    }
                    return self.start_handshake(sink);
                }
                Output::Postponed { until_ms } => {
                    sink(&AgentEvent::AuthenticationPostponed {
                        retry_in_ms: until_ms.saturating_sub(now_ms),
                    });
                    Output::None
                }
                Output::Authenticated(_) => {
                    self.report_session(now_ms, sink);
                    Output::None
                }
                Output::SessionExpired => {
                    sink(&AgentEvent::SessionExpired);
                    Output::None
                }
                Output::Failed { failure, retry_at_ms } => {
                    self.options.keyring.forget_handshake();
                    if self.handshake.diagnosis.has_bad_tag() {
                        self.options.keyring.record_unverified_handshake();
                    }
                    sink(&AgentEvent::AuthenticationFailed {
                        reason: self
                            .handshake
                            .diagnosis
                            .failure_reason(failure, self.device.last_nak()),
                        retry_in_ms: retry_at_ms.saturating_sub(now_ms),
                    });
                    Output::None
                }
            };
        }
    }

    fn send(&mut self, message: &[u8; MESSAGE_BYTES], sink: EventSink<'_>) {
        let Some(link) = &self.link else {
            return;
        };
        match link.socket.send(message) {
            Ok(_) => {
                tracing::debug!(frame = %MessageSummary(message), peer = %self.options.gateway, "LAP message sent")
            }
            // Port closed or buffer full: the state machine repeats the message.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionRefused | io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                tracing::debug!(frame = %MessageSummary(message), %error, "LAP message not sent; it is repeated");
            }
            Err(error) => {
                tracing::debug!(%error, "sending a LAP message failed");
                sink(&AgentEvent::Unreachable {
                    error: error.to_string(),
                    retry_in_ms: self.relink.delay_ms_max(),
                });
                // The socket's address may be gone: check the route at once.
                self.route_check_at_ms = 0;
            }
        }
    }

    /// Reads the PUF for a query of the device state machine, and returns the machine's next output.
    fn evaluate(&mut self, query: &PufQuery, sink: EventSink<'_>) -> Output {
        let row = self.device.offered_row().map_or(query.idx, |(_, row)| row);
        let spent = self.options.keyring.spent();
        if spent.is_some_and(|spent| spent.is_accepted(row)) {
            self.report_spent_row(row);
            return self.device.refuse_row(boot_ms());
        }
        let rejected_before = self.device.rejected_challenges();
        let AgentOptions {
            device,
            keyring,
            health,
            ..
        } = &mut self.options;
        let key = keyring.read_next(|credential| {
            credential.row_key(&mut *self.puf, health, device.suite, device.device, query)
        });
        let key = key.map_err(|error| {
            self.handshake.diagnosis.record_failed_reading();
            sink(&AgentEvent::PufFailed {
                error: error.to_string(),
            });
            PufFailed
        });
        let output = self.device.puf_result(key, boot_ms());
        if self.device.rejected_challenges() > rejected_before {
            self.handshake.diagnosis.record_bad_tag();
            tracing::debug!(
                row = query.idx.0,
                reason = "tag does not match the PUF and the helper data",
                "CHALLENGE dropped"
            );
        }
        output
    }

    fn report_session(&mut self, now_ms: u64, sink: EventSink<'_>) {
        self.authenticated = true;
        self.confirm_credentials(sink);
        self.session_state = SessionState::default();
        if let Some(session) = self.device.session() {
            sink(&AgentEvent::Authenticated {
                device_id: self.options.device.device.to_string(),
                gateway_id: session.gateway.0,
                session_id: format!("{:016x}", session.id.0),
                row: session.idx.0,
                session_lifetime_s: session.session_lifetime_s,
                elapsed_ms: now_ms.saturating_sub(self.handshake.started_ms),
                renew_in_ms: session.renew_at_ms.saturating_sub(now_ms),
            });
        }
    }

    /// Waits for a packet, the next deadline or the stop request; returns whether a stop was requested.
    fn wait(&self, stop: BorrowedFd<'_>, session_deadline_ms: Option<u64>) -> Result<bool, AgentError> {
        let route_or_link_ms = match self.link {
            Some(_) => self.route_check_at_ms,
            None => self.relink.due_ms(),
        };
        let device_ms = self.device.next_deadline().filter(|_| self.link.is_some());
        let ticket_ms = self.tickets.deadline();
        // No pair is requested while a ticket is pending, or without a session.
        let may_request = self.tickets.is_idle() && self.device.session().is_some();
        let pair_request_ms = self.peers.request_deadline().filter(|_| may_request);
        let attestation = self.attestation.as_ref();
        let is_linked = self.link.is_some();
        let attest_ms = attestation.and_then(|attestation| attestation.deadline(is_linked));
        let evidence_ms = attestation
            .and_then(Attestation::evidence_deadline)
            .filter(|_| may_request);
        let peers_ms = self.peers.deadline().filter(|_| self.link.is_some());
        let deadlines = [
            Some(route_or_link_ms),
            device_ms,
            ticket_ms,
            pair_request_ms,
            peers_ms,
            attest_ms,
            evidence_ms,
            session_deadline_ms,
        ];
        let next_ms = deadlines.into_iter().flatten().min().unwrap_or(route_or_link_ms);
        let remaining = Duration::from_millis(next_ms.saturating_sub(boot_ms()));
        let timeout = Timespec::try_from(remaining)
            .map_err(|_| AgentError::Wait(io::ErrorKind::InvalidInput.into()))?;
        let mut polled = vec![PollFd::from_borrowed_fd(stop, PollFlags::IN)];
        polled.extend(
            self.tunnels
                .sockets(&self.device)
                .map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN)),
        );
        polled.extend(
            self.peers
                .sockets()
                .map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN)),
        );
        polled.extend(
            self.tickets
                .socket()
                .map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN)),
        );
        polled.extend(
            attestation
                .into_iter()
                .flat_map(|attestation| attestation.descriptors(is_linked))
                .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN)),
        );
        polled.extend(
            self.link
                .as_ref()
                .map(|link| PollFd::from_borrowed_fd(link.socket.as_fd(), PollFlags::IN)),
        );
        match poll(&mut polled, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(AgentError::Wait(error.into())),
        }
        Ok(polled.first().is_some_and(|stop| !stop.revents().is_empty()))
    }

    /// Handles all received packets.
    fn receive(&mut self, sink: EventSink<'_>) -> Result<(), AgentError> {
        // One byte longer than any message, so that longer datagrams are detected.
        let mut buffer = [0u8; MESSAGE_BYTES + 1];
        loop {
            let Some(link) = &self.link else {
                return Ok(());
            };
            let local = wire_address(link.local);
            let length = match link.socket.recv(&mut buffer) {
                Ok(length) => length,
                Err(error) => {
                    if error.kind() != io::ErrorKind::WouldBlock {
                        // The cause is an ICMP message, which may be forged, so the timers continue unchanged.
                        tracing::debug!(%error, "receiving a LAP message failed");
                        if error.kind() == io::ErrorKind::ConnectionRefused {
                            continue;
                        }
                    }
                    return Ok(());
                }
            };
            let payload = buffer.get(..length).unwrap_or_default();
            match length > MESSAGE_BYTES {
                true => tracing::debug!("datagram longer than {MESSAGE_BYTES} B received"),
                false => tracing::debug!(frame = %MessageSummary(payload), "LAP message received"),
            }
            let keyring = &self.options.keyring;
            let is_enrolled = |query: &PufQuery| keyring.is_enrolled(query);
            let accepted_before = self.device.last_accepted_row();
            match self
                .device
                .handle_with_enrolled_rows(payload, &local, boot_ms(), is_enrolled)
            {
                Ok(output) => {
                    let accepted_row = self.device.last_accepted_row();
                    if let Some((_, row)) = accepted_row.filter(|_| accepted_row != accepted_before) {
                        self.options.keyring.record_spent_row(row, true);
                    }
                    self.process_output(output, sink)?;
                }
                Err(reason) => {
                    tracing::debug!(reason = %ReasonText(reason), "LAP message dropped");
                    if let Some(spent) = self.handshake.diagnosis.record_ignored(payload, reason)
                        && !self.session_state.is_spent_row_reported
                    {
                        self.session_state.is_spent_row_reported = true;
                        tracing::warn!(reason = %spent, "CHALLENGE for a spent row");
                    }
                }
            }
            self.report_nak(sink);
        }
    }

    fn report_nak(&mut self, sink: EventSink<'_>) {
        if let Some(nak) = self.device.last_nak()
            && !self.handshake.is_nak_reported
        {
            self.handshake.is_nak_reported = true;
            sink(&AgentEvent::RequestRefused {
                reason: NakReason(nak.reason).to_string(),
                row: nak.idx.0,
            });
        }
    }
}
