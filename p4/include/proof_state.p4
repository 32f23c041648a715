// PROOFs of `attest/2` (docs/protocols.md 3.2) in an ingress control: rounds, results, and the expected Forró block.
//
// Included by controls whose `meta` has PROOF_FIELDS (proof.p4) and whose `hdr` has `lap`, `lap_proof` and `proof`. The macro
// WORK names the matrix. With PASS_ALL, one pass computes the block. simple_switch locks all registers of an action while the
// action runs, so each step is one action.
#ifndef LW_PROOF_STATE_P4
#define LW_PROOF_STATE_P4

    // Rounds by lane (lowest bit of the round number). A lane without a round has number 0.
    register<bit<32>>(2) round_number;
    register<bit<64>>(2) round_nonce;
    register<bit<64>>(2) round_period;
    register<bit<48>>(2) round_until_us;
    // By prover and lane: number of the round with a valid proof, whether the alternate key was used, and the time.
    register<bit<81>>(2 * PROVERS) proved;

    action set_prover(bit<32> prover) {
        meta.prover = prover;
    }
    table provers {
        key = { hdr.lap.device_id: exact; }
        actions = { set_prover; NoAction; }
        default_action = NoAction();
        size = PROVERS;
    }

    action read_round() {
        meta.lane = hdr.lap_proof.round[0:0];
        round_number.read(meta.number, (bit<32>)meta.lane);
        round_nonce.read(meta.nonce, (bit<32>)meta.lane);
        round_period.read(meta.period, (bit<32>)meta.lane);
        round_until_us.read(meta.until, (bit<32>)meta.lane);
    }
    action read_proved() {
        bit<81> held;
        proved.read(held, meta.prover * 2 + (bit<32>)meta.lane);
        if (held[80:49] == meta.number) {
            meta.verdict = LW_DROP_PROVED;
        }
    }
    // Accepts one PROOF of a prover per round, and no PROOF of a round that has ended.
    action prove() {
        bit<32> running;
        bit<81> held;
        bit<32> at = meta.prover * 2 + (bit<32>)meta.lane;
        round_number.read(running, (bit<32>)meta.lane);
        proved.read(held, at);
        meta.verdict = LW_PROOF_OK;
        if (running != meta.number) {
            meta.verdict = LW_DROP_ROUND;
        } else if (held[80:49] == meta.number) {
            meta.verdict = LW_DROP_PROVED;
        } else {
            proved.write(at, meta.number ++ meta.alternate ++ standard.ingress_global_timestamp);
        }
    }

// Sets kg, as little-endian words, and the initial matrix of the block.
#define SET_KEY(k0, k1, k2, k3, k4, k5, k6, k7) \
        meta.begin.v0 = k0; \
        meta.begin.v1 = k1; \
        meta.begin.v2 = k2; \
        meta.begin.v3 = k3; \
        meta.begin.v4 = hdr.lap_proof.round; \
        meta.begin.v5 = hdr.lap_proof.gateway_id; \
        meta.begin.v6 = FORRO_CONSTANT_0; \
        meta.begin.v7 = FORRO_CONSTANT_1; \
        meta.begin.v8 = k4; \
        meta.begin.v9 = k5; \
        meta.begin.v10 = k6; \
        meta.begin.v11 = k7; \
        meta.begin.v12 = SWAP32(hdr.lap_proof.nonce[63:32]); \
        meta.begin.v13 = SWAP32(hdr.lap_proof.nonce[31:0]); \
        meta.begin.v14 = FORRO_CONSTANT_2; \
        meta.begin.v15 = FORRO_CONSTANT_3;

#define COPY_WORD(w) WORK.w = meta.begin.w;
    action begin() {
        EACH_WORD(COPY_WORD)
    }
#ifdef PASS_ALL
    action double_round() {
        FORRO_0(WORK) FORRO_1(WORK) FORRO_2(WORK) FORRO_3(WORK)
        FORRO_4(WORK) FORRO_5(WORK) FORRO_6(WORK) FORRO_7(WORK)
    }
#define FOURTEEN_ROUNDS double_round(); double_round(); double_round(); double_round(); double_round(); double_round(); double_round();
#endif
#define ADD_WORD(w) WORK.w = WORK.w + meta.begin.w;
    action feed_forward() {
        EACH_WORD(ADD_WORD)
        meta.difference = 0;
    }
// Compares all words, even after a difference.
#define COMPARE_WORD(w) meta.difference = meta.difference | (WORK.w ^ SWAP32(hdr.proof.w));
    action compare() {
        EACH_WORD(COMPARE_WORD)
    }

#endif
