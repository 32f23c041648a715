/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Parses frames and writes replies. Each parser checks the remaining length before it reads, and returns the kind of the
 * frame. No parser reads a byte before the check of that byte.
 */
#ifndef LW_PACKET_H
#define LW_PACKET_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>

#include "lw_maps.h"

#define LW_ETH_P_IP bpf_htons(0x0800)
#define LW_ETH_P_ARP bpf_htons(0x0806)
#define LW_ETH_P_8021Q bpf_htons(0x8100)
#define LW_ETH_P_8021AD bpf_htons(0x88a8)
#define LW_ETH_P_IPV6 bpf_htons(0x86dd)
#define LW_IP4_NO_OPTIONS 0x45 /* version 4, and a header of five words */
#define LW_PROTO_ICMP 1
#define LW_PROTO_IGMP 2
#define LW_PROTO_UDP 17
#define LW_PROTO_ICMPV6 58
#define LW_PROTO_FRAGMENT 44

struct lw_eth {
	__u8 dst[6];
	__u8 src[6];
	__u16 type;
};
struct lw_vlan {
	__u16 tci;
	__u16 type;
};
struct lw_ip4 {
	__u8 version_ihl;
	__u8 tos;
	__u16 total_length;
	__u16 id;
	__u16 fragment;
	__u8 ttl;
	__u8 protocol;
	__u16 checksum;
	__u32 src;
	__u32 dst;
};
struct lw_ip6 {
	__u32 version_class_flow;
	__u16 payload_length;
	__u8 next_header;
	__u8 hop_limit;
	__u32 src[4];
	__u32 dst[4];
};
struct lw_udp {
	__u16 src;
	__u16 dst;
	__u16 length;
	__u16 checksum;
};

/* The kind of a frame, as far as the gate and the handling of messages need it. */
enum lw_kind {
	LW_KIND_BROKEN, /* its headers are truncated or contradict each other */
	LW_KIND_BROKEN_OURS, /* only the UDP length is wrong, in a datagram to the gateway's LAP port */
	LW_KIND_ARP,
	LW_KIND_OTHER, /* a non-IP frame of no other kind */
	LW_KIND_FRAGMENT,
	LW_KIND_EXTENSION, /* IPv4 options or an IPv6 extension header */
	LW_KIND_IP, /* IP, not UDP */
	LW_KIND_UDP,
};

struct lw_frame {
	struct xdp_md *xdp; /* NULL for an outgoing packet, which has no fragments */
	void *end; /* data_end */
	struct lw_eth *eth;
	union {
		struct lw_ip4 *ip4;
		struct lw_ip6 *ip6; /* if is6 */
	};
	struct lw_udp *udp;
	__u8 *payload; /* of UDP, or of a non-IP frame */
	__u32 payload_length; /* by the UDP header; within the frame */
	__u32 vlans; /* the outer one in the upper half, the inner one in the lower half */
	/*
	 * A scalar: the kernel's verifier does not know that a packet pointer is not NULL. 64 bits: the verifier forgets the
	 * value of a smaller field that shares a stack slot with others.
	 */
	__u64 is6;
	__u8 local; /* addressed to the gateway itself */
	__u8 tags; /* VLAN tags that were parsed; those with VID 0 are not in `vlans` */
	__u8 icmp6_type; /* 0 if not ICMPv6 */
	__u16 type; /* of a non-IP frame: Ethernet type after the tags, in wire order */
};

/* Unused entries repeat the first address, so that the count matters only for a family without addresses. */
static __always_inline int lw_is_local4(__u32 dst)
{
	return cfg.local4_count && (dst == cfg.local4[0] || dst == cfg.local4[1] || dst == cfg.local4[2] ||
				    dst == cfg.local4[3]);
}

static __always_inline int lw_is_local6(const __u32 *dst)
{
	if (!cfg.local6_count)
		return 0;
#pragma unroll
	for (__u32 i = 0; i < LW_LOCAL_MAX; i++) {
		const volatile __u32 *local = (const volatile __u32 *)cfg.local6[i];

		if (dst[0] == local[0] && dst[1] == local[1] && dst[2] == local[2] && dst[3] == local[3])
			return 1;
	}
	return 0;
}

/* Number of bytes of the frame in fragments, after the visible part. */
static __always_inline __u32 lw_behind(const struct lw_frame *f)
{
	if (!cfg.frags || !f->xdp)
		return 0;
	__u64 visible = (long)f->xdp->data_end - (long)f->xdp->data;

	/* Prevents clang from subtracting the pointers one by one. */
	asm volatile("" : "+r"(visible));
	return bpf_xdp_get_buff_len(f->xdp) - (__u32)visible;
}

/* Number of bytes of the frame from that position on, including fragments. */
static __always_inline __u32 lw_room(const struct lw_frame *f, const void *cursor)
{
	__u64 room = (long)f->end - (long)cursor;

	/* Prevents clang from adding to one of the pointers first. */
	asm volatile("" : "+r"(room));
	return room + lw_behind(f);
}

/*
 * Whether the frame has this many bytes from that position on. The visible part mostly contains them; fragments are
 * queried only otherwise.
 */
static __always_inline int lw_has(const struct lw_frame *f, const void *cursor, __u32 bytes)
{
	__u32 visible = (long)f->end - (long)cursor;

	return bytes <= visible || bytes - visible <= lw_behind(f);
}

/* The UDP header and payload; `room` is the space that the IP header leaves for them. */
static __always_inline enum lw_kind lw_parse_udp(struct lw_frame *f, void *cursor, __u32 room)
{
	struct lw_udp *udp = cursor;

	if (room < sizeof(*udp) || (void *)(udp + 1) > f->end)
		return LW_KIND_BROKEN;
	f->udp = udp;
	f->payload = (__u8 *)(udp + 1);
	__u32 length = bpf_ntohs(udp->length);

	if (length < sizeof(*udp) || length > room)
		return f->local && udp->dst == cfg.lap_port ? LW_KIND_BROKEN_OURS : LW_KIND_BROKEN;
	f->payload_length = length - sizeof(*udp);
	return LW_KIND_UDP;
}

static __always_inline enum lw_kind lw_parse_ip4(struct lw_frame *f, void *cursor)
{
	struct lw_ip4 *ip = cursor;

	if ((void *)(ip + 1) > f->end)
		return LW_KIND_BROKEN;
	__u32 total = bpf_ntohs(ip->total_length);
	int is_plain = ip->version_ihl == LW_IP4_NO_OPTIONS;

	if (!is_plain) {
		__u32 header = (ip->version_ihl & 0x0f) * 4;

		if (ip->version_ihl >> 4 != 4 || header < sizeof(*ip) || total < header)
			return LW_KIND_BROKEN;
	} else if (total < sizeof(*ip)) {
		return LW_KIND_BROKEN;
	}
	/* No pointer arithmetic on `total`: the kernel's verifier would forget its bound. */
	if (!lw_has(f, cursor, total))
		return LW_KIND_BROKEN;
	f->ip4 = ip;
	f->local = lw_is_local4(ip->dst);
	if (ip->fragment & bpf_htons(0x3fff))
		return LW_KIND_FRAGMENT;
	if (!is_plain)
		return LW_KIND_EXTENSION;
	if (ip->protocol != LW_PROTO_UDP)
		return LW_KIND_IP;
	return lw_parse_udp(f, ip + 1, total - sizeof(*ip));
}

static __always_inline int lw_is_extension(__u8 next_header)
{
	switch (next_header) {
	case 0: /* hop-by-hop */
	case 43: /* routing */
	case 51: /* AH */
	case 60: /* destination */
	case 135: /* mobility */
	case 139: /* HIP */
	case 140: /* shim6 */
		return 1;
	}
	return 0;
}

static __always_inline enum lw_kind lw_parse_ip6(struct lw_frame *f, void *cursor)
{
	struct lw_ip6 *ip = cursor;

	if ((void *)(ip + 1) > f->end)
		return LW_KIND_BROKEN;
	__u32 payload = bpf_ntohs(ip->payload_length);

	if ((*(__u8 *)cursor) >> 4 != 6 || !lw_has(f, ip + 1, payload))
		return LW_KIND_BROKEN;
	f->ip6 = ip;
	f->is6 = 1;
	f->local = lw_is_local6(ip->dst);
	if (ip->next_header == LW_PROTO_FRAGMENT)
		return LW_KIND_FRAGMENT;
	if (lw_is_extension(ip->next_header))
		return LW_KIND_EXTENSION;
	if (ip->next_header == LW_PROTO_ICMPV6) {
		__u8 *type = (__u8 *)(ip + 1);

		/* If the frame is in fragments, the message may begin after the visible part. The decision needs its type. */
		if (payload >= 1) {
			if ((void *)(type + 1) > f->end)
				return LW_KIND_BROKEN;
			f->icmp6_type = *type;
		}
	}
	if (ip->next_header != LW_PROTO_UDP)
		return LW_KIND_IP;
	return lw_parse_udp(f, ip + 1, payload);
}

static __always_inline int lw_is_tag(__u16 type)
{
	return type == LW_ETH_P_8021Q || type == LW_ETH_P_8021AD;
}

/*
 * A tag's VLAN; 0 for VID 0, which names no VLAN. Without a branch, like the combination of two VLANs: each branch
 * would multiply the states that the kernel's verifier processes.
 */
static __always_inline __u32 lw_vlan_word(const struct lw_vlan *tag)
{
	/* Read again to hide the value from the compiler. Of the two types, 0x88a8 has bit 3 set, in either byte order. */
	__u32 vid = bpf_ntohs(tag->tci) & 0x0fff, kind = ((const volatile __u16 *)tag)[-1];

	return (vid | LW_VLAN_TAGGED | (kind & 8) * (LW_VLAN_SERVICE / 8)) & -((vid + 0x0fff) >> 12);
}

static __always_inline enum lw_kind lw_parse_frame(void *cursor, void *end, struct lw_frame *f)
{
	f->end = end;
	f->eth = cursor;
	if ((void *)(f->eth + 1) > f->end)
		return LW_KIND_BROKEN;
	cursor = f->eth + 1;
	__u16 type = f->eth->type;

	if (lw_is_tag(type)) {
		struct lw_vlan *outer = cursor, *inner = outer + 1;
		__u32 second = 0;

		if ((void *)(outer + 1) > f->end)
			return LW_KIND_BROKEN;
		type = outer->type;
		cursor = inner;
		f->tags = 1;
		if (lw_is_tag(type)) {
			if ((void *)(inner + 1) > f->end)
				return LW_KIND_BROKEN;
			second = lw_vlan_word(inner);
			type = inner->type;
			cursor = inner + 1;
			f->tags = 2;
		}
		/* If the outer tag is a priority tag (VID 0), the VLAN of the inner tag becomes the outer VLAN. */
		__u32 first = lw_vlan_word(outer), is_first = -((first + 0x7fff) >> 15);

		f->vlans = (first | (second & ~is_first)) << 16 | (second & is_first);
	}
	if (type == LW_ETH_P_IP)
		return lw_parse_ip4(f, cursor);
	if (type == LW_ETH_P_IPV6)
		return lw_parse_ip6(f, cursor);
	f->type = type;
	f->payload = cursor;
	return type == LW_ETH_P_ARP ? LW_KIND_ARP : LW_KIND_OTHER;
}

static __always_inline enum lw_kind lw_parse(struct lw_frame *f)
{
	return lw_parse_frame((void *)(long)f->xdp->data, (void *)(long)f->xdp->data_end, f);
}

static __always_inline int lw_is_between_hosts(const struct lw_frame *f)
{
	return !((f->eth->dst[0] | f->eth->src[0]) & 1);
}

/*
 * Whether a reply can be sent to the frame's sender: neither MAC address is a group address, and the IP source names
 * one host. An IPv6 source in ::/64, except ::1, names no host: a mapped address would be taken for its IPv4 address.
 */
static __always_inline int lw_is_answerable(const struct lw_frame *f)
{
	if (!lw_is_between_hosts(f))
		return 0;
	if (!f->is6)
		return (__u8)(*(__u8 *)&f->ip4->src - 1) < 223;
	if (!(f->ip6->src[0] | f->ip6->src[1]))
		return !f->ip6->src[2] && f->ip6->src[3] == bpf_htonl(1);
	return *(__u8 *)f->ip6->src != 0xff;
}

/* A MAC address in the low 48 bits, as loaded; the bytes are those of LAP/1's loc word. */
static __always_inline __u64 lw_mac(const __u8 *mac)
{
	return (__u64)(*(__u32 *)mac) | (__u64)(*(__u16 *)(mac + 4)) << 32;
}

/* The second half of an IPv4 address in the stored format, mapped into IPv6; the first half is 0. */
static __always_inline __u64 lw_mapped(__u32 addr)
{
	return (__u64)addr << 32 | 0xffff0000ULL;
}

static __always_inline void lw_source_address(const struct lw_frame *f, __u64 addr[2])
{
	if (!f->is6) {
		addr[0] = 0;
		addr[1] = lw_mapped(f->ip4->src);
	} else {
		addr[0] = (__u64)f->ip6->src[1] << 32 | f->ip6->src[0];
		addr[1] = (__u64)f->ip6->src[3] << 32 | f->ip6->src[2];
	}
}

static __always_inline __u16 lw_fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (__u16)~sum;
}

/*
 * Turns the headers into those of the reply: swaps MAC addresses, IP addresses and ports, and sets TTL 64 and a new
 * IPv4 checksum; the lengths stay. The result is passed to lw_close(). The one's complement sum is independent of byte
 * order (RFC 1071 1.2), so loads are native.
 */
static __always_inline __u64 lw_turn_headers(struct lw_frame *f)
{
	/* Volatile, so that clang does not replace these accesses by six two-byte swaps. */
	volatile __u32 *mac = (volatile __u32 *)f->eth;
	__u32 w0 = mac[0], w1 = mac[1], w2 = mac[2];

	mac[0] = w1 >> 16 | w2 << 16;
	mac[1] = w2 >> 16 | w0 << 16;
	mac[2] = w0 >> 16 | w1 << 16;

	__u64 sum = 0;

	if (!f->is6) {
		/*
		 * Lifetime, protocol and checksum as one word: loads of bytes that were stored separately would wait for the
		 * stores.
		 */
		__u32 *w = (__u32 *)f->ip4;
		__u32 ttl_protocol = (w[2] & bpf_htonl(0x00ff0000)) | bpf_htonl(64 << 24), src = w[3], dst = w[4];

		sum += (__u64)src + dst;
		w[2] = ttl_protocol | (__u32)lw_fold((__u64)w[0] + w[1] + ttl_protocol + src + dst) << 16;
		w[3] = dst;
		w[4] = src;
	} else {
#pragma unroll
		for (int i = 0; i < 4; i++) {
			__u32 src = f->ip6->src[i];

			sum += (__u64)src + f->ip6->dst[i];
			f->ip6->src[i] = f->ip6->dst[i];
			f->ip6->dst[i] = src;
		}
		f->ip6->hop_limit = 64;
	}
	__u32 *ports = (__u32 *)f->udp, swapped_ports = *ports >> 16 | *ports << 16;

	*ports = swapped_ports;
	/* Pseudo header: protocol and UDP length; and the length again in the UDP header itself. */
	return sum + bpf_htons(LW_PROTO_UDP) + 2ULL * f->udp->length + swapped_ports;
}

/* Writes the UDP checksum of a reply: `sum` is the sum of the swapped headers and of the payload as 32-bit words. */
static __always_inline void lw_close(struct lw_frame *f, __u64 sum)
{
	__u16 checksum = lw_fold(sum);

	f->udp->checksum = checksum ? checksum : 0xffff;
}

static __always_inline void lw_swap_and_close(struct lw_frame *f, __u64 payload_sum)
{
	lw_close(f, lw_turn_headers(f) + payload_sum);
}

#endif
