//! The one numbered list of verdicts and drop reasons, shared by Rust, eBPF and P4, by counters, metrics and logs.
//!
//! Every packet gets exactly one verdict. The C and P4 headers are generated from this list (see [`render_c`]);
//! a test fails when the generated files are not current. Numbers are never reused or moved.

use core::fmt;

/// What becomes of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disposition {
    /// Goes on to the network stack, the service or the device: unchanged, or with its seal taken off or put on.
    Pass,
    /// Answered: the packet is consumed and a reply leaves on the same port.
    Reply,
    /// Consumed without an answer.
    Drop,
}

macro_rules! verdicts {
    ($($(#[doc = $doc:literal])+ $variant:ident = $number:literal, $disposition:ident, $name:literal;)+) => {
        /// A packet's verdict.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum Verdict { $($(#[doc = $doc])+ $variant = $number),+ }

        impl Verdict {
            /// All verdicts, in numeric order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The verdict of that number.
            #[must_use]
            pub fn from_number(number: u8) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)+ _ => None }
            }

            /// Name in metrics, logs, tables and (upper case, prefixed) in C and P4.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// What becomes of the packet.
            #[must_use]
            pub fn disposition(self) -> Disposition {
                match self { $(Self::$variant => Disposition::$disposition),+ }
            }

            /// One line for people.
            #[must_use]
            pub fn description(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+)),+ }
            }
        }
    };
}

/// One more than the highest verdict number: the length of a table of counters.
pub const VERDICT_SLOTS: usize = 96;

verdicts! {
    /// Not for the gateway, and no gate in its way: it is off, or the frame came in by a port of services.
    PassForeign = 1, Pass, "pass_foreign";
    /// On the gate's list of what always passes (ARP, neighbor discovery, DHCP, what `always_pass` names; ATTEST_REQUESTs of
    /// the gateway's own).
    PassAlways = 2, Pass, "pass_always";
    /// From a MAC address with a live bound session, through the open gate.
    PassSession = 3, Pass, "pass_session";
    /// Addressed to the gateway's port in a form that the fast path does not parse (IP options, fragments,
    /// extension headers); the gate is off and the network stack takes it.
    PassUnparsed = 4, Pass, "pass_unparsed";
    /// A DATA_UP that verified: the seal is taken off and the datagram goes on (sealed gate).
    PassData = 5, Pass, "pass_data";
    /// A datagram towards a device, sealed as a DATA_DOWN on its way out (sealed gate).
    PassSealed = 6, Pass, "pass_sealed";

    /// A REQUEST answered with a CHALLENGE.
    ReplyChallenge = 16, Reply, "reply_challenge";
    /// A RESPONSE accepted: a row spent, a session opened, an ACK sent.
    ReplyAck = 17, Reply, "reply_ack";
    /// The winning RESPONSE again: the same ACK again.
    ReplyAckAgain = 18, Reply, "reply_ack_again";
    /// A REQUEST of a known device that cannot be served now: a NAK.
    ReplyNak = 19, Reply, "reply_nak";
    /// Classic profile: a challenge sent.
    ReplyClassicChallenge = 20, Reply, "reply_classic_challenge";
    /// Classic profile: a response accepted.
    ReplyClassicAck = 21, Reply, "reply_classic_ack";
    /// `p4dra-classic`: a proof verified; the reply, which is longer, tells the controller.
    ReplyP4draVerified = 22, Reply, "reply_p4dra_verified";

    /// Payload or length field of wrong length.
    DropLength = 32, Drop, "drop_length";
    /// Magic is not "LW".
    DropMagic = 33, Drop, "drop_magic";
    /// Unknown version.
    DropVersion = 34, Drop, "drop_version";
    /// Unknown message type.
    DropType = 35, Drop, "drop_type";
    /// Suite not spoken here.
    DropSuite = 36, Drop, "drop_suite";
    /// A flag that this type does not have.
    DropFlags = 37, Drop, "drop_flags";
    /// Device id 0.
    DropDeviceZero = 38, Drop, "drop_device_zero";
    /// A reserved field that is not zero.
    DropReserved = 39, Drop, "drop_reserved";
    /// A type that only gateways send (CHALLENGE, ACK, NAK, DATA_DOWN), which nothing ever answers.
    DropDirection = 40, Drop, "drop_direction";
    /// A PROOF, and this gateway attests nobody.
    DropUnsupportedType = 41, Drop, "drop_unsupported_type";
    /// The packet ends before its headers do, or their lengths contradict each other.
    DropTruncated = 42, Drop, "drop_truncated";
    /// For us, but between addresses that no reply may go between: a group MAC address, or a source IP address that
    /// names no host (unspecified, multicast, broadcast, or IPv6 in ::/64 but ::1, where IPv4-mapped addresses lie).
    DropUnanswerable = 43, Drop, "drop_unanswerable";
    /// A REQUEST or RESPONSE from an address that no device has: outside `device_prefixes`, or one of the gateway's own, a loopback or
    /// a broadcast address.
    DropSourceNotDevice = 45, Drop, "drop_source_not_device";

    /// Of a device that is not here: more than the slow path takes, of this source or of all.
    DropShed = 46, Drop, "drop_shed";
    /// Of a device that is not here: handed to the slow path, which asks the controller and answers.
    SlowPath = 47, Drop, "slow_path";
    /// No such device here, and either it is enrolled nowhere, or its RESPONSE is an old one, or there is no slow path.
    DropUnknownDevice = 48, Drop, "drop_unknown_device";
    /// The device is revoked.
    DropRevoked = 49, Drop, "drop_revoked";
    /// The device's line is being committed by another CPU, or a P4 switch lets it open no more sessions this second; the sender repeats.
    DropBusy = 50, Drop, "drop_busy";
    /// No row is left for a RESPONSE.
    DropNoRows = 51, Drop, "drop_no_rows";
    /// A NAK was due but their rate limit is reached.
    DropNakLimit = 52, Drop, "drop_nak_limit";
    /// The RESPONSE's idx is not the current one.
    DropIndex = 53, Drop, "drop_index";
    /// The RESPONSE names another gateway.
    DropGateway = 54, Drop, "drop_gateway";
    /// The RESPONSE's fresh value is neither the current nor the previous one.
    DropFresh = 55, Drop, "drop_fresh";
    /// The gateway's own fresh value is too old: the fast path has stopped.
    DropStopped = 56, Drop, "drop_stopped";
    /// The tag does not verify.
    DropTag = 57, Drop, "drop_tag";
    /// Another CPU spent the row first.
    DropLostRace = 58, Drop, "drop_lost_race";
    /// Another live session owns the sender's IP or MAC address.
    DropAddressOwned = 59, Drop, "drop_address_owned";
    /// A RESPONSE whose row is already spent, and which is not the winning one or not from where that came.
    DropReplay = 60, Drop, "drop_replay";
    /// No room in the tables that bind addresses to sessions.
    DropTableFull = 61, Drop, "drop_table_full";
    /// A verified RESPONSE whose tag begins with eight zero bytes, which cannot name a session.
    DropSessionZero = 62, Drop, "drop_session_zero";
    /// Verified, but its row may not be spent before the device's durable mark has moved; the device repeats.
    DropMark = 63, Drop, "drop_mark";

    /// The gate is closed to the sender of an IP packet: no live bound session, or no seal.
    DropGate = 64, Drop, "drop_gate";
    /// The gate lets no fragment pass.
    DropGateFragment = 65, Drop, "drop_gate_fragment";
    /// The gate lets no extension header or IP option pass, nor, where packets carry evidence, anything else that could bring some.
    DropGateExtension = 66, Drop, "drop_gate_extension";
    /// LAP's port is never forwarded towards the service, nor port 0: of a frame, or inside a seal.
    DropGatePort = 67, Drop, "drop_gate_port";
    /// The session's lease is over.
    DropGateLease = 68, Drop, "drop_gate_lease";
    /// Towards a device past a sealed gate, and neither a datagram, which could be sealed, nor on the list of what
    /// always passes.
    DropUnsealed = 69, Drop, "drop_unsealed";
    /// Towards a device, and no room for the seal: beyond the link's MTU. Towards a service, and no room for evidence: its sender is
    /// told the size. `p4dra-classic`: no room for the longer reply.
    DropTooBig = 70, Drop, "drop_too_big";
    /// Towards a device, several datagrams in one that a network card would cut up (GSO): they cannot be sealed.
    DropSegments = 71, Drop, "drop_segments";

    /// A DATA message while the gate is not sealed.
    DropNotSealed = 72, Drop, "drop_not_sealed";
    /// No live session: of the DATA that came, or at the address that a datagram goes to.
    DropSession = 73, Drop, "drop_session";
    /// DATA from another address than the session's.
    DropSource = 74, Drop, "drop_source";
    /// DATA whose sequence number was seen, is too old or out of range.
    DropSequence = 75, Drop, "drop_sequence";
    /// The session's numbers towards the device are used up; it must authenticate anew.
    DropExhausted = 76, Drop, "drop_exhausted";

    /// At a gate: behind the VLAN tags that are parsed is one more, or one of an older or another kind, by which a bridge would take
    /// the frame elsewhere than the session is.
    DropGateTag = 77, Drop, "drop_gate_tag";
    /// At a gate: a router's, DHCP server's or bridge's message (router advertisement, redirect, group query, DHCP reply, BPDU), which
    /// no device may send, with a session or without.
    DropGateRole = 78, Drop, "drop_gate_role";
    /// The gate is closed to the sender of a frame that is no IP packet: no live bound session, or no seal. Counted by Ethernet type.
    DropGateType = 79, Drop, "drop_gate_type";

    /// Classic profile: malformed message.
    DropClassicMalformed = 80, Drop, "drop_classic_malformed";
    /// Classic profile: unknown identifier, or none of its CRPs left.
    DropClassicUnknown = 81, Drop, "drop_classic_unknown";
    /// Classic profile: wrong hash, or no challenge outstanding.
    DropClassicHash = 82, Drop, "drop_classic_hash";
    /// `p4dra-classic`: no operation that there is, or of another length than it has.
    DropP4draMalformed = 83, Drop, "drop_p4dra_malformed";

    /// A PROOF that verified: the prover is ok in this round.
    ProofOk = 84, Drop, "proof_ok";
    /// A PROOF of a round that is neither the running nor the previous one, or under another nonce.
    DropRound = 85, Drop, "drop_round";
    /// A PROOF of a round whose time is over.
    DropLate = 86, Drop, "drop_late";
    /// A PROOF of a device whose keys are not here.
    DropUnknownProver = 87, Drop, "drop_unknown_prover";
    /// A PROOF of a prover that is ok in this round already.
    DropProved = 88, Drop, "drop_proved";
    /// A PROOF of a prover that has no key for the round's period here.
    DropNoKey = 89, Drop, "drop_no_key";
    /// A PROOF that does not verify: counts as silence.
    DropProof = 90, Drop, "drop_proof";

    /// `p4dra-classic`: what is a controller's or a verifier's to send, never a prover's (start, request, setup), or what the
    /// published switch sends to itself (calculating, verified), which nobody may bring it from outside.
    DropP4draOperation = 91, Drop, "drop_p4dra_operation";
    /// `p4dra-classic`: a proof of neither the running nor the previous round.
    DropP4draRound = 92, Drop, "drop_p4dra_round";
    /// `p4dra-classic`: a proof of a prover that is not here.
    DropP4draProver = 93, Drop, "drop_p4dra_prover";
    /// `p4dra-classic`: a proof of a prover that is ok in this round already.
    DropP4draProved = 94, Drop, "drop_p4dra_proved";
    /// `p4dra-classic`: a proof that does not verify.
    DropP4draProof = 95, Drop, "drop_p4dra_proof";
}

impl Verdict {
    /// The number in counters and in the generated headers.
    #[must_use]
    pub fn number(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Writes the C header that the eBPF programs include.
///
/// # Errors
/// Those of the writer.
pub fn render_c(out: &mut dyn fmt::Write) -> fmt::Result {
    writeln!(
        out,
        "/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */"
    )?;
    writeln!(
        out,
        "/* Generated from crates/protocol/src/verdict.rs; `make generate` writes it, a test compares it. */"
    )?;
    writeln!(
        out,
        "#ifndef LW_VERDICTS_H\n#define LW_VERDICTS_H\n\nenum lw_verdict {{"
    )?;
    for verdict in Verdict::ALL {
        write!(out, "\tLW_")?;
        upper(out, verdict.name())?;
        writeln!(out, " = {},", verdict.number())?;
    }
    writeln!(out, "}};\n\n#define LW_VERDICT_SLOTS {VERDICT_SLOTS}\n\n#endif")
}

/// Writes the P4 header.
///
/// # Errors
/// Those of the writer.
pub fn render_p4(out: &mut dyn fmt::Write) -> fmt::Result {
    writeln!(
        out,
        "// Generated from crates/protocol/src/verdict.rs; `make generate` writes it, a test compares it."
    )?;
    writeln!(
        out,
        "#ifndef LW_VERDICTS_P4\n#define LW_VERDICTS_P4\n\ntypedef bit<8> lw_verdict_t;"
    )?;
    for verdict in Verdict::ALL {
        write!(out, "const lw_verdict_t LW_")?;
        upper(out, verdict.name())?;
        writeln!(out, " = {};", verdict.number())?;
    }
    writeln!(out, "\n#endif")
}

fn upper(out: &mut dyn fmt::Write, name: &str) -> fmt::Result {
    name.chars()
        .try_for_each(|c| out.write_char(c.to_ascii_uppercase()))
}
