// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Programs for the bench of p4dra-classic: the gateway's program behind a harness that copies the next prover's reply into
 * the packet on every run. A prover can become ok only one time per round, so each pass over the provers opens a round. A
 * packet that was replaced by a VERIFIED, which is longer, is shortened at its head before the next run.
 */
#include "lw_p4dra.h"
#include "lw_gateway.h"

/* An untagged frame with a reply. */
#define LW_FRAME_BYTES 111
#define LW_CASE_BYTES 112

struct lw_case {
	__u64 word[LW_CASE_BYTES / 8];
};
LW_ARRAY(cases, struct lw_case, BPF_F_MMAPABLE);

struct lw_bench {
	__u64 next; /* the next case */
	__u64 count; /* number of cases */
};
LW_ARRAY(bench, struct lw_bench, BPF_F_MMAPABLE);

/* Stores with the sizes of the gateway program's loads, as in bench.bpf.c. */
static __always_inline int lw_prepare(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct lw_bench *b = bpf_map_lookup_elem(&bench, &zero);
	int longer = ctx->data_end - ctx->data - LW_FRAME_BYTES;

	/* Called with 0 too, so that the harness alone costs the same. */
	if (!b || bpf_xdp_adjust_head(ctx, longer > 0 ? LW_P4DRA_PROOF_BYTES : 0))
		return 0;
	__u32 index = b->next;

	b->next = index + 1 < b->count ? index + 1 : 0;
	struct lw_case *next_case = bpf_map_lookup_elem(&cases, &index);
	__u8 *packet = (__u8 *)(long)ctx->data;

	if (!next_case || (void *)(packet + LW_FRAME_BYTES) > (void *)(long)ctx->data_end)
		return 0;
	const __u8 *from = (const __u8 *)next_case->word;
#define LW_PUT(type, at) (*(volatile type *)(packet + (at)) = *(volatile type *)(from + (at)))
	LW_PUT(__u32, 0);
	LW_PUT(__u32, 4);
	LW_PUT(__u32, 8);
	LW_PUT(__u16, 12);
	LW_PUT(__u8, 14);
#pragma unroll
	for (int at = 15; at + 8 <= LW_FRAME_BYTES; at += 8)
		LW_PUT(__u64, at);
#undef LW_PUT
	return 1;
}

SEC("xdp")
int bench_harness(struct xdp_md *ctx)
{
	return lw_prepare(ctx) ? XDP_DROP : XDP_ABORTED;
}

/* Replaces linewarden_p4dra. */
SEC("xdp")
int bench_p4dra(struct xdp_md *ctx)
{
	return lw_p4dra(ctx);
}

SEC("xdp")
int bench_gateway(struct xdp_md *ctx)
{
	return lw_prepare(ctx) ? lw_gateway(ctx) : XDP_ABORTED;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
