// PUF authentication of the papers in the switch (docs/protocols.md 2), for measurement and interoperability. Insecure (CRC-32).
//
// Compiled with PROFILE_IOT (one pair for each exchange, used once) or PROFILE_UAV (two pairs, one from each half, reusable), and
// with RESPONSE_BITS 64, 128 or 256.
//
// The control plane fills `local4`, `local6`, `bridge` and `devices`, adds the pairs of an identifier, numbered from 0, to any
// pair table (PROFILE_UAV: of its half; the first half has the lower numbers; the papers have several tables in separate stages),
// and writes a seed to `random_state`. Implementation errors of the published verifier are not reproduced: an identifier
// without a challenge has no expected hash, an expected hash is deleted after success, and a wrong hash is dropped.
//
// Not supported: LAP/1 (its port is not handled), the gate (off), process_time_ns (0).
#include <core.p4>
#include <v1model.p4>
#include "include/datagram.p4"
#include "include/lw_verdicts.p4"
#include "include/reply.p4"

#define DEVICES 65536
#define PAIRS_A_TABLE 1048576

const bit<16> CLASSIC_PORT = 20551;
const bit<16> MESSAGE_BYTES = 25 + RESPONSE_BITS / 8;
const bit<8> REQ = 0;
const bit<8> CH = 1;
const bit<8> RESP = 2;
const bit<8> ACK = 3;

const lw_verdict_t UNDECIDED = 0;

header message_t {
    bit<8> kind;
    bit<32> challenge1;
    bit<32> challenge2;
    bit<RESPONSE_BITS> rn;
    bit<32> hash;
    bit<32> identifier;
    bit<64> process_time_ns;
}

struct headers_t {
    network_t net;
    message_t message;
}

struct metadata_t {
    parsed_t parsed;
    frame_t frame;
    bit<1> local;
    lw_verdict_t verdict;
    bit<32> device;
    bit<32> pairs;
    bit<32> first;
    bit<32> second;
    bit<RESPONSE_BITS> r1;
    bit<RESPONSE_BITS> r2;
    bit<RESPONSE_BITS> rn;
    bit<32> hash;
    bit<16> checksum;
}

parser ClassicParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    DatagramParser() datagram;

    state start {
        datagram.apply(packet, hdr.net, meta.parsed);
        transition select(meta.parsed.is_udp, meta.parsed.udp_port, meta.parsed.udp_length) {
            (1, CLASSIC_PORT, MESSAGE_BYTES + 8): message;
            default: accept;
        }
    }
    state message {
        packet.extract(hdr.message);
        transition accept;
    }
}

control ClassicVerify(inout headers_t hdr, inout metadata_t meta) {
    apply {
    }
}

// SplitMix64 (Steele, Lea, Flood 2014): next value of the state.
#define DRAW(state, word) \
    state = state + 0x9e3779b97f4a7c15; \
    z = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9; \
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb; \
    word = z ^ (z >> 31);

#if RESPONSE_BITS == 64
#define DRAW_RN(state) DRAW(state, meta.rn)
#elif RESPONSE_BITS == 128
#define DRAW_RN(state) DRAW(state, w0) DRAW(state, w1) meta.rn = w0 ++ w1;
#else
#define DRAW_RN(state) DRAW(state, w0) DRAW(state, w1) DRAW(state, w2) DRAW(state, w3) meta.rn = w0 ++ w1 ++ w2 ++ w3;
#endif

control ClassicIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    // 1 followed by the expected hash of the device, or 0.
    register<bit<33>>(DEVICES) expected;
#ifdef PROFILE_IOT
    // Number of the pair for the next exchange.
    register<bit<32>>(DEVICES) next_pair;
#endif
    register<bit<64>>(1) random_state;
    counter(128, CounterType.packets) verdicts;

    action is_local() {
        meta.local = 1;
    }
    table local4 {
        key = { hdr.net.ipv4.dst: exact; }
        actions = { is_local; NoAction; }
        default_action = NoAction();
        size = 16;
    }
    table local6 {
        key = { hdr.net.ipv6.dst: exact; }
        actions = { is_local; NoAction; }
        default_action = NoAction();
        size = 16;
    }
    action to_port(bit<9> port) {
        standard.egress_spec = port;
    }
    action drop() {
        mark_to_drop(standard);
    }
    table bridge {
        key = { hdr.net.ethernet.dst: exact; }
        actions = { to_port; drop; }
        default_action = drop();
        size = 65536;
    }

    // Number of pairs of the device; PROFILE_UAV: in each half.
    action set_device(bit<32> device, bit<32> pairs) {
        meta.device = device;
        meta.pairs = pairs;
    }
    table devices {
        key = { hdr.message.identifier: exact; }
        actions = { set_device; NoAction; }
        default_action = NoAction();
        size = DEVICES;
    }

    action set_first(bit<32> challenge, bit<RESPONSE_BITS> response) {
        hdr.message.challenge1 = challenge;
        meta.r1 = response;
    }
    action set_second(bit<32> challenge, bit<RESPONSE_BITS> response) {
        hdr.message.challenge2 = challenge;
        meta.r2 = response;
    }
#define PAIR_TABLE(name, number, action_name) \
    table name { \
        key = { hdr.message.identifier: exact; number: exact; } \
        actions = { action_name; NoAction; } \
        default_action = NoAction(); \
        size = PAIRS_A_TABLE; \
    }
    PAIR_TABLE(first_pairs0, meta.first, set_first)
    PAIR_TABLE(first_pairs1, meta.first, set_first)
#ifdef PROFILE_IOT
    PAIR_TABLE(first_pairs2, meta.first, set_first)
    PAIR_TABLE(first_pairs3, meta.first, set_first)
#else
    PAIR_TABLE(second_pairs0, meta.second, set_second)
    PAIR_TABLE(second_pairs1, meta.second, set_second)
#endif

    // Selects the pairs and draws RN. simple_switch locks all registers of an action while the action runs.
    action take() {
        bit<64> state;
        bit<64> z;
#if RESPONSE_BITS > 64
        bit<64> w0;
        bit<64> w1;
#endif
#if RESPONSE_BITS > 128
        bit<64> w2;
        bit<64> w3;
#endif
        random_state.read(state, 0);
#ifdef PROFILE_IOT
        next_pair.read(meta.first, meta.device);
        if (meta.first < meta.pairs) {
            next_pair.write(meta.device, meta.first + 1);
            DRAW_RN(state)
            random_state.write(0, state);
        } else {
            meta.verdict = LW_DROP_CLASSIC_UNKNOWN;
        }
#else
        bit<64> draw;
        DRAW(state, draw)
        meta.first = (((bit<64>)draw[31:0] * (bit<64>)meta.pairs) >> 32)[31:0];
        meta.second = meta.pairs + (((bit<64>)draw[63:32] * (bit<64>)meta.pairs) >> 32)[31:0];
        DRAW_RN(state)
        random_state.write(0, state);
#endif
    }

    action challenge() {
        expected.write(meta.device, 1w1 ++ meta.hash);
        hdr.message.kind = CH;
        hdr.message.rn = meta.rn ^ (meta.r1 | meta.r2);
        hdr.message.hash = 0;
        hdr.message.process_time_ns = 0;
        meta.verdict = LW_REPLY_CLASSIC_CHALLENGE;
    }

    // A successful comparison deletes the expected hash.
    action accept_response() {
        bit<33> outstanding;
        expected.read(outstanding, meta.device);
        if (outstanding == 1w1 ++ hdr.message.hash) {
            expected.write(meta.device, 0);
            meta.verdict = LW_REPLY_CLASSIC_ACK;
        } else {
            meta.verdict = LW_DROP_CLASSIC_HASH;
        }
        hdr.message.kind = ACK;
        hdr.message.process_time_ns = 0;
    }

    Classify() classify;
    TurnRound() turn_round;

    apply {
        meta.verdict = UNDECIDED;
        classify.apply(hdr.net, standard.packet_length, meta.frame);
        if (hdr.net.ipv4.isValid()) {
            local4.apply();
        } else if (hdr.net.ipv6.isValid()) {
            local6.apply();
        }
        bool ours = meta.local == 1 && hdr.net.udp.isValid() && hdr.net.udp.dst_port == CLASSIC_PORT;
        if (meta.frame.kind == FRAME_UDP_LENGTH && ours) {
            meta.verdict = LW_DROP_TRUNCATED;
        } else if ((meta.frame.kind == FRAME_FRAGMENT || meta.frame.kind == FRAME_EXTENSION) && meta.local == 1) {
            meta.verdict = LW_PASS_UNPARSED;
        } else if (meta.frame.kind != FRAME_UDP || !ours) {
            meta.verdict = LW_PASS_FOREIGN;
        } else if (meta.frame.answerable == 0) {
            meta.verdict = LW_DROP_UNANSWERABLE;
        } else if (!hdr.message.isValid()) {
            meta.verdict = LW_DROP_CLASSIC_MALFORMED;
        } else if (hdr.message.kind != REQ && hdr.message.kind != RESP) {
            meta.verdict = LW_DROP_CLASSIC_MALFORMED;
        } else if (!devices.apply().hit) {
            meta.verdict = LW_DROP_CLASSIC_UNKNOWN;
        } else if (hdr.message.kind == RESP) {
            accept_response();
        } else {
            take();
            if (meta.verdict == UNDECIDED) {
                hdr.message.challenge2 = 0;
                bool found = first_pairs0.apply().hit;
                if (!found) {
                    found = first_pairs1.apply().hit;
                }
#ifdef PROFILE_IOT
                if (!found) {
                    found = first_pairs2.apply().hit;
                }
                if (!found) {
                    found = first_pairs3.apply().hit;
                }
                hash(meta.hash, HashAlgorithm.crc32, 32w0, { meta.r1, meta.rn }, 64w0x100000000);
#else
                bool found2 = second_pairs0.apply().hit;
                if (!found2) {
                    found2 = second_pairs1.apply().hit;
                }
                found = found && found2;
                hash(meta.hash, HashAlgorithm.crc32, 32w0, { meta.r1, meta.r2, meta.rn }, 64w0x100000000);
#endif
                if (found) {
                    challenge();
                } else {
                    meta.verdict = LW_DROP_CLASSIC_UNKNOWN;
                }
            }
        }

        verdicts.count((bit<32>)meta.verdict);
        if (meta.verdict < 16) {
            bridge.apply();
        } else if (meta.verdict < 32) {
            turn_round.apply(hdr.net);
            standard.egress_spec = standard.ingress_port;
        } else {
            drop();
        }
    }
}

#define MESSAGE_WORDS(m) m.kind, m.challenge1, m.challenge2, m.rn, m.hash, m.identifier, m.process_time_ns, 8w0
#define UDP_WORDS(u) 8w0, PROTOCOL_UDP, u.length, u.src_port, u.dst_port, u.length

control ClassicEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        if (meta.verdict >= 16 && hdr.message.isValid() && hdr.net.udp.isValid()) {
            if (hdr.net.ipv4.isValid()) {
                hash(meta.checksum, HashAlgorithm.csum16, 16w0, { hdr.net.ipv4.src, hdr.net.ipv4.dst, UDP_WORDS(hdr.net.udp),
                     MESSAGE_WORDS(hdr.message) }, 32w0x10000);
            } else if (hdr.net.ipv6.isValid()) {
                hash(meta.checksum, HashAlgorithm.csum16, 16w0, { hdr.net.ipv6.src, hdr.net.ipv6.dst, UDP_WORDS(hdr.net.udp),
                     MESSAGE_WORDS(hdr.message) }, 32w0x10000);
            }
            if (meta.checksum == 0) {
                meta.checksum = 0xffff;
            }
            hdr.net.udp.checksum = meta.checksum;
        }
    }
}

control ClassicUpdate(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(meta.verdict >= 16 && hdr.net.ipv4.isValid(), IPV4_CHECKSUM_WORDS(hdr.net.ipv4), hdr.net.ipv4.checksum,
                        HashAlgorithm.csum16);
    }
}

control ClassicDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.net);
        packet.emit(hdr.message);
    }
}

V1Switch(ClassicParser(), ClassicVerify(), ClassicIngress(), ClassicEgress(), ClassicUpdate(), ClassicDeparser()) main;
