/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Configuration and maps of the classic profiles, which only benches load. `layout.rs` is the mirror of the structures in
 * maps; a test compares both through BTF, field by field.
 */
#ifndef LW_CLASSIC_LAYOUT_H
#define LW_CLASSIC_LAYOUT_H

#include "lw_maps.h"
#include "lw_published_verdicts.h"

/* Fixed when the programs are loaded, in addition to `cfg`. */
struct lw_papers {
	__u32 classic_identifiers;
	__u32 classic_rows; /* CRPs per identifier */
	__u32 p4dra_mask; /* places in the table of provers, minus one */
	__u16 classic_port; /* in wire order */
	__u16 p4dra_type; /* Ethernet type, in wire order */
	__u16 p4dra_controller[3]; /* MAC address */
	__u8 classic_words; /* response size in 8-byte words: 1, 2 or 4 */
	__u8 classic_uav; /* 1: two CRPs */
	__u32 crc[16 * 256]; /* slicing-by-16 tables of the reflected CRC-32 (IEEE 802.3) */
};
const volatile struct lw_papers papers SEC(".rodata.papers") = {};

/* One CRP, and the state of one identifier. Responses are in wire order. */
struct lw_classic_crp {
	__u32 challenge; /* in wire order */
	__u32 crc; /* the CRC register after the response, so that each packet hashes only RN */
	__u64 response[4];
};
struct lw_classic_state {
	__u64 expected; /* LW_CLASSIC_PENDING | CRC-32; 0: no challenge is outstanding */
	__u32 next; /* classic-iot: the CRP for the next REQ */
	__u32 pad;
};
#define LW_CLASSIC_PENDING (1ULL << 32)

/*
 * p4dra-classic: a prover, in a table with open addressing that is filled before the program runs. A prover that is
 * not in LW_P4DRA_PROBES places, or not before an empty one, does not exist.
 */
#define LW_P4DRA_PROBES 16
struct lw_p4dra_prover {
	__u64 used; /* 0: the place is empty */
	__u64 id[2]; /* in wire order */
	__u64 proved[2]; /* by lane: the count of the round in which the prover is ok; 0: none */
	__u64 pad[3];
	__u32 matrix[16]; /* without r and n */
};
/* Rounds with even and odd counts have one lane each. `count` is 0 while the other fields change. */
struct lw_p4dra_round {
	__u64 count; /* number of rounds so far; 0: none */
	__u64 r; /* in wire order */
	__u64 n; /* likewise */
	__u64 pad;
};
struct lw_p4dra_rounds {
	struct lw_p4dra_round lane[2];
};

LW_ARRAY(classic_crps, struct lw_classic_crp, BPF_F_MMAPABLE);
LW_ARRAY(classic_states, struct lw_classic_state, BPF_F_MMAPABLE);
LW_ARRAY(p4dra_provers, struct lw_p4dra_prover, BPF_F_MMAPABLE); /* by hash of d */
LW_ARRAY(p4dra_rounds, struct lw_p4dra_rounds, BPF_F_MMAPABLE);

/* The states of SplitMix64. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} classic_rng SEC(".maps");

#endif
