/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* LAP/1 3.2: PROOFs, in the order of checks of docs/protocols.md 3.2.1. */
#ifndef LW_ATTEST_H
#define LW_ATTEST_H

#include "lw_forro.h"
#include "lw_lap.h"

struct lw_proof_message {
	__u64 h0, device_id, r, nonce, proof[8];
};
_Static_assert(sizeof(struct lw_proof_message) == LW_PROOF_MESSAGE, "96 B");

/* Reports a wrong proof, rate-limited. Any sender can cause this event, so no decision depends on it. */
static __noinline int lw_wrong_proof(__u64 device_id, __u32 number, __u64 addr0, __u64 addr1, __u32 ingress)
{
	__u32 zero = 0;
	struct lw_percpu *cpu = bpf_map_lookup_elem(&percpu, &zero);
	struct lw_control *control_block = bpf_map_lookup_elem(&control, &zero);

	if (!cpu || !control_block ||
	    !lw_within_rate(cpu->clock_ns, LW_READ(lw_live(control_block)->alarm_per_s), &cpu->alarm_second,
			    &cpu->alarm_count))
		return 0;
	struct lw_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event) {
		cpu->events_lost++;
		return 0;
	}
	__u64 addr[2] = { addr0, addr1 };

	lw_fill(event, LW_EVENT_WRONG_PROOF, device_id, number, addr, ingress);
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
	return 0;
}

/* As lw_source_address(), for a PROOF at offset `proof_at` (struct lw_percpu). */
static __always_inline void lw_proof_source(struct xdp_md *ctx, __u64 proof_at, __u64 addr[2])
{
	__u64 is6 = proof_at & LW_PROOF_IP6;
	/* Before the UDP header: both addresses of IPv6 or IPv4. */
	__u64 at = (proof_at & 0x7f) - sizeof(struct lw_udp) - (is6 ? 32 : 8);

	/* At most 54, because headers are at most 70 B long. The mask restores this bound for the kernel's verifier. */
	asm volatile("%0 &= 0x3f" : "+r"(at));
	__u64 *src = (void *)(long)ctx->data + at;

	addr[0] = 0;
	addr[1] = 0;
	if ((void *)(src + 2) > (void *)(long)ctx->data_end)
		return;
	if (is6) {
		addr[0] = src[0];
		addr[1] = src[1];
	} else {
		addr[1] = lw_mapped(src[0]);
	}
}

/* The line of a prover, and its index; NULL if there is none. As lw_find_device(). */
static __always_inline struct lw_prover *lw_find_prover(__u64 device_id, __u32 key_lane, __u32 *line)
{
	__u64 hash = lw_hash(device_id, 0);
	__u32 lane_start = key_lane & 1 ? cfg.prover_all : 0, place = (hash & 0xffffffff) * cfg.prover_places >> 32;

	*line = lane_start + place;
	struct lw_prover *prover = lw_at(&provers, *line);

	if (prover && prover->device_id == device_id)
		return prover;
	*line = lane_start + (place ^ 1);
	prover = lw_at(&provers, *line);
	if (prover && prover->device_id == device_id)
		return prover;
	__u32 fingerprint = lw_fingerprint(hash);

#pragma unroll
	for (int choice = 0; choice < 2; choice++) {
		struct lw_bucket *bucket = lw_at(&prover_index, lw_bucket(hash, choice) & cfg.prover_index_mask);

		if (!bucket)
			return NULL;
		__u64 entry = lw_match(bucket, fingerprint);

		*line = lane_start + (__u32)entry - 1;
		prover = entry ? lw_at(&provers, *line) : NULL;
		if (prover && prover->device_id == device_id)
			return prover;
	}
	return NULL;
}

/* The number of a round, from `r` in wire order. */
static __always_inline __u32 lw_number(__u64 r)
{
	return bpf_ntohl((__u32)(r >> 32));
}

/* The inputs of a proof. The key is a copy, because it may change. */
struct lw_proof_input {
	__u64 key[4], counter, nonce;
};

static __always_inline void lw_set_proof_key(struct lw_proof_input *input, const __u64 key[4])
{
#pragma unroll
	for (int i = 0; i < 4; i++)
		input->key[i] = LW_READ(key[i]);
}

static __always_inline void lw_set_proof_input(struct lw_proof_input *input, const __u64 key[4], __u64 r, __u64 nonce)
{
	lw_set_proof_key(input, key);
	input->counter = (__u64)cfg.gateway_id << 32 | lw_number(r);
	input->nonce = nonce;
}

/* Two consecutive words of the matrix. `i` is a constant. */
static __always_inline __u64 lw_words(const struct lw_proof_input *input, const int i)
{
	switch (i) {
	case 2:
		return input->counter;
	case 3:
		return 0x61616461746c6f76ULL;
	case 6:
		return input->nonce;
	case 7:
		return 0x61636e6172626173ULL;
	default:
		return input->key[i < 2 ? i : i - 2];
	}
}

static __always_inline void lw_fill_matrix(const struct lw_proof_input *input, volatile __u32 m[16])
{
#pragma unroll
	for (int i = 0; i < 8; i++) {
		m[2 * i] = lw_words(input, i);
		m[2 * i + 1] = lw_words(input, i) >> 32;
	}
}

/* 0 if the block (permuted words plus matrix) equals the proof. All words are compared before the result is used. */
static __always_inline __u64 lw_proof_differs(const struct lw_proof_input *input, const volatile __u32 m[16],
						const __u64 *proof)
{
	__u64 differs = 0;

#pragma unroll
	for (int i = 0; i < 8; i++) {
		__u64 words = lw_words(input, i);
		__u32 low = m[2 * i] + (__u32)words, high = m[2 * i + 1] + (__u32)(words >> 32);

		differs |= ((__u64)high << 32 | low) ^ proof[i];
	}
	LW_BARRIER(differs);
	return differs;
}

/* 0 if the proof was computed with that key. */
static __noinline __u64 lw_one_differs(const struct lw_proof_input *input, const __u64 *proof)
{
	__u32 m[16];

	lw_fill_matrix(input, m);
	lw_forro_permute(m, LW_FORRO14);
	return lw_proof_differs(input, m, proof);
}

/*
 * Compares two proofs in parallel. A separate function, because the caller's stack has no space for the matrices.
 */
static __noinline int lw_two_differ(const struct lw_proof_input *input, const __u64 *first, const __u64 *second,
				    __u64 *differs)
{
	volatile __u32 m[2][16];

	lw_fill_matrix(input, m[0]);
	lw_fill_matrix(input + 1, m[1]);
	lw_forro_permute_wide(m, LW_FORRO14, 2);
	differs[0] = lw_proof_differs(input, m[0], first);
	differs[1] = lw_proof_differs(input + 1, m[1], second);
	return 0;
}

/* A PROOF that passed all checks except the check of its block. */
struct lw_claim {
	struct lw_prover *prover;
	__u32 line; /* this and the following fields as in struct lw_waiting */
	__u32 before;
	__u32 after;
	__u64 r;
};

/* The verdict on a claim, given whether the proof was computed with the prover's key. */
static __always_inline enum lw_verdict lw_settle(const struct lw_claim *claim, struct lw_proof_input *input,
						 const __u64 *proof, __u64 differs)
{
	__u32 after = claim->after;

	/* The key was removed after the claim was checked. Anyone can compute a proof for a key of zeros. */
	if (!input->key[0])
		return LW_DROP_NO_KEY;
	if (differs) {
		__u32 key_lane = claim->line >= cfg.prover_all;
		struct lw_prover_key *alternate = lw_at(&alternate_keys, claim->prover->slot * 2 + key_lane);

		if (!alternate || !LW_READ(alternate->word[0]))
			return LW_DROP_PROOF;
		lw_set_proof_key(input, alternate->word);
		if (!input->key[0] || lw_one_differs(input, proof))
			return LW_DROP_PROOF;
		after |= LW_ALTERNATE;
	}
	__u32 *proved = &claim->prover->proved[lw_number(claim->r) & 1];

	/* If several CPUs verify the same proof, only one of them succeeds. */
	return __sync_val_compare_and_swap(proved, claim->before, after) == claim->before ? LW_PROOF_OK :
											     LW_DROP_PROVED;
}

/* Sets the state of a place, ordered after all reads and writes of the place. */
static __always_inline void lw_set_state(struct lw_waiting *place, __u32 state)
{
	if (cfg.strong_order) {
		asm volatile("" ::: "memory");
		LW_WRITE(place->state, state);
	} else {
		LW_EXCHANGE(place->state, state);
	}
}

/* Copies a claim from its frame to the CPU's place, where it waits. */
static __always_inline void lw_store_waiting(struct xdp_md *ctx, const struct lw_percpu *cpu, struct lw_waiting *place,
					 const struct lw_claim *claim, const struct lw_proof_message *m)
{
	place->line = claim->line;
	place->before = claim->before;
	place->after = claim->after;
	lw_proof_source(ctx, cpu->proof_at, place->addr);
	place->ingress = ctx->ingress_ifindex;
	place->device_id = m->device_id;
	place->r = m->r;
	place->nonce = m->nonce;
#pragma unroll
	for (int i = 0; i < 8; i++)
		place->proof[i] = m->proof[i];
	lw_set_state(place, LW_WAITING_FULL);
}

static __always_inline enum lw_verdict lw_settle_one(const struct lw_claim *claim, const struct lw_proof_message *m)
{
	struct lw_proof_input input;

	lw_set_proof_input(&input, claim->prover->key, m->r, m->nonce);
	return lw_settle(claim, &input, m->proof, lw_one_differs(&input, m->proof));
}

/*
 * Settles `claim` and the waiting PROOF. Counts the verdict on the waiting PROOF and frees its place. Returns the verdict on
 * `claim`.
 */
static __always_inline enum lw_verdict lw_settle_two(struct lw_percpu *cpu, struct lw_waiting *earlier_proof,
						     const struct lw_claim *claim, const struct lw_proof_message *m)
{
	struct lw_claim earlier = {
		.prover = lw_at(&provers, earlier_proof->line),
		.line = earlier_proof->line,
		.before = earlier_proof->before,
		.after = earlier_proof->after,
		.r = earlier_proof->r,
	};
	struct lw_proof_input input[2];
	__u64 differs[2];

	/* Only for the kernel's verifier: the line always exists. */
	if (!earlier.prover) {
		lw_set_state(earlier_proof, LW_WAITING_FREE);
		return lw_settle_one(claim, m);
	}
	lw_set_proof_input(input, earlier.prover->key, earlier_proof->r, earlier_proof->nonce);
	lw_set_proof_input(input + 1, claim->prover->key, m->r, m->nonce);
	lw_two_differ(input, earlier_proof->proof, m->proof, differs);
	enum lw_verdict verdict = lw_settle(&earlier, input, earlier_proof->proof, differs[0]);

	lw_count(cpu, verdict);
	if (verdict == LW_DROP_PROOF)
		lw_wrong_proof(earlier_proof->device_id, lw_number(earlier_proof->r), earlier_proof->addr[0],
			       earlier_proof->addr[1], earlier_proof->ingress);
	lw_set_state(earlier_proof, LW_WAITING_FREE);
	return lw_settle(claim, input + 1, m->proof, differs[1]);
}

/* The verdict on a claim, or LW_PROOF_WAITS if it is determined later. */
#define LW_PROOF_WAITS 0
static __always_inline __u32 lw_wait_or_settle(struct xdp_md *ctx, struct lw_percpu *cpu,
					       const struct lw_claim *claim, const struct lw_proof_message *m)
{
	struct lw_waiting *place = lw_at(&waiting, bpf_get_smp_processor_id());
	__u32 state = place ? LW_READ(place->state) : LW_WAITING_TAKEN, verdict;

	if (place && state == LW_WAITING_FREE) {
		lw_store_waiting(ctx, cpu, place, claim, m);
		return LW_PROOF_WAITS;
	}
	if (place && state == LW_WAITING_FULL &&
	    __sync_val_compare_and_swap(&place->state, LW_WAITING_FULL, LW_WAITING_TAKEN) == LW_WAITING_FULL)
		verdict = lw_settle_two(cpu, place, claim, m);
	else
		verdict = lw_settle_one(claim, m);
	if (verdict == LW_DROP_PROOF) {
		__u64 addr[2];

		lw_proof_source(ctx, cpu->proof_at, addr);
		lw_wrong_proof(m->device_id, lw_number(m->r), addr[0], addr[1], ctx->ingress_ifindex);
	}
	return verdict;
}

/* Handles a PROOF with a valid header. */
static __always_inline __u32 lw_check_proof(struct xdp_md *ctx, struct lw_percpu *cpu, const struct lw_proof_message *m)
{
	__u64 now_ns = cpu->clock_ns;

	if ((__u32)m->r != bpf_htonl(cfg.gateway_id))
		return LW_DROP_GATEWAY;
	struct lw_rounds *rounds = lw_at(&open_rounds, 0);

	if (!rounds)
		return LW_DROP_ROUND;
	__u32 number = lw_number(m->r), lane = 0;
	struct lw_round *round = &rounds->lane[0];

	/* A branch is predicted, so that the look-up of the prover's line does not wait for this word of the frame. */
	if (number & 1) {
		lane = 1;
		round = &rounds->lane[1];
		asm volatile("" : "+r"(lane), "+r"(round));
	}
	if (LW_READ(round->r) != m->r || round->nonce != m->nonce)
		return LW_DROP_ROUND;
	if (now_ns > round->until_ns)
		return LW_DROP_LATE;
	struct lw_claim claim = { .r = m->r };

	claim.prover = lw_find_prover(m->device_id, round->key_lane, &claim.line);
	if (!claim.prover)
		return LW_DROP_UNKNOWN_PROVER;
	/* The bits are computed from the number in the message, because the round may have been replaced. */
	__u32 number_bits = number >> 1 & 0xffff;

	claim.before = LW_READ(claim.prover->proved[lane]);
	/*
	 * A verdict in a later round of this lane, which opened after the round was read, counts too. Round bits wrap, but
	 * no verdict is that old.
	 */
	if (claim.before & LW_PROVED && (__u16)((claim.before >> LW_ROUND_BITS_SHIFT) - number_bits) < 0x8000)
		return LW_DROP_PROVED;
	if (!LW_READ(claim.prover->key[0]))
		return LW_DROP_NO_KEY;
	/* This clock may lag one jiffy behind the clock that user space read. */
	__u64 elapsed = now_ns > round->started_ns ? (now_ns - round->started_ns) >> (round->elapsed_shift & 63) : 0;

	if (elapsed > LW_ELAPSED_MAX)
		elapsed = LW_ELAPSED_MAX;
	claim.after = number_bits << LW_ROUND_BITS_SHIFT | LW_PROVED | (__u32)elapsed;
	return lw_wait_or_settle(ctx, cpu, &claim, m);
}

/* Continues lw_lap() for a PROOF. lw_lap() has determined the offset of the PROOF and read the clock. */
static __always_inline int lw_prove(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct lw_percpu *cpu = bpf_map_lookup_elem(&percpu, &zero);

	if (!cpu)
		return XDP_DROP;
	/* Headers are at most 70 B long. */
	struct lw_proof_message *m = (void *)(long)ctx->data + (cpu->proof_at & 0x7f);
	__u32 verdict = (void *)(m + 1) > (void *)(long)ctx->data_end ? LW_DROP_LENGTH : lw_check_proof(ctx, cpu, m);

	if (verdict != LW_PROOF_WAITS)
		lw_count(cpu, verdict);
	return XDP_DROP;
}

#endif
