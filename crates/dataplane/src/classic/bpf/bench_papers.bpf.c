// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * The packet paths of the classic profiles, which no gateway loads, and programs for their benches: each packet path behind
 * a harness that copies the next message into the packet on every run.
 */
#include "lw_classic.h"
#include "lw_p4dra.h"
#include "lw_lay_out.h"

static __always_inline int lw_begin(struct lw_ctx *c)
{
	__u32 zero = 0;

	c->cpu = bpf_map_lookup_elem(&percpu, &zero);
	c->control = bpf_map_lookup_elem(&control, &zero);
	return c->cpu && c->control;
}

static __always_inline int lw_action(struct lw_ctx *c, enum lw_verdict verdict)
{
	lw_count(c->cpu, verdict);
	if (verdict < 16)
		return XDP_PASS;
	return verdict < 32 ? XDP_TX : XDP_DROP;
}

static __always_inline int lw_serve_classic(struct xdp_md *ctx)
{
	struct lw_ctx c = { .frame.xdp = ctx };

	return lw_begin(&c) ? lw_action(&c, lw_classic(&c)) : XDP_DROP;
}

static __always_inline int lw_serve_p4dra(struct xdp_md *ctx)
{
	struct lw_ctx c = { .frame.xdp = ctx };

	return lw_begin(&c) ? lw_action(&c, lw_p4dra(&c)) : XDP_DROP;
}

SEC("xdp")
int papers_classic(struct xdp_md *ctx)
{
	return lw_serve_classic(ctx);
}

SEC("xdp")
int papers_p4dra(struct xdp_md *ctx)
{
	return lw_serve_p4dra(ctx);
}

/* The message of a classic profile, and the state of identifier 1 before each run. */
struct lw_classic_case {
	__u8 byte[LW_CASE_BYTES];
	struct lw_classic_state state;
};
LW_ARRAY(classic_case, struct lw_classic_case, BPF_F_MMAPABLE);

static __always_inline int lw_prepare_classic(struct xdp_md *ctx)
{
	struct lw_classic_case *next_case = lw_at(&classic_case, 0);
	struct lw_classic_state *state = lw_at(&classic_states, 0);
	__u8 *packet = (__u8 *)(long)ctx->data;

	if (!next_case || !state || (void *)(packet + LW_CASE_BYTES) > (void *)(long)ctx->data_end)
		return 0;
	lw_lay_out(packet, next_case->byte);
	state->expected = next_case->state.expected;
	state->next = next_case->state.next;
	return 1;
}

SEC("xdp")
int classic_harness(struct xdp_md *ctx)
{
	return lw_prepare_classic(ctx) ? XDP_TX : XDP_ABORTED;
}

SEC("xdp")
int bench_classic(struct xdp_md *ctx)
{
	return lw_prepare_classic(ctx) ? lw_serve_classic(ctx) : XDP_ABORTED;
}

/* An untagged frame with a reply of p4dra-classic. */
#define LW_FRAME_BYTES 111

struct lw_case {
	__u64 word[(LW_FRAME_BYTES + 7) / 8];
};
LW_ARRAY(cases, struct lw_case, BPF_F_MMAPABLE);

struct lw_bench {
	__u64 next; /* the next case */
	__u64 count; /* number of cases */
};
LW_ARRAY(bench, struct lw_bench, BPF_F_MMAPABLE);

/*
 * Copies the next prover's reply into the packet, with the sizes of the packet path's loads. A prover can become ok only one
 * time per round, so each pass over the provers opens a round. A packet that was replaced by a VERIFIED, which is longer,
 * is shortened at its head before the next run.
 */
static __always_inline int lw_prepare_p4dra(struct xdp_md *ctx)
{
	struct lw_bench *b = lw_at(&bench, 0);
	int longer = ctx->data_end - ctx->data - LW_FRAME_BYTES;

	/* Called with 0 too, so that the harness alone costs the same. */
	if (!b || bpf_xdp_adjust_head(ctx, longer > 0 ? LW_P4DRA_PROOF_BYTES : 0))
		return 0;
	__u32 index = b->next;

	b->next = index + 1 < b->count ? index + 1 : 0;
	struct lw_case *next_case = lw_at(&cases, index);
	__u8 *packet = (__u8 *)(long)ctx->data;

	if (!next_case || (void *)(packet + LW_FRAME_BYTES) > (void *)(long)ctx->data_end)
		return 0;
	const __u8 *from = (const __u8 *)next_case->word;

	LW_PUT(packet, from, __u32, 0);
	LW_PUT(packet, from, __u32, 4);
	LW_PUT(packet, from, __u32, 8);
	LW_PUT(packet, from, __u16, 12);
	LW_PUT(packet, from, __u8, 14);
#pragma unroll
	for (int at = 15; at + 8 <= LW_FRAME_BYTES; at += 8)
		LW_PUT(packet, from, __u64, at);
	return 1;
}

SEC("xdp")
int p4dra_harness(struct xdp_md *ctx)
{
	return lw_prepare_p4dra(ctx) ? XDP_DROP : XDP_ABORTED;
}

SEC("xdp")
int bench_p4dra(struct xdp_md *ctx)
{
	return lw_prepare_p4dra(ctx) ? lw_serve_p4dra(ctx) : XDP_ABORTED;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
