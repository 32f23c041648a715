// Stream cipher in the switch, as in the P4DRA paper (section 6): Forró or ChaCha on 64 bytes after the Ethernet header.
//
// Compiled with CIPHER_FORRO or CIPHER_CHACHA, and with one of
//   PASS_QUARTER_ROUND  a quarter round in each pipeline (ingress, egress), so two quarter rounds for each recirculation;
//   PASS_ROUND          a round in each pipeline (ChaCha's four quarter rounds in parallel, as in the paper's parallel variant);
//   PASS_ALL            all rounds in one pass, which exceeds the stages of switching chips.
// The key entry sets the number of rounds: Forró 6, 10 or 14; ChaCha 8, 12 or 20. Other numbers have not been analyzed.
//
// Frame: Ethernet (0x88b5), operation, counter, nonce, 64 bytes of text. For ENCRYPT, the program draws a nonce and sends the
// frame as DECRYPT; for DECRYPT, it uses the nonce of the frame and sends PLAIN. A frame has one block: the blocks of a message
// are frames with different counters. A recirculating frame carries the number of steps and the matrix in front of the Ethernet
// header. The parser expects these fields only in recirculating frames, so a sender cannot inject a partially processed frame.
//
// There is no authentication. Nonces are unique only if the control plane writes a first nonce to `nonces` that exceeds all nonces
// used with the same keys. Until then ENCRYPT drops.
#include <core.p4>
#include <v1model.p4>
#include "include/headers.p4"
#include "include/forro.p4"
#include "include/chacha.p4"

const bit<16> ETHER_CIPHER = 0x88b5;
const bit<8> ENCRYPT = 1;
const bit<8> DECRYPT = 2;
const bit<8> PLAIN = 3;

#ifdef PASS_QUARTER_ROUND
#define STEPS_A_ROUND 4
#else
#define STEPS_A_ROUND 1
#endif

header progress_t {
    bit<8> done;
    bit<8> steps;
}

header cipher_t {
    bit<8> operation;
    bit<24> zero;
    bit<32> counter;
    bit<32> nonce0;
    bit<64> nonce1;
}

struct headers_t {
    progress_t progress;
    words_t matrix;
    ethernet_t ethernet;
    cipher_t cipher;
    words_t text;
}

struct key_t {
    bit<32> k0;
    bit<32> k1;
    bit<32> k2;
    bit<32> k3;
    bit<32> k4;
    bit<32> k5;
    bit<32> k6;
    bit<32> k7;
}

struct metadata_t {
    // Original ingress port, also during recirculation.
    @field_list(0)
    bit<9> port;
    bit<9> output;
    bit<8> rounds;
    bit<32> switch_number;
    bit<64> count;
    bit<3> step;
    key_t key;
    matrix_t begin;
#ifdef PASS_ALL
    matrix_t work;
#endif
}

parser CipherParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        transition select(standard.instance_type) {
            INSTANCE_RECIRCULATED: progress;
            default: ethernet;
        }
    }
    state progress {
        packet.extract(hdr.progress);
        packet.extract(hdr.matrix);
        transition ethernet;
    }
    state ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHER_CIPHER: cipher;
            default: accept;
        }
    }
    state cipher {
        packet.extract(hdr.cipher);
        packet.extract(hdr.text);
        transition accept;
    }
}

control CipherVerify(inout headers_t hdr, inout metadata_t meta) {
    apply {
    }
}

#ifndef PASS_ALL
// One step of the cipher, selected by the number of completed steps.
control Step(inout words_t s, in bit<3> step) {
#if defined(PASS_QUARTER_ROUND) && defined(CIPHER_FORRO)
    action step0() { FORRO_0(s) }
    action step1() { FORRO_1(s) }
    action step2() { FORRO_2(s) }
    action step3() { FORRO_3(s) }
    action step4() { FORRO_4(s) }
    action step5() { FORRO_5(s) }
    action step6() { FORRO_6(s) }
    action step7() { FORRO_7(s) }
#elif defined(PASS_QUARTER_ROUND)
    action step0() { CHACHA_0(s) }
    action step1() { CHACHA_1(s) }
    action step2() { CHACHA_2(s) }
    action step3() { CHACHA_3(s) }
    action step4() { CHACHA_4(s) }
    action step5() { CHACHA_5(s) }
    action step6() { CHACHA_6(s) }
    action step7() { CHACHA_7(s) }
#elif defined(CIPHER_FORRO)
    action step0() { FORRO_0(s) FORRO_1(s) FORRO_2(s) FORRO_3(s) }
    action step1() { FORRO_4(s) FORRO_5(s) FORRO_6(s) FORRO_7(s) }
#else
    action step0() { CHACHA_0(s) CHACHA_1(s) CHACHA_2(s) CHACHA_3(s) }
    action step1() { CHACHA_4(s) CHACHA_5(s) CHACHA_6(s) CHACHA_7(s) }
#endif

#ifdef PASS_QUARTER_ROUND
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
#else
    apply {
        if (step[0:0] == 0) {
            step0();
        } else {
            step1();
        }
    }
#endif
}
#endif

control CipherIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    // Next nonce; 0: not yet set by the control plane.
    register<bit<64>>(1) nonces;

    action drop() {
        mark_to_drop(standard);
    }
    // Key words are little-endian loads of the key's bytes.
    action use_key(bit<9> output, bit<8> rounds, bit<32> switch_number, bit<32> k0, bit<32> k1, bit<32> k2, bit<32> k3,
                   bit<32> k4, bit<32> k5, bit<32> k6, bit<32> k7) {
        meta.output = output;
        meta.rounds = rounds;
        meta.switch_number = switch_number;
        meta.key = { k0, k1, k2, k3, k4, k5, k6, k7 };
    }
    table keys {
        key = { meta.port: exact; }
        actions = { use_key; drop; }
        default_action = drop();
        size = 512;
    }

    action draw_nonce() {
        nonces.read(meta.count, 0);
        if (meta.count != 0) {
            nonces.write(0, meta.count + 1);
        }
        hdr.cipher.nonce0 = meta.switch_number;
        hdr.cipher.nonce1 = meta.count;
    }

    action begin() {
#ifdef CIPHER_FORRO
        meta.begin.v0 = meta.key.k0;
        meta.begin.v1 = meta.key.k1;
        meta.begin.v2 = meta.key.k2;
        meta.begin.v3 = meta.key.k3;
        meta.begin.v4 = hdr.cipher.counter;
        meta.begin.v5 = SWAP32(hdr.cipher.nonce0);
        meta.begin.v6 = FORRO_CONSTANT_0;
        meta.begin.v7 = FORRO_CONSTANT_1;
        meta.begin.v8 = meta.key.k4;
        meta.begin.v9 = meta.key.k5;
        meta.begin.v10 = meta.key.k6;
        meta.begin.v11 = meta.key.k7;
        meta.begin.v12 = SWAP32(hdr.cipher.nonce1[63:32]);
        meta.begin.v13 = SWAP32(hdr.cipher.nonce1[31:0]);
        meta.begin.v14 = FORRO_CONSTANT_2;
        meta.begin.v15 = FORRO_CONSTANT_3;
#else
        meta.begin.v0 = CHACHA_CONSTANT_0;
        meta.begin.v1 = CHACHA_CONSTANT_1;
        meta.begin.v2 = CHACHA_CONSTANT_2;
        meta.begin.v3 = CHACHA_CONSTANT_3;
        meta.begin.v4 = meta.key.k0;
        meta.begin.v5 = meta.key.k1;
        meta.begin.v6 = meta.key.k2;
        meta.begin.v7 = meta.key.k3;
        meta.begin.v8 = meta.key.k4;
        meta.begin.v9 = meta.key.k5;
        meta.begin.v10 = meta.key.k6;
        meta.begin.v11 = meta.key.k7;
        meta.begin.v12 = hdr.cipher.counter;
        meta.begin.v13 = SWAP32(hdr.cipher.nonce0);
        meta.begin.v14 = SWAP32(hdr.cipher.nonce1[63:32]);
        meta.begin.v15 = SWAP32(hdr.cipher.nonce1[31:0]);
#endif
    }

#ifdef PASS_ALL
#define WORK meta.work
#else
#define WORK hdr.matrix
#endif
#define COPY_WORD(w) WORK.w = meta.begin.w;
    action copy_words() {
        EACH_WORD(COPY_WORD)
    }
#define ADD_WORD(w) WORK.w = WORK.w + meta.begin.w;
#define COVER_WORD(w) hdr.text.w = hdr.text.w ^ SWAP32(WORK.w);
    // Feed-forward; the length of the frame does not change.
    action finish() {
        EACH_WORD(ADD_WORD)
        EACH_WORD(COVER_WORD)
        hdr.cipher.operation = hdr.cipher.operation + 1;
        hdr.progress.setInvalid();
        hdr.matrix.setInvalid();
        standard.egress_spec = meta.output;
    }

#ifdef PASS_ALL
#ifdef CIPHER_FORRO
    action double_round() {
        FORRO_0(meta.work) FORRO_1(meta.work) FORRO_2(meta.work) FORRO_3(meta.work)
        FORRO_4(meta.work) FORRO_5(meta.work) FORRO_6(meta.work) FORRO_7(meta.work)
    }
#else
    action double_round() {
        CHACHA_0(meta.work) CHACHA_1(meta.work) CHACHA_2(meta.work) CHACHA_3(meta.work)
        CHACHA_4(meta.work) CHACHA_5(meta.work) CHACHA_6(meta.work) CHACHA_7(meta.work)
    }
#endif
    apply {
        meta.port = standard.ingress_port;
        if (!hdr.text.isValid() || (hdr.cipher.operation != ENCRYPT && hdr.cipher.operation != DECRYPT)) {
            drop();
            exit;
        }
        if (!keys.apply().hit) {
            exit;
        }
        if (hdr.cipher.operation == ENCRYPT) {
            draw_nonce();
            if (meta.count == 0) {
                drop();
                exit;
            }
        }
        begin();
        copy_words();
#ifdef CIPHER_FORRO
        double_round();
        double_round();
        double_round();
        if (meta.rounds > 6) {
            double_round();
            double_round();
        }
        if (meta.rounds > 10) {
            double_round();
            double_round();
        }
#else
        double_round();
        double_round();
        double_round();
        double_round();
        if (meta.rounds > 8) {
            double_round();
            double_round();
        }
        if (meta.rounds > 12) {
            double_round();
            double_round();
            double_round();
            double_round();
        }
#endif
        finish();
    }
#else
    Step() step;

    apply {
        if (!hdr.text.isValid() || (hdr.cipher.operation != ENCRYPT && hdr.cipher.operation != DECRYPT)) {
            drop();
            exit;
        }
        if (!hdr.progress.isValid() || hdr.progress.done == hdr.progress.steps) {
            if (!hdr.progress.isValid()) {
                meta.port = standard.ingress_port;
            }
            if (!keys.apply().hit) {
                exit;
            }
            if (hdr.cipher.operation == ENCRYPT && !hdr.progress.isValid()) {
                draw_nonce();
                if (meta.count == 0) {
                    drop();
                    exit;
                }
            }
            begin();
            if (hdr.progress.isValid()) {
                finish();
                exit;
            }
            hdr.progress.setValid();
            hdr.progress.done = 0;
            hdr.progress.steps = meta.rounds * STEPS_A_ROUND;
            hdr.matrix.setValid();
            copy_words();
        }
        if (hdr.progress.isValid() && hdr.matrix.isValid()) {
            step.apply(hdr.matrix, hdr.progress.done[2:0]);
            hdr.progress.done = hdr.progress.done + 1;
            standard.egress_spec = meta.port;
        }
    }
#endif
}

control CipherEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
#ifdef PASS_ALL
    apply {
    }
#else
    Step() step;

    apply {
        if (hdr.progress.isValid() && hdr.matrix.isValid()) {
            step.apply(hdr.matrix, hdr.progress.done[2:0]);
            hdr.progress.done = hdr.progress.done + 1;
            recirculate_preserving_field_list(0);
        }
    }
#endif
}

control CipherUpdate(inout headers_t hdr, inout metadata_t meta) {
    apply {
    }
}

control CipherDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.progress);
        packet.emit(hdr.matrix);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.cipher);
        packet.emit(hdr.text);
    }
}

V1Switch(CipherParser(), CipherVerify(), CipherIngress(), CipherEgress(), CipherUpdate(), CipherDeparser()) main;
