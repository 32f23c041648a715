//! Attackers on the devices' side of the lab, and a judge for each.
//!
//! Whether an attack succeeded is never what the attacker believes: it is read off the gateway's own lines
//! ([`Truth`]), off what reached the service, and off the state machine of the device that was to be deceived. Where an
//! attack needs a message that would have been good (a RESPONSE stolen before it arrived), the message is delivered
//! in the end and must be accepted, so that a broken harness cannot pass for a safe gateway; if it is not, the attack
//! ends in [`AttackError::Control`].
//!
//! | attack | who | judged by |
//! |---|---|---|
//! | [`clone`] | a copy of everything public with another chip | the device's line |
//! | [`replay`] | one who sends again what he heard | lines and leases of the victims, the device's machine |
//! | [`steal`] | one who sends a victim's good RESPONSE from his own MAC or IP address first | the line |
//! | [`admission`] | an enrolled device that speaks from others' addresses; one who asks in a silent station's name | the line, what came back |
//! | [`forge`] | a fake gateway | the device's machine |
//! | [`flood`] | spoofed REQUESTs, RESPONSEs with an accepted `fresh` | lines of all named |
//! | [`flip`] | every bit of every message turned | the line, the device's machine |
//! | [`gate`] | a sender without a session, in the guise of what always passes too; one with a session, as a server of DHCP or a router, or in another VLAN | what reached the service |
//! | [`published`] | the published attacks on the earlier XDP verifier, translated to LAP/1 | the line, what came back, honest packets lost |
//! | [`classic`] | the same as published, against the classic port | what came back |
//! | [`junk`] | one who hears ATTEST_REQUESTs and sends wrong PROOFs in all names | who is quarantined, who counts as proven |

pub mod admission;
pub mod capture;
pub mod classic;
pub mod clone;
pub mod flip;
pub mod flood;
pub mod forge;
pub mod gate;
pub mod junk;
pub mod published;
mod puppet;
pub mod replay;
mod station;
pub mod steal;
mod truth;

use std::net::IpAddr;

use linewarden_protocol::ids::{DeviceId, GatewayId};
use rand_chacha::ChaCha20Rng;

pub use capture::{Capture, Captured, Conversation};
pub use classic::ClassicExchange;
pub use junk::{JUNK_PROOFS, Junk, JunkProofs};
pub use puppet::Puppet;
pub use station::Station;
pub use truth::{Change, LineState, Truth};

use self::truth::Snapshot;
use crate::fleet::Member;
use crate::packet_socket::PacketSocketError;
use crate::service::EchoService;

/// UDP source port of everything that attackers send to the service, by which it knows them.
pub const ATTACK_PORT: u16 = 6_666;

/// Why an attack could not be carried out. None of these says that it failed or succeeded.
#[derive(Debug, thiserror::Error)]
pub enum AttackError {
    /// A socket.
    #[error(transparent)]
    Socket(#[from] PacketSocketError),
    /// The gateway does not answer an honest REQUEST.
    #[error("the gateway answered no REQUEST of device {0} for 10 s: is it installed there, with rows left?")]
    Silent(DeviceId),
    /// What had to work did not, so the attack proves nothing.
    #[error("the control of the attack failed: {0}")]
    Control(&'static str),
    /// Not enough to attack with.
    #[error("the arena lacks {0}")]
    Lacking(&'static str),
}

/// What came of an attack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AttackReport {
    /// Its name in tables.
    pub name: &'static str,
    /// Messages, or handshakes, with which it was tried.
    pub attempts: u64,
    /// How many of them did what the attacker wanted, by the judge of the attack.
    pub successes: u64,
    /// Where it is lines that tell of success: one of them.
    pub change: Option<Change>,
    /// Why it was left out, if it was.
    pub skipped: Option<&'static str>,
}

/// Attempts and successes while an attack runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Tried so often.
    pub attempts: u64,
    /// Succeeded so often.
    pub successes: u64,
    /// Where it is lines that tell of success: one of them.
    pub change: Option<Change>,
}

impl Tally {
    fn count(&mut self, success: bool) {
        self.attempts += 1;
        self.successes += u64::from(success);
    }

    /// Every line that is not what it was is a success.
    fn judge(&mut self, before: &Snapshot, truth: &dyn Truth) {
        let changes = before.changes(truth);
        self.successes = changes.len() as u64;
        self.change = changes.first().copied();
    }
}

/// Everything that attacks work with and on.
pub struct Arena<'a> {
    /// The attackers' place on the link.
    pub station: Station,
    /// The judge.
    pub truth: &'a (dyn Truth + 'a),
    /// The gateway under attack.
    pub gateway: GatewayId,
    /// Enrolled devices, with rows at the gateway, that nobody plays: their lines must never change.
    pub absent: Vec<DeviceId>,
    /// Enrolled devices that have a live session and are quiet: their lines must never change either.
    pub victims: Vec<DeviceId>,
    /// What was heard of victims and others.
    pub captured: Captured,
    /// Honest devices in the harness's hands, of indices from [`PUPPETS_FROM`] on; each attack that
    /// needs one takes one, [`PUPPETS`] in all.
    pub puppets: Vec<Puppet>,
    /// Copies of absent devices with other chips.
    pub clones: Vec<Member>,
    /// The service behind the gate, if the gate is open: it listens on this address and port.
    pub service: Option<(&'a EchoService, IpAddr, u16)>,
    /// Honest exchanges heard on the classic port, if one is open.
    pub classic_exchanges: Vec<ClassicExchange>,
    /// UDP port where a classic profile would be served.
    pub classic_port: u16,
    /// The data plane sees the MAC addresses of frames; one on UDP sockets knows only whose the IP address is.
    pub sees_frames: bool,
    /// Messages of an attack that tries many; floods are twenty times as many.
    pub effort: u32,
    /// What attackers draw from.
    pub rng: ChaCha20Rng,
}

impl Arena<'_> {
    /// One honest device for an attack of its own.
    fn take_puppet(&mut self) -> Result<Puppet, AttackError> {
        self.puppets
            .pop()
            .ok_or(AttackError::Lacking("a puppet: give it more"))
    }

    /// Any device whose line must not change.
    fn quiet_devices(&self) -> impl Iterator<Item = DeviceId> + '_ {
        self.absent.iter().chain(&self.victims).copied()
    }
}

/// What an attack needs before it can be tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needs {
    /// Nothing but devices.
    Nothing,
    /// An open gate with a service behind it.
    OpenGate,
}

/// One attack.
#[derive(Clone, Copy)]
pub struct Attack {
    /// Its name in tables.
    pub name: &'static str,
    /// What it needs.
    pub needs: Needs,
    run: fn(&mut Arena<'_>) -> Result<Tally, AttackError>,
}

impl Attack {
    const fn new(
        name: &'static str,
        needs: Needs,
        run: fn(&mut Arena<'_>) -> Result<Tally, AttackError>,
    ) -> Self {
        Self { name, needs, run }
    }

    /// Tries it.
    ///
    /// # Errors
    /// It could not be carried out; see [`AttackError`].
    pub fn run(&self, arena: &mut Arena<'_>) -> Result<AttackReport, AttackError> {
        let name = self.name;
        let skipped = match self.needs {
            Needs::OpenGate if arena.service.is_none() => Some("the gate is off"),
            _ => None,
        };
        if skipped.is_some() {
            return Ok(AttackReport {
                name,
                attempts: 0,
                successes: 0,
                change: None,
                skipped,
            });
        }
        let tally = (self.run)(arena)?;
        Ok(AttackReport {
            name,
            attempts: tally.attempts,
            successes: tally.successes,
            change: tally.change,
            skipped: None,
        })
    }
}

/// Puppets that all the attacks take together, of two rows each.
pub const PUPPETS: u32 = 11;
/// Index of the first puppet: behind the addresses that attackers use themselves.
pub const PUPPETS_FROM: u32 = crate::address::ATTACKERS_FROM + 900;

/// All attacks, in an order in which they do not disturb each other.
pub const ALL: &[Attack] = &[
    Attack::new("clone with another PUF", Needs::Nothing, clone::other_chip),
    Attack::new("replay to the gateway", Needs::Nothing, replay::to_gateway),
    Attack::new("replay to a device", Needs::Nothing, replay::to_device),
    Attack::new(
        "victim's RESPONSE from own MAC",
        Needs::Nothing,
        steal::from_own_mac,
    ),
    Attack::new(
        "session at an address of others",
        Needs::Nothing,
        admission::others_addresses,
    ),
    Attack::new(
        "REQUEST to a silent station's MAC",
        Needs::Nothing,
        admission::silent_stations,
    ),
    Attack::new("forged CHALLENGEs and ACKs", Needs::Nothing, forge::fake_gateway),
    Attack::new("flood of spoofed REQUESTs", Needs::Nothing, flood::requests),
    Attack::new("flood of spoofed RESPONSEs", Needs::Nothing, flood::responses),
    Attack::new("bit flips to the gateway", Needs::Nothing, flip::to_gateway),
    Attack::new("bit flips to a device", Needs::Nothing, flip::to_device),
    Attack::new(
        "through the gate without a session",
        Needs::OpenGate,
        gate::without_session,
    ),
    Attack::new("through the gate in disguise", Needs::OpenGate, gate::in_disguise),
    Attack::new("through the gate as a server", Needs::OpenGate, gate::as_server),
    Attack::new(
        "through the gate in another VLAN",
        Needs::OpenGate,
        gate::other_vlan,
    ),
    Attack::new("LAP: zero tag, cold start", Needs::Nothing, published::zero_tag),
    Attack::new(
        "LAP: RESPONSE replayed",
        Needs::Nothing,
        published::replayed_response,
    ),
    Attack::new(
        "LAP: affine combination of tags",
        Needs::Nothing,
        published::affine_tags,
    ),
    Attack::new("LAP: tag guessing", Needs::Nothing, published::guessed_tags),
    Attack::new(
        "LAP: REQUEST over a running handshake",
        Needs::Nothing,
        published::overwriting_request,
    ),
    Attack::new("LAP: unknown id reflected", Needs::Nothing, published::unknown_id),
    Attack::new(
        "honest short datagrams lost",
        Needs::OpenGate,
        published::short_datagrams,
    ),
    Attack::new(
        "honest datagrams 00… and 02… lost",
        Needs::OpenGate,
        published::leading_bytes,
    ),
    Attack::new(
        "classic: zero hash, cold start",
        Needs::Nothing,
        classic::zero_hash,
    ),
    Attack::new(
        "classic: RESP replayed",
        Needs::Nothing,
        classic::replayed_response,
    ),
    Attack::new(
        "classic: CRC-32 affine forgery",
        Needs::Nothing,
        classic::affine_forgery,
    ),
    Attack::new(
        "classic: 32-bit hash guessing",
        Needs::Nothing,
        classic::guessed_hashes,
    ),
    Attack::new(
        "classic: REQ over a running exchange",
        Needs::Nothing,
        classic::overwriting_request,
    ),
    Attack::new(
        "classic: unknown id reflected",
        Needs::Nothing,
        classic::unknown_id,
    ),
];
