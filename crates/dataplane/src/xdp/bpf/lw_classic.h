/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The papers' own protocol (docs/protocols.md 2), for measurement and interoperation only: CRC-32 is no MAC. Off
 * unless configured.
 */
#ifndef LW_CLASSIC_H
#define LW_CLASSIC_H

#include "lw_lap.h"

#define LW_CLASSIC_REQ 0
#define LW_CLASSIC_CH 1
#define LW_CLASSIC_RESP 2
#define LW_CLASSIC_ACK 3

static __always_inline __u32 lw_crc_slices(__u64 word, int first)
{
	__u32 crc = 0;

#pragma unroll
	for (int i = 0; i < 8; i++)
		crc ^= cfg.crc[(first - i) * 256 + ((word >> (8 * i)) & 0xff)];
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

/* xoshiro256++ (Blackman, Vigna 2018), one per CPU: the profile asks for no better. */
static __always_inline __u64 lw_draw(__u64 *s)
{
	__u64 result = LW_ROTL(s[0] + s[3], 23) + s[0], t = s[1] << 17;

	s[2] ^= s[0];
	s[3] ^= s[1];
	s[1] ^= s[2];
	s[0] ^= s[3];
	s[2] ^= t;
	s[3] = LW_ROTL(s[3], 45);
	return result;
}

static __always_inline struct lw_classic_crp *lw_classic_row(__u32 device, __u32 row)
{
	return lw_at(&classic_crps, device * cfg.classic_rows + row);
}

/* Offsets in the message: msgType u8 | challenge1 u32 | challenge2 u32 | rn | hash u32 | identifier u32 | time u64. */
#define LW_CLASSIC_CHALLENGE1 1
#define LW_CLASSIC_CHALLENGE2 5
#define LW_CLASSIC_RN 9

/* The reply's sum: whole words and the one byte that is left, whatever the response size. */
static __always_inline __u64 lw_classic_sum(const __u8 *p, const __u32 words)
{
	__u64 sum = *(p + 24 + 8 * words);

#pragma unroll
	for (__u32 i = 0; i < 3 + words; i++) {
		__u64 word = *(const __u64 *)(p + 8 * i);

		sum += (word & 0xffffffff) + (word >> 32);
	}
	return sum;
}

/* REQ: picks CRPs, remembers H(R.. | RN), sends the challenges and RN xor R, or RN xor (R1 or R2). */
static __always_inline enum lw_verdict lw_classic_request(struct lw_ctx *c, __u8 *p, struct lw_classic_state *state,
							  __u32 device, const __u32 words)
{
	struct lw_classic_crp *one, *two = NULL;
	__u64 rn[4], mask[4];
	__u32 crc;

	if (cfg.classic_uav) {
		__u64 draw = lw_draw(c->cpu->rng), half = cfg.classic_rows / 2;

		one = lw_classic_row(device, (__u32)((draw & 0xffffffff) * half >> 32));
		two = lw_classic_row(device, (__u32)(half + ((draw >> 32) * half >> 32)));
		if (!two)
			return LW_DROP_CLASSIC_UNKNOWN;
	} else {
		if (LW_READ(state->next) >= cfg.classic_rows)
			return LW_DROP_CLASSIC_UNKNOWN;
		__u32 row = __sync_fetch_and_add(&state->next, 1);

		if (row >= cfg.classic_rows)
			return LW_DROP_CLASSIC_UNKNOWN;
		one = lw_classic_row(device, row);
	}
	if (!one)
		return LW_DROP_CLASSIC_UNKNOWN;
#pragma unroll
	for (__u32 i = 0; i < words; i++) {
		rn[i] = __builtin_bswap64(lw_draw(c->cpu->rng));
		mask[i] = one->response[i] | (two ? two->response[i] : 0);
		*(__u64 *)(p + LW_CLASSIC_RN + 8 * i) = rn[i] ^ mask[i];
	}
	crc = one->crc;
	if (two) {
		if (words == 1)
			crc = lw_crc_8(crc, two->response[0]);
#pragma unroll
		for (__u32 i = 0; i + 1 < words; i += 2)
			crc = lw_crc_16(crc, two->response[i], two->response[i + 1]);
	}
	if (words == 1)
		crc = lw_crc_8(crc, rn[0]);
#pragma unroll
	for (__u32 i = 0; i + 1 < words; i += 2)
		crc = lw_crc_16(crc, rn[i], rn[i + 1]);
	LW_EXCHANGE(state->expected, LW_CLASSIC_PENDING | (__u32)~crc);
	p[0] = LW_CLASSIC_CH;
	*(__u32 *)(p + LW_CLASSIC_CHALLENGE1) = one->challenge;
	*(__u32 *)(p + LW_CLASSIC_CHALLENGE2) = two ? two->challenge : 0;
	*(__u32 *)(p + LW_CLASSIC_RN + 8 * words) = 0;
	*(__u64 *)(p + LW_CLASSIC_RN + 8 * words + 8) = 0;
	return LW_REPLY_CLASSIC_CHALLENGE;
}

/* RESP: no zero-initialised hash is accepted, and a hash dies with its success. */
static __always_inline enum lw_verdict lw_classic_response(__u8 *p, struct lw_classic_state *state, const __u32 words)
{
	__u64 expected = LW_READ(state->expected);
	__u32 hash = bpf_ntohl(*(__u32 *)(p + LW_CLASSIC_RN + 8 * words));

	if (expected != (LW_CLASSIC_PENDING | hash) ||
	    __sync_val_compare_and_swap(&state->expected, expected, 0) != expected)
		return LW_DROP_CLASSIC_HASH;
	p[0] = LW_CLASSIC_ACK;
	*(__u64 *)(p + LW_CLASSIC_RN + 8 * words + 8) = 0;
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
	__u32 device = bpf_ntohl(*(__u32 *)(p + LW_CLASSIC_RN + 8 * words + 4)) - 1;
	struct lw_classic_state *state = device < cfg.classic_identifiers ? lw_at(&classic_states, device) : NULL;

	if (!state)
		return LW_DROP_CLASSIC_UNKNOWN;
	enum lw_verdict verdict = type == LW_CLASSIC_REQ ? lw_classic_request(c, p, state, device, words) :
							   lw_classic_response(p, state, words);

	if (verdict == LW_REPLY_CLASSIC_CHALLENGE || verdict == LW_REPLY_CLASSIC_ACK)
		lw_turn_round(f, lw_classic_sum(p, words));
	return verdict;
}

static __always_inline enum lw_verdict lw_classic(struct lw_ctx *c)
{
	if (cfg.classic_words == 1)
		return lw_classic_sized(c, 1);
	if (cfg.classic_words == 2)
		return lw_classic_sized(c, 2);
	return lw_classic_sized(c, 4);
}

#endif
