// Device attestation in the switch: `attest/2` and `p4dra-classic` (docs/protocols.md 3). One Forró block per proof.
//
// Compiled with PASS_QUARTER_ROUND (one quarter round in ingress and one in egress, as in the published switch) or PASS_ALL.
// A recirculating frame carries the number of completed steps and the matrix in front of the Ethernet header. The parser expects
// these fields only in recirculating frames. Before the verdict, the program repeats all checks except the time check, because
// the control plane may change entries and rounds during the recirculation.
//
// The control plane
//   sets `gateway` (without it every PROOF is drop_unsupported_type) and fills `local4`, `local6`, `provers`, `proof_keys`,
//   `p4dra_provers`, `bridge`;
//   starts a round by writing the registers of its lane (`attest/2`: lowest bit of the number; classic: any), the number last;
//   sends frames through port CPU_PORT with a prefix of two bytes: the egress port, or 0 for multicast group 1;
//   reads results in `proved` and `p4dra_proved` (two words per prover, including the number of the round with a valid proof), or
//   receives digests.
//
// Not supported: REQUEST and RESPONSE (drop_stopped, because there is no `fresh` value), the gate (off), suite 2, Ethernet types
// other than 0x1234 for the classic profile. Elapsed times are those of the digest.
#include <core.p4>
#include <v1model.p4>
#include "include/datagram.p4"
#include "include/proof.p4"

#define CPU_PORT 510

const bit<16> ETHER_P4DRA = 0x1234;
const bit<8> P4DRA_START = 0;
const bit<8> P4DRA_REQUEST = 1;
const bit<8> P4DRA_REPLY = 2;
const bit<8> P4DRA_CALCULATING = 3;
const bit<8> P4DRA_VERIFIED = 4;
const bit<8> P4DRA_SETUP = 5;

const bit<8> STEPS = 56;
// In place of the number of completed steps: compute the block with the alternate key.
const bit<8> AGAIN = 255;

// No verdict yet.
const lw_verdict_t UNDECIDED = 0;

@controller_header("packet_out")
header packet_out_t {
    bit<16> port;
}

header progress_t {
    bit<8> done;
}

header p4dra_t {
    bit<8> operation;
    bit<64> r;
    bit<64> n;
}

header prover_id_t {
    bit<128> d;
}

struct headers_t {
    packet_out_t packet_out;
    progress_t progress;
    words_t matrix;
    network_t net;
    p4dra_t p4dra;
    prover_id_t prover;
    words_t block;
    lap_t lap;
    lap_body_t lap_body;
    lap_data_t lap_data;
    lap_proof_t lap_proof;
    words_t proof;
}

struct proved_digest_t {
    bit<64> device_id;
    bit<32> round;
    bit<1> alternate;
    bit<48> at_us;
}

struct wrong_digest_t {
    bit<64> device_id;
    bit<32> round;
    bit<9> port;
}

struct metadata_t {
    // Original ingress port and length of the frame, also during recirculation.
    @field_list(0)
    bit<9> port;
    @field_list(0)
    bit<32> frame_bytes;
    @field_list(0)
    bit<1> alternate;
    bit<16> behind_header;
    lw_verdict_t verdict;
    parsed_t parsed;
    frame_t frame;
    bit<1> local;
    bit<1> serves;
    bit<32> gateway_id;
    PROOF_FIELDS
#ifdef PASS_ALL
    matrix_t work;
#endif
}

#ifdef PASS_ALL
#define WORK meta.work
#else
#define WORK hdr.matrix
#endif

parser AttestParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    DatagramParser() datagram;

    state start {
        transition select(standard.instance_type, standard.ingress_port) {
            (INSTANCE_RECIRCULATED, _): progress;
            (INSTANCE_NORMAL, CPU_PORT): sent;
            default: frame;
        }
    }
    state sent {
        packet.extract(hdr.packet_out);
        transition frame;
    }
    state progress {
        packet.extract(hdr.progress);
#ifndef PASS_ALL
        packet.extract(hdr.matrix);
#endif
        transition frame;
    }
    state frame {
        datagram.apply(packet, hdr.net, meta.parsed);
        transition select(meta.parsed.ether_type, meta.parsed.is_udp) {
            (_, 1): udp;
            (ETHER_P4DRA, 0): p4dra;
            default: accept;
        }
    }
    state p4dra {
        packet.extract(hdr.p4dra);
        transition select(hdr.p4dra.operation) {
            P4DRA_REPLY: p4dra_reply;
            default: accept;
        }
    }
    state p4dra_reply {
        packet.extract(hdr.prover);
        packet.extract(hdr.proof);
        transition accept;
    }
    state udp {
        // 0: the datagram ends before the end of the header.
        meta.behind_header = meta.parsed.udp_length |-| 23;
        transition select(meta.parsed.udp_port, meta.behind_header) {
            (LAP_PORT, 0): accept;
            (LAP_PORT, _): lap;
            default: accept;
        }
    }
    state lap {
        packet.extract(hdr.lap);
        transition select(hdr.lap.type, meta.parsed.udp_length) {
            (LAP_PROOF, LAP_PROOF_BYTES + 8): lap_proof;
            (LAP_REQUEST, LAP_MESSAGE_BYTES + 8): lap_body;
            (LAP_NAK, LAP_MESSAGE_BYTES + 8): lap_body;
            (LAP_DATA_UP, _): lap_data;
            (LAP_DATA_DOWN, _): lap_data;
            default: accept;
        }
    }
    state lap_body {
        packet.extract(hdr.lap_body);
        transition accept;
    }
    state lap_data {
        meta.behind_header = meta.parsed.udp_length |-| (LAP_DATA_BYTES + 7);
        transition select(meta.behind_header) {
            0: accept;
            default: lap_data_whole;
        }
    }
    state lap_data_whole {
        packet.extract(hdr.lap_data);
        transition accept;
    }
    state lap_proof {
        packet.extract(hdr.lap_proof);
        packet.extract(hdr.proof);
        transition accept;
    }
}

control AttestVerify(inout headers_t hdr, inout metadata_t meta) {
    apply {
    }
}

#ifndef PASS_ALL
control Step(inout words_t s, in bit<3> step) {
    action step0() { FORRO_0(s) }
    action step1() { FORRO_1(s) }
    action step2() { FORRO_2(s) }
    action step3() { FORRO_3(s) }
    action step4() { FORRO_4(s) }
    action step5() { FORRO_5(s) }
    action step6() { FORRO_6(s) }
    action step7() { FORRO_7(s) }
    table steps {
        key = { step: exact; }
        actions = { step0; step1; step2; step3; step4; step5; step6; step7; }
        const entries = {
            0: step0();
            1: step1();
            2: step2();
            3: step3();
            4: step4();
            5: step5();
            6: step6();
            7: step7();
        }
    }
    apply {
        steps.apply();
    }
}
#endif

#include "include/lap_order.p4"

control AttestIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
#include "include/proof_state.p4"

    // Rounds of the classic profile by lane; r and n as on the wire. A lane without a round has number 0.
    register<bit<32>>(2) p4dra_number;
    register<bit<64>>(2) p4dra_r;
    register<bit<64>>(2) p4dra_n;
    // By prover and lane: number of the round with a valid proof.
    register<bit<32>>(2 * PROVERS) p4dra_proved;

    counter(128, CounterType.packets) verdicts;
    meter(1, MeterType.packets) events;

    action set_gateway(bit<32> gateway_id) {
        meta.gateway_id = gateway_id;
        meta.serves = 1;
    }
    table gateway {
        actions = { set_gateway; NoAction; }
        default_action = NoAction();
    }

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

    // Forwarding of other frames and of frames from the control plane.
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

    action set_key(bit<1> has_alternate, bit<32> k0, bit<32> k1, bit<32> k2, bit<32> k3, bit<32> k4, bit<32> k5, bit<32> k6,
                   bit<32> k7) {
        meta.has_alternate = has_alternate;
        SET_KEY(k0, k1, k2, k3, k4, k5, k6, k7)
    }
    table proof_keys {
        key = { hdr.lap.device_id: exact; meta.period: exact; meta.alternate: exact; }
        actions = { set_key; NoAction; }
        default_action = NoAction();
        size = 4 * PROVERS;
    }

    // Matrix of a prover from k, d and h; the action XORs r and n into words 4, 5, 12 and 13.
    action set_template(bit<32> prover, bit<32> t0, bit<32> t1, bit<32> t2, bit<32> t3, bit<32> t4, bit<32> t5, bit<32> t6,
                        bit<32> t7, bit<32> t8, bit<32> t9, bit<32> t10, bit<32> t11, bit<32> t12, bit<32> t13, bit<32> t14,
                        bit<32> t15) {
        meta.prover = prover;
        meta.begin.v0 = t0;
        meta.begin.v1 = t1;
        meta.begin.v2 = t2;
        meta.begin.v3 = t3;
        meta.begin.v4 = t4 ^ hdr.p4dra.r[63:32];
        meta.begin.v5 = t5 ^ hdr.p4dra.r[31:0];
        meta.begin.v6 = t6;
        meta.begin.v7 = t7;
        meta.begin.v8 = t8;
        meta.begin.v9 = t9;
        meta.begin.v10 = t10;
        meta.begin.v11 = t11;
        meta.begin.v12 = t12 ^ hdr.p4dra.n[63:32];
        meta.begin.v13 = t13 ^ hdr.p4dra.n[31:0];
        meta.begin.v14 = t14;
        meta.begin.v15 = t15;
    }
    table p4dra_provers {
        key = { hdr.prover.d: exact; }
        actions = { set_template; NoAction; }
        default_action = NoAction();
        size = PROVERS;
    }

    action set_controller(bit<48> mac) {
        hdr.net.ethernet.src = hdr.net.ethernet.dst;
        hdr.net.ethernet.dst = mac;
    }
    // The default is the MAC address of the controller in the published tools.
    table p4dra_controller {
        actions = { set_controller; }
        default_action = set_controller(0x080000000101);
    }

    action find_p4dra_round() {
        bit<32> number;
        bit<64> r;
        bit<64> n;
        meta.verdict = LW_DROP_P4DRA_ROUND;
        p4dra_number.read(number, 0);
        p4dra_r.read(r, 0);
        p4dra_n.read(n, 0);
        if (number != 0 && r == hdr.p4dra.r && n == hdr.p4dra.n) {
            meta.verdict = UNDECIDED;
            meta.lane = 0;
            meta.number = number;
        }
        p4dra_number.read(number, 1);
        p4dra_r.read(r, 1);
        p4dra_n.read(n, 1);
        if (number != 0 && r == hdr.p4dra.r && n == hdr.p4dra.n) {
            meta.verdict = UNDECIDED;
            meta.lane = 1;
            meta.number = number;
        }
    }
    action read_p4dra_proved() {
        bit<32> number;
        p4dra_proved.read(number, meta.prover * 2 + (bit<32>)meta.lane);
        if (number == meta.number) {
            meta.verdict = LW_DROP_P4DRA_PROVED;
        }
    }
    action p4dra_prove() {
        bit<32> running;
        bit<32> number;
        bit<32> at = meta.prover * 2 + (bit<32>)meta.lane;
        p4dra_number.read(running, (bit<32>)meta.lane);
        p4dra_proved.read(number, at);
        meta.verdict = LW_REPLY_P4DRA_VERIFIED;
        if (running != meta.number) {
            meta.verdict = LW_DROP_P4DRA_ROUND;
        } else if (number == meta.number) {
            meta.verdict = LW_DROP_P4DRA_PROVED;
        } else {
            p4dra_proved.write(at, meta.number);
        }
    }

#define COMPARE_P4DRA_WORD(w) meta.difference = meta.difference | (WORK.w ^ hdr.proof.w);
    action compare_p4dra() {
        EACH_WORD(COMPARE_P4DRA_WORD)
    }
#define BLOCK_WORD(w) hdr.block.w = WORK.w;
    action verified() {
        hdr.p4dra.operation = P4DRA_VERIFIED;
        hdr.block.setValid();
        EACH_WORD(BLOCK_WORD)
        standard.egress_spec = meta.port;
    }

#ifndef PASS_ALL
    Step() step;
#endif
    Classify() classify;
    LapOrder() lap_order;

    apply {
        meta.verdict = UNDECIDED;
        if (hdr.packet_out.isValid()) {
            if (hdr.packet_out.port == 0) {
                standard.mcast_grp = 1;
            } else {
                standard.egress_spec = hdr.packet_out.port[8:0];
            }
            hdr.packet_out.setInvalid();
            exit;
        }
        if (!hdr.progress.isValid()) {
            meta.port = standard.ingress_port;
            meta.frame_bytes = standard.packet_length;
            meta.alternate = 0;
        }
        bool under_way = hdr.progress.isValid() && hdr.progress.done < STEPS;
        if (!under_way) {
            classify.apply(hdr.net, meta.frame_bytes, meta.frame);

            // Classifies the frame and decides whether a block is computed.
            bool is_p4dra = false;
            if (meta.frame.kind == FRAME_OTHER && (hdr.p4dra.isValid() || standard.parser_error != error.NoError)) {
                is_p4dra = true;
                if ((hdr.net.ethernet.dst | hdr.net.ethernet.src)[40:40] == 1) {
                    meta.verdict = LW_DROP_UNANSWERABLE;
                } else if (!hdr.p4dra.isValid()) {
                    meta.verdict = LW_DROP_P4DRA_MALFORMED;
                } else if (hdr.p4dra.operation == P4DRA_REPLY) {
                    if (meta.frame.room != 97 || !hdr.proof.isValid() || !hdr.prover.isValid()) {
                        meta.verdict = LW_DROP_P4DRA_MALFORMED;
                    }
                } else if (((hdr.p4dra.operation == P4DRA_START || hdr.p4dra.operation == P4DRA_REQUEST)
                            && meta.frame.room >= 17 && meta.frame.room <= 46)
                        || (hdr.p4dra.operation == P4DRA_CALCULATING && meta.frame.room == 162)
                        || (hdr.p4dra.operation == P4DRA_VERIFIED && meta.frame.room == 161)
                        || (hdr.p4dra.operation == P4DRA_SETUP && meta.frame.room == 65)) {
                    meta.verdict = LW_DROP_P4DRA_OPERATION;
                } else {
                    meta.verdict = LW_DROP_P4DRA_MALFORMED;
                }
                if (meta.verdict == UNDECIDED) {
                    find_p4dra_round();
                }
                if (meta.verdict == UNDECIDED) {
                    if (p4dra_provers.apply().hit) {
                        read_p4dra_proved();
                    } else {
                        meta.verdict = LW_DROP_P4DRA_PROVER;
                    }
                }
            } else {
                meta.local = 0;
                if (hdr.net.ipv4.isValid()) {
                    local4.apply();
                } else if (hdr.net.ipv6.isValid()) {
                    local6.apply();
                }
                bool ours = meta.local == 1 && hdr.net.udp.isValid() && hdr.net.udp.dst_port == LAP_PORT;
                if (meta.frame.kind == FRAME_UDP_LENGTH && ours) {
                    meta.verdict = LW_DROP_TRUNCATED;
                } else if ((meta.frame.kind == FRAME_FRAGMENT || meta.frame.kind == FRAME_EXTENSION) && meta.local == 1) {
                    meta.verdict = LW_PASS_UNPARSED;
                } else if (meta.frame.kind != FRAME_UDP || !ours) {
                    meta.verdict = LW_PASS_FOREIGN;
                } else if (meta.frame.answerable == 0) {
                    meta.verdict = LW_DROP_UNANSWERABLE;
                } else {
                    lap_order.apply(hdr.lap, hdr.lap_body, hdr.lap_data, meta.frame.payload_bytes, meta.verdict);
                }
                if (meta.verdict == UNDECIDED) {
                    gateway.apply();
                    if (hdr.lap.type == LAP_REQUEST || hdr.lap.type == LAP_RESPONSE) {
                        meta.verdict = LW_DROP_STOPPED;
                    } else if (hdr.lap.type == LAP_DATA_UP) {
                        meta.verdict = LW_DROP_GATE_NOT_SEALED;
                    } else if (hdr.lap.type != LAP_PROOF) {
                        meta.verdict = LW_DROP_DIRECTION;
                    } else if (meta.serves == 0) {
                        meta.verdict = LW_DROP_UNSUPPORTED_TYPE;
                    } else if (hdr.lap_proof.gateway_id != meta.gateway_id) {
                        meta.verdict = LW_DROP_GATEWAY;
                    } else {
                        read_round();
                        if (meta.number == 0 || meta.number != hdr.lap_proof.round || meta.nonce != hdr.lap_proof.nonce) {
                            meta.verdict = LW_DROP_ROUND;
                        } else if (!hdr.progress.isValid() && standard.ingress_global_timestamp > meta.until) {
                            meta.verdict = LW_DROP_LATE;
                        } else if (!provers.apply().hit) {
                            meta.verdict = LW_DROP_UNKNOWN_PROVER;
                        } else {
                            read_proved();
                            if (meta.verdict == UNDECIDED) {
                                if (!proof_keys.apply().hit) {
                                    meta.verdict = LW_DROP_NO_KEY;
                                }
                            }
                        }
                    }
                }
            }

            if (meta.verdict == UNDECIDED) {
#ifdef PASS_ALL
                begin();
                FOURTEEN_ROUNDS
#else
                if (!hdr.progress.isValid() || hdr.progress.done == AGAIN) {
                    hdr.progress.setValid();
                    hdr.progress.done = 0;
                    hdr.matrix.setValid();
                    begin();
                    under_way = true;
                }
#endif
            }
            if (meta.verdict == UNDECIDED && !under_way) {
                feed_forward();
                if (is_p4dra) {
                    compare_p4dra();
                    if (meta.difference != 0) {
                        meta.verdict = LW_DROP_P4DRA_PROOF;
                    } else {
                        p4dra_prove();
                    }
                } else {
                    compare();
                    if (meta.difference == 0) {
                        prove();
                        if (meta.verdict == LW_PROOF_OK) {
                            digest<proved_digest_t>(1, { hdr.lap.device_id, meta.number, meta.alternate,
                                                         standard.ingress_global_timestamp });
                        }
                    } else if (meta.alternate == 0 && meta.has_alternate == 1) {
                        meta.alternate = 1;
                        hdr.progress.setValid();
                        hdr.progress.done = AGAIN;
                        under_way = true;
                    } else {
                        meta.verdict = LW_DROP_PROOF;
                        bit<2> color;
                        events.execute_meter(0, color);
                        if (color == 0) {
                            digest<wrong_digest_t>(2, { hdr.lap.device_id, meta.number, meta.port });
                        }
                    }
                }
            }
        }

        if (under_way) {
            standard.egress_spec = meta.port;
#ifndef PASS_ALL
            if (hdr.matrix.isValid() && hdr.progress.isValid() && hdr.progress.done < STEPS) {
                step.apply(hdr.matrix, hdr.progress.done[2:0]);
                hdr.progress.done = hdr.progress.done + 1;
            }
#endif
        } else {
            verdicts.count((bit<32>)meta.verdict);
            hdr.progress.setInvalid();
            if (meta.verdict == LW_REPLY_P4DRA_VERIFIED) {
                p4dra_controller.apply();
                verified();
            } else if (meta.verdict < 16) {
                bridge.apply();
            } else {
                drop();
            }
            hdr.matrix.setInvalid();
        }
    }
}

control AttestEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
#ifndef PASS_ALL
    Step() step;
#endif

    apply {
        if (hdr.progress.isValid()) {
#ifndef PASS_ALL
            if (hdr.matrix.isValid() && hdr.progress.done < STEPS) {
                step.apply(hdr.matrix, hdr.progress.done[2:0]);
                hdr.progress.done = hdr.progress.done + 1;
            }
#endif
            recirculate_preserving_field_list(0);
        }
    }
}

control AttestUpdate(inout headers_t hdr, inout metadata_t meta) {
    apply {
    }
}

control AttestDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.progress);
        packet.emit(hdr.matrix);
        packet.emit(hdr.net);
        packet.emit(hdr.p4dra);
        packet.emit(hdr.prover);
        packet.emit(hdr.block);
        packet.emit(hdr.lap);
        packet.emit(hdr.lap_body);
        packet.emit(hdr.lap_data);
        packet.emit(hdr.lap_proof);
        packet.emit(hdr.proof);
    }
}

V1Switch(AttestParser(), AttestVerify(), AttestIngress(), AttestEgress(), AttestUpdate(), AttestDeparser()) main;
