/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Generated from crates/protocol/src/verdict.rs; `make generate` writes it, a test compares it. */
#ifndef LW_PUBLISHED_VERDICTS_H
#define LW_PUBLISHED_VERDICTS_H

#define LW_REPLY_CLASSIC_CHALLENGE 20
#define LW_REPLY_CLASSIC_ACK 21
#define LW_REPLY_P4DRA_VERIFIED 22
#define LW_DROP_CLASSIC_MALFORMED 80
#define LW_DROP_CLASSIC_UNKNOWN 81
#define LW_DROP_CLASSIC_HASH 82
#define LW_DROP_P4DRA_MALFORMED 83
#define LW_DROP_P4DRA_OPERATION 91
#define LW_DROP_P4DRA_ROUND 92
#define LW_DROP_P4DRA_PROVER 93
#define LW_DROP_P4DRA_PROVED 94
#define LW_DROP_P4DRA_PROOF 95

#endif
