/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* p4dra-classic (LAP/1 3.1), for comparison only: proofs, in the order of checks of docs/protocols.md 3.1.2. */
#ifndef LW_P4DRA_H
#define LW_P4DRA_H

#include "lw_admission.h"
#include "lw_classic_layout.h"
#include "lw_compare.h"
#include "lw_forro.h"

#define LW_P4DRA_REPLY 2
#define LW_P4DRA_VERIFIED 4
#define LW_P4DRA_SHORT_BYTES 17
#define LW_P4DRA_PADDED_BYTES 46
#define LW_P4DRA_PROOF_BYTES 64

struct lw_p4dra_reply {
	__u8 operation;
	__u64 r, n, id[2];
	__u8 proof[LW_P4DRA_PROOF_BYTES];
} __attribute__((packed));
_Static_assert(sizeof(struct lw_p4dra_reply) == 97, "97 B");

/*
 * 0 if the prover computed that proof. A separate function, because the words need the stack. r and n are two words
 * of the matrix each. All of the proof is compared before the result is used, so that timing does not reveal where the
 * proof differs.
 */
static __noinline __u64 lw_p4dra_differs(const struct lw_p4dra_prover *prover, __u64 r, __u64 n, const __u8 *proof)
{
	const __u32 input[16] = { [4] = r, [5] = r >> 32, [12] = n, [13] = n >> 32 };
	__u64 differs = 0;
	__u32 m[16];

#pragma unroll
	for (int i = 0; i < 16; i++)
		m[i] = prover->matrix[i] ^ input[i];
	lw_forro_permute(m, LW_FORRO14);
#pragma unroll
	for (int i = 0; i < 16; i++)
		differs |= (m[i] + (prover->matrix[i] ^ input[i])) ^ bpf_ntohl(((const __u32 *)proof)[i]);
	LW_BARRIER(differs);
	return differs;
}

static __always_inline struct lw_p4dra_prover *lw_p4dra_find(__u64 id0, __u64 id1)
{
	__u32 first = lw_hash(id0, id1);

#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < LW_P4DRA_PROBES; i++) {
		struct lw_p4dra_prover *prover = lw_at(&p4dra_provers, (first + i) & papers.p4dra_mask);

		if (!prover || !prover->used)
			return NULL;
		if (prover->id[0] == id0 && prover->id[1] == id1)
			return prover;
	}
	return NULL;
}

/* Count of the round with these `r` and `n` if the round is open, else 0. */
static __always_inline __u64 lw_p4dra_count(__u64 r, __u64 n)
{
	struct lw_p4dra_rounds *rounds = lw_at(&p4dra_rounds, 0);

	if (!rounds)
		return 0;
#pragma unroll
	for (int lane = 0; lane < 2; lane++) {
		struct lw_p4dra_round *round = &rounds->lane[lane];
		__u64 count = lw_ordered_load(&round->count);

		if (count && lw_ordered_load(&round->r) == r && lw_ordered_load(&round->n) == n &&
		    LW_READ(round->count) == count)
			return count;
	}
	return 0;
}

/* The verdict on a message that is not a reply of the correct length. */
static __always_inline enum lw_verdict lw_p4dra_other(__u8 operation, __u32 length)
{
	int fits = 0;

	switch (operation) {
	case 0: /* start */
	case 1: /* request */
		fits = length >= LW_P4DRA_SHORT_BYTES && length <= LW_P4DRA_PADDED_BYTES;
		break;
	case 3: /* calculating */
		fits = length == 162;
		break;
	case LW_P4DRA_VERIFIED:
		fits = length == sizeof(struct lw_p4dra_reply) + LW_P4DRA_PROOF_BYTES;
		break;
	case 5: /* setup */
		fits = length == 65;
		break;
	}
	return fits ? LW_DROP_P4DRA_OPERATION : LW_DROP_P4DRA_MALFORMED;
}

/*
 * Turns the frame into its reply; the payload begins at offset `at`. The frame grows at its head, where drivers
 * reserve space for programs; veth reserves none at the tail. All bytes therefore move forward by the length of
 * the proof, and a copy of the proof stays at the end.
 */
static __always_inline int lw_p4dra_write_verified(struct xdp_md *ctx, __u32 at)
{
	if (bpf_xdp_adjust_head(ctx, -LW_P4DRA_PROOF_BYTES))
		return 0;
	at &= 31;
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	volatile __u8 *m = data + at;

	/* Prevents clang from checking another pointer. */
	asm volatile("" : "+r"(m));
	if ((void *)m + sizeof(struct lw_p4dra_reply) + LW_P4DRA_PROOF_BYTES > end || data + 128 > end)
		return 0;
	volatile __u16 *to = data, *old = data + LW_P4DRA_PROOF_BYTES;

#pragma unroll
	for (int i = 0; i < 3; i++) {
		to[i] = papers.p4dra_controller[i];
		to[3 + i] = old[i];
	}
	/* The type and the space of two VLAN tags before the payload. The payload overwrites what is not needed. */
#pragma unroll
	for (int i = 6; i < 11; i++)
		to[i] = old[i];
#pragma unroll
	for (int i = 0; i < (int)sizeof(struct lw_p4dra_reply) / 8; i++)
		((volatile __u64 *)m)[i] = ((volatile __u64 *)m)[i + LW_P4DRA_PROOF_BYTES / 8];
	m[96] = m[96 + LW_P4DRA_PROOF_BYTES];
	m[0] = LW_P4DRA_VERIFIED;
	return 1;
}

/* Two words of the matrix from eight bytes in wire order. */
static __always_inline __u64 lw_p4dra_words(__u64 wire)
{
	__u64 swapped = __builtin_bswap64(wire);

	return swapped << 32 | swapped >> 32;
}

static __always_inline enum lw_verdict lw_check_p4dra(struct xdp_md *ctx, struct lw_frame *f)
{
	struct lw_p4dra_reply *m = (struct lw_p4dra_reply *)f->payload;
	__u32 length = lw_room(f, f->payload);
	__u32 at = sizeof(struct lw_eth) + f->tags * sizeof(struct lw_vlan);

	if (!lw_is_between_hosts(f))
		return LW_DROP_UNANSWERABLE;
	if ((void *)(&m->operation + 1) > f->end)
		return LW_DROP_P4DRA_MALFORMED;
	if (m->operation != LW_P4DRA_REPLY || length != sizeof(*m) || (void *)(m + 1) > f->end)
		return lw_p4dra_other(m->operation, length);
	__u64 r = m->r, n = m->n, count = lw_p4dra_count(r, n);

	if (!count)
		return LW_DROP_P4DRA_ROUND;
	struct lw_p4dra_prover *prover = lw_p4dra_find(m->id[0], m->id[1]);

	if (!prover)
		return LW_DROP_P4DRA_PROVER;
	__u64 *proved = &prover->proved[count & 1];
	__u64 before = LW_READ(*proved);

	if (before == count)
		return LW_DROP_P4DRA_PROVED;
	if (lw_p4dra_differs(prover, lw_p4dra_words(r), lw_p4dra_words(n), m->proof))
		return LW_DROP_P4DRA_PROOF;
	/* The reply is written before the verdict is recorded: after a failed write, no reply would report the verdict. */
	if (!lw_p4dra_write_verified(ctx, at))
		return LW_DROP_TOO_BIG;
	/* If several CPUs verify the same proof, only one of them succeeds. */
	return __sync_val_compare_and_swap(proved, before, count) == before ? LW_REPLY_P4DRA_VERIFIED :
									      LW_DROP_P4DRA_PROVED;
}

static __always_inline enum lw_verdict lw_p4dra(struct lw_ctx *c)
{
	if (lw_parse(&c->frame) != LW_KIND_OTHER || c->frame.type != papers.p4dra_type || !lw_is_addressed(c))
		return LW_PASS_FOREIGN;
	return lw_check_p4dra(c->frame.xdp, &c->frame);
}

#endif
