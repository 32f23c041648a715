//! Provers on loopback: a socket and a thread each. Nobody without rights hears what others are sent there; so the attacker is
//! told by the devices what somebody on the path would have heard.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use linewarden_protocol::keys::SessionKey;
use linewarden_protocol::wire::{self, AttestRequest, Message, Proof};
use zerocopy::IntoBytes as _;

use super::prover::is_quiet;
use super::{REFUSAL, Show};
use crate::attackers::{Junk, junk::Forger};
use crate::demo::attest::{self, Act, Attested, Expected, Field, Tried};
use crate::demo::cast::Groups;
use crate::demo::site::Site;
use crate::demo::{Audience, DemoError, Stage};
use crate::fleet::Attester;

/// How long a prover waits for a request before it looks whether it is over.
const NAP: Duration = Duration::from_millis(50);
/// Between two looks at what has come of it.
const GLANCE: Duration = Duration::from_millis(100);
/// Where the attacker sends from.
const ATTACKER: Ipv4Addr = Ipv4Addr::new(127, 200, 0, 99);

/// The session of a prover, which its own thread needs.
type Session = Mutex<Option<SessionKey>>;

/// What somebody on the path hears.
enum Heard {
    Request(AttestRequest),
    Proof(Proof),
}

impl Show<'_> {
    /// Some devices prove what they run; one of them is changed, found, refused, put right and let in again.
    pub(super) fn show_attestation(
        &mut self,
        site: &Site,
        audience: &mut Audience<'_>,
    ) -> Result<(), DemoError> {
        audience.stage(Stage::Attesting)?;
        let groups = Groups::of(self.options);
        let failed = || DemoError::system("a prover's socket on loopback");
        let mut sockets = Vec::new();
        let mut places = Vec::new();
        let mut sessions = Vec::new();
        for index in groups.attested_from()..groups.crowd_from() {
            let Some(prover) = self.provers.get(index as usize) else {
                continue;
            };
            let socket = prover.bind().map_err(failed())?;
            socket.set_read_timeout(Some(NAP)).map_err(failed())?;
            let port = socket.local_addr().map_err(failed())?.port();
            places.push((index, IpAddr::V4(prover.address()), port));
            sessions.push((
                index,
                Session::new(prover.session().map(|session| session.key().clone())),
            ));
            sockets.push(socket);
        }
        let attacker = UdpSocket::bind((ATTACKER, 0)).map_err(failed())?;
        let devices = attest::equip(self.home, places.into_iter())?;
        let act = Act::enrol(self.home, site, self.options, &devices)?;
        let (gateway, seed) = (self.gateway, self.options.seed);
        let ends = AtomicBool::new(false);
        let (told, hears) = mpsc::channel();
        let (run, junk) = std::thread::scope(|scope| {
            for ((Attested { attester, .. }, socket), (_, session)) in
                devices.into_iter().zip(&sockets).zip(&sessions)
            {
                let (ends, told) = (&ends, told.clone());
                scope.spawn(move || serve(attester, socket, session, ends, &told));
            }
            drop(told);
            let attacker = scope.spawn(move || send_junk(&attacker, gateway, Forger::new(seed), &hears));
            let mut field = OnLoopback {
                show: self,
                site,
                sessions: &sessions,
            };
            let run = act.run(&mut field, audience);
            ends.store(true, Ordering::Relaxed);
            (run, attacker.join())
        });
        let (mut books, counted) = run?;
        let junk = junk.map_err(|_| DemoError::Panicked)?.map_err(failed())?;
        let outcome = attest::note_junk(&mut books, junk, &counted);
        self.note(outcome, audience);
        self.report.attestation = Some(books);
        Ok(())
    }
}

/// Answers until it is over.
fn serve(
    mut attester: Attester,
    socket: &UdpSocket,
    session: &Session,
    ends: &AtomicBool,
    told: &Sender<Heard>,
) {
    let mut buffer = [0u8; 2048];
    while !ends.load(Ordering::Relaxed) {
        let Ok((length, from)) = socket.recv_from(&mut buffer) else {
            continue;
        };
        let message = buffer.get(..length).unwrap_or_default();
        if let Ok(Message::AttestRequest(request)) = wire::parse(message) {
            // Nobody listens any more when the attacker's socket has failed, which is told in the end.
            let _ = told.send(Heard::Request(*request));
        }
        let session = session.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Ok(proof) = attester.answer(message, session.as_ref()) {
            let _ = told.send(Heard::Proof(proof));
            // What is not sent is asked for again.
            let _ = socket.send_to(proof.as_bytes(), from);
        }
    }
}

/// Junk for everything that is heard, until nobody is left who could say anything.
fn send_junk(
    socket: &UdpSocket,
    gateway: SocketAddr,
    mut forger: Forger,
    hears: &Receiver<Heard>,
) -> io::Result<Junk> {
    for heard in hears {
        match heard {
            Heard::Proof(proof) => forger.overhear(&proof),
            Heard::Request(request) => {
                for junk in forger.answer(&request) {
                    match socket.send_to(junk.as_bytes(), gateway) {
                        Err(error) if !is_quiet(&error) => return Err(error),
                        _ => {}
                    }
                }
            }
        }
    }
    Ok(forger.junk)
}

struct OnLoopback<'a, 'b> {
    show: &'a mut Show<'b>,
    site: &'a Site,
    sessions: &'a [(u32, Session)],
}

impl Field for OnLoopback<'_, '_> {
    fn live(&mut self, limit: Duration, is_so: &mut dyn FnMut() -> bool) -> Result<bool, DemoError> {
        let until = Instant::now() + limit;
        while Instant::now() < until {
            if is_so() {
                return Ok(true);
            }
            let before = self.site.gateway.status();
            // Whatever it is, it is worth a look.
            let _ = self.site.gateway.wait_until(GLANCE, |status| *status != before);
        }
        Ok(is_so())
    }

    fn try_to_get_in(&mut self, index: u32, expected: Expected) -> Result<Tried, DemoError> {
        let at = index as usize;
        if let Some(prover) = self.show.provers.get_mut(at) {
            prover.power_cycle();
        }
        let limit = match expected {
            Expected::Out => REFUSAL,
            Expected::In => self.show.options.limit,
        };
        let session = self.show.authenticate(at, Instant::now() + limit)?.is_some();
        let key = self.show.provers.get(at).and_then(|prover| prover.session());
        let key = key.map(|session| session.key().clone());
        if let Some((_, session)) = self.sessions.iter().find(|(of, _)| *of == index) {
            *session.lock().unwrap_or_else(PoisonError::into_inner) = key;
        }
        Ok(Tried {
            session,
            reached: None,
        })
    }
}
