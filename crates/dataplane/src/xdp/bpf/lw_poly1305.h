/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Poly1305 (RFC 8439 2.5), in 32-bit words with delayed carries. eBPF multiplies 64-bit words and returns the lower 64
 * bits: sums of products of a 32-bit word and the 28 bits of a clamped r fit. After a block, each carry moves by only one
 * word, all carries at the same time. A word may therefore have more than 32 bits in the next product. This cannot
 * overflow: after the words of the message are added, h0 is below 3.4 * 2^32, and every other word of h is below
 * 2.9 * 2^32. A sum is then below (3.4 + 3 * 1.25 * 2.9) * 2^60 < 2^64, and the bounds hold again for the next block. A
 * block of 16 bytes needs 20 products and no chain of carries. No branch and no address depends on a secret.
 */
#ifndef LW_POLY1305_H
#define LW_POLY1305_H

#include <linux/types.h>

struct lw_poly {
	__u64 h[5]; /* h[4] is below 4 */
	__u64 r[4];
	__u64 s[4]; /* exactly r * 5 / 4, because 4 divides r[1] to r[3]; s[0] is not used */
};

static __always_inline void lw_poly_begin(struct lw_poly *p, const __u32 key[4])
{
#pragma unroll
	for (int i = 0; i < 4; i++) {
		p->h[i] = 0;
		p->r[i] = key[i] & (i ? 0x0ffffffc : 0x0fffffff);
		p->s[i] = p->r[i] + (p->r[i] >> 2);
	}
	p->h[4] = 0;
}

/* Adds a block of 16 bytes. The last block of a message must be complete too: an AEAD pads it with zeros. */
static __always_inline void lw_poly_block(struct lw_poly *p, __u32 m0, __u32 m1, __u32 m2, __u32 m3)
{
	__u64 h0 = p->h[0] + m0, h1 = p->h[1] + m1, h2 = p->h[2] + m2, h3 = p->h[3] + m3, h4 = p->h[4] + 1;
	__u64 d0 = h0 * p->r[0] + h1 * p->s[3] + h2 * p->s[2] + h3 * p->s[1];
	__u64 d1 = h0 * p->r[1] + h1 * p->r[0] + h2 * p->s[3] + h3 * p->s[2] + h4 * p->s[1];
	__u64 d2 = h0 * p->r[2] + h1 * p->r[1] + h2 * p->r[0] + h3 * p->s[3] + h4 * p->s[2];
	__u64 d3 = h0 * p->r[3] + h1 * p->r[2] + h2 * p->r[1] + h3 * p->r[0] + h4 * p->s[3];
	__u64 d4 = h4 * p->r[0] + (d3 >> 32);

	p->h[0] = (__u32)d0 + (d4 >> 2) * 5;
	p->h[1] = (__u32)d1 + (d0 >> 32);
	p->h[2] = (__u32)d2 + (d1 >> 32);
	p->h[3] = (__u32)d3 + (d2 >> 32);
	p->h[4] = d4 & 3;
}

/* Propagates the carries; 2^130 counts as 5. The result is below 2^130 + 2^33. */
static __always_inline void lw_poly_carry(__u64 h[5])
{
#pragma unroll
	for (int i = 0; i < 4; i++) {
		h[i + 1] += h[i] >> 32;
		h[i] = (__u32)h[i];
	}
	h[0] += (h[4] >> 2) * 5;
	h[4] &= 3;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		h[i + 1] += h[i] >> 32;
		h[i] = (__u32)h[i];
	}
}

static __always_inline void lw_poly_end(struct lw_poly *p, const __u32 s[4], __u32 tag[4])
{
	__u64 minus_p[5], carry = 5;

	lw_poly_carry(p->h);
	/* h - p = h + 5 - 2^130 is the residue if it is not negative. */
#pragma unroll
	for (int i = 0; i < 5; i++) {
		minus_p[i] = p->h[i] + carry;
		carry = minus_p[i] >> 32;
	}
	__u64 take = -(minus_p[4] >> 2), sum = 0;

#pragma unroll
	for (int i = 0; i < 4; i++) {
		sum += (__u32)((minus_p[i] & take) | (p->h[i] & ~take));
		sum += s[i];
		tag[i] = sum;
		sum >>= 32;
	}
}

#endif
