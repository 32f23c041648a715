/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Decides which frames pass a gate without a session: ARP, neighbor discovery and DHCP in their exact format and on the
 * link only, and the control protocols that the operator has named. Also decides which frames no device may send (LAP/1
 * 1.4.17).
 */
#ifndef LW_ALWAYS_H
#define LW_ALWAYS_H

#include "lw_admission.h"

/* DHCP ports of clients and servers, in wire order. */
#define LW_DHCP4_CLIENT bpf_htons(68)
#define LW_DHCP4_SERVER bpf_htons(67)
#define LW_DHCP6_CLIENT bpf_htons(546)
#define LW_DHCP6_SERVER bpf_htons(547)

/* Maximum Ethernet padding after an ARP packet, bytes. Longer data is not padding. */
#define LW_BEHIND_MAX 18

/* Neighbor discovery (RFC 4861). */
#define LW_ND_ROUTER_SOLICITATION 133
#define LW_ND_ROUTER_ADVERTISEMENT 134
#define LW_ND_NEIGHBOR_SOLICITATION 135
#define LW_ND_NEIGHBOR_ADVERTISEMENT 136
#define LW_ND_REDIRECT 137
#define LW_MLD_QUERY 130
#define LW_ND_HOP_LIMIT 255
#define LW_ND_OPTIONS 16
/* Maximum size of the options in a host's message: eight options of eight bytes. */
#define LW_ND_HOST_OPTIONS 64

/*
 * Addresses of bridge protocols, in the format of lw_mac(): spanning tree, spanning tree of provider bridges, PVST+, and
 * one address for CDP, VTP and DTP.
 */
#define LW_MAC_STP 0x000000c28001ULL
#define LW_MAC_PROVIDER_STP 0x080000c28001ULL
#define LW_MAC_PVST 0xcdcccc0c0001ULL
#define LW_MAC_CDP 0xcccccc0c0001ULL

/* Whether the payload is ARP (RFC 826) for IPv4 over Ethernet: a request or a reply, followed only by padding. */
static __always_inline int lw_is_arp(const struct lw_frame *f)
{
	const __u16 *p = (const __u16 *)f->payload;

	if ((const void *)(p + 14) > f->end || lw_room(f, p) > 28 + LW_BEHIND_MAX)
		return 0;
	return p[0] == bpf_htons(1) && p[1] == LW_ETH_P_IP && p[2] == bpf_htons(0x0604) &&
	       (p[3] == bpf_htons(1) || p[3] == bpf_htons(2));
}

/* Whether a non-IP frame belongs to a control protocol that the operator has named. */
static __always_inline int lw_is_named(__u64 key)
{
#pragma unroll
	for (__u32 i = 0; i < LW_ALWAYS_MAX; i++) {
		if (i < cfg.always_count && key == cfg.always[i])
			return 1;
	}
	return 0;
}

/*
 * The key of a control protocol: the destination MAC address in the lower 48 bits. In the upper 16 bits, the Ethernet type
 * in wire order, or 0 for a length field (IEEE 802.3).
 */
static __always_inline __u64 lw_control_key(const struct lw_frame *f)
{
	__u64 type = bpf_ntohs(f->type) < 0x0600 ? 0 : f->type;

	return lw_mac(f->eth->dst) | type << 48;
}

static __always_inline enum lw_verdict lw_gate_other(const struct lw_frame *f)
{
	switch (f->type) {
	case LW_ETH_P_8021Q:
	case LW_ETH_P_8021AD:
	case bpf_htons(0x9100):
	case bpf_htons(0x9200):
	case bpf_htons(0x9300):
	case bpf_htons(0x88e7): /* I-TAG */
	case bpf_htons(0x8926): /* VN-Tag */
	case bpf_htons(0x893f): /* E-TAG */
		return LW_DROP_GATE_VLAN;
	}
	if (!(f->eth->dst[0] & 1))
		return 0;
	__u64 key = lw_control_key(f);

	if (lw_is_named(key))
		return LW_PASS_ALWAYS;
	if (key == LW_MAC_STP || key == LW_MAC_PROVIDER_STP || key == LW_MAC_PVST || key == LW_MAC_CDP)
		return LW_DROP_GATE_ROLE;
	return 0;
}

/* ---- groups and routers ---- */

static __always_inline int lw_is_link_local(const __u32 *addr)
{
	return (addr[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000);
}

/* Whether the packet is an IGMP report of a host (RFC 3376), with the router alert option (RFC 2113) and no other option. */
static __always_inline int lw_is_igmp_report(const struct lw_ip4 *ip, const void *end)
{
	const __u32 *option = (const __u32 *)(ip + 1);
	const __u8 *message = (const __u8 *)(option + 1);

	if (ip->version_ihl != 0x46 || ip->protocol != LW_PROTO_IGMP || ip->ttl != 1 ||
	    (*(const __u8 *)&ip->dst & 0xf0) != 0xe0 || bpf_ntohs(ip->total_length) < sizeof(*ip) + sizeof(*option) + 8 ||
	    (const void *)(message + 8) > end || *option != bpf_htonl(0x94040000))
		return 0;
	return *message == 0x12 || *message == 0x16 || *message == 0x17 || *message == 0x22;
}

/*
 * Whether the packet is an MLD report of a host (RFC 3810), with the router alert option (RFC 2711) and two bytes of padding
 * before or after this option.
 */
static __always_inline int lw_is_mld_report(const struct lw_ip6 *ip, const void *end)
{
	__u32 payload = bpf_ntohs(ip->payload_length);
	const __u64 *options = (const __u64 *)(ip + 1);
	const __u8 *message = (const __u8 *)(options + 1);

	if (ip->next_header || ip->hop_limit != 1 || payload < sizeof(*options) + 8 || (const void *)(message + 8) > end ||
	    message[1] || *(const __u8 *)ip->dst != 0xff)
		return 0;
	__u64 word = bpf_be64_to_cpu(*options);

	if (word != 0x3a00050200000100ULL && word != 0x3a00050200000000ULL && word != 0x3a00010005020000ULL &&
	    word != 0x3a00000005020000ULL)
		return 0;
	if (!lw_is_link_local(ip->src) && (ip->src[0] | ip->src[1] | ip->src[2] | ip->src[3]))
		return 0;
	if (*message == 131 || *message == 132)
		return payload >= sizeof(*options) + 24;
	return *message == 143;
}

/*
 * Drops messages that only routers send: ICMP redirects (RFC 792) and router advertisements (RFC 1256), IGMP queries (RFC
 * 3376). If the frame is in fragments, the message may begin after the visible part; its type is then unknown.
 */
static __always_inline enum lw_verdict lw_gate_control4(const struct lw_ip4 *ip, const void *end)
{
	const __u8 *type = (const __u8 *)(ip + 1);

	if ((ip->protocol != LW_PROTO_ICMP && ip->protocol != LW_PROTO_IGMP) ||
	    bpf_ntohs(ip->total_length) <= sizeof(*ip))
		return 0;
	if ((const void *)(type + 1) > end)
		return LW_DROP_TRUNCATED;
	if (ip->protocol == LW_PROTO_ICMP)
		return *type == 5 || *type == 9 ? LW_DROP_GATE_ROLE : 0;
	return *type == 0x11 ? LW_DROP_GATE_ROLE : 0;
}

/* ---- neighbor discovery ---- */

static __always_inline int lw_same(const __u32 *a, __u32 b0, __u32 b1, __u32 b2, __u32 b3)
{
	return a[0] == bpf_htonl(b0) && a[1] == bpf_htonl(b1) && a[2] == bpf_htonl(b2) && a[3] == bpf_htonl(b3);
}

static __always_inline int lw_is_devices6(const __u32 *addr)
{
	return lw_is_prefixed6((__u64)addr[1] << 32 | addr[0], (__u64)addr[3] << 32 | addr[2]);
}

/* Whether a message stays on the link. */
enum lw_nd { LW_ND_REFUSED, LW_ND_ON_LINK, LW_ND_BY_PREFIX /* if lw_nd_is_prefixed() */ };

/*
 * Whether the device's address is in the devices' prefixes, and the other address is in these prefixes or in the
 * device's /64, where a service's address can be.
 */
static __always_inline int lw_nd_is_prefixed(const __u32 *device, const __u32 *other)
{
	return lw_is_devices6(device) && ((device[0] == other[0] && device[1] == other[1]) || lw_is_devices6(other));
}

/*
 * Whether a message is addressed to the multicast groups of its type, or to one host on the link. No router forwards a
 * packet from or to a link-local address (RFC 4291 2.5.6), or to the gateway itself.
 */
static __always_inline enum lw_nd lw_nd_on_link(const struct lw_ip6 *ip, __u8 type, const int up)
{
	const __u32 *src = ip->src, *dst = ip->dst, *other = up ? dst : src;

	if (*(const __u8 *)src == 0xff || (type == LW_ND_ROUTER_ADVERTISEMENT && !lw_is_link_local(src)))
		return LW_ND_REFUSED;
	if (*(const __u8 *)dst != 0xff) {
		if (!(src[0] | src[1] | src[2] | src[3]))
			return LW_ND_REFUSED;
		if (lw_is_link_local(src) || lw_is_link_local(dst) || lw_is_local6(other))
			return LW_ND_ON_LINK;
		return LW_ND_BY_PREFIX;
	}
	if (type == LW_ND_ROUTER_SOLICITATION)
		return lw_same(dst, 0xff020000, 0, 0, 2);
	if (type != LW_ND_NEIGHBOR_SOLICITATION)
		return lw_same(dst, 0xff020000, 0, 0, 1);
	return dst[0] == bpf_htonl(0xff020000) && !dst[1] && dst[2] == bpf_htonl(1) &&
	       *(const __u8 *)(dst + 3) == 0xff;
}

/* Whether the lengths of the options add up to `remaining` bytes, up to the end of the packet. */
static __always_inline int lw_nd_options(const __u8 *p, const void *end, __u32 remaining)
{
#pragma clang loop unroll(disable)
	for (int i = 0; i < LW_ND_OPTIONS; i++) {
		if (!remaining)
			break;
		if ((const void *)(p + 2) > end)
			return 0;
		__u32 bytes = p[1] * 8;

		if (!bytes || bytes > remaining)
			return 0;
		p += bytes;
		remaining -= bytes;
	}
	return !remaining;
}

/*
 * Whether a message satisfies RFC 4861 6.1 and 7.1, except the checksum, and stays on the link. The caller has checked
 * that the message has one of the types in these sections.
 */
static __always_inline enum lw_nd lw_neighbor_discovery(const struct lw_frame *f, const int up)
{
	const struct lw_ip6 *ip = f->ip6;
	const __u8 *m = (const __u8 *)(ip + 1);

	if ((const void *)(m + 8) > f->end)
		return LW_ND_REFUSED;
	__u8 type = m[0];
	__u32 length = bpf_ntohs(ip->payload_length), room = lw_room(f, m), size_min;

	switch (type) {
	case LW_ND_ROUTER_SOLICITATION:
		size_min = 8;
		break;
	case LW_ND_ROUTER_ADVERTISEMENT:
		size_min = 16;
		break;
	default:
		size_min = 24;
	}
	if (ip->hop_limit != LW_ND_HOP_LIMIT || m[1] || length < size_min || length > room ||
	    room - length > LW_BEHIND_MAX)
		return LW_ND_REFUSED;
	if (type != LW_ND_ROUTER_ADVERTISEMENT && length - size_min > LW_ND_HOST_OPTIONS)
		return LW_ND_REFUSED;
	if (size_min == 24 && ((const void *)(m + 24) > f->end || m[8] == 0xff))
		return LW_ND_REFUSED;
	return lw_nd_options(m + size_min, f->end, length - size_min) ? lw_nd_on_link(ip, type, up) : LW_ND_REFUSED;
}

/* Result of lw_gate_list() if the caller must call lw_gate_by_prefix(). This value is not a verdict. */
#define LW_GATE_BY_PREFIX 0x100

/* Decides on IP packets other than UDP: ICMPv6, and IPv4 control messages that only routers send. */
static __always_inline int lw_gate_control(const struct lw_frame *f)
{
	if (!f->is6)
		return lw_gate_control4(f->ip4, f->end);
	switch (f->icmp6_type) {
	case LW_ND_ROUTER_SOLICITATION:
	case LW_ND_NEIGHBOR_SOLICITATION:
	case LW_ND_NEIGHBOR_ADVERTISEMENT:
		switch (lw_neighbor_discovery(f, 1)) {
		case LW_ND_REFUSED:
			return 0;
		case LW_ND_ON_LINK:
			return LW_PASS_ALWAYS;
		case LW_ND_BY_PREFIX:
			return LW_GATE_BY_PREFIX;
		}
		return 0;
	case LW_MLD_QUERY:
	case LW_ND_ROUTER_ADVERTISEMENT:
	case LW_ND_REDIRECT:
		return LW_DROP_GATE_ROLE;
	}
	return 0;
}

/* ---- DHCP ---- */

/* Unused entries repeat the first address, as in the list of the gateway's own addresses. */
static __always_inline int lw_is_dhcp4_server(__u32 addr)
{
	return cfg.dhcp4_count && (addr == cfg.dhcp4[0] || addr == cfg.dhcp4[1] || addr == cfg.dhcp4[2] ||
				   addr == cfg.dhcp4[3]);
}

static __always_inline int lw_is_dhcp6_server(const __u32 *addr)
{
	if (!cfg.dhcp6_count)
		return 0;
#pragma unroll
	for (__u32 i = 0; i < LW_LOCAL_MAX; i++) {
		const volatile __u32 *server = (const volatile __u32 *)cfg.dhcp6[i];

		if (addr[0] == server[0] && addr[1] == server[1] && addr[2] == server[2] && addr[3] == server[3])
			return 1;
	}
	return 0;
}

/*
 * Whether a datagram is addressed to a DHCP port. Client and server ports are adjacent, so that a datagram of a
 * session costs one comparison.
 */
static __always_inline int lw_is_dhcp(const struct lw_frame *f)
{
	__u16 port_min = f->is6 ? 546 : 67;

	return (__u16)(bpf_ntohs(f->udp->dst) - port_min) < 2;
}

/* Whether the ports belong to a DHCP message from a client to a server or, if `from_client` is 0, to a client. */
static __always_inline int lw_has_dhcp_ports(const struct lw_frame *f, const int from_client)
{
	__u16 client = f->is6 ? LW_DHCP6_CLIENT : LW_DHCP4_CLIENT;
	__u16 server = f->is6 ? LW_DHCP6_SERVER : LW_DHCP4_SERVER;

	return from_client ? f->udp->src == client && f->udp->dst == server :
			     f->udp->src == server && f->udp->dst == client;
}

/* Whether the data after the packet is only padding. */
static __always_inline int lw_is_padded(const struct lw_frame *f)
{
	__u32 room = f->is6 ? bpf_ntohs(f->ip6->payload_length) :
			      bpf_ntohs(f->ip4->total_length) - sizeof(struct lw_ip4);

	return lw_room(f, f->udp) - room <= LW_BEHIND_MAX;
}

/* Whether a datagram to that port is for a DHCP client. Clients accept a server's messages from any port. */
static __always_inline int lw_is_for_dhcp_client(__u16 port, int is6)
{
	return port == (is6 ? LW_DHCP6_CLIENT : LW_DHCP4_CLIENT);
}

/*
 * Passes DHCP messages of clients to all hosts on the link or to a named server. Drops messages to a client, which no
 * device may send.
 */
static __always_inline enum lw_verdict lw_gate_dhcp(const struct lw_frame *f)
{
	if (lw_is_for_dhcp_client(f->udp->dst, f->is6))
		return LW_DROP_GATE_ROLE;
	if (!lw_has_dhcp_ports(f, 1) || !lw_is_padded(f))
		return 0;
	if (!f->is6)
		return f->ip4->dst == 0xffffffff || lw_is_dhcp4_server(f->ip4->dst) ? LW_PASS_ALWAYS : 0;
	if (lw_same(f->ip6->dst, 0xff020000, 0, 0, 0x00010002) && lw_is_link_local(f->ip6->src))
		return LW_PASS_ALWAYS;
	return lw_is_dhcp6_server(f->ip6->dst) ? LW_PASS_ALWAYS : 0;
}

/* ---- at the gate ---- */

/* Whether lw_gate_list() handles the frame. Checks only fields that the parser has already found. */
static __always_inline int lw_is_on_list(const struct lw_frame *f, enum lw_kind kind)
{
	switch (kind) {
	case LW_KIND_UDP:
		return lw_is_dhcp(f);
	case LW_KIND_IP:
		if (f->is6)
			return f->icmp6_type >= LW_MLD_QUERY && f->icmp6_type <= LW_ND_REDIRECT;
		return f->ip4->protocol <= LW_PROTO_IGMP;
	case LW_KIND_ARP:
	case LW_KIND_OTHER:
	case LW_KIND_EXTENSION:
		return 1;
	default:
		return 0;
	}
}

/*
 * Decides which frames pass without a session, and which frames no device may send. Returns a verdict, 0 if the sender's
 * session decides, or LW_GATE_BY_PREFIX. This is a global function, which parses the frame again: inlined code would
 * slow down the packets of sessions.
 */
__noinline int lw_gate_list(struct xdp_md *ctx)
{
	struct lw_frame f = { .xdp = ctx };

	switch (lw_parse(&f)) {
	case LW_KIND_ARP:
		return lw_is_arp(&f) ? LW_PASS_ALWAYS : 0;
	case LW_KIND_OTHER:
		return lw_gate_other(&f);
	case LW_KIND_EXTENSION:
		if (f.is6 ? lw_is_mld_report(f.ip6, f.end) : lw_is_igmp_report(f.ip4, f.end))
			return 0;
		return LW_DROP_GATE_EXTENSION;
	case LW_KIND_IP:
		return lw_gate_control(&f);
	case LW_KIND_UDP:
		return lw_gate_dhcp(&f);
	default:
		return 0;
	}
}

/*
 * lw_nd_is_prefixed() for the IPv6 header at offset `at`. The caller of lw_gate_list() calls this function: if
 * lw_gate_list() called it, the functions would exceed the stack of Linux 6.1.
 */
__noinline int lw_gate_by_prefix(struct xdp_md *ctx, __u32 at)
{
	const struct lw_ip6 *ip = (void *)(long)ctx->data + (at & 0xff);

	if ((const void *)(ip + 1) > (void *)(long)ctx->data_end)
		return 0;
	return lw_nd_is_prefixed(ip->src, ip->dst) ? LW_PASS_ALWAYS : 0;
}

/* ---- counters by Ethernet type ---- */

/*
 * The Ethernet type of each place, for all CPUs. User space fills the first places before packets flow; the other places
 * are assigned to further types as these occur. 0: the place is free. Frames with a length field (IEEE 802.3) count as type 0.
 */
struct lw_dropped_types {
	__u64 type[LW_DROPPED_TYPES];
};
#define LW_TYPE_TAKEN 0x10000ULL
LW_ARRAY(dropped_types, struct lw_dropped_types, BPF_F_MMAPABLE);

/* Per CPU: frames by place, followed by frames of types without a place. */
struct lw_dropped {
	__u64 frames[LW_DROPPED_TYPES + 1];
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct lw_dropped);
} dropped SEC(".maps");

/* Counts a dropped frame by its Ethernet type. A global function, so that the kernel's verifier processes it one time. */
__noinline int lw_drop_type(__u32 ether_type)
{
	__u32 zero = 0, place = 0;
	struct lw_dropped_types *types = bpf_map_lookup_elem(&dropped_types, &zero);
	struct lw_dropped *counts = bpf_map_lookup_elem(&dropped, &zero);
	__u64 wanted = LW_TYPE_TAKEN | (ether_type < 0x0600 ? 0 : ether_type & 0xffff);

	if (!types || !counts)
		return 0;
#pragma clang loop unroll(disable)
	for (place = 0; place < LW_DROPPED_TYPES; place++) {
		__u64 current = LW_READ(types->type[place]);

		if (!current)
			current = __sync_val_compare_and_swap(&types->type[place], 0, wanted) ?: wanted;
		if (current == wanted)
			break;
	}
	if (place <= LW_DROPPED_TYPES)
		counts->frames[place]++;
	return 0;
}

#endif
