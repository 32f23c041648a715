/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Checks a frame and returns one verdict, in the order of docs/protocols.md 1.4.12. */
#ifndef LW_GATEWAY_H
#define LW_GATEWAY_H

#include "lw_gate.h"
#include "lw_lap.h"

static __always_inline enum lw_verdict lw_check(struct lw_ctx *c)
{
	/*
	 * Keeps the frame in memory. If clang kept it in registers, each return of the parser would set and spill every
	 * field that it had not found.
	 */
	asm volatile("" : : "r"(&c->frame) : "memory");
	enum lw_kind kind = lw_parse(&c->frame);

	if (kind == LW_KIND_UDP && c->frame.local && lw_is_addressed(c) && c->frame.udp->dst == cfg.lap_port)
		return lw_is_answerable(&c->frame) ? lw_lap(c) : LW_DROP_UNANSWERABLE;
	if (cfg.gate != LW_GATE_OFF)
		return lw_gate(c, kind);
	int is_parsed = kind != LW_KIND_BROKEN_OURS && kind != LW_KIND_FRAGMENT && kind != LW_KIND_EXTENSION;

	if (is_parsed || !c->frame.local || !lw_is_addressed(c))
		return LW_PASS_FOREIGN;
	return kind == LW_KIND_BROKEN_OURS ? LW_DROP_TRUNCATED : LW_PASS_UNPARSED;
}

static __always_inline int lw_gateway(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct lw_ctx c = { .frame.xdp = ctx };

	c.cpu = bpf_map_lookup_elem(&percpu, &zero);
	c.control = bpf_map_lookup_elem(&control, &zero);
	if (!c.cpu || !c.control)
		return XDP_DROP;
	lw_clock(&c);
	enum lw_verdict verdict = lw_check(&c);

	lw_count(c.cpu, verdict);
	/* Verdicts below 16 pass and below 32 reply. verdict.rs ensures this, and a test checks it. */
	if (verdict < 16)
		return XDP_PASS;
	return verdict < 32 ? XDP_TX : XDP_DROP;
}

#endif
