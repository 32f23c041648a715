// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Ciphers in the data plane, for measurement and comparison with those of user space: blocks alone, and programs that
 * encrypt the payload of every UDP packet and send it back, as published programs do on a switch. IPv4 without options.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lw_aead.h"

#define LW_ONE(name, map_type, value_type) \
	struct {                           \
		__uint(type, map_type);    \
		__uint(max_entries, 1);    \
		__type(key, __u32);        \
		__type(value, value_type); \
	} name SEC(".maps")

struct lw_input {
	struct lw_matrix matrix; /* for blocks and streams */
	struct lw_aead aead;
};
LW_ONE(input, BPF_MAP_TYPE_ARRAY, struct lw_input);

/* Keystream of the block programs. */
struct lw_output {
	__u32 word[4][16];
};
LW_ONE(output, BPF_MAP_TYPE_ARRAY, struct lw_output);

LW_ONE(work, BPF_MAP_TYPE_PERCPU_ARRAY, struct lw_aead_work);

#define LW_GET(map)                                     \
	({                                              \
		__u32 zero_ = 0;                        \
		bpf_map_lookup_elem(&(map), &zero_);    \
	})

SEC("xdp")
int empty(struct xdp_md *ctx)
{
	return XDP_TX;
}

/* LW_STEPS dependent additions: measures one step of a chain. */
#define LW_STEPS 1000
SEC("xdp")
int steps(struct xdp_md *ctx)
{
	__u32 sum = ctx->rx_queue_index, addend = ctx->ingress_ifindex;

#pragma unroll
	for (int i = 0; i < LW_STEPS; i++) {
		sum += addend;
		asm volatile("" : "+r"(sum));
	}
	return sum == 1 ? XDP_ABORTED : XDP_TX;
}

static __always_inline int lw_blocks(enum lw_cipher cipher, const int rounds, const int width)
{
	struct lw_input *in = LW_GET(input);
	struct lw_output *out = LW_GET(output);
	__u32 m[LW_WIDTH_MAX][16];

	if (!in || !out)
		return XDP_ABORTED;
	lw_keystream(m, &in->matrix, 0, cipher, rounds, width);
#pragma unroll
	for (int lane = 0; lane < width; lane++) {
#pragma unroll
		for (int i = 0; i < 16; i++)
			out->word[lane][i] = lw_keystream_word(m, &in->matrix, 0, cipher, width, lane, i);
	}
	return XDP_TX;
}

#define LW_BLOCKS(name, cipher, rounds)                       \
	SEC("xdp") int name##_x1(struct xdp_md *ctx)          \
	{                                                     \
		return lw_blocks(cipher, rounds, 1);          \
	}                                                     \
	SEC("xdp") int name##_x2(struct xdp_md *ctx)          \
	{                                                     \
		return lw_blocks(cipher, rounds, 2);          \
	}                                                     \
	SEC("xdp") int name##_x4(struct xdp_md *ctx)          \
	{                                                     \
		return lw_blocks(cipher, rounds, 4);          \
	}

LW_BLOCKS(plain, LW_PLAIN, 0)
LW_BLOCKS(forro6, LW_FORRO, LW_FORRO6)
LW_BLOCKS(forro10, LW_FORRO, LW_FORRO10)
LW_BLOCKS(forro14, LW_FORRO, LW_FORRO14)
LW_BLOCKS(chacha8, LW_CHACHA, LW_CHACHA8)
LW_BLOCKS(chacha12, LW_CHACHA, LW_CHACHA12)
LW_BLOCKS(chacha20, LW_CHACHA, LW_CHACHA20)

struct lw_datagram {
	__u8 dst[6], src[6];
	__u16 type;
	__u8 version_ihl, tos;
	__u16 total_length, id, fragment;
	__u8 ttl, protocol;
	__u16 ip_checksum;
	__u16 source[2], destination[2]; /* addresses, which are not aligned to four bytes */
	__u16 source_port, destination_port;
	__u16 length, checksum;
};
#define LW_PAYLOAD_AT sizeof(struct lw_datagram)

/*
 * Swaps the datagram's addresses and ports. The UDP checksum becomes zero, which IPv4 allows: the checksum of the
 * encrypted payload would need another pass. Returns the payload's length, or -1 if the datagram is incomplete.
 */
static __always_inline int lw_turn(struct xdp_md *ctx)
{
	struct lw_datagram *d = (void *)(long)ctx->data;

	if ((void *)(d + 1) > (void *)(long)ctx->data_end || d->type != bpf_htons(0x0800) || d->version_ihl != 0x45 ||
	    d->protocol != 17 || d->fragment & bpf_htons(0x3fff))
		return -1;
	__u32 length = bpf_ntohs(d->length);

	if (length < 8 || length - 8 > LW_STREAM_MAX)
		return -1;
#define LW_SWAP(a, b)                          \
	do {                                   \
		__typeof__(a) swapped_ = (a);  \
		(a) = (b);                     \
		(b) = swapped_;                \
	} while (0)
	__u16 *mac = (__u16 *)d->dst;

	LW_SWAP(mac[0], mac[3]);
	LW_SWAP(mac[1], mac[4]);
	LW_SWAP(mac[2], mac[5]);
	LW_SWAP(d->source[0], d->destination[0]);
	LW_SWAP(d->source[1], d->destination[1]);
	LW_SWAP(d->source_port, d->destination_port);
	d->checksum = 0;
	return length - 8;
}

typedef int (*lw_stream_fn)(struct xdp_md *ctx, struct lw_matrix *matrix, __u32 first, __u32 at, __u32 length);

static __always_inline int lw_answer(struct xdp_md *ctx, lw_stream_fn stream)
{
	struct lw_input *in = LW_GET(input);
	int length = lw_turn(ctx);

	if (length < 0)
		return XDP_PASS;
	if (!in)
		return XDP_ABORTED;
	return !stream || stream(ctx, &in->matrix, 0, LW_PAYLOAD_AT, length) ? XDP_TX : XDP_PASS;
}

SEC("xdp")
int answer(struct xdp_md *ctx)
{
	return lw_answer(ctx, 0);
}

#define LW_ANSWER(cipher, function)                  \
	SEC("xdp") int answer_##cipher(struct xdp_md *ctx) \
	{                                            \
		return lw_answer(ctx, function);     \
	}

LW_FORRO_STREAM(lw_forro6_stream, LW_FORRO6)
LW_FORRO_STREAM(lw_forro10_stream, LW_FORRO10)
LW_CHACHA_STREAM(lw_chacha8_stream, LW_CHACHA8)
LW_CHACHA_STREAM(lw_chacha12_stream, LW_CHACHA12)
LW_ANSWER(forro6, lw_forro6_stream)
LW_ANSWER(forro10, lw_forro10_stream)
LW_ANSWER(forro14, lw_forro14_stream)
LW_ANSWER(chacha8, lw_chacha8_stream)
LW_ANSWER(chacha12, lw_chacha12_stream)
LW_ANSWER(chacha20, lw_chacha20_stream)

/* Seals, opens, or does both so that the program can be repeated on the same packet. */
static __always_inline int lw_answer_aead(struct xdp_md *ctx, enum lw_cipher cipher, int seal, int open)
{
	struct lw_input *in = LW_GET(input);
	struct lw_aead_work *w = LW_GET(work);
	int length = lw_turn(ctx);

	if (length < LW_AEAD_TAG)
		return XDP_PASS;
	if (!in || !w)
		return XDP_ABORTED;
	length -= LW_AEAD_TAG;
	if (seal && !lw_aead_seal(ctx, &in->aead, w, LW_PAYLOAD_AT, length, cipher))
		return XDP_PASS;
	if (open && !lw_aead_open(ctx, &in->aead, w, LW_PAYLOAD_AT, length, cipher))
		return XDP_DROP;
	return XDP_TX;
}

#define LW_ANSWER_AEAD(name, cipher)                               \
	SEC("xdp") int name##_seal(struct xdp_md *ctx)             \
	{                                                          \
		return lw_answer_aead(ctx, cipher, 1, 0);          \
	}                                                          \
	SEC("xdp") int name##_open(struct xdp_md *ctx)             \
	{                                                          \
		return lw_answer_aead(ctx, cipher, 0, 1);          \
	}                                                          \
	SEC("xdp") int name##_both(struct xdp_md *ctx)             \
	{                                                          \
		return lw_answer_aead(ctx, cipher, 1, 1);          \
	}

LW_ANSWER_AEAD(xforro14poly1305, LW_FORRO)
LW_ANSWER_AEAD(chacha20poly1305, LW_CHACHA)

/*
 * Poly1305 alone, with the first eight words of the matrix as key. The tag is written where an AEAD would write it.
 */
SEC("xdp")
int poly1305(struct xdp_md *ctx)
{
	struct lw_input *in = LW_GET(input);
	struct lw_aead_work *w = LW_GET(work);
	int length = lw_turn(ctx);

	if (length < LW_AEAD_TAG)
		return XDP_PASS;
	if (!in || !w)
		return XDP_ABORTED;
	length -= LW_AEAD_TAG;
#pragma unroll
	for (int i = 0; i < 8; i++)
		w->once[i] = in->matrix.word[i];
	return lw_aead_tag(ctx, &in->aead, w, LW_PAYLOAD_AT, length) && lw_tag_put(ctx, w, LW_PAYLOAD_AT + length) ?
		       XDP_TX :
		       XDP_PASS;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
