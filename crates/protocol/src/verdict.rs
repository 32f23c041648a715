//! The numbered list of verdicts and drop reasons, shared by Rust, eBPF and P4, by counters, metrics and logs.
//!
//! Every packet gets exactly one verdict. The C and P4 headers are generated from this list (see [`render_c`]); a
//! test compares the generated files with it. Numbers are never reused or moved.

use core::fmt;

/// The action on a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disposition {
    /// Forwarded to the network stack, the service or the device: unchanged, unsealed or sealed.
    Pass,
    /// The packet is consumed and a reply leaves on the same port.
    Reply,
    /// Consumed without a reply.
    Drop,
}

macro_rules! verdicts {
    ($($(#[cfg($cfg:meta)])? $(#[doc = $doc:literal])+ $variant:ident = $number:literal, $disposition:ident, $name:literal;)+) => {
        /// The verdict on a packet.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum Verdict { $($(#[cfg($cfg)])? $(#[doc = $doc])+ $variant = $number),+ }

        impl Verdict {
            /// All verdicts, in numeric order.
            pub const ALL: &'static [Self] = &[$($(#[cfg($cfg)])? Self::$variant),+];
            /// The verdicts of published protocols; empty without the feature `lab`.
            const PUBLISHED: &'static [Self] = &[$($(#[cfg($cfg)] Self::$variant,)?)+];

            /// The verdict of this number.
            #[must_use]
            pub fn from_number(number: u8) -> Option<Self> {
                match number { $($(#[cfg($cfg)])? $number => Some(Self::$variant),)+ _ => None }
            }

            /// Name in metrics, logs, tables and (upper case, prefixed) in C and P4.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $($(#[cfg($cfg)])? Self::$variant => $name),+ }
            }

            /// The action on the packet.
            #[must_use]
            pub fn disposition(self) -> Disposition {
                match self { $($(#[cfg($cfg)])? Self::$variant => Disposition::$disposition),+ }
            }

            /// One-line description.
            #[must_use]
            pub fn description(self) -> &'static str {
                match self { $($(#[cfg($cfg)])? Self::$variant => concat!($($doc),+)),+ }
            }
        }
    };
}

/// One more than the highest verdict number: the length of a counter table.
pub const VERDICT_SLOTS: usize = 96;

verdicts! {
    /// Not for the gateway, and no gate applies: the gate is off, or the frame arrived on the services' side.
    PassForeign = 1, Pass, "pass_foreign";
    /// Passes the gate without a session (ARP, neighbor discovery, DHCP, protocols in `always_pass`, ATTEST_REQUESTs
    /// of the gateway itself).
    PassAlways = 2, Pass, "pass_always";
    /// From a MAC address with a live BOUND session, through the bound gate.
    PassSession = 3, Pass, "pass_session";
    /// Addressed to the gateway's UDP port in a form that the fast path does not parse (IP options, fragments,
    /// extension headers); the gate is off, and the network stack processes the packet.
    PassUnparsed = 4, Pass, "pass_unparsed";
    /// A DATA_UP that verified: the LAP header is removed, and the datagram is forwarded (sealed gate).
    PassData = 5, Pass, "pass_data";
    /// A datagram to a device, sent as a DATA_DOWN (sealed gate).
    PassSealed = 6, Pass, "pass_sealed";

    /// A REQUEST; a CHALLENGE is sent.
    ReplyChallenge = 16, Reply, "reply_challenge";
    /// A RESPONSE that verified: a row is spent, a session is opened, an ACK is sent.
    ReplyAck = 17, Reply, "reply_ack";
    /// A copy of the winning RESPONSE: the same ACK is sent.
    ReplyAckRepeated = 18, Reply, "reply_ack_repeated";
    /// A REQUEST of a known device that cannot be served now: a NAK is sent.
    ReplyNak = 19, Reply, "reply_nak";
    #[cfg(feature = "lab")]
    /// Classic profile: a challenge is sent.
    ReplyClassicChallenge = 20, Reply, "reply_classic_challenge";
    #[cfg(feature = "lab")]
    /// Classic profile: a response is accepted.
    ReplyClassicAck = 21, Reply, "reply_classic_ack";
    #[cfg(feature = "lab")]
    /// `p4dra-classic`: a proof verified; a VERIFIED, 64 B longer than the REPLY, is sent to the controller.
    ReplyP4draVerified = 22, Reply, "reply_p4dra_verified";

    /// The payload, or the length field of the message, has a wrong length.
    DropLength = 32, Drop, "drop_length";
    /// Magic is not "LW".
    DropMagic = 33, Drop, "drop_magic";
    /// Unknown version.
    DropVersion = 34, Drop, "drop_version";
    /// Unknown message type.
    DropType = 35, Drop, "drop_type";
    /// Unsupported suite.
    DropSuite = 36, Drop, "drop_suite";
    /// A flag that this message type does not have.
    DropFlags = 37, Drop, "drop_flags";
    /// Device id 0.
    DropDeviceZero = 38, Drop, "drop_device_zero";
    /// A reserved field that is not zero.
    DropReserved = 39, Drop, "drop_reserved";
    /// A type that only gateways send (CHALLENGE, ACK, NAK, DATA_DOWN, ATTEST_REQUEST).
    DropDirection = 40, Drop, "drop_direction";
    /// A PROOF, but attestation is not configured at this gateway.
    DropUnsupportedType = 41, Drop, "drop_unsupported_type";
    /// The packet ends before its headers end, or their lengths contradict each other.
    DropTruncated = 42, Drop, "drop_truncated";
    /// For the gateway, but no reply is possible between these addresses: a group MAC address, or a source IP address
    /// that names no host (unspecified, multicast, broadcast, or in ::/64, such as an IPv4-mapped address, except for
    /// ::1).
    DropUnanswerable = 43, Drop, "drop_unanswerable";
    /// A REQUEST or RESPONSE from an address that no device can have: outside `device_prefixes`, or one of the
    /// gateway's own, a loopback or a broadcast address.
    DropSourceNotDevice = 45, Drop, "drop_source_not_device";

    /// Unknown device: the load shedder of the slow path drops the message, because its source, or all sources
    /// together, have reached their limit.
    DropShed = 46, Drop, "drop_shed";
    /// Unknown device: the data plane consumes the message without a reply and passes it to the gateway process. The
    /// process queries the controller and sends the CHALLENGE or NAK, or installs the device.
    SlowPath = 47, Drop, "slow_path";
    /// The gateway has no line of the device, and the slow path cannot help: the device is not enrolled, its RESPONSE
    /// has an old freshness value, or there is no slow path.
    DropUnknownDevice = 48, Drop, "drop_unknown_device";
    /// The device is revoked.
    DropRevoked = 49, Drop, "drop_revoked";
    /// Another CPU is changing the line of the device, or the device has exceeded a P4 switch's limit of new sessions
    /// per second; the sender retries.
    DropBusy = 50, Drop, "drop_busy";
    /// No row is left for the RESPONSE, or its row index is the last possible index.
    DropNoRows = 51, Drop, "drop_no_rows";
    /// A REQUEST that needs a NAK, above the NAK rate limit.
    DropNakLimit = 52, Drop, "drop_nak_limit";
    /// The row index of the RESPONSE is not the current one.
    DropIndex = 53, Drop, "drop_index";
    /// The RESPONSE or PROOF is for another gateway.
    DropGateway = 54, Drop, "drop_gateway";
    /// The freshness value of the RESPONSE is neither the current nor the previous one.
    DropFresh = 55, Drop, "drop_fresh";
    /// The gateway's own freshness value is too old: the fast path has stopped.
    DropStopped = 56, Drop, "drop_stopped";
    /// The tag does not verify.
    DropTag = 57, Drop, "drop_tag";
    /// Another CPU spent the row first, or the session that the RESPONSE renews was closed at the same time.
    DropLostRace = 58, Drop, "drop_lost_race";
    /// The session of another device owns the sender's IP or MAC address.
    DropAddressOwned = 59, Drop, "drop_address_owned";
    /// A RESPONSE for the row before the current row: it differs from the winning RESPONSE, or it comes from another
    /// address or port, or its session is not live.
    DropReplay = 60, Drop, "drop_replay";
    /// No room in the tables that bind addresses to sessions.
    DropTableFull = 61, Drop, "drop_table_full";
    /// A verified RESPONSE whose tag begins with eight zero bytes, which is not a valid session id.
    DropSessionZero = 62, Drop, "drop_session_zero";
    /// A RESPONSE that verified, but the row can be spent only after the durable mark has moved; the device retries.
    DropMark = 63, Drop, "drop_mark";

    /// The gate drops an IP packet: its sender has no live BOUND session (bound gate), or the packet is not DATA
    /// (sealed gate).
    DropGate = 64, Drop, "drop_gate";
    /// The gate drops fragments.
    DropGateFragment = 65, Drop, "drop_gate_fragment";
    /// The gate drops packets with extension headers or IP options. A gate that adds evidence also drops every frame
    /// that could contain evidence.
    DropGateExtension = 66, Drop, "drop_gate_extension";
    /// A UDP destination port that is never forwarded to the service: LAP's port, or port 0 in a DATA_UP.
    DropGatePort = 67, Drop, "drop_gate_port";
    /// The session has expired.
    DropSessionExpired = 68, Drop, "drop_session_expired";
    /// To a device through a sealed gate: neither a UDP datagram, which could be sealed, nor a frame that passes
    /// without a session.
    DropUnsealed = 69, Drop, "drop_unsealed";
    /// To a device: no room for the LAP header within the link's MTU. To a service: no room for evidence; the sender
    /// gets the maximum size.
    DropTooBig = 70, Drop, "drop_too_big";
    /// To a device: several datagrams in one that a network card would split (GSO); they cannot be sealed.
    DropSegments = 71, Drop, "drop_segments";

    /// A DATA message while the gate is not sealed.
    DropGateNotSealed = 72, Drop, "drop_gate_not_sealed";
    /// DATA of a session that is not live, or a datagram to an address without a live session.
    DropSession = 73, Drop, "drop_session";
    /// DATA from another source address than the session's.
    DropSource = 74, Drop, "drop_source";
    /// DATA with a sequence number that was received before, is too old or is out of range.
    DropSequence = 75, Drop, "drop_sequence";
    /// The session's numbers for DATA_DOWN are used up; the device must authenticate again.
    DropExhausted = 76, Drop, "drop_exhausted";

    /// At a gate: a VLAN tag that is not parsed, because it is a third tag or of another type. A bridge could forward
    /// the frame to another network than that of the session.
    DropGateVlan = 77, Drop, "drop_gate_vlan";
    /// At a gate: a message of a router, DHCP server or bridge (router advertisement, redirect, group query, DHCP
    /// reply, BPDU), which no device may send, with or without a session.
    DropGateRole = 78, Drop, "drop_gate_role";
    /// The gate drops a frame that is not an IP packet: its sender has no live BOUND session (bound gate), or the gate
    /// is sealed. Counted by Ethernet type.
    DropGateType = 79, Drop, "drop_gate_type";

    #[cfg(feature = "lab")]
    /// Classic profile: malformed message.
    DropClassicMalformed = 80, Drop, "drop_classic_malformed";
    #[cfg(feature = "lab")]
    /// Classic profile: unknown identifier, or no CRPs left.
    DropClassicUnknown = 81, Drop, "drop_classic_unknown";
    #[cfg(feature = "lab")]
    /// Classic profile: wrong hash, or no challenge outstanding.
    DropClassicHash = 82, Drop, "drop_classic_hash";
    #[cfg(feature = "lab")]
    /// `p4dra-classic`: unknown operation, or wrong length for the operation.
    DropP4draMalformed = 83, Drop, "drop_p4dra_malformed";

    /// A PROOF that verified: the round result of the prover is ok. A PROOF gets no reply.
    ProofOk = 84, Drop, "proof_ok";
    /// A PROOF whose number and nonce belong to neither of two rounds: the newest with an even number, and the newest
    /// with an odd number.
    DropRound = 85, Drop, "drop_round";
    /// A PROOF after the deadline of its round.
    DropLate = 86, Drop, "drop_late";
    /// A PROOF of a device of which the gateway has no keys.
    DropUnknownProver = 87, Drop, "drop_unknown_prover";
    /// A PROOF of a prover that is already ok in this round.
    DropProved = 88, Drop, "drop_proved";
    /// A PROOF of a prover without a key for the round's period.
    DropNoKey = 89, Drop, "drop_no_key";
    /// A PROOF that does not verify. The verdict changes no round result.
    DropProof = 90, Drop, "drop_proof";

    #[cfg(feature = "lab")]
    /// `p4dra-classic`: an operation of controllers or verifiers (start, request, setup), or one that the published
    /// switch sends only to itself (calculating, verified).
    DropP4draOperation = 91, Drop, "drop_p4dra_operation";
    #[cfg(feature = "lab")]
    /// `p4dra-classic`: a reply for another round than the current and the previous one.
    DropP4draRound = 92, Drop, "drop_p4dra_round";
    #[cfg(feature = "lab")]
    /// `p4dra-classic`: a reply of an unknown prover.
    DropP4draProver = 93, Drop, "drop_p4dra_prover";
    #[cfg(feature = "lab")]
    /// `p4dra-classic`: a reply of a prover that is already ok in this round.
    DropP4draProved = 94, Drop, "drop_p4dra_proved";
    #[cfg(feature = "lab")]
    /// `p4dra-classic`: a reply with a proof that does not verify. The verdict changes no round result.
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

/// Writes the C header that the eBPF programs of gateways include.
///
/// # Errors
/// `out` fails.
pub fn render_c(out: &mut dyn fmt::Write) -> fmt::Result {
    begin_c(out, "LW_VERDICTS_H")?;
    writeln!(out, "enum lw_verdict {{")?;
    let all = Verdict::ALL.iter();
    for verdict in all.filter(|verdict| !Verdict::PUBLISHED.contains(verdict)) {
        write!(out, "\tLW_")?;
        upper(out, verdict.name())?;
        writeln!(out, " = {},", verdict.number())?;
    }
    writeln!(out, "}};\n\n#define LW_VERDICT_SLOTS {VERDICT_SLOTS}\n\n#endif")
}

/// Writes the C header of the eBPF programs of published protocols. The constants are macros, because `enum lw_verdict`
/// does not contain them.
///
/// # Errors
/// `out` fails.
#[cfg(feature = "lab")]
pub fn render_published_c(out: &mut dyn fmt::Write) -> fmt::Result {
    begin_c(out, "LW_PUBLISHED_VERDICTS_H")?;
    for verdict in Verdict::PUBLISHED {
        write!(out, "#define LW_")?;
        upper(out, verdict.name())?;
        writeln!(out, " {}", verdict.number())?;
    }
    writeln!(out, "\n#endif")
}

fn begin_c(out: &mut dyn fmt::Write, guard: &str) -> fmt::Result {
    writeln!(
        out,
        "/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */"
    )?;
    writeln!(
        out,
        "/* Generated from crates/protocol/src/verdict.rs; `make generate` writes it, a test compares it. */"
    )?;
    writeln!(out, "#ifndef {guard}\n#define {guard}\n")
}

/// Writes the P4 header.
///
/// # Errors
/// `out` fails.
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
