// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Programs for the bench of PROOFs: the gateway's program behind a harness that copies the next prover's PROOF into the
 * packet on every run, after constant headers. A prover can become ok only one time per round, so each pass over the
 * provers opens a round, and the harness restores nothing.
 */
#include "lw_attest.h"
#include "lw_gateway.h"

/* Size of the Ethernet, IPv4 and UDP headers. */
#define LW_CASE_AT 42

struct lw_case {
	__u64 word[LW_PROOF_MESSAGE / 8];
};
LW_ARRAY(cases, struct lw_case, BPF_F_MMAPABLE);

struct lw_bench {
	__u64 next; /* the next case */
	__u64 count; /* number of cases */
};
LW_ARRAY(bench, struct lw_bench, BPF_F_MMAPABLE);

/* Stores with the size of the gateway program's loads. */
static __always_inline int lw_prepare(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct lw_bench *b = bpf_map_lookup_elem(&bench, &zero);

	if (!b)
		return 0;
	__u32 index = b->next;

	b->next = index + 1 < b->count ? index + 1 : 0;
	struct lw_case *next_case = bpf_map_lookup_elem(&cases, &index);
	__u8 *packet = (__u8 *)(long)ctx->data;

	if (!next_case || (void *)(packet + LW_CASE_AT + sizeof(*next_case)) > (void *)(long)ctx->data_end)
		return 0;
#pragma unroll
	for (int i = 0; i < LW_PROOF_MESSAGE / 8; i++)
		*(volatile __u64 *)(packet + LW_CASE_AT + 8 * i) = *(volatile __u64 *)(next_case->word + i);
	return 1;
}

SEC("xdp")
int bench_harness(struct xdp_md *ctx)
{
	return lw_prepare(ctx) ? XDP_DROP : XDP_ABORTED;
}

/* Replaces linewarden_proof. */
SEC("xdp")
int bench_proof(struct xdp_md *ctx)
{
	return lw_prove(ctx);
}

SEC("xdp")
int bench_gateway(struct xdp_md *ctx)
{
	return lw_prepare(ctx) ? lw_gateway(ctx) : XDP_ABORTED;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
