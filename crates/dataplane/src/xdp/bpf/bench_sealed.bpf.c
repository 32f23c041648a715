// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Programs for the benches of the sealed gate: both directions behind a harness that restores the packet on every
 * run. Opening ends with a move of the packet's start, sealing with a move of its end; the harness reverses the move.
 * The harness alone makes both moves, so the cost of one move must be added to the difference. bench_*_moves is the harness
 * with two additional moves.
 */
#include "lw_data.h"
#include "lw_seal.h"

struct lw_bench {
	__u64 frame[16]; /* the first 128 B: headers and, upwards, the LAP header */
	__u64 window;
	__u32 place; /* of the line */
	__u32 bytes; /* size of the whole frame before the measured step */
};
LW_ARRAY(bench, struct lw_bench, BPF_F_MMAPABLE);

/* Stores with the sizes of the gateway program's loads, as in bench.bpf.c. */
static __always_inline int lw_lay_out(void *packet, void *end, const struct lw_bench *b, int bytes)
{
	const __u8 *from = (const __u8 *)b->frame;

	if (packet + bytes > end)
		return 0;
#define LW_PUT(type, at) (*(volatile type *)(packet + (at)) = *(volatile type *)(from + (at)))
	LW_PUT(__u32, 0);
	LW_PUT(__u32, 4);
	LW_PUT(__u32, 8);
	LW_PUT(__u16, 12);
#pragma unroll
	for (int at = 14; at < 42; at += 2)
		LW_PUT(__u16, at);
#pragma unroll
	for (int at = 42; at + 8 <= bytes; at += 8)
		LW_PUT(__u64, at);
#undef LW_PUT
	return 1;
}

static __always_inline int lw_prepare_up(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct lw_bench *b = bpf_map_lookup_elem(&bench, &zero);
	struct lw_line *line = b ? lw_line_at(b->place) : NULL;

	if (!b || !line || bpf_xdp_adjust_head(ctx, -LW_DATA_HEADER))
		return 0;
	line->window = b->window;
	return lw_lay_out((void *)(long)ctx->data, (void *)(long)ctx->data_end, b, 98);
}

SEC("xdp")
int bench_up_harness(struct xdp_md *ctx)
{
	return lw_prepare_up(ctx) && !bpf_xdp_adjust_head(ctx, LW_DATA_HEADER) ? XDP_PASS : XDP_ABORTED;
}

SEC("xdp")
int bench_up_moves(struct xdp_md *ctx)
{
	if (bpf_xdp_adjust_head(ctx, -LW_DATA_HEADER) || bpf_xdp_adjust_head(ctx, LW_DATA_HEADER))
		return XDP_ABORTED;
	return lw_prepare_up(ctx) && !bpf_xdp_adjust_head(ctx, LW_DATA_HEADER) ? XDP_PASS : XDP_ABORTED;
}

SEC("xdp")
int bench_up(struct xdp_md *ctx)
{
	return lw_prepare_up(ctx) ? lw_sealed_gateway(ctx) : XDP_ABORTED;
}

static __always_inline int lw_prepare_down(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct lw_bench *b = bpf_map_lookup_elem(&bench, &zero);

	if (!b || bpf_skb_change_tail(skb, b->bytes, 0))
		return 0;
	return lw_lay_out((void *)(long)skb->data, (void *)(long)skb->data_end, b, 42);
}

SEC("tc")
int bench_down_harness(struct __sk_buff *skb)
{
	__u32 length = skb->len;

	return lw_prepare_down(skb) && !bpf_skb_change_tail(skb, length, 0) ? TC_ACT_UNSPEC : TC_ACT_SHOT;
}

SEC("tc")
int bench_down_moves(struct __sk_buff *skb)
{
	__u32 zero = 0, length = skb->len;
	struct lw_bench *b = bpf_map_lookup_elem(&bench, &zero);

	if (!b || bpf_skb_change_tail(skb, b->bytes, 0) || bpf_skb_change_tail(skb, length, 0))
		return TC_ACT_SHOT;
	return lw_prepare_down(skb) && !bpf_skb_change_tail(skb, length, 0) ? TC_ACT_UNSPEC : TC_ACT_SHOT;
}

SEC("tc")
int bench_down(struct __sk_buff *skb)
{
	return lw_prepare_down(skb) ? lw_egress(skb) : TC_ACT_SHOT;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
