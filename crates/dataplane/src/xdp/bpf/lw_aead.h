/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * ChaCha20-Poly1305 (RFC 8439 2.8) and XForró14-Poly1305 (the same composition with XForró14, as
 * draft-irtf-cfrg-xchacha-03 does with XChaCha20) on a message in a packet, in place, with the tag after the message.
 */
#ifndef LW_AEAD_H
#define LW_AEAD_H

#include "lw_compare.h"
#include "lw_poly1305.h"
#include "lw_stream.h"

#define LW_AEAD_TAG 16

/* Input for sealing a message. */
struct lw_aead {
	__u32 key[8];
	__u32 nonce[6]; /* ChaCha20 uses three words */
	__u32 aad_bytes; /* at most 16 */
	__u32 zero;
	__u32 aad[4]; /* associated data, zero padded */
};

/* State of one message. In a map, because the permutation uses the stack. */
struct lw_aead_work {
	struct lw_matrix matrix; /* for block 0 */
	__u32 once[8]; /* Poly1305's one-time key */
	__u32 tag[4];
};

static __always_inline void lw_aead_matrix(const struct lw_aead *a, struct lw_aead_work *w, enum lw_cipher cipher)
{
	__u32 derived[8];

	if (cipher == LW_CHACHA) {
		lw_chacha_matrix(w->matrix.word, a->key, 0, a->nonce);
		return;
	}
	lw_hforro14(a->key, a->nonce, derived);
	lw_forro_matrix(w->matrix.word, derived, 0, a->nonce + 4);
}

/* Sets Poly1305's one-time key: the first eight words of block 0. */
static __always_inline void lw_aead_once(struct lw_aead_work *w, enum lw_cipher cipher, const int rounds)
{
	__u32 m[1][16];

	lw_keystream(m, &w->matrix, 0, cipher, rounds, 1);
#pragma unroll
	for (int i = 0; i < 8; i++)
		w->once[i] = lw_keystream_word(m, &w->matrix, 0, cipher, 1, 0, i);
}

/* Adds the last block of a message, zero padded, to the tag. Returns 0 if the packet is too short. */
static __always_inline int lw_mac_tail(struct lw_poly *p, __u8 *at, void *end, __u32 bytes)
{
	__u64 low = 0, high = 0;

	if (!bytes)
		return 1;
#pragma clang loop unroll(disable)
	for (int i = 0; i < 15; i++) {
		if (i >= bytes)
			break;
		/* Prevents clang from comparing pointer differences, which the kernel refuses. */
		asm volatile("" : "+r"(at));
		if ((void *)(at + 1) > end)
			return 0;
		if (i < 8)
			low |= (__u64)*at << (8 * i);
		else
			high |= (__u64)*at << (8 * i - 64);
		at++;
	}
	lw_poly_block(p, low, low >> 32, high, high >> 32);
	return 1;
}

/*
 * Computes w->tag over associated data and ciphertext. Returns 0 if the packet is too short. A global function, so that
 * the kernel's verifier processes its loop only one time.
 */
__noinline int lw_aead_tag(struct xdp_md *ctx, struct lw_aead *a, struct lw_aead_work *w, __u32 at, __u32 length)
{
	__u8 *data = (__u8 *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct lw_poly p;

	if (!a || !w || at > LW_STREAM_AT_MAX || length > LW_STREAM_MAX)
		return 0;
	data += at;
	lw_poly_begin(&p, w->once);
	if (a->aad_bytes)
		lw_poly_block(&p, a->aad[0], a->aad[1], a->aad[2], a->aad[3]);
#pragma clang loop unroll(disable)
	for (int i = 0; i < LW_STREAM_MAX / 16; i++) {
		__u32 *word = (__u32 *)data;

		if (i * 16 + 16 > length)
			break;
		if ((void *)(word + 4) > end)
			return 0;
		lw_poly_block(&p, word[0], word[1], word[2], word[3]);
		data += 16;
	}
	if (!lw_mac_tail(&p, data, end, length % 16))
		return 0;
	lw_poly_block(&p, a->aad_bytes, 0, length, 0);
	lw_poly_end(&p, w->once + 4, w->tag);
	return 1;
}

/* Defines NAME_begin() of an AEAD: matrix and Poly1305's key. */
#define LW_AEAD_BEGIN(name, cipher, rounds)                                    \
	__noinline int name##_begin(struct lw_aead *a, struct lw_aead_work *w) \
	{                                                                      \
		if (!a || !w)                                                  \
			return 0;                                              \
		lw_aead_matrix(a, w, cipher);                                  \
		lw_aead_once(w, cipher, rounds);                               \
		return 1;                                                      \
	}

LW_AEAD_BEGIN(lw_xforro14, LW_FORRO, LW_FORRO14)
LW_AEAD_BEGIN(lw_chacha20, LW_CHACHA, LW_CHACHA20)
LW_FORRO_STREAM(lw_forro14_stream, LW_FORRO14)
LW_CHACHA_STREAM(lw_chacha20_stream, LW_CHACHA20)

/* Block 1 and the following blocks encrypt the message. */
static __always_inline int lw_aead_stream(struct xdp_md *ctx, struct lw_aead_work *w, __u32 at, __u32 length,
					  enum lw_cipher cipher)
{
	return cipher == LW_FORRO ? lw_forro14_stream(ctx, &w->matrix, 1, at, length) :
				    lw_chacha20_stream(ctx, &w->matrix, 1, at, length);
}

/* Address of the tag, or NULL. */
static __always_inline __u32 *lw_tag_at(struct xdp_md *ctx, __u32 at)
{
	__u8 *tag = (__u8 *)(long)ctx->data;
	__u64 offset = at;

	/* Kernel 6.1 tracks the bound of the compared register, not of a copy. */
	asm volatile("" : "+r"(offset));
	if (offset > LW_STREAM_AT_MAX)
		return NULL;
	tag += offset;
	return (void *)(tag + LW_AEAD_TAG) > (void *)(long)ctx->data_end ? NULL : (__u32 *)tag;
}

static __always_inline int lw_tag_put(struct xdp_md *ctx, const struct lw_aead_work *w, __u32 at)
{
	__u32 *tag = lw_tag_at(ctx, at);

	if (!tag)
		return 0;
#pragma unroll
	for (int i = 0; i < 4; i++)
		tag[i] = w->tag[i];
	return 1;
}

/* Encrypts `length` bytes and writes the tag into the 16 bytes after them. Returns 0 if the packet is too short. */
static __always_inline int lw_aead_seal(struct xdp_md *ctx, struct lw_aead *a, struct lw_aead_work *w, __u32 at,
					__u32 length, enum lw_cipher cipher)
{
	if (!lw_tag_at(ctx, at + length) ||
	    !(cipher == LW_FORRO ? lw_xforro14_begin(a, w) : lw_chacha20_begin(a, w)) ||
	    !lw_aead_stream(ctx, w, at, length, cipher))
		return 0;
	return lw_aead_tag(ctx, a, w, at, length) && lw_tag_put(ctx, w, at + length);
}

/*
 * Decrypts `length` bytes if the tag after them is valid. Returns 0, without decrypting, if the tag is invalid or the
 * packet is too short.
 */
static __always_inline int lw_aead_open(struct xdp_md *ctx, struct lw_aead *a, struct lw_aead_work *w, __u32 at,
					__u32 length, enum lw_cipher cipher)
{
	__u64 differs = 0;

	if (!(cipher == LW_FORRO ? lw_xforro14_begin(a, w) : lw_chacha20_begin(a, w)) ||
	    !lw_aead_tag(ctx, a, w, at, length))
		return 0;
	__u32 *tag = lw_tag_at(ctx, at + length);

	if (!tag)
		return 0;
#pragma unroll
	for (int i = 0; i < 4; i++)
		differs |= tag[i] ^ w->tag[i];
	LW_BARRIER(differs);
	if (differs)
		return 0;
	return lw_aead_stream(ctx, w, at, length, cipher);
}

#endif
