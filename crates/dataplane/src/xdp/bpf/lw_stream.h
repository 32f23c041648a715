/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Keystream, and its XOR into a packet, in place. A matrix contains the counter of block 0: 64 bits in two words,
 * 4 and 5 for Forró, 12 and 13 for ChaCha. With a nonce of three words (RFC 8439) the caller ensures that the first
 * word does not wrap.
 */
#ifndef LW_STREAM_H
#define LW_STREAM_H

#include <linux/bpf.h>

#include "lw_chacha.h"

/* Maximum message size: a UDP payload in an Ethernet frame of 1500 bytes. */
#define LW_STREAM_MAX 1472
/* Maximum offset of the remaining message in the packet. */
#define LW_STREAM_AT_MAX (255 + LW_STREAM_MAX)

enum lw_cipher {
	LW_PLAIN, /* the keystream is the matrix: measures loads and stores */
	LW_FORRO,
	LW_CHACHA,
};

struct lw_matrix {
	__u32 word[16];
};

/* The fastest width: see `linewarden-lab bench attest --only cipher`. */
#define LW_FORRO_WIDTH 4
#define LW_WIDTH_MAX 4

/* Word `i` of the matrix after its counter was advanced by `advance`. */
static __always_inline __u32 lw_matrix_word(const struct lw_matrix *matrix, enum lw_cipher cipher, __u32 advance, int i)
{
	const int at = cipher == LW_CHACHA ? 12 : 4;

	if (i != at && i != at + 1)
		return matrix->word[i];
	__u64 counter = ((__u64)matrix->word[at + 1] << 32 | matrix->word[at]) + advance;

	return i == at ? counter : counter >> 32;
}

/* Permutes `width` blocks from block `block` on. lw_keystream_word() then adds the matrix. */
static __always_inline void lw_keystream(__u32 m[][16], const struct lw_matrix *matrix, __u32 block,
					 enum lw_cipher cipher, const int rounds, const int width)
{
	if (width == 1) {
#pragma unroll
		for (int i = 0; i < 16; i++)
			m[0][i] = lw_matrix_word(matrix, cipher, block, i);
		if (cipher == LW_FORRO)
			lw_forro_permute(m[0], rounds);
		else if (cipher == LW_CHACHA)
			lw_chacha_permute(m[0], rounds);
		return;
	}
	volatile __u32(*wide)[16] = m;

#pragma unroll
	for (int lane = 0; lane < width; lane++) {
#pragma unroll
		for (int i = 0; i < 16; i++)
			wide[lane][i] = lw_matrix_word(matrix, cipher, block + lane, i);
	}
	if (cipher == LW_FORRO)
		lw_forro_permute_wide(wide, rounds, width);
	else if (cipher == LW_CHACHA)
		lw_chacha_permute_wide(wide, rounds, width);
}

static __always_inline __u32 lw_keystream_word(__u32 m[][16], const struct lw_matrix *matrix, __u32 block,
					       enum lw_cipher cipher, const int width, int lane, int i)
{
	__u32 permuted = width == 1 ? m[0][i] : ((volatile __u32(*)[16])m)[lane][i];

	return permuted + lw_matrix_word(matrix, cipher, block + lane, i);
}

/* Word `n`, of eight bytes, of the keystream that starts at `block` and includes the blocks that are computed in parallel. */
#define LW_STREAM_WORD(n)                                                                           \
	(lw_keystream_word(m, matrix, block, cipher, width, (n) / 8, (n) % 8 * 2) |                 \
	 (__u64)lw_keystream_word(m, matrix, block, cipher, width, (n) / 8, (n) % 8 * 2 + 1) << 32)

static __always_inline int lw_stream_whole(__u8 *at, void *end, __u32 m[][16], const struct lw_matrix *matrix,
					   __u32 block, enum lw_cipher cipher, const int width)
{
	if ((void *)(at + 64 * width) > end)
		return 0;
#pragma unroll
	for (int n = 0; n < 8 * width; n++)
		*(__u64 *)(at + 8 * n) ^= LW_STREAM_WORD(n);
	return 1;
}

/* Processes the last `remaining` bytes, which are fewer than the bytes of the keystream. Returns 0 if the packet is too short. */
static __always_inline int lw_stream_tail(__u8 *at, void *end, __u32 remaining, __u32 m[][16], const struct lw_matrix *matrix,
					  __u32 block, enum lw_cipher cipher, const int width)
{
	__u64 word = 0;

#pragma unroll
	for (int n = 0; n < 8 * width; n++) {
		word = LW_STREAM_WORD(n);
		if (remaining < 8)
			break;
		if ((void *)(at + 8) > end)
			return 0;
		*(__u64 *)at ^= word;
		at += 8;
		remaining -= 8;
	}
#pragma clang loop unroll(disable)
	for (int n = 0; n < 7; n++) {
		if (n >= remaining)
			break;
		if ((void *)(at + 1) > end)
			return 0;
		*at++ ^= word;
		word >>= 8;
	}
	return 1;
}

/*
 * Encrypts or decrypts `length` bytes at offset `at` of the packet, and stops as soon as at most `rest` of them remain. Block
 * 0 of the keystream is the block of `matrix` after its counter was advanced by `first`. Returns the number of processed
 * bytes, or -1, with the packet unchanged, if the packet is too short.
 */
static __always_inline int lw_stream_part(struct xdp_md *ctx, const struct lw_matrix *matrix, __u32 first, __u32 at,
					  __u32 length, enum lw_cipher cipher, const int rounds, const int width,
					  const __u32 rest)
{
	__u8 *data = (__u8 *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	__u32 m[LW_WIDTH_MAX][16], block;

	if (!matrix || at > LW_STREAM_AT_MAX || length > LW_STREAM_MAX)
		return -1;
	data += at;
	if ((void *)(data + length) > end)
		return -1;
#pragma clang loop unroll(disable)
	for (block = 0; block < LW_STREAM_MAX / 64; block += width) {
		__u32 remaining = length - block * 64;

		if (remaining <= rest)
			break;
		lw_keystream(m, matrix, first + block, cipher, rounds, width);
		/* Returns here, so that the kernel's verifier need not derive that no block remains. */
		if (remaining < 64 * width)
			return lw_stream_tail(data, end, remaining, m, matrix, first + block, cipher, width) ? length : -1;
		if (!lw_stream_whole(data, end, m, matrix, first + block, cipher, width))
			return -1;
		data += 64 * width;
	}
	return block * 64;
}

/*
 * Defines NAME(), which encrypts or decrypts a message in place and returns whether the packet contains the whole message.
 * Forró's blocks are processed four at a time while more than two remain, because four blocks in parallel take as long as
 * two blocks one after the other. The functions are global, so that the kernel's verifier processes each of them one time.
 * Only one of their stacks is in use at a time.
 */
#define LW_FORRO_STREAM(name, rounds)                                                                              \
	__noinline int name##_wide(struct xdp_md *ctx, struct lw_matrix *matrix, __u32 first, __u32 at, __u32 length) \
	{                                                                                                          \
		return lw_stream_part(ctx, matrix, first, at, length, LW_FORRO, rounds, LW_FORRO_WIDTH, 128);      \
	}                                                                                                          \
	__noinline int name##_rest(struct xdp_md *ctx, struct lw_matrix *matrix, __u32 first, __u32 at, __u32 length) \
	{                                                                                                          \
		return lw_stream_part(ctx, matrix, first, at, length, LW_FORRO, rounds, 1, 0);                     \
	}                                                                                                          \
	static __always_inline int name(struct xdp_md *ctx, struct lw_matrix *matrix, __u32 first, __u32 at,       \
					__u32 length)                                                              \
	{                                                                                                          \
		int done = length > 128 ? name##_wide(ctx, matrix, first, at, length) : 0;                         \
										                           \
		if (done < 0 || done == length)                                                                    \
			return done >= 0;                                                                          \
		return name##_rest(ctx, matrix, first + done / 64, at + done, length - done) >= 0;                 \
	}

/* As LW_FORRO_STREAM; ChaCha's blocks are processed one after the other. */
#define LW_CHACHA_STREAM(name, rounds)                                                                             \
	__noinline int name##_all(struct xdp_md *ctx, struct lw_matrix *matrix, __u32 first, __u32 at, __u32 length) \
	{                                                                                                          \
		return lw_stream_part(ctx, matrix, first, at, length, LW_CHACHA, rounds, 1, 0);                    \
	}                                                                                                          \
	static __always_inline int name(struct xdp_md *ctx, struct lw_matrix *matrix, __u32 first, __u32 at,       \
					__u32 length)                                                              \
	{                                                                                                          \
		return name##_all(ctx, matrix, first, at, length) >= 0;                                            \
	}

#endif
