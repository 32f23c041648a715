// Metadata of a PROOF of `attest/2` (docs/protocols.md 3.2).
#ifndef LW_PROOF_P4
#define LW_PROOF_P4

#include "forro.p4"
#include "lap.p4"
#include "lw_verdicts.p4"
#include "words.p4"

#define PROVERS 65536

// Round, prover, and Forró block: initial matrix and difference to the PROOF.
#define PROOF_FIELDS \
    bit<1> lane; \
    bit<32> number; \
    bit<64> nonce; \
    bit<64> period; \
    bit<48> until; \
    bit<32> prover; \
    bit<1> has_alternate; \
    bit<32> difference; \
    matrix_t begin;

#endif
