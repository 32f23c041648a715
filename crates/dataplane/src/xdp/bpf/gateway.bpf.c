// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The verifier and gate of a gateway's port: what comes in, and, past a sealed gate, what goes out. */
#include "lw_attest.h"
#include "lw_gateway.h"
#include "lw_p4dra.h"
#include "lw_seal.h"
#include "lw_stamp.h"

SEC("xdp")
int linewarden_gateway(struct xdp_md *ctx)
{
	return lw_gateway(ctx);
}

/* PROOFs, which linewarden_gateway hands on. */
SEC("xdp")
int linewarden_proof(struct xdp_md *ctx)
{
	return lw_prove(ctx);
}

/* Frames of p4dra-classic, which the others hand on. */
SEC("xdp")
int linewarden_p4dra(struct xdp_md *ctx)
{
	return lw_p4dra(ctx);
}

/* In the place of linewarden_gateway at a sealed gate; that one is called for what is for the gateway itself. */
SEC("xdp")
int linewarden_sealed(struct xdp_md *ctx)
{
	return lw_sealed_gateway(ctx);
}

/* In the place of linewarden_gateway at an open gate, and of linewarden_sealed at a sealed one, where packets carry evidence. */
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

/* What passes a gate, which these hand on. */
SEC("xdp")
int linewarden_stamp(struct xdp_md *ctx)
{
	return lw_stamp(ctx);
}

/* While a gateway lives, and after. */
SEC("tc")
int linewarden_seal(struct __sk_buff *skb)
{
	return lw_egress(skb);
}

/*
 * While a gateway lives, and then everything passes: a filter stays when its process is killed. That nobody renews the
 * fresh value tells.
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
