//! Provers on loopback, each with a socket and a thread. An unprivileged process cannot capture the traffic of other sockets, so
//! each device gives the attacker copies of the messages that an on-path attacker would capture.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use linewarden_protocol::keys::SessionKey;
use linewarden_protocol::wire::{self, AttestRequest, Message, Proof};
use zerocopy::IntoBytes as _;

use super::device::is_transient;
use super::{LoopbackRun, REFUSAL_TIMEOUT};
use crate::attackers::{ForgedProofCounts, forged_proofs::ProofForger};
use crate::demo::attest::{
    self, AccessAttempt, AttestationScenario, ExpectedAccess, ProverDevice, ProverEnvironment,
};
use crate::demo::gateway::DemoGateway;
use crate::demo::participants::Groups;
use crate::demo::{DemoError, RunControl, Stage};
use crate::fleet::Attester;

/// Longest wait for a request between two checks of the stop flag.
const READ_TIMEOUT: Duration = Duration::from_millis(50);
/// Interval between two checks of the expected state.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Address of the attacker.
const ATTACKER: Ipv4Addr = Ipv4Addr::new(127, 200, 0, 99);

/// Maximum number of captured messages that wait for the attacker; the attacker misses further messages.
const OVERHEARD_MAX: usize = 1_024;

/// The session key of a prover, shared with the prover's thread.
type SharedSessionKey = Mutex<Option<SessionKey>>;

/// A message that an on-path attacker would capture.
enum OverheardMessage {
    Request(AttestRequest),
    Proof(Proof),
}

impl LoopbackRun<'_> {
    /// Attests some devices; one of them is modified, detected, quarantined, remediated and released.
    pub(super) fn run_attestation(
        &mut self,
        demo_gateway: &DemoGateway,
        control: &mut RunControl<'_>,
    ) -> Result<(), DemoError> {
        control.begin_stage(Stage::Attesting)?;
        let groups = Groups::of(self.options);
        let failed = || DemoError::system("a prover's socket on loopback");
        let mut sockets = Vec::new();
        let mut addresses = Vec::new();
        let mut sessions = Vec::new();
        for index in groups.first_prover()..groups.first_remaining() {
            let Some(prover) = self.devices.get(index as usize) else {
                continue;
            };
            let socket = prover.bind().map_err(failed())?;
            socket.set_read_timeout(Some(READ_TIMEOUT)).map_err(failed())?;
            let port = socket.local_addr().map_err(failed())?.port();
            addresses.push((index, IpAddr::V4(prover.address()), port));
            sessions.push((
                index,
                SharedSessionKey::new(prover.session().map(|session| session.key().clone())),
            ));
            sockets.push(socket);
        }
        let attacker = UdpSocket::bind((ATTACKER, 0)).map_err(failed())?;
        let devices = attest::install_provers(self.store, addresses.into_iter())?;
        let scenario = AttestationScenario::enroll(self.store, demo_gateway, self.options, &devices)?;
        let (gateway, seed) = (self.gateway, self.options.seed);
        let stop = AtomicBool::new(false);
        let (sender, messages) = mpsc::sync_channel(OVERHEARD_MAX);
        let (run, forged) = std::thread::scope(|scope| {
            for ((ProverDevice { attester, .. }, socket), (_, session)) in
                devices.into_iter().zip(&sockets).zip(&sessions)
            {
                let (stop, sender) = (&stop, sender.clone());
                scope.spawn(move || run_prover(attester, socket, session, stop, &sender));
            }
            drop(sender);
            let attacker = scope
                .spawn(move || send_forged_proofs(&attacker, gateway, ProofForger::new(seed), &messages));
            let mut provers = LoopbackProvers {
                run: self,
                gateway: demo_gateway,
                sessions: &sessions,
            };
            let run = scenario.run(&mut provers, control);
            stop.store(true, Ordering::Relaxed);
            (run, attacker.join())
        });
        let (mut result, counters) = run?;
        let counts = forged
            .map_err(|_| DemoError::AttackThreadPanicked)?
            .map_err(failed())?;
        let outcome = attest::record_forged_proofs(&mut result, counts, &counters);
        self.record_attack(outcome, control);
        self.report.attestation = Some(result);
        Ok(())
    }
}

/// Responds to requests until `stop` is set.
fn run_prover(
    mut attester: Attester,
    socket: &UdpSocket,
    session: &SharedSessionKey,
    stop: &AtomicBool,
    sender: &SyncSender<OverheardMessage>,
) {
    let mut buffer = [0u8; 2048];
    while !stop.load(Ordering::Relaxed) {
        let Ok((length, from)) = socket.recv_from(&mut buffer) else {
            continue;
        };
        let message = buffer.get(..length).unwrap_or_default();
        if let Ok(Message::AttestRequest(request)) = wire::parse(message) {
            // The receiver is closed when the attacker's socket has failed; `send_forged_proofs` returns that error.
            let _ = sender.try_send(OverheardMessage::Request(*request));
        }
        let session = session.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Ok(proof) = attester.respond(message, session.as_ref()) {
            let _ = sender.try_send(OverheardMessage::Proof(proof));
            // The gateway retries a request whose PROOF is lost.
            let _ = socket.send_to(proof.as_bytes(), from);
        }
    }
}

/// Sends forged PROOFs for each captured request, until all senders are closed.
fn send_forged_proofs(
    socket: &UdpSocket,
    gateway: SocketAddr,
    mut forger: ProofForger,
    messages: &Receiver<OverheardMessage>,
) -> io::Result<ForgedProofCounts> {
    for message in messages {
        match message {
            OverheardMessage::Proof(proof) => forger.overhear(&proof),
            OverheardMessage::Request(request) => {
                for proof in forger.forge(&request) {
                    match socket.send_to(proof.as_bytes(), gateway) {
                        Err(error) if !is_transient(&error) => return Err(error),
                        _ => {}
                    }
                }
            }
        }
    }
    Ok(forger.counts)
}

struct LoopbackProvers<'a, 'b> {
    run: &'a mut LoopbackRun<'b>,
    gateway: &'a DemoGateway,
    sessions: &'a [(u32, SharedSessionKey)],
}

impl ProverEnvironment for LoopbackProvers<'_, '_> {
    fn run_until(
        &mut self,
        limit: Duration,
        is_reached: &mut dyn FnMut() -> bool,
    ) -> Result<bool, DemoError> {
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline {
            if is_reached() {
                return Ok(true);
            }
            let before = self.gateway.gateway.status();
            // Any change of the status ends the wait early.
            let _ = self
                .gateway
                .gateway
                .wait_until(POLL_INTERVAL, |status| *status != before);
        }
        Ok(is_reached())
    }

    fn attempt_access(&mut self, index: u32, expected: ExpectedAccess) -> Result<AccessAttempt, DemoError> {
        let position = index as usize;
        if let Some(prover) = self.run.devices.get_mut(position) {
            prover.power_cycle();
        }
        let limit = match expected {
            ExpectedAccess::Denied => REFUSAL_TIMEOUT,
            ExpectedAccess::Granted => self.run.options.timeout,
        };
        let session = self.run.authenticate(position, Instant::now() + limit)?.is_some();
        let key = self.run.devices.get(position).and_then(|prover| prover.session());
        let key = key.map(|session| session.key().clone());
        if let Some((_, session)) = self
            .sessions
            .iter()
            .find(|(prover_index, _)| *prover_index == index)
        {
            *session.lock().unwrap_or_else(PoisonError::into_inner) = key;
        }
        Ok(AccessAttempt {
            session,
            delivered: None,
        })
    }
}
