/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * F of suite 1: SipHash-2-4 with 128-bit output (Aumasson, Bernstein 2012, and their siphash128 variant) over whole
 * 8-byte words, which the caller has loaded little-endian. Needs lw_work() for the counts with which the floor
 * programs are compared.
 */
#ifndef LW_SIPHASH_H
#define LW_SIPHASH_H

#include <linux/types.h>

struct lw_sip {
	__u64 v0, v1, v2, v3;
};

#define LW_ROTL(x, b) (((x) << (b)) | ((x) >> (64 - (b))))

#define LW_SIP_ROUND(s)                       \
	do {                                  \
		(s).v0 += (s).v1;             \
		(s).v2 += (s).v3;             \
		(s).v1 = LW_ROTL((s).v1, 13); \
		(s).v3 = LW_ROTL((s).v3, 16); \
		(s).v1 ^= (s).v0;             \
		(s).v3 ^= (s).v2;             \
		(s).v0 = LW_ROTL((s).v0, 32); \
		(s).v2 += (s).v1;             \
		(s).v0 += (s).v3;             \
		(s).v1 = LW_ROTL((s).v1, 17); \
		(s).v3 = LW_ROTL((s).v3, 21); \
		(s).v1 ^= (s).v2;             \
		(s).v3 ^= (s).v0;             \
		(s).v2 = LW_ROTL((s).v2, 32); \
	} while (0)

static __always_inline void lw_sip_init(struct lw_sip *s, __u64 k0, __u64 k1)
{
	s->v0 = 0x736f6d6570736575ULL ^ k0;
	s->v1 = 0x646f72616e646f6dULL ^ k1 ^ 0xee;
	s->v2 = 0x6c7967656e657261ULL ^ k0;
	s->v3 = 0x7465646279746573ULL ^ k1;
}

static __always_inline void lw_sip_word(struct lw_sip *s, __u64 word)
{
	lw_work(LW_WORK_WORDS);
	s->v3 ^= word;
	LW_SIP_ROUND(*s);
	LW_SIP_ROUND(*s);
	s->v0 ^= word;
}

/* `words` is the number of absorbed words. The last word that is absorbed here contains the length in bytes. */
static __always_inline void lw_sip_finish(struct lw_sip *s, __u64 words, __u64 out[2])
{
	lw_sip_word(s, (words * 8) << 56);
	s->v2 ^= 0xee;
	LW_SIP_ROUND(*s);
	LW_SIP_ROUND(*s);
	LW_SIP_ROUND(*s);
	LW_SIP_ROUND(*s);
	out[0] = s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
	s->v1 ^= 0xdd;
	LW_SIP_ROUND(*s);
	LW_SIP_ROUND(*s);
	LW_SIP_ROUND(*s);
	LW_SIP_ROUND(*s);
	out[1] = s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
}

#endif
