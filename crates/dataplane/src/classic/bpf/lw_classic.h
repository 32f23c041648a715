/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The classic profiles: protocols of published papers (docs/protocols.md 2), for measurement only. CRC-32 authenticates
 * nothing.
 */
#ifndef LW_CLASSIC_H
#define LW_CLASSIC_H

#include "lw_admission.h"
#include "lw_classic_layout.h"

#define LW_CLASSIC_REQ 0
#define LW_CLASSIC_CH 1
#define LW_CLASSIC_RESP 2
#define LW_CLASSIC_ACK 3

/*
 * The contribution of a word to the CRC if `first` - 7 bytes come after the word. The barriers keep clang from
 * reloading the table's address for each byte, and from computing all indices before the first look-up, which would
 * spill them to the stack.
 */
static __always_inline __u32 lw_crc_slices(__u64 word, int first)
{
	const __u8 *table = (const __u8 *)papers.crc;
	__u32 crc = 0;

	asm volatile("" : "+r"(table));
#pragma unroll
	for (int i = 0; i < 8; i++) {
		__u64 at = i ? (word >> (8 * i - 2)) & 0x3fc : (word & 0xff) << 2;

		crc ^= *(const __u32 *)(table + at + (first - i) * 1024);
		asm volatile("" : "+r"(crc));
	}
	return crc;
}
static __always_inline __u32 lw_crc_16(__u32 crc, __u64 a, __u64 b)
{
	return lw_crc_slices(a ^ crc, 15) ^ lw_crc_slices(b, 7);
}
static __always_inline __u32 lw_crc_8(__u32 crc, __u64 a)
{
	return lw_crc_slices(a ^ crc, 7);
}

/* SplitMix64 (Steele, Lea, Flood 2014), one per CPU: sufficient for the profile. */
static __always_inline __u64 lw_draw(__u64 *state)
{
	__u64 z = *state += 0x9e3779b97f4a7c15ULL;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ z >> 27) * 0x94d049bb133111ebULL;
	return z ^ z >> 31;
}

static __always_inline struct lw_classic_crp *lw_classic_row(__u32 device, __u32 row)
{
	return lw_at(&classic_crps, device * papers.classic_rows + row);
}

/*
 * Offsets in the message: msgType u8 | challenge1 u32 | challenge2 u32 | rn | hash u32 | identifier u32 | time u64.
 */
#define LW_CLASSIC_CHALLENGE1 1
#define LW_CLASSIC_CHALLENGE2 5
#define LW_CLASSIC_RN 9

static __always_inline __u64 lw_halves(__u64 word)
{
	return (word & 0xffffffff) + (word >> 32);
}

/* The checksum of data at an odd offset: its bytes are swapped (RFC 1071 2 (B)). */
static __always_inline __u64 lw_sum_at_odd(__u64 sum)
{
	sum = lw_halves(sum);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return __builtin_bswap16(sum);
}

/*
 * REQ: picks CRPs and stores H(R.. | RN). Writes the reply: the challenges, and RN xor R or, with two CRPs, RN xor (R1 OR
 * R2). The reply's checksum is computed from the stored values: reading the reply back would wait for stores that its loads
 * straddle.
 */
static __always_inline enum lw_verdict lw_classic_request(struct lw_ctx *c, __u8 *p, struct lw_classic_state *state,
							  __u32 identifier, const __u32 words)
{
	struct lw_classic_crp *crp1, *crp2 = NULL;
	__u32 device = bpf_ntohl(identifier) - 1;
	__u32 zero = 0, crc;
	__u64 *state_of_rng = bpf_map_lookup_elem(&classic_rng, &zero);

	if (!state_of_rng)
		return LW_DROP_CLASSIC_UNKNOWN;
	__u64 rn[4], sum = identifier, rng = *state_of_rng;

	if (papers.classic_uav) {
		__u64 draw = lw_draw(&rng), half = papers.classic_rows / 2;

		crp1 = lw_classic_row(device, (__u32)((draw & 0xffffffff) * half >> 32));
		crp2 = lw_classic_row(device, (__u32)(half + ((draw >> 32) * half >> 32)));
		if (!crp2)
			return LW_DROP_CLASSIC_UNKNOWN;
	} else {
		if (LW_READ(state->next) >= papers.classic_rows)
			return LW_DROP_CLASSIC_UNKNOWN;
		__u32 row = __sync_fetch_and_add(&state->next, 1);

		if (row >= papers.classic_rows)
			return LW_DROP_CLASSIC_UNKNOWN;
		crp1 = lw_classic_row(device, row);
	}
	if (!crp1)
		return LW_DROP_CLASSIC_UNKNOWN;
#pragma unroll
	for (__u32 i = 0; i < words; i++)
		rn[i] = __builtin_bswap64(lw_draw(&rng));
	*state_of_rng = rng;
#pragma unroll
	for (__u32 i = 0; i < words; i++) {
		__u64 masked = rn[i] ^ (crp1->response[i] | (crp2 ? crp2->response[i] : 0));

		sum += lw_halves(masked);
		*(__u64 *)(p + LW_CLASSIC_RN + 8 * i) = masked;
	}
	crc = crp1->crc;
	if (crp2) {
		if (words == 1)
			crc = lw_crc_8(crc, crp2->response[0]);
#pragma unroll
		for (__u32 i = 0; i + 1 < words; i += 2)
			crc = lw_crc_16(crc, crp2->response[i], crp2->response[i + 1]);
	}
	if (words == 1)
		crc = lw_crc_8(crc, rn[0]);
#pragma unroll
	for (__u32 i = 0; i + 1 < words; i += 2)
		crc = lw_crc_16(crc, rn[i], rn[i + 1]);
	LW_EXCHANGE(state->expected, LW_CLASSIC_PENDING | (__u32)~crc);
	__u32 challenge[2] = { crp1->challenge, crp2 ? crp2->challenge : 0 };

	p[0] = LW_CLASSIC_CH;
	*(__u32 *)(p + LW_CLASSIC_CHALLENGE1) = challenge[0];
	*(__u32 *)(p + LW_CLASSIC_CHALLENGE2) = challenge[1];
	*(__u32 *)(p + LW_CLASSIC_RN + 8 * words) = 0;
	*(__u64 *)(p + LW_CLASSIC_RN + 8 * words + 8) = 0;
	sum += challenge[0];
	sum += challenge[1];
	lw_swap_and_close(&c->frame, LW_CLASSIC_CH + lw_sum_at_odd(sum));
	return LW_REPLY_CLASSIC_CHALLENGE;
}

/* RESP: accepts each expected hash at most one time. If the state is 0, no hash is expected. */
static __always_inline enum lw_verdict lw_classic_response(struct lw_ctx *c, __u8 *p, struct lw_classic_state *state,
							   const __u32 words)
{
	__u64 expected = LW_READ(state->expected), sum = 0;
	__u32 hash = bpf_ntohl(*(__u32 *)(p + LW_CLASSIC_RN + 8 * words));

	if (expected != (LW_CLASSIC_PENDING | hash) ||
	    __sync_val_compare_and_swap(&state->expected, expected, 0) != expected)
		return LW_DROP_CLASSIC_HASH;
	/* All fields except the type, and the time, which is 0 in the reply. */
#pragma unroll
	for (__u32 i = 0; i < 2 + words; i++)
		sum += lw_halves(*(const __u64 *)(p + 8 * i));
	sum += *(p + 16 + 8 * words);
	sum += LW_CLASSIC_ACK - LW_CLASSIC_RESP;
	p[0] = LW_CLASSIC_ACK;
	*(__u64 *)(p + LW_CLASSIC_RN + 8 * words + 8) = 0;
	lw_swap_and_close(&c->frame, sum);
	return LW_REPLY_CLASSIC_ACK;
}

static __always_inline enum lw_verdict lw_classic_sized(struct lw_ctx *c, const __u32 words)
{
	struct lw_frame *f = &c->frame;
	__u8 *p = f->payload;
	const __u32 length = 25 + 8 * words;

	if (f->payload_length != length || (void *)(p + length) > f->end)
		return LW_DROP_CLASSIC_MALFORMED;
	__u8 type = p[0];

	if (type != LW_CLASSIC_REQ && type != LW_CLASSIC_RESP)
		return LW_DROP_CLASSIC_MALFORMED;
	__u32 identifier = *(__u32 *)(p + LW_CLASSIC_RN + 8 * words + 4), device = bpf_ntohl(identifier) - 1;
	struct lw_classic_state *state = device < papers.classic_identifiers ? lw_at(&classic_states, device) : NULL;

	if (!state)
		return LW_DROP_CLASSIC_UNKNOWN;
	return type == LW_CLASSIC_REQ ? lw_classic_request(c, p, state, identifier, words) :
					lw_classic_response(c, p, state, words);
}

static __always_inline enum lw_verdict lw_classic(struct lw_ctx *c)
{
	/* Keeps the frame in memory, as lw_check() does. */
	asm volatile("" : : "r"(&c->frame) : "memory");
	if (lw_parse(&c->frame) != LW_KIND_UDP || !c->frame.local || c->frame.udp->dst != papers.classic_port ||
	    !lw_is_addressed(c))
		return LW_PASS_FOREIGN;
	if (!lw_is_answerable(&c->frame))
		return LW_DROP_UNANSWERABLE;
	if (papers.classic_words == 1)
		return lw_classic_sized(c, 1);
	if (papers.classic_words == 2)
		return lw_classic_sized(c, 2);
	return lw_classic_sized(c, 4);
}

#endif
