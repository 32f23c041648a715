//! The loop around the device machine: a socket, a clock, a PUF.

mod credentials;
mod losses;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use linewarden_protocol::device::{Device, DeviceConfig, Output, Phase, PufFailed, PufQuery};
use linewarden_protocol::ticket::{Kind, Taken};
use linewarden_protocol::wire::MESSAGE_BYTES;
use linewarden_puf::Puf;
use linewarden_puf::health::HealthTest;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::attest::{AttestOptions, Attestation};
use crate::diagnosis::{Answers, NakReason, Shown, Why};
use crate::keyring::Keyring;
use crate::link::{Link, route_source, wire_address};
use crate::peer::{Peer, Peers};
use crate::renewal::{Next, Question, Reader, Renewal, RenewalOptions};
use crate::report::Report;
use crate::ticket::{TicketLine, Told};
use crate::time::boot_ms;
use crate::tunnel::{Tunnel, Tunnels};
use crate::way::Seal;

/// How often the route to the gateway is looked at, ms.
const ROUTE_CHECK_MS: u64 = 5_000;
/// First and longest delay between two attempts to open a socket, ms.
const RELINK_MS: (u64, u64) = (1_000, 30_000);

/// What an agent needs beside its PUF.
#[derive(Debug)]
pub struct AgentOptions {
    /// The device, as it was enrolled.
    pub device: DeviceConfig,
    /// Its helper data.
    pub keyring: Keyring,
    /// When it renews them, if ever.
    pub renewal: Option<RenewalOptions>,
    /// UDP port of the gateway's desk, where tickets are taken.
    pub desk_port: u16,
    /// Limits of a healthy readout.
    pub health: HealthTest,
    /// Where the gateway is.
    pub gateway: SocketAddr,
    /// What is carried through its sealed gate.
    pub tunnels: Vec<Tunnel>,
    /// Devices to talk to.
    pub peers: Vec<Peer>,
    /// UDP port at which devices talk to each other.
    pub peer_port: u16,
    /// How it proves what it runs, if it does.
    pub attest: Option<AttestOptions>,
    /// Ends with the first session, and what is to be renewed in it.
    pub once: bool,
    /// Ends when no session was opened after so long.
    pub give_up_after: Option<Duration>,
}

/// How an agent ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was told to.
    Stopped,
    /// With a session, as `once` demands, and what was demanded is renewed.
    Authenticated,
    /// With a session, as `once` demands, but what was demanded is not renewed.
    NotRenewed,
    /// Without one, in the time given.
    GaveUp,
}

/// What an agent cannot go on after.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// No random bytes.
    #[error("the operating system gave no random bytes: {0}")]
    Entropy(getrandom::Error),
    /// The kernel refused to wait.
    #[error("cannot wait for packets: {0}")]
    Wait(io::Error),
    /// A tunnel cannot listen.
    #[error("cannot listen on {listen} for the tunnel to {service}: {source}")]
    Listen {
        /// Where local programs send.
        listen: SocketAddr,
        /// Where it goes.
        service: SocketAddr,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// Local programs cannot be listened to.
    #[error("cannot listen on {listen} for programs that talk to a peer: {source}")]
    ListenForPeer {
        /// Where they send.
        listen: SocketAddr,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// Attestation cannot begin.
    #[error("cannot begin to attest: {0}")]
    Attest(io::Error),
    /// The device machine refused a nonce.
    #[error("cannot start a handshake: {0}")]
    Start(linewarden_protocol::device::StartError),
}

/// One device on Linux.
pub struct Agent {
    device: Device,
    puf: Box<dyn Puf>,
    options: AgentOptions,
    link: Option<Link>,
    tunnels: Tunnels,
    tickets: TicketLine,
    peers: Peers,
    attestation: Option<Attestation>,
    renewal: Option<Renewal>,
    relink_at_ms: u64,
    relink_delay_ms: u64,
    route_check_at_ms: u64,
    began_ms: u64,
    nak_shown: bool,
    answers: Answers,
    /// Since the last session.
    told_of_spent_row: bool,
    /// The session's gateway seems to have it no more. Until there is another one, the machine's own pauses say when it is
    /// tried again.
    doubts_session: bool,
    authenticated: bool,
    losses: losses::Reported,
}

/// Receives what happens.
type Sink<'a> = &'a mut dyn FnMut(&Report);

impl Agent {
    /// An agent at rest.
    #[must_use]
    pub fn new(options: AgentOptions, puf: Box<dyn Puf>) -> Self {
        let mut device = Device::new(options.device.clone());
        if let Some(spent) = options.keyring.spent() {
            device.raise_unanswered_from(spent.unanswered_from());
        }
        Self {
            device,
            puf,
            tickets: TicketLine::new(SocketAddr::new(options.gateway.ip(), options.desk_port)),
            peers: Peers::none(),
            attestation: None,
            renewal: options.renewal.map(Renewal::new),
            options,
            link: None,
            tunnels: Tunnels::default(),
            relink_at_ms: 0,
            relink_delay_ms: RELINK_MS.0,
            route_check_at_ms: 0,
            began_ms: 0,
            nak_shown: false,
            answers: Answers::default(),
            told_of_spent_row: false,
            doubts_session: false,
            authenticated: false,
            losses: losses::Reported::default(),
        }
    }

    /// Authenticates and keeps the lease fresh until `stop` becomes readable.
    ///
    /// # Errors
    /// [`AgentError`]: nothing that a network or a gateway can cause.
    pub fn run(&mut self, stop: BorrowedFd<'_>, sink: Sink<'_>) -> Result<Ended, AgentError> {
        self.tunnels = Tunnels::open(&self.options.tunnels, self.options.gateway.port())?;
        let device = self.options.device.device;
        self.peers = Peers::open(device, &self.options.peers, self.options.peer_port)?;
        let attest = self.options.attest.as_ref();
        self.attestation = attest
            .map(|attest| Attestation::start(attest, &self.options.device))
            .transpose()
            .map_err(AgentError::Attest)?;
        let ended = self.run_until(stop, sink)?;
        if let Some(attestation) = &mut self.attestation {
            attestation.finish(sink);
        }
        self.tell_losses(true, sink);
        if !self.options.tunnels.is_empty() {
            sink(&Report::Tunnelled(self.tunnels.counts()));
        }
        if ended == Ended::Stopped {
            sink(&Report::Stopped);
        }
        Ok(ended)
    }

    fn run_until(&mut self, stop: BorrowedFd<'_>, sink: Sink<'_>) -> Result<Ended, AgentError> {
        let give_up_at_ms = self
            .options
            .give_up_after
            .map(|after| boot_ms().saturating_add(u64::try_from(after.as_millis()).unwrap_or(u64::MAX)));
        loop {
            self.keep_linked(sink)?;
            self.pump(Output::None, sink)?;
            self.consult(sink)?;
            if self.authenticated && self.options.once && !self.is_renewing() {
                return Ok(match self.renewal.as_ref().is_some_and(Renewal::has_failed) {
                    true => Ended::NotRenewed,
                    false => Ended::Authenticated,
                });
            }
            let give_up_at_ms = give_up_at_ms.filter(|_| !self.authenticated);
            if give_up_at_ms.is_some_and(|at| at <= boot_ms()) {
                return Ok(Ended::GaveUp);
            }
            if self.wait(stop, give_up_at_ms)? {
                return Ok(Ended::Stopped);
            }
            self.receive(sink)?;
            self.carry(sink)?;
            self.tell_losses(false, sink);
        }
    }

    /// Carries the tunnels' datagrams, and renews the session when its numbers come to an end.
    fn carry(&mut self, sink: Sink<'_>) -> Result<(), AgentError> {
        let own = self.link.as_ref().map(|link| link.local);
        if let Some(own) = own {
            let mut seal = Seal {
                device: &self.device,
                tunnels: &mut self.tunnels,
                own,
            };
            self.peers.carry(&mut seal, boot_ms(), sink);
        }
        if let Some(attestation) = &mut self.attestation {
            attestation.carry(&self.device, own, boot_ms(), sink);
        }
        if self.loses_session(sink) {
            return self.start(sink);
        }
        let renew = self.tunnels.carry(&self.device, own, boot_ms());
        if renew && self.device.phase() == Phase::Authenticated {
            return self.start(sink);
        }
        Ok(())
    }

    /// Whether the session's gateway asks as one that has no such session: it has shut the device out, or has let it in again, or was
    /// started anew. Nothing else tells of it before the lease ends.
    fn loses_session(&mut self, sink: Sink<'_>) -> bool {
        let attestation = self.attestation.as_mut();
        let stranger = attestation.and_then(Attestation::take_stranger);
        let session = self.device.session().map(|session| session.gateway);
        let is_lost = stranger.is_some() && stranger == session && !self.doubts_session;
        if !is_lost || self.device.phase() != Phase::Authenticated {
            return false;
        }
        self.doubts_session = true;
        if let Some(gateway) = stranger {
            sink(&Report::SessionLost {
                gateway_id: gateway.0,
            });
        }
        true
    }

    fn is_renewing(&self) -> bool {
        self.renewal.as_ref().is_some_and(Renewal::is_busy)
    }

    /// Asks the controller what is to be asked, and acts on its answers.
    fn consult(&mut self, sink: Sink<'_>) -> Result<(), AgentError> {
        let own = self.link.as_ref().map(|link| link.local);
        if self.tickets.is_free() && self.device.session().is_some() {
            let renewal = self.renewal.as_mut();
            let question = renewal.and_then(|renewal| renewal.begin(&self.device, &self.options.keyring));
            match question {
                Some(question) => self.ask(&question, sink),
                None => {
                    self.ask_for_peer();
                    self.send_evidence();
                }
            }
        }
        while let Some(told) = self.tickets.poll(&self.device, &mut self.tunnels, own, boot_ms()) {
            let state = match told {
                Told::Paired(paired, asked_ms) => {
                    self.peers.answer(paired, asked_ms, sink);
                    continue;
                }
                Told::Nothing(Kind::Pair) => continue,
                Told::Taken(taken) => {
                    self.tell_evidence(Some(taken), sink);
                    continue;
                }
                Told::Nothing(Kind::Evidence) => {
                    self.tell_evidence(None, sink);
                    continue;
                }
                Told::State(state) => Some(state),
                Told::Nothing(_) => None,
            };
            let reader = Reader {
                puf: &mut *self.puf,
                health: &self.options.health,
                keyring: &mut self.options.keyring,
            };
            let Some(renewal) = &mut self.renewal else {
                return Ok(());
            };
            match renewal.go_on(state, &self.device, reader, sink) {
                Next::Rest => {}
                Next::Ask(question) => self.ask(&question, sink),
                Next::Begin if self.device.phase() == Phase::Authenticated => return self.start(sink),
                Next::Begin => {}
            }
        }
        Ok(())
    }

    /// Asks what a renewal wants asked.
    fn ask(&mut self, question: &Question, sink: Sink<'_>) {
        let Question { kind, number, body } = question;
        if let Err(why) = self.tickets.ask(&self.device, *kind, *number, body, boot_ms()) {
            sink(&Report::NotRenewed { why });
            if let Some(renewal) = &mut self.renewal {
                renewal.abandon();
            }
        }
    }

    /// Asks for the key of a pair, if it is time to. What cannot be asked now is asked the next time.
    fn ask_for_peer(&mut self) {
        let Some(peer) = self.peers.question(boot_ms()) else {
            return;
        };
        let body = peer.0.to_be_bytes();
        if let Err(why) = self.tickets.ask(&self.device, Kind::Pair, 0, &body, boot_ms()) {
            tracing::debug!(why, %peer, "the controller was not asked for a pair");
        }
    }

    /// Sends the next piece of evidence, if nothing else was asked and it is time to. What cannot be sent now is sent the next
    /// time.
    fn send_evidence(&mut self) {
        let now_ms = boot_ms();
        let attestation = self.attestation.as_mut().filter(|_| self.tickets.is_free());
        let Some(body) = attestation.and_then(|attestation| attestation.question(now_ms)) else {
            return;
        };
        if let Err(why) = self.tickets.ask(&self.device, Kind::Evidence, 0, &body, now_ms) {
            tracing::debug!(why, "no evidence was sent");
        }
    }

    fn tell_evidence(&mut self, taken: Option<Taken>, sink: Sink<'_>) {
        if let Some(attestation) = &mut self.attestation {
            attestation.answered(taken, boot_ms(), sink);
        }
    }

    /// Opens the socket when there is none, and anew when the kernel would choose another address now.
    fn keep_linked(&mut self, sink: Sink<'_>) -> Result<(), AgentError> {
        let now_ms = boot_ms();
        if let Some(link) = &self.link {
            if now_ms < self.route_check_at_ms {
                return Ok(());
            }
            self.route_check_at_ms = now_ms.saturating_add(ROUTE_CHECK_MS);
            // Without a route for now the session may still come back to life; with another address it cannot.
            match route_source(self.options.gateway) {
                Ok(now) if now != link.local => sink(&Report::AddressChanged {
                    from: link.local,
                    to: now,
                }),
                _ => return Ok(()),
            }
            self.losses.lap_before = self.lap_drops();
            self.link = None;
            self.device.abandon();
            self.options.keyring.forget_handshake();
        }
        if now_ms < self.relink_at_ms {
            return Ok(());
        }
        match Link::open(self.options.gateway) {
            Ok(link) => {
                sink(&Report::Linked {
                    gateway: self.options.gateway,
                    local: link.local,
                });
                self.link = Some(link);
                self.relink_delay_ms = RELINK_MS.0;
                self.route_check_at_ms = now_ms.saturating_add(ROUTE_CHECK_MS);
                self.start(sink)
            }
            Err(error) => {
                sink(&Report::Unreachable {
                    error: error.to_string(),
                    retry_in_ms: self.relink_delay_ms,
                });
                self.relink_at_ms = now_ms.saturating_add(self.relink_delay_ms);
                self.relink_delay_ms = (2 * self.relink_delay_ms).min(RELINK_MS.1);
                Ok(())
            }
        }
    }

    /// Begins a handshake.
    fn start(&mut self, sink: Sink<'_>) -> Result<(), AgentError> {
        let mut nonce = [0u8; 16];
        getrandom::fill(&mut nonce).map_err(AgentError::Entropy)?;
        self.began_ms = boot_ms();
        self.nak_shown = false;
        self.answers = Answers::default();
        self.options.keyring.forget_handshake();
        let output = self
            .device
            .start(nonce, self.began_ms)
            .map_err(AgentError::Start)?;
        self.pump(output, sink)
    }

    /// Does what the machine asks for, until it asks for nothing.
    fn pump(&mut self, mut output: Output, sink: Sink<'_>) -> Result<(), AgentError> {
        loop {
            let now_ms = boot_ms();
            output = match output {
                Output::None => match self.device.poll(now_ms) {
                    Output::None => return Ok(()),
                    next => next,
                },
                Output::Transmit(message) => {
                    if let Some((_, row)) = self.device.answered() {
                        self.options.keyring.note_spent(row, false);
                    }
                    self.send(&message, sink);
                    Output::None
                }
                Output::EvaluatePuf(query) => self.evaluate(&query, sink),
                Output::NeedNonce => {
                    if self.link.is_none() {
                        return Ok(());
                    }
                    return self.start(sink);
                }
                Output::Postponed { until_ms } => {
                    sink(&Report::Postponed {
                        for_ms: until_ms.saturating_sub(now_ms),
                    });
                    Output::None
                }
                Output::Authenticated(_) => {
                    self.tell_session(now_ms, sink);
                    Output::None
                }
                Output::SessionExpired => {
                    sink(&Report::Expired);
                    Output::None
                }
                Output::Failed { failure, retry_at_ms } => {
                    self.options.keyring.forget_handshake();
                    if self.answers.has_rejected() {
                        self.options.keyring.doubt();
                    }
                    sink(&Report::Failed {
                        why: self.answers.why(failure, self.device.last_nak()),
                        retry_in_ms: retry_at_ms.saturating_sub(now_ms),
                    });
                    Output::None
                }
            };
        }
    }

    fn send(&mut self, message: &[u8; MESSAGE_BYTES], sink: Sink<'_>) {
        let Some(link) = &self.link else {
            return;
        };
        match link.socket.send(message) {
            Ok(_) => tracing::debug!(what = %Shown(message), gateway = %self.options.gateway, "sent"),
            // Nobody listens there, or there is no room: the machine repeats the message anyway.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionRefused | io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                tracing::debug!(what = %Shown(message), %error, "not sent; it is repeated");
            }
            Err(error) => {
                tracing::debug!(%error, "sending failed");
                sink(&Report::Unreachable {
                    error: error.to_string(),
                    retry_in_ms: self.relink_delay_ms,
                });
                // The socket's address may be gone: another look at the route is due.
                self.route_check_at_ms = 0;
            }
        }
    }

    fn evaluate(&mut self, query: &PufQuery, sink: Sink<'_>) -> Output {
        let row = self.device.offered().map_or(query.idx, |(_, row)| row);
        let spent = self.options.keyring.spent();
        if spent.is_some_and(|spent| spent.is_accepted(row)) {
            self.tell_spent(row);
            return self.device.refuse_row(boot_ms());
        }
        let rejected = self.device.rejected_challenges();
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
            self.answers.note_failed_reading();
            sink(&Report::PufFailed {
                error: error.to_string(),
            });
            PufFailed
        });
        let output = self.device.puf_result(key, boot_ms());
        if self.device.rejected_challenges() > rejected {
            self.answers.note_rejected();
            tracing::debug!(
                row = query.idx.0,
                why = "its tag does not fit the PUF and the helper data",
                "dropped a CHALLENGE"
            );
        }
        output
    }

    fn tell_session(&mut self, now_ms: u64, sink: Sink<'_>) {
        self.authenticated = true;
        self.settle(sink);
        (self.told_of_spent_row, self.doubts_session) = (false, false);
        if let Some(session) = self.device.session() {
            sink(&Report::Authenticated {
                device: self.options.device.device.to_string(),
                gateway_id: session.gateway.0,
                session: format!("{:016x}", session.id.0),
                idx: session.idx.0,
                lease_s: session.lease_s,
                took_ms: now_ms.saturating_sub(self.began_ms),
                renew_in_ms: session.renew_at_ms.saturating_sub(now_ms),
            });
        }
    }

    /// Waits for a packet, the next deadline or the end; says whether it is the end.
    fn wait(&self, stop: BorrowedFd<'_>, give_up_at_ms: Option<u64>) -> Result<bool, AgentError> {
        let route_or_link_ms = match self.link {
            Some(_) => self.route_check_at_ms,
            None => self.relink_at_ms,
        };
        let machine_ms = self.device.next_deadline().filter(|_| self.link.is_some());
        let ticket_ms = self.tickets.deadline();
        // While a question is out, or there is nobody to ask, no peer is asked for.
        let may_ask = self.tickets.is_free() && self.device.session().is_some();
        let ask_ms = self.peers.ask_deadline().filter(|_| may_ask);
        let attestation = self.attestation.as_ref();
        let is_linked = self.link.is_some();
        let attest_ms = attestation.and_then(|attestation| attestation.deadline(is_linked));
        let evidence_ms = attestation
            .and_then(Attestation::question_deadline)
            .filter(|_| may_ask);
        let peers_ms = self.peers.deadline().filter(|_| self.link.is_some());
        let deadlines = [
            Some(route_or_link_ms),
            machine_ms,
            ticket_ms,
            ask_ms,
            peers_ms,
            attest_ms,
            evidence_ms,
            give_up_at_ms,
        ];
        let next_ms = deadlines.into_iter().flatten().min().unwrap_or(route_or_link_ms);
        let left = Duration::from_millis(next_ms.saturating_sub(boot_ms()));
        let timeout =
            Timespec::try_from(left).map_err(|_| AgentError::Wait(io::ErrorKind::InvalidInput.into()))?;
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

    /// Takes all packets that are there.
    fn receive(&mut self, sink: Sink<'_>) -> Result<(), AgentError> {
        // One byte more than any message has, so that a longer one is not mistaken for one of the right length.
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
                        // An ICMP error, which anybody may have sent: the timers go on.
                        tracing::debug!(%error, "receiving failed");
                        if error.kind() == io::ErrorKind::ConnectionRefused {
                            continue;
                        }
                    }
                    return Ok(());
                }
            };
            let payload = buffer.get(..length).unwrap_or_default();
            match length > MESSAGE_BYTES {
                true => tracing::debug!("received a datagram of more than {MESSAGE_BYTES} B"),
                false => tracing::debug!(what = %Shown(payload), "received"),
            }
            let keyring = &self.options.keyring;
            let is_enrolled = |query: &PufQuery| keyring.is_enrolled(query);
            let accepted = self.device.last_accepted();
            match self
                .device
                .handle_enrolled(payload, &local, boot_ms(), is_enrolled)
            {
                Ok(output) => {
                    let now = self.device.last_accepted();
                    if let Some((_, row)) = now.filter(|_| now != accepted) {
                        self.options.keyring.note_spent(row, true);
                    }
                    self.pump(output, sink)?;
                }
                Err(ignored) => {
                    tracing::debug!(why = %Why(ignored), "dropped it");
                    if let Some(spent) = self.answers.note(payload, ignored)
                        && !self.told_of_spent_row
                    {
                        self.told_of_spent_row = true;
                        tracing::warn!("{spent}");
                    }
                }
            }
            self.show_nak(sink);
        }
    }

    fn show_nak(&mut self, sink: Sink<'_>) {
        if let Some(nak) = self.device.last_nak()
            && !self.nak_shown
        {
            self.nak_shown = true;
            sink(&Report::Refused {
                reason: NakReason(nak.reason).to_string(),
                idx: nak.idx.0,
            });
        }
    }
}
