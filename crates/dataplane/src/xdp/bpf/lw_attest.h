/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* LAP/1 3.2: PROOFs, in the order of checks that docs/protocols.md 3.2.1 fixes. */
#ifndef LW_ATTEST_H
#define LW_ATTEST_H

#include "lw_forro.h"
#include "lw_lap.h"

#define LW_ELAPSED_MS_MAX 0x7fffffffULL
#define LW_ALTERNATE (1ULL << 31)

struct lw_proof_message {
	__u64 h0, device_id, r, nonce, proof[8];
};
_Static_assert(sizeof(struct lw_proof_message) == LW_PROOF_MESSAGE, "96 B");

/* Rate-limited; anybody can bring it about, so it decides nothing. */
static __always_inline void lw_wrong_proof(struct lw_ctx *c, __u64 device_id, __u32 number)
{
	__u64 addr[2];

	if (!lw_within_rate(c->now_ns, LW_READ(lw_live(c->control)->alarm_per_s), &c->cpu->alarm_second,
			    &c->cpu->alarm_count))
		return;
	lw_source_address(&c->frame, addr);
	lw_emit(c, LW_EVENT_WRONG_PROOF, device_id, number, addr);
}

/* The home of a prover and its way in it; NULL when there is none. As lw_find_device(). */
static __always_inline struct lw_prover_home *lw_find_prover(__u64 device_id, __u32 *way)
{
	__u64 hash = lw_hash(device_id, 0);
	struct lw_prover_home *home = lw_at(&provers, (__u32)hash & cfg.prover_home_mask);

	if (!home)
		return NULL;
	*way = (lw_is_zero_64(home->device_id[1] ^ device_id) + 2 * lw_is_zero_64(home->device_id[2] ^ device_id) +
		3 * lw_is_zero_64(home->device_id[3] ^ device_id)) %
	       LW_HOME_WAYS;
	if (home->device_id[*way] == device_id)
		return home;
	__u32 fingerprint = lw_fingerprint(hash);

#pragma unroll
	for (int choice = 0; choice < 2; choice++) {
		struct lw_bucket *bucket = lw_at(&prover_index, lw_bucket(hash, choice) & cfg.prover_index_mask);

		if (!bucket)
			return NULL;
		/* Without an entry the place is 2^32 - 1, which no array has. */
		__u32 place = (__u32)lw_match(bucket, fingerprint) - 1;

		home = lw_at(&provers, place / LW_HOME_WAYS);
		*way = place % LW_HOME_WAYS;
		if (home && home->device_id[*way] == device_id)
			return home;
	}
	return NULL;
}

/* Two words that follow each other, as the proof holds them. */
static __always_inline __u64 lw_pair(__u32 low, __u32 high)
{
	return (__u64)high << 32 | low;
}

/*
 * 0 if that key has made the proof. A function of its own: the words need the stack. All of the proof is compared before the
 * answer: none tells where it differs.
 */
static __noinline __u64 lw_proof_differs(const __u64 *key, const struct lw_round *round, const __u64 *proof)
{
	__u64 words[8] = { LW_READ(key[0]), LW_READ(key[1]), lw_pair(round->number, bpf_ntohl(round->r)),
			   0x61616461746c6f76ULL, LW_READ(key[2]), LW_READ(key[3]), round->nonce,
			   0x61636e6172626173ULL };
	__u32 m[16];
	__u64 differs = 0;

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

/* A PROOF, whose header is right. */
static __always_inline enum lw_verdict lw_judge_proof(struct lw_ctx *c)
{
	struct lw_proof_message *m = (struct lw_proof_message *)c->frame.payload;

	if ((void *)(m + 1) > c->frame.end)
		return LW_DROP_LENGTH;
	if ((__u32)m->r != bpf_htonl(cfg.gateway_id))
		return LW_DROP_GATEWAY;
	struct lw_rounds *rounds = lw_at(&open_rounds, 0);

	if (!rounds)
		return LW_DROP_ROUND;
	__u32 number = bpf_ntohl((__u32)(m->r >> 32)), lane = number & 1;
	struct lw_round *round = &rounds->lane[lane];

	if (LW_READ(round->r) != m->r || round->nonce != m->nonce)
		return LW_DROP_ROUND;
	if (c->now_ns > round->until_ns)
		return LW_DROP_LATE;
	__u32 way = 0;
	struct lw_prover_home *home = lw_find_prover(m->device_id, &way);

	if (!home)
		return LW_DROP_UNKNOWN_PROVER;
	__u64 *proved = &home->proved[way % LW_HOME_WAYS][lane];
	__u64 before = LW_READ(*proved), alternate = 0;

	if (before >> 32 == number)
		return LW_DROP_PROVED;
	struct lw_prover_keys *keys = lw_at(&prover_keys, home->slot[way % LW_HOME_WAYS] * 2 + (round->key_lane & 1));

	if (!keys || !LW_READ(keys->current[0]))
		return LW_DROP_NO_KEY;
	if (lw_proof_differs(keys->current, round, m->proof)) {
		if (!LW_READ(keys->alternate[0]) || lw_proof_differs(keys->alternate, round, m->proof)) {
			lw_wrong_proof(c, m->device_id, number);
			return LW_DROP_PROOF;
		}
		alternate = LW_ALTERNATE;
	}
	/* The clock may be a jiffy behind the one that user space read. */
	__u64 elapsed_ms = c->now_ns > round->started_ns ? (c->now_ns - round->started_ns) / 1000000ULL : 0;

	if (elapsed_ms > LW_ELAPSED_MS_MAX)
		elapsed_ms = LW_ELAPSED_MS_MAX;
	__u64 after = (__u64)number << 32 | alternate | elapsed_ms;

	/* Of several CPUs with one proof one wins. */
	return __sync_val_compare_and_swap(proved, before, after) == before ? LW_PROOF_OK : LW_DROP_PROVED;
}

/* What lw_lap() ends with for a PROOF: the frame is parsed once more, which costs less than what the stack would. */
static __always_inline int lw_prove(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct lw_ctx c = { .xdp = ctx };

	c.cpu = bpf_map_lookup_elem(&percpu, &zero);
	c.control = bpf_map_lookup_elem(&control, &zero);
	if (!c.cpu || !c.control)
		return XDP_DROP;
	lw_clock(&c);
	lw_count(c.cpu, lw_parse(ctx, &c.frame) == LW_KIND_UDP ? lw_judge_proof(&c) : LW_DROP_TRUNCATED);
	return XDP_DROP;
}

#endif
