// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Programs for the bench of in-band evidence: the stamp behind a harness that removes the option again on every run
 * and restores the headers. Stamping ends with a move of the packet's start; the harness reverses the move. The
 * harness alone makes both moves, so the cost of one move must be added to the difference. bench_stamp_moves is the harness
 * with two additional moves.
 */
#include "lw_stamp.h"

struct lw_bench {
	__u64 frame[8]; /* the headers of an untagged IPv6 packet */
};
LW_ARRAY(bench, struct lw_bench, BPF_F_MMAPABLE);

static __always_inline int lw_prepare(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct lw_bench *b = bpf_map_lookup_elem(&bench, &zero);

	if (!b || bpf_xdp_adjust_head(ctx, LW_OPTION))
		return 0;
	void *packet = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (packet + 54 > end)
		return 0;
#pragma unroll
	for (int at = 0; at < 54; at += 2)
		*(volatile __u16 *)(packet + at) = *(volatile __u16 *)((const __u8 *)b->frame + at);
	return 1;
}

SEC("xdp")
int bench_stamp_harness(struct xdp_md *ctx)
{
	return lw_prepare(ctx) && !bpf_xdp_adjust_head(ctx, -LW_OPTION) ? XDP_PASS : XDP_ABORTED;
}

SEC("xdp")
int bench_stamp_moves(struct xdp_md *ctx)
{
	if (bpf_xdp_adjust_head(ctx, LW_OPTION) || bpf_xdp_adjust_head(ctx, -LW_OPTION))
		return XDP_ABORTED;
	return lw_prepare(ctx) && !bpf_xdp_adjust_head(ctx, -LW_OPTION) ? XDP_PASS : XDP_ABORTED;
}

SEC("xdp")
int bench_stamp(struct xdp_md *ctx)
{
	return lw_prepare(ctx) ? lw_stamp(ctx) : XDP_ABORTED;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
