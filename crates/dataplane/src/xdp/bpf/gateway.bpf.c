// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* LAP handling and gate on a port of the gateway: incoming frames and, at a sealed gate, outgoing frames. */
#include "lw_attest.h"
#include "lw_gateway.h"
#include "lw_seal.h"
#include "lw_stamp.h"

SEC("xdp")
int linewarden_gateway(struct xdp_md *ctx)
{
	return lw_gateway(ctx);
}

/* Handles PROOFs: linewarden_gateway tail-calls this program. */
SEC("xdp")
int linewarden_proof(struct xdp_md *ctx)
{
	return lw_prove(ctx);
}

/* Replaces linewarden_gateway at a sealed gate, and calls it for messages to the gateway itself. */
SEC("xdp")
int linewarden_sealed(struct xdp_md *ctx)
{
	return lw_sealed_gateway(ctx);
}

/* With in-band evidence: replaces linewarden_gateway at a bound gate, and linewarden_sealed at a sealed one. */
SEC("xdp")
int linewarden_gateway_stamping(struct xdp_md *ctx)
{
	return lw_gateway_stamping(ctx);
}

SEC("xdp")
int linewarden_sealed_stamping(struct xdp_md *ctx)
{
	return lw_sealed_stamping(ctx);
}

/* Adds evidence to packets that pass a gate: the two programs above tail-call this program. */
SEC("xdp")
int linewarden_stamp(struct xdp_md *ctx)
{
	return lw_stamp(ctx);
}

/* Seals datagrams, also after the gateway has ended. */
SEC("tc")
int linewarden_seal(struct __sk_buff *skb)
{
	return lw_egress(skb);
}

/*
 * Seals datagrams while the gateway runs; afterwards all frames pass. The filter stays when its process is killed. The
 * program detects the end of the process because the fresh value is no longer replaced.
 */
SEC("tc")
int linewarden_seal_alive(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct lw_ctx c = {};

	c.cpu = bpf_map_lookup_elem(&percpu, &zero);
	c.control = bpf_map_lookup_elem(&control, &zero);
	if (!c.cpu || !c.control)
		return TC_ACT_SHOT;
	lw_clock(&c);
	return lw_is_stopped(&c) ? TC_ACT_UNSPEC : lw_egress(skb);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
