//! Attackers on the devices' side of the lab, and the check that decides whether each attack succeeded.
//!
//! The attacker's own view never decides. The check reads the gateway's lines ([`GatewayLines`]), the datagrams that
//! reached the service, and the state machine of the attacked device. Some attacks need a valid message that is
//! withheld from the gateway, such as a RESPONSE. Such an attack delivers the message at its end. If the gateway
//! rejects the message, the attack returns [`AttackError::ControlFailed`], because a broken test setup looks like a
//! safe gateway.
//!
//! | attack | attacker | decided by |
//! |---|---|---|
//! | [`clone`] | a copy of a device's public data, with another PUF chip | the device's line |
//! | [`replay`] | sends captured frames again | the victims' lines and sessions, the device's state machine |
//! | [`stolen_response`] | sends a victim's valid RESPONSE first, from another MAC or IP address | the line |
//! | [`admission`] | an enrolled device that uses foreign addresses; a sender of REQUESTs to foreign MAC addresses | the line, the replies |
//! | [`forge`] | a fake gateway | the device's state machine |
//! | [`flood`] | spoofed REQUESTs, RESPONSEs with an accepted `fresh` | the lines of all named devices |
//! | [`flip`] | flips every bit of every message | the line, the device's state machine |
//! | [`gate`] | a sender without a session, also with traffic types that always pass; a device with a session that acts as DHCP server or router, or uses another VLAN | datagrams at the service |
//! | [`published`] | the published attacks on the earlier XDP verifier, translated to LAP/1 | the line, the replies, legitimate packets lost |
//! | [`classic`] | the same attacks as published, against the classic port | the replies |
//! | [`forged_proofs`] | overhears ATTEST_REQUESTs and sends wrong PROOFs in the name of any device | quarantined and proven devices |

pub mod admission;
mod attacker_link;
pub mod capture;
pub mod classic;
pub mod clone;
mod controlled_device;
pub mod flip;
pub mod flood;
pub mod forge;
pub mod forged_proofs;
pub mod gate;
mod gateway_lines;
pub mod published;
pub mod replay;
pub mod stolen_response;

use std::net::IpAddr;

use linewarden_protocol::ids::{DeviceId, GatewayId};
use rand_chacha::ChaCha20Rng;

pub use attacker_link::AttackerLink;
pub use capture::{CapturedHandshake, CapturedHandshakes, HandshakeCapture};
pub use classic::ClassicExchange;
pub use controlled_device::ControlledDevice;
pub use forged_proofs::{FORGED_PROOFS, ForgedProofAttack, ForgedProofCounts};
pub use gateway_lines::{GatewayLines, LineChange, LineState};

use self::gateway_lines::LineSnapshot;
use crate::fleet::Member;
use crate::packet_socket::PacketSocketError;
use crate::service::EchoService;

/// UDP source port of all attack traffic to the service; the service counts attackers by this port.
pub const ATTACK_PORT: u16 = 6_666;

/// Why an attack could not be carried out. With any of these errors it is unknown whether the attack would succeed.
#[derive(Debug, thiserror::Error)]
pub enum AttackError {
    /// A packet socket failed.
    #[error(transparent)]
    Socket(#[from] PacketSocketError),
    /// The gateway sends no CHALLENGE to a valid REQUEST.
    #[error(
        "no CHALLENGE from the gateway for device {0} within 10 s; check that the device is installed with rows left"
    )]
    NoChallenge(DeviceId),
    /// A step that must succeed failed, so the attack proves nothing.
    #[error("attack control check failed: {0}")]
    ControlFailed(&'static str),
    /// The context lacks an input of the attack.
    #[error("attack input missing: {0}")]
    MissingInput(&'static str),
}

/// The result of an attack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AttackReport {
    /// Name of the attack in tables.
    pub name: &'static str,
    /// Messages or handshakes that the attacker tried.
    pub attempts: u64,
    /// Attempts that succeeded, by the check of the attack.
    pub successes: u64,
    /// One changed line, if changed lines decide about success.
    pub line_change: Option<LineChange>,
    /// Why the attack was skipped; `None` if the attack ran.
    pub skipped: Option<&'static str>,
}

/// Attempts and successes while an attack runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AttackCounts {
    /// Number of attempts.
    pub attempts: u64,
    /// Number of successes.
    pub successes: u64,
    /// One changed line, if changed lines decide about success.
    pub line_change: Option<LineChange>,
}

impl AttackCounts {
    fn record(&mut self, success: bool) {
        self.attempts += 1;
        self.successes += u64::from(success);
    }

    /// Counts every changed line as a success.
    fn count_line_changes(&mut self, before: &LineSnapshot, lines: &dyn GatewayLines) {
        let changes = before.changes(lines);
        self.successes = changes.len() as u64;
        self.line_change = changes.first().copied();
    }
}

/// The inputs and targets of all attacks.
pub struct AttackContext<'a> {
    /// The attackers' access to the link.
    pub link: AttackerLink,
    /// Access to the gateway's lines, which decide about success.
    pub lines: &'a (dyn GatewayLines + 'a),
    /// The gateway under attack.
    pub gateway: GatewayId,
    /// Enrolled devices with rows at the gateway that send nothing: their lines must never change.
    pub absent_devices: Vec<DeviceId>,
    /// Enrolled devices that have a live session and send nothing: their lines must never change either.
    pub victims: Vec<DeviceId>,
    /// Captured handshakes of victims and other devices.
    pub captured_handshakes: CapturedHandshakes,
    /// Legitimate devices that the harness controls, with indices from [`FIRST_CONTROLLED_DEVICE`] on. Each attack that
    /// needs such a device takes one device; all attacks together need [`CONTROLLED_DEVICES`] devices.
    pub controlled_devices: Vec<ControlledDevice>,
    /// Copies of absent devices with other PUF chips.
    pub clones: Vec<Member>,
    /// The service behind the gate with its address and port; `None` if the gate is off.
    pub service: Option<(&'a EchoService, IpAddr, u16)>,
    /// Legitimate exchanges captured on the classic port, if the port is open.
    pub classic_exchanges: Vec<ClassicExchange>,
    /// UDP port where a classic profile would be served.
    pub classic_port: u16,
    /// The data plane sees the MAC addresses of frames; a data plane on UDP sockets sees only IP addresses.
    pub data_plane_sees_macs: bool,
    /// Number of messages of an attack; a flood sends twenty times this number.
    pub messages_per_attack: u32,
    /// Random numbers of the attackers.
    pub rng: ChaCha20Rng,
}

impl AttackContext<'_> {
    /// Removes one controlled device for the calling attack.
    fn take_controlled_device(&mut self) -> Result<ControlledDevice, AttackError> {
        self.controlled_devices.pop().ok_or(AttackError::MissingInput(
            "a controlled device; add more to the context",
        ))
    }

    /// All devices whose lines must not change.
    fn protected_devices(&self) -> impl Iterator<Item = DeviceId> + '_ {
        self.absent_devices.iter().chain(&self.victims).copied()
    }
}

/// What an attack requires.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Requirement {
    /// Only devices.
    DevicesOnly,
    /// A bound gate with a service behind it.
    BoundGate,
}

/// One attack.
#[derive(Clone, Copy)]
pub struct Attack {
    /// Name of the attack in tables.
    pub name: &'static str,
    /// The requirement of the attack.
    pub requirement: Requirement,
    run: fn(&mut AttackContext<'_>) -> Result<AttackCounts, AttackError>,
}

impl Attack {
    const fn new(
        name: &'static str,
        requirement: Requirement,
        run: fn(&mut AttackContext<'_>) -> Result<AttackCounts, AttackError>,
    ) -> Self {
        Self {
            name,
            requirement,
            run,
        }
    }

    /// Runs the attack.
    ///
    /// # Errors
    /// The attack could not be carried out; see [`AttackError`].
    pub fn run(&self, context: &mut AttackContext<'_>) -> Result<AttackReport, AttackError> {
        let name = self.name;
        let skipped = match self.requirement {
            Requirement::BoundGate if context.service.is_none() => Some("the gate is off"),
            _ => None,
        };
        if skipped.is_some() {
            return Ok(AttackReport {
                name,
                attempts: 0,
                successes: 0,
                line_change: None,
                skipped,
            });
        }
        let counts = (self.run)(context)?;
        Ok(AttackReport {
            name,
            attempts: counts.attempts,
            successes: counts.successes,
            line_change: counts.line_change,
            skipped: None,
        })
    }
}

/// Controlled devices that all attacks together need, with two rows each.
pub const CONTROLLED_DEVICES: u32 = 11;
/// Index of the first controlled device: after the addresses that attackers use themselves.
pub const FIRST_CONTROLLED_DEVICE: u32 = crate::address::FIRST_ATTACKER + 900;

/// All attacks, ordered so that no attack disturbs a later attack.
pub const ATTACKS: &[Attack] = &[
    Attack::new(
        "cloned device with a different PUF",
        Requirement::DevicesOnly,
        clone::other_chip,
    ),
    Attack::new(
        "replay of captured messages to the gateway",
        Requirement::DevicesOnly,
        replay::to_gateway,
    ),
    Attack::new(
        "replay of earlier gateway messages to a device",
        Requirement::DevicesOnly,
        replay::to_device,
    ),
    Attack::new(
        "stolen RESPONSE sent from another MAC address",
        Requirement::DevicesOnly,
        stolen_response::from_own_mac,
    ),
    Attack::new(
        "session requested from a foreign IP address",
        Requirement::DevicesOnly,
        admission::session_at_foreign_address,
    ),
    Attack::new(
        "REQUEST to a MAC that is not the gateway's",
        Requirement::DevicesOnly,
        admission::request_to_foreign_mac,
    ),
    Attack::new(
        "forged CHALLENGE and ACK messages",
        Requirement::DevicesOnly,
        forge::fake_gateway,
    ),
    Attack::new(
        "flood of spoofed REQUEST messages",
        Requirement::DevicesOnly,
        flood::requests,
    ),
    Attack::new(
        "flood of spoofed RESPONSE messages",
        Requirement::DevicesOnly,
        flood::responses,
    ),
    Attack::new(
        "bit flips in messages to the gateway",
        Requirement::DevicesOnly,
        flip::to_gateway,
    ),
    Attack::new(
        "bit flips in messages to a device",
        Requirement::DevicesOnly,
        flip::to_device,
    ),
    Attack::new(
        "traffic to the service without a session",
        Requirement::BoundGate,
        gate::without_session,
    ),
    Attack::new(
        "traffic disguised as DHCP or neighbor discovery",
        Requirement::BoundGate,
        gate::as_exempt_traffic,
    ),
    Attack::new(
        "DHCP server or router messages from a device",
        Requirement::BoundGate,
        gate::as_server,
    ),
    Attack::new(
        "traffic to the service in another VLAN",
        Requirement::BoundGate,
        gate::other_vlan,
    ),
    Attack::new(
        "published: zero tag after a cold start",
        Requirement::DevicesOnly,
        published::zero_tag,
    ),
    Attack::new(
        "published: RESPONSE replayed",
        Requirement::DevicesOnly,
        published::replayed_response,
    ),
    Attack::new(
        "published: affine combination of tags",
        Requirement::DevicesOnly,
        published::affine_tags,
    ),
    Attack::new(
        "published: tag guessing",
        Requirement::DevicesOnly,
        published::guessed_tags,
    ),
    Attack::new(
        "published: REQUEST during a running handshake",
        Requirement::DevicesOnly,
        published::overwriting_request,
    ),
    Attack::new(
        "published: reply to an unknown device id",
        Requirement::DevicesOnly,
        published::unknown_id,
    ),
    Attack::new(
        "loss of short legitimate datagrams",
        Requirement::BoundGate,
        published::short_datagrams,
    ),
    Attack::new(
        "loss of legitimate datagrams by first byte",
        Requirement::BoundGate,
        published::leading_bytes,
    ),
    Attack::new(
        "classic port: zero hash after a cold start",
        Requirement::DevicesOnly,
        classic::zero_hash,
    ),
    Attack::new(
        "classic port: RESP replayed",
        Requirement::DevicesOnly,
        classic::replayed_response,
    ),
    Attack::new(
        "classic port: CRC-32 affine forgery",
        Requirement::DevicesOnly,
        classic::affine_forgery,
    ),
    Attack::new(
        "classic port: 32-bit hash guessing",
        Requirement::DevicesOnly,
        classic::guessed_hashes,
    ),
    Attack::new(
        "classic port: REQ during a running exchange",
        Requirement::DevicesOnly,
        classic::overwriting_request,
    ),
    Attack::new(
        "classic port: reply to an unknown device id",
        Requirement::DevicesOnly,
        classic::unknown_id,
    ),
];
