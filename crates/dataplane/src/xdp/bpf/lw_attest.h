/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* LAP/1 3.2: PROOFs, in the order of checks that docs/protocols.md 3.2.1 fixes. */
#ifndef LW_ATTEST_H
#define LW_ATTEST_H

#include "lw_forro.h"
#include "lw_lap.h"

struct lw_proof_message {
	__u64 h0, device_id, r, nonce, proof[8];
};
_Static_assert(sizeof(struct lw_proof_message) == LW_PROOF_MESSAGE, "96 B");

/* Rate-limited; anybody can bring it about, so it decides nothing. The frame is parsed anew: rare. */
static __noinline int lw_wrong_proof(struct xdp_md *ctx, __u64 device_id, __u32 number)
{
	__u32 zero = 0;
	struct lw_ctx c = { .xdp = ctx };
	__u64 addr[2];

	c.cpu = bpf_map_lookup_elem(&percpu, &zero);
	c.control = bpf_map_lookup_elem(&control, &zero);
	if (!c.cpu || !c.control ||
	    !lw_within_rate(c.cpu->clock_ns, LW_READ(lw_live(c.control)->alarm_per_s), &c.cpu->alarm_second,
			    &c.cpu->alarm_count) ||
	    lw_parse(ctx, &c.frame) != LW_KIND_UDP)
		return 0;
	lw_source_address(&c.frame, addr);
	lw_emit(&c, LW_EVENT_WRONG_PROOF, device_id, number, addr);
	return 0;
}

/* The line at a place in a lane of periods. */
static __always_inline struct lw_prover *lw_prover_at(__u32 place, __u32 key_lane)
{
	return lw_at(&provers, place + (key_lane & 1 ? cfg.prover_all : 0));
}

/* The line of a prover; NULL when there is none. As lw_find_device(). */
static __always_inline struct lw_prover *lw_find_prover(__u64 device_id, __u32 key_lane)
{
	__u64 hash = lw_hash(device_id, 0);
	__u32 place = (hash & 0xffffffff) * cfg.prover_places >> 32;
	struct lw_prover *prover = lw_prover_at(place, key_lane);

	if (prover && prover->device_id == device_id)
		return prover;
	prover = lw_prover_at(place ^ 1, key_lane);
	if (prover && prover->device_id == device_id)
		return prover;
	__u32 fingerprint = lw_fingerprint(hash);

#pragma unroll
	for (int choice = 0; choice < 2; choice++) {
		struct lw_bucket *bucket = lw_at(&prover_index, lw_bucket(hash, choice) & cfg.prover_index_mask);

		if (!bucket)
			return NULL;
		__u64 entry = lw_match(bucket, fingerprint);

		prover = entry ? lw_prover_at((__u32)entry - 1, key_lane) : NULL;
		if (prover && prover->device_id == device_id)
			return prover;
	}
	return NULL;
}

/* Two words that follow each other, as the proof holds them. */
static __always_inline __u64 lw_pair(__u32 low, __u32 high)
{
	return (__u64)high << 32 | low;
}

/* 0 if that key has made the proof. All of it is compared before the answer: none tells where it differs. */
static __always_inline __u64 lw_proof_differs(const __u64 key[4], const struct lw_round *round, const __u64 proof[8])
{
	__u64 words[8] = { LW_READ(key[0]), LW_READ(key[1]), (__u64)cfg.gateway_id << 32 | round->number,
			   0x61616461746c6f76ULL, LW_READ(key[2]), LW_READ(key[3]), round->nonce,
			   0x61636e6172626173ULL };
	__u32 m[16];
	/* Taken away since it was looked for: what a key of zeros makes, anybody can make. */
	__u64 differs = !words[0];

#pragma unroll
	for (int i = 0; i < 8; i++) {
		m[2 * i] = words[i];
		m[2 * i + 1] = words[i] >> 32;
	}
	lw_forro_permute(m, LW_FORRO14);
#pragma unroll
	for (int i = 0; i < 8; i++)
		differs |= lw_pair(m[2 * i] + (__u32)words[i], m[2 * i + 1] + (__u32)(words[i] >> 32)) ^ proof[i];
	return differs;
}

/* Which of a prover's keys has made the proof: 0 the current, LW_ALTERNATE, or 1: none. */
static __always_inline __u32 lw_proven(const __u64 key[4], __u32 alternate_at, const struct lw_round *round,
				       const __u64 proof[8])
{
	/* A loop, so that the block is there once. */
#pragma clang loop unroll(disable)
	for (__u64 alternate = 0; alternate < 2; alternate++) {
		if (!lw_proof_differs(key, round, proof))
			return alternate ? LW_ALTERNATE : 0;
		struct lw_prover_key *other = lw_at(&alternate_keys, alternate_at);

		if (!other || !LW_READ(other->word[0]))
			break;
		key = other->word;
	}
	return 1;
}

/* A PROOF, whose header is right. */
static __always_inline enum lw_verdict lw_judge_proof(struct xdp_md *ctx, __u64 now_ns, struct lw_proof_message *m)
{
	if ((__u32)m->r != bpf_htonl(cfg.gateway_id))
		return LW_DROP_GATEWAY;
	struct lw_rounds *rounds = lw_at(&open_rounds, 0);

	if (!rounds)
		return LW_DROP_ROUND;
	__u32 number = bpf_ntohl((__u32)(m->r >> 32)), lane = 0;
	struct lw_round *round = &rounds->lane[0];

	/* A branch, which is foretold: where the prover's line is does not wait for this word of the frame. */
	if (number & 1) {
		lane = 1;
		round = &rounds->lane[1];
		asm volatile("" : "+r"(lane), "+r"(round));
	}
	if (LW_READ(round->r) != m->r || round->nonce != m->nonce)
		return LW_DROP_ROUND;
	if (now_ns > round->until_ns)
		return LW_DROP_LATE;
	struct lw_prover *prover = lw_find_prover(m->device_id, round->key_lane);

	if (!prover)
		return LW_DROP_UNKNOWN_PROVER;
	/* Of the number that was asked for: the round's may be another one's by now. */
	__u32 mark = number >> 1 & 0xffff, before = LW_READ(prover->proved[lane]);

	/* Or in a later round of this lane, which has opened since the round was looked at. Marks begin anew; no verdict is that old. */
	if (before & LW_PROVED && (__u16)((before >> LW_MARK_SHIFT) - mark) < 0x8000)
		return LW_DROP_PROVED;
	if (!LW_READ(prover->key[0]))
		return LW_DROP_NO_KEY;
	__u32 proven = lw_proven(prover->key, prover->slot * 2 + (round->key_lane & 1), round, m->proof);

	if (proven == 1) {
		lw_wrong_proof(ctx, m->device_id, number);
		return LW_DROP_PROOF;
	}
	/* The clock may be a jiffy behind the one that user space read. */
	__u64 elapsed = now_ns > round->started_ns ? (now_ns - round->started_ns) >> (round->elapsed_shift & 63) : 0;

	if (elapsed > LW_ELAPSED_MAX)
		elapsed = LW_ELAPSED_MAX;
	__u32 after = mark << LW_MARK_SHIFT | LW_PROVED | proven | (__u32)elapsed;

	/* Of several CPUs with one proof one wins. */
	return __sync_val_compare_and_swap(&prover->proved[lane], before, after) == before ? LW_PROOF_OK :
											     LW_DROP_PROVED;
}

/* What lw_lap() ends with for a PROOF: it has found out where that lies, and read the clock. */
static __always_inline int lw_prove(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct lw_percpu *cpu = bpf_map_lookup_elem(&percpu, &zero);

	if (!cpu)
		return XDP_DROP;
	/* Headers are at most 70 B long. */
	struct lw_proof_message *m = (void *)(long)ctx->data + (cpu->proof_at & 0x7f);

	lw_count(cpu, (void *)(m + 1) > (void *)(long)ctx->data_end ? LW_DROP_LENGTH :
								    lw_judge_proof(ctx, cpu->clock_ns, m));
	return XDP_DROP;
}

#endif
