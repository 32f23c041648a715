//! Attacks that need nothing but UDP sockets. Each is judged by the gateway's lines.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use linewarden_dataplane::LineStatus;
use linewarden_protocol::device::PufQuery;
use linewarden_protocol::ids::{DeviceId, RowIndex, Suite};
use linewarden_protocol::keys::{AuthKey, RowKey};
use linewarden_protocol::nonce::Statement;
use linewarden_protocol::tag;
use linewarden_protocol::wire::{self, MESSAGE_BYTES, message_type};
use rand::Rng as _;
use rand_chacha::ChaCha20Rng;

use super::prover::{End, Prover, challenge_for, is_quiet};
use crate::demo::DemoError;
use crate::demo::report::AttackOutcome;
use crate::demo::site::{GATEWAY_ID, Site};
use crate::fleet::Member;

/// Addresses that attackers send from: 127.200.0.1 and up.
const ADDRESSES: u8 = 16;
/// Messages between two looks at whether the gateway has seen them: fewer than its socket holds.
const WAVE: u32 = 256;
/// How long the gateway may be silent.
const PATIENCE: Duration = Duration::from_secs(10);

type Bytes = [u8; MESSAGE_BYTES];

/// What attackers have.
pub(super) struct Raid<'a> {
    site: &'a Site,
    sockets: Vec<UdpSocket>,
    next: usize,
    gateway: SocketAddr,
    probe: DeviceId,
    rng: ChaCha20Rng,
    effort: u32,
    /// Devices whose lines must not change.
    pub(super) quiet: Vec<DeviceId>,
    /// RESPONSEs of devices that have a session.
    pub(super) overheard: Vec<Bytes>,
}

/// Why an attack proves nothing.
type Failed = String;

impl<'a> Raid<'a> {
    pub(super) fn new(
        site: &'a Site,
        gateway: SocketAddr,
        probe: DeviceId,
        effort: u32,
        rng: ChaCha20Rng,
    ) -> Result<Self, DemoError> {
        let open = |host| {
            let socket = UdpSocket::bind((Ipv4Addr::new(127, 200, 0, host), 0))?;
            socket.connect(gateway)?;
            socket.set_read_timeout(Some(Duration::from_millis(20)))?;
            Ok(socket)
        };
        Ok(Self {
            site,
            sockets: (1..=ADDRESSES)
                .map(open)
                .collect::<Result<_, _>>()
                .map_err(DemoError::system("opening the attackers' sockets"))?,
            next: 0,
            gateway,
            probe,
            rng,
            effort,
            quiet: Vec::new(),
            overheard: Vec::new(),
        })
    }

    /// Runs all attacks.
    pub(super) fn run(
        mut self,
        mut clones: Vec<Member>,
        mut puppet: Prover,
        tell: &dyn Fn(AttackOutcome) -> bool,
    ) {
        type Attack<'b> = Box<dyn FnOnce(&mut Raid<'_>) -> Result<u64, Failed> + 'b>;
        let attacks: [(&'static str, Attack<'_>); 5] = [
            (CLONE, Box::new(|raid| raid.other_chips(&mut clones))),
            (REPLAY, Box::new(|raid| raid.replays())),
            (REQUESTS, Box::new(|raid| raid.requests())),
            (RESPONSES, Box::new(|raid| raid.responses())),
            (FLIPS, Box::new(|raid| raid.flips(&mut puppet))),
        ];
        for (name, attack) in attacks {
            let outcome = self.judged(name, attack);
            if !tell(outcome) {
                return;
            }
        }
    }

    /// Lets an attack happen and counts the lines that changed because of it.
    fn judged(
        &mut self,
        name: &'static str,
        attack: impl FnOnce(&mut Self) -> Result<u64, Failed>,
    ) -> AttackOutcome {
        let mut outcome = AttackOutcome {
            name,
            ..AttackOutcome::default()
        };
        let judged = self.lines().and_then(|before| {
            let attempts = attack(self)?;
            self.settle()?;
            let after = self.lines()?;
            let lines = self.quiet.iter().zip(before.iter().zip(&after));
            let changed = lines.filter(|(_, (before, after))| before != after);
            let told = changed
                .map(|(device, (before, after))| format!("device {device} had {before:?}; it has {after:?}"));
            Ok((attempts, told.collect::<Vec<_>>()))
        });
        match judged {
            Ok((attempts, changes)) => {
                outcome.attempts = attempts;
                outcome.successes = changes.len() as u64;
                outcome.change = changes.into_iter().next();
            }
            Err(reason) => outcome.inconclusive = Some(reason),
        }
        outcome
    }

    fn lines(&self) -> Result<Vec<Option<LineStatus>>, Failed> {
        self.site
            .lines(self.quiet.clone())
            .map_err(|error| error.to_string())
    }

    /// Each clone asks for a CHALLENGE and answers with the key that its own chip gives, or a guess.
    fn other_chips(&mut self, clones: &mut [Member]) -> Result<u64, Failed> {
        for clone in clones.iter_mut() {
            let config = clone.config.clone();
            let mut nonce = [0u8; 16];
            self.rng.fill_bytes(&mut nonce);
            let challenge = self.challenge(config.device, nonce)?;
            let query = PufQuery {
                mode: config.mode,
                idx: RowIndex(challenge.idx.get()),
                challenge: challenge.challenge,
            };
            let row_key = clone.row_key(&query).unwrap_or_else(|_| {
                let mut guess = [0u8; 16];
                self.rng.fill_bytes(&mut guess);
                RowKey::from_bytes(guess)
            });
            let key = AuthKey::derive(&row_key, config.suite, config.mode, query.idx, GATEWAY_ID);
            let mut response = response(&challenge, nonce);
            response.tag = tag::response(&key, &response, &tag::loc(None));
            self.send(&bytes(&response))?;
        }
        Ok(clones.len() as u64)
    }

    /// Every RESPONSE that was overheard, three times from every address.
    fn replays(&mut self) -> Result<u64, Failed> {
        let overheard = std::mem::take(&mut self.overheard);
        let mut attempts = 0;
        for response in &overheard {
            for _ in 0..3 * ADDRESSES {
                self.send(response)?;
                attempts += 1;
            }
            self.settle()?;
        }
        Ok(attempts)
    }

    /// REQUESTs of known and unknown devices by turns.
    fn requests(&mut self) -> Result<u64, Failed> {
        let names = self.quiet.clone();
        self.flood(|raid, number| {
            let mut nonce = [0u8; 16];
            raid.rng.fill_bytes(&mut nonce);
            let known = names.get(number as usize / 2 % names.len().max(1));
            let device = match known {
                Some(device) if number.is_multiple_of(2) => *device,
                _ => DeviceId(raid.rng.next_u64().max(1)),
            };
            request(device, nonce)
        })
    }

    /// RESPONSEs for the current rows with an accepted `fresh` and random tags.
    fn responses(&mut self) -> Result<u64, Failed> {
        let names = self.quiet.clone();
        let mut challenges = Vec::with_capacity(names.len());
        for device in names {
            let mut nonce = [0u8; 16];
            self.rng.fill_bytes(&mut nonce);
            challenges.push(self.challenge(device, nonce)?);
        }
        self.flood(|raid, number| {
            let Some(challenge) = challenges.get(number as usize % challenges.len().max(1)) else {
                return [0; MESSAGE_BYTES];
            };
            let mut nonce = [0u8; 16];
            raid.rng.fill_bytes(&mut nonce);
            let mut response = response(challenge, nonce);
            raid.rng.fill_bytes(&mut response.tag);
            bytes(&response)
        })
    }

    fn flood(&mut self, mut message: impl FnMut(&mut Self, u32) -> Bytes) -> Result<u64, Failed> {
        for number in 0..self.effort {
            let message = message(self, number);
            self.send(&message)?;
            if number % WAVE == WAVE - 1 {
                self.settle()?;
            }
        }
        Ok(self.effort.into())
    }

    /// Every bit of a good RESPONSE turned, from the device's own address; then the RESPONSE itself, which must be
    /// accepted, or the attack proves nothing.
    fn flips(&mut self, puppet: &mut Prover) -> Result<u64, Failed> {
        let words = |error: std::io::Error| error.to_string();
        let socket = puppet.open(self.gateway).map_err(words)?;
        let held = puppet.authenticate(&socket, &mut self.rng, PATIENCE, true);
        let End::Held(good) = held.map_err(words)? else {
            return Err("the device gets no CHALLENGE".to_owned());
        };
        let watched = self.quiet.len();
        self.quiet.push(puppet.id());
        let before = self.lines()?;
        let mut attempts = 0;
        for bit in 0..MESSAGE_BYTES * 8 {
            let mut flipped = good;
            if let Some(byte) = flipped.get_mut(bit / 8) {
                *byte ^= 1 << (bit % 8);
            }
            socket.send(&flipped).map_err(words)?;
            attempts += 1;
        }
        self.settle()?;
        let unharmed = before == self.lines()?;
        self.quiet.truncate(watched);
        let end = puppet.deliver(&socket, &mut self.rng, good, PATIENCE);
        match (unharmed, end.map_err(words)?) {
            (true, End::Session(_)) => Ok(attempts),
            (false, _) => Err("a RESPONSE with a turned bit spent the device's row".to_owned()),
            (true, _) => Err("the good RESPONSE is not accepted after its variants".to_owned()),
        }
    }

    /// From the next address.
    fn send(&mut self, message: &Bytes) -> Result<(), Failed> {
        self.next = (self.next + 1) % self.sockets.len().max(1);
        let Some(socket) = self.sockets.get(self.next) else {
            return Err("no socket".to_owned());
        };
        match socket.send(message) {
            Err(error) if !is_quiet(&error) => Err(error.to_string()),
            _ => Ok(()),
        }
    }

    /// The gateway has answered a REQUEST that was sent after everything else, and it has one queue and one thread.
    fn settle(&mut self) -> Result<(), Failed> {
        let mut nonce = [0u8; 16];
        self.rng.fill_bytes(&mut nonce);
        self.challenge(self.probe, nonce).map(|_| ())
    }

    /// Asks for a CHALLENGE, as anybody may.
    fn challenge(&mut self, device: DeviceId, nonce: [u8; 16]) -> Result<wire::Challenge, Failed> {
        let Some(socket) = self.sockets.first() else {
            return Err("no socket".to_owned());
        };
        let started = Instant::now();
        let mut buffer = [0u8; 2 * MESSAGE_BYTES];
        while started.elapsed() < PATIENCE {
            let sent = socket.send(&request(device, nonce));
            sent.map(|_| ()).or_else(|error| {
                if is_quiet(&error) {
                    Ok(())
                } else {
                    Err(error.to_string())
                }
            })?;
            while let Ok(length) = socket.recv(&mut buffer) {
                if let Some(challenge) = challenge_for(buffer.get(..length).unwrap_or_default(), &nonce) {
                    return Ok(challenge);
                }
            }
        }
        Err(format!("the gateway answers no REQUEST of device {device}"))
    }
}

/// Names as in [`crate::attackers::ALL`], since these are the same attacks with other means.
pub(super) const CLONE: &str = "clone with another PUF";
const REPLAY: &str = "replay to the gateway";
const REQUESTS: &str = "flood of spoofed REQUESTs";
const RESPONSES: &str = "flood of spoofed RESPONSEs";
const FLIPS: &str = "bit flips to the gateway";

/// All that are tried here.
pub(super) const NAMES: [&str; 5] = [CLONE, REPLAY, REQUESTS, RESPONSES, FLIPS];

fn request(device: DeviceId, nonce: [u8; 16]) -> Bytes {
    bytes(&wire::Request {
        header: wire::Header::new(message_type::REQUEST, Suite::SipHash128, 0, device),
        // With random bytes there, it would state rows beyond the pool.
        nonce: Statement::default().within(nonce),
        reserved: [0; 32],
    })
}

/// A RESPONSE to that CHALLENGE, without a tag.
fn response(challenge: &wire::Challenge, nonce: [u8; 16]) -> wire::Response {
    wire::Response {
        header: wire::Header::new(
            message_type::RESPONSE,
            Suite::SipHash128,
            0,
            challenge.header.device(),
        ),
        nonce,
        idx: challenge.idx,
        gateway_id: challenge.gateway_id,
        fresh: challenge.fresh,
        tag: [0; 16],
    }
}

fn bytes(message: &(impl zerocopy::IntoBytes + zerocopy::Immutable)) -> Bytes {
    let mut out = [0; MESSAGE_BYTES];
    for (to, from) in out.iter_mut().zip(message.as_bytes()) {
        *to = *from;
    }
    out
}
