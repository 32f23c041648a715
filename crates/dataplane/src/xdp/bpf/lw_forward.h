/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Forwards opened datagrams without the network stack, by its routes and neighbors, through the interfaces that the
 * operator has named. All other packets go to the stack unchanged.
 */
#ifndef LW_FORWARD_H
#define LW_FORWARD_H

#include "lw_admission.h"

#define LW_AF_INET 2
#define LW_AF_INET6 10

/*
 * Interfaces to which datagrams may be sent, by index. Never an interface on the devices' side, where datagrams would
 * leave unsealed.
 */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u32);
} forward SEC(".maps");

/* Not 0: `forward` is not empty. */
__u32 lw_forwards;

/* Looks up the route of an IPv4 packet. Returns 1 if the packet can be forwarded. */
static __always_inline int lw_route4(struct xdp_md *ctx, struct lw_ip4 *ip, struct bpf_fib_lookup *fib)
{
	fib->family = LW_AF_INET;
	fib->tos = ip->tos;
	fib->tot_len = bpf_ntohs(ip->total_length);
	fib->ipv4_src = ip->src;
	fib->ipv4_dst = ip->dst;
	return ip->ttl > 1 && bpf_fib_lookup(ctx, fib, sizeof(*fib), 0) == BPF_FIB_LKUP_RET_SUCCESS;
}

/* As lw_route4(), for IPv6. */
static __always_inline int lw_route6(struct xdp_md *ctx, struct lw_ip6 *ip, struct bpf_fib_lookup *fib)
{
	fib->family = LW_AF_INET6;
	fib->flowinfo = ip->version_class_flow & bpf_htonl(0x0fffffff);
	fib->tot_len = bpf_ntohs(ip->payload_length) + sizeof(*ip);
	__builtin_memcpy(fib->ipv6_src, ip->src, sizeof(ip->src));
	__builtin_memcpy(fib->ipv6_dst, ip->dst, sizeof(ip->dst));
	return ip->hop_limit > 1 && bpf_fib_lookup(ctx, fib, sizeof(*fib), 0) == BPF_FIB_LKUP_RET_SUCCESS;
}

/* Whether the frame is addressed to the interface on which it arrived. */
static __always_inline int lw_is_routed_here(struct xdp_md *ctx, const struct lw_eth *eth)
{
	__u32 zero = 0;
	struct lw_control *control_block = bpf_map_lookup_elem(&control, &zero);
	struct lw_port *port = control_block ? lw_find_port(control_block, ctx->ingress_ifindex) : NULL;

	return port && LW_READ(port->mac[0]) == lw_mac(eth->dst);
}

/* The XDP action for an opened datagram. */
__noinline int lw_forward(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct lw_eth *eth = data;
	struct lw_ip4 *ip4 = (struct lw_ip4 *)(eth + 1);
	struct lw_ip6 *ip6 = (struct lw_ip6 *)(eth + 1);
	struct bpf_fib_lookup fib = { .l4_protocol = LW_PROTO_UDP, .ifindex = ctx->ingress_ifindex };

	/* VLANs and bridges are left to the stack. */
	if ((void *)(ip4 + 1) > end || !lw_is_routed_here(ctx, eth))
		return XDP_PASS;
	int is6 = eth->type == LW_ETH_P_IPV6;

	if (is6) {
		if ((void *)(ip6 + 1) > end || !lw_route6(ctx, ip6, &fib))
			return XDP_PASS;
	} else if (eth->type != LW_ETH_P_IP || !lw_route4(ctx, ip4, &fib)) {
		return XDP_PASS;
	}
	__u32 out = fib.ifindex;

	if (!bpf_map_lookup_elem(&forward, &out))
		return XDP_PASS;
	if (is6) {
		ip6->hop_limit--;
	} else {
		/* RFC 1141: the checksum grows by the decrease of the TTL. */
		__u32 sum = ip4->checksum + bpf_htons(0x0100);

		ip4->checksum = sum + (sum >= 0xffff);
		ip4->ttl--;
	}
	__builtin_memcpy(eth->dst, fib.dmac, sizeof(eth->dst));
	__builtin_memcpy(eth->src, fib.smac, sizeof(eth->src));
	return bpf_redirect_map(&forward, out, XDP_DROP);
}

#endif
