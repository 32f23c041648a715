// Keys of provers in lap.p4: both keys are in one entry, so one pass checks a PROOF against both.
#ifndef LW_PROOF_KEYS_P4
#define LW_PROOF_KEYS_P4

    // kg of the valid configuration and of the configuration in rollout.
    action set_keys(bit<32> k0, bit<32> k1, bit<32> k2, bit<32> k3, bit<32> k4, bit<32> k5, bit<32> k6, bit<32> k7,
                    bit<1> has_alternate, bit<32> a0, bit<32> a1, bit<32> a2, bit<32> a3, bit<32> a4, bit<32> a5, bit<32> a6,
                    bit<32> a7) {
        meta.has_alternate = has_alternate;
        SET_KEY(k0, k1, k2, k3, k4, k5, k6, k7)
        meta.other = { a0, a1, a2, a3, a4, a5, a6, a7 };
    }
    table proof_keys {
        key = { meta.prover: exact; meta.period: exact; }
        actions = { set_keys; NoAction; }
        default_action = NoAction();
        size = 2 * PROVERS;
    }
    action use_other_key() {
        meta.alternate = 1;
        SET_KEY(meta.other.k0, meta.other.k1, meta.other.k2, meta.other.k3, meta.other.k4, meta.other.k5, meta.other.k6,
                meta.other.k7)
    }

#endif
