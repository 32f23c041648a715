/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Checks whether a longer packet still fits its path. Otherwise notifies the sender: ICMPv6 "packet too big". */
#ifndef LW_TOO_BIG_H
#define LW_TOO_BIG_H

#include "lw_forward.h"

#define LW_IP6_MTU_MIN 1280
/* Maximum number of messages per second and CPU (RFC 4443 2.4 f). */
#define LW_TOO_BIG_PER_S 1000

struct lw_icmp6_too_big {
	__u8 type;
	__u8 code;
	__u16 checksum;
	__u32 mtu;
};
/* Sizes of the headers in front of the quoted packet and of the quote (RFC 4443 3.2), bytes. */
#define LW_TOO_BIG_HEADERS (sizeof(struct lw_ip6) + sizeof(struct lw_icmp6_too_big))
#define LW_QUOTED (LW_IP6_MTU_MIN - LW_TOO_BIG_HEADERS)
/* bpf_csum_diff() accepts at most 512 bytes. */
#define LW_SUMMED (LW_QUOTED / 4)
_Static_assert(LW_SUMMED % 4 == 0 && LW_SUMMED <= 512, "four sums");

/*
 * The MTU of the packet's path if the packet with `added_bytes` more bytes does not fit; 0 if it fits. If the gateway routes
 * the packet, the result is the MTU of the route, otherwise the MTU of the interface on which the packet arrived. (A bridge
 * does not route, although it may have routes.)
 */
__noinline int lw_path_mtu(struct xdp_md *ctx, __u32 ip_at, __u32 added_bytes)
{
	void *end = (void *)(long)ctx->data_end;
	struct lw_eth *eth = (void *)(long)ctx->data;
	struct lw_ip6 *ip = (void *)(long)ctx->data + (ip_at & 31);
	struct bpf_fib_lookup fib = { .family = LW_AF_INET6, .ifindex = ctx->ingress_ifindex };

	if ((void *)(eth + 1) > end || (void *)(ip + 1) > end)
		return 0;
	__u32 length = bpf_ntohs(ip->payload_length) + sizeof(*ip) + added_bytes;

	if (length > 0xffff)
		return 0;
	fib.l4_protocol = ip->next_header;
	fib.tot_len = length;
	fib.flowinfo = ip->version_class_flow & bpf_htonl(0x0fffffff);
	__builtin_memcpy(fib.ipv6_src, ip->src, sizeof(ip->src));
	__builtin_memcpy(fib.ipv6_dst, ip->dst, sizeof(ip->dst));
	if (lw_is_routed_here(ctx, eth)) {
		switch (bpf_fib_lookup(ctx, &fib, sizeof(fib), 0)) {
		case BPF_FIB_LKUP_RET_FRAG_NEEDED:
			return fib.mtu_result;
		case BPF_FIB_LKUP_RET_SUCCESS:
		case BPF_FIB_LKUP_RET_NO_NEIGH:
			return 0;
		}
	}
	return bpf_check_mtu(ctx, 0, &length, 0, 0) == BPF_MTU_CHK_RET_FRAG_NEEDED ? length : 0;
}

/* Whether a message to the sender goes to one host. */
static __always_inline int lw_may_be_notified(struct xdp_md *ctx)
{
	struct lw_frame f = { .xdp = ctx };

	return lw_parse(&f) >= LW_KIND_IP && f.is6 && lw_is_answerable(&f);
}

/*
 * Writes the message in front of the packet, whose Ethernet header with tags, `at` bytes, begins LW_TOO_BIG_HEADERS
 * bytes after the message. The message uses the MAC address of the interface: the packet may have been addressed to
 * another station, whose MAC address the switches on the link would otherwise learn here.
 */
static __always_inline int lw_write_too_big(void *data, void *end, const int at, __u32 mtu, __u64 own_mac)
{
	__u8 *old = data + LW_TOO_BIG_HEADERS, *eth = data;
	struct lw_ip6 *ip = data + at, *quoted = (void *)old + at;
	struct lw_icmp6_too_big *error = (void *)(ip + 1);

	if ((void *)quoted + LW_QUOTED > end)
		return 0;
#pragma unroll
	for (int i = 0; i < at; i++)
		eth[i] = i < 6 ? old[i + 6] : i < 12 ? (__u8)(own_mac >> 8 * (i - 6)) : old[i];
	ip->version_class_flow = bpf_htonl(0x60000000);
	ip->payload_length = bpf_htons(LW_IP6_MTU_MIN - sizeof(*ip));
	ip->next_header = LW_PROTO_ICMPV6;
	ip->hop_limit = 64;
	error->type = 2;
	error->code = 0;
	error->checksum = 0;
	error->mtu = bpf_htonl(mtu);
	__u64 sum = 2ULL + error->mtu + ip->payload_length + bpf_htons(LW_PROTO_ICMPV6);
	const volatile __u32 *own = (const volatile __u32 *)cfg.local6[0];

#pragma unroll
	for (int i = 0; i < 4; i++) {
		/* A gateway without an address of the family uses the unreachable destination's address. */
		ip->src[i] = cfg.local6_count ? own[i] : quoted->dst[i];
		ip->dst[i] = quoted->src[i];
		sum += (__u64)ip->src[i] + ip->dst[i];
	}
	__u32 quotes = 0;

#pragma unroll
	for (int i = 0; i < 4; i++)
		quotes = bpf_csum_diff(NULL, 0, (void *)quoted + i * LW_SUMMED, LW_SUMMED, quotes);
	error->checksum = lw_fold(sum + quotes);
	return 1;
}

/*
 * Turns the packet, which is longer than LW_IP6_MTU_MIN, into the message to its sender. Returns 0 if the sender
 * cannot be notified.
 */
__noinline int lw_too_big(struct xdp_md *ctx, __u32 ip_at, __u32 mtu)
{
	int is_written = 0;
	__u32 zero = 0;
	struct lw_control *control_block = bpf_map_lookup_elem(&control, &zero);
	struct lw_port *port = control_block ? lw_find_port(control_block, ctx->ingress_ifindex) : NULL;

	if (!port)
		return 0;
	__u64 own_mac = LW_READ(port->mac[0]);

	if (bpf_xdp_adjust_head(ctx, -(int)LW_TOO_BIG_HEADERS))
		return 0;
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 length = (__u32)((long)end - (long)data);

	/* Prevents clang from adding to halves of the pointers. */
	asm volatile("" : "+r"(length));
	__s32 behind = (__s32)length - (__s32)((ip_at & 31) + LW_IP6_MTU_MIN);

	switch (ip_at) {
#define LW_CASE(at) \
	case at: is_written = lw_write_too_big(data, end, at, mtu, own_mac); break
		LW_CASE(14);
		LW_CASE(18);
		LW_CASE(22);
#undef LW_CASE
	}
	return is_written && behind >= 0 && (!behind || !bpf_xdp_adjust_tail(ctx, -behind));
}

#endif
