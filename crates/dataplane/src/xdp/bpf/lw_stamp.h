/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * In-band evidence in packets that pass the gate towards services (docs/protocols.md 4.5): an IPv6 option of the
 * hop-by-hop header. A separate program that the gates tail-call. The kernel empties the table of programs when
 * the gateway's process ends, so no packet is stamped after the gateway has ended, and a gateway without in-band evidence
 * executes none of this.
 */
#ifndef LW_STAMP_H
#define LW_STAMP_H

#include "lw_data.h"
#include "lw_gateway.h"
#include "lw_too_big.h"

/* Size of a hop-by-hop header with the option, in bytes and words. */
#define LW_OPTION 104
#define LW_OPTION_WORDS (LW_OPTION / 8)
/* Offset, in words, of the part that differs between packets: the counter, followed by the tag. */
#define LW_OPTION_COUNTER 10
#define LW_INVARIANT_WORDS 6
/* Words of a tag's input: those in the midstate, the counter, the invariants. */
#define LW_TAG_WORDS (15 + 1 + LW_INVARIANT_WORDS)

#define LW_ETH_P_CLONE bpf_htons(0x5241)
/* Padding after an IPv6 header without payload in an Ethernet frame of the smallest size. */
#define LW_PADDING_MAX 6

/* Evidence of one state, without the parts that differ between packets. */
struct lw_stamp {
	__u64 number; /* number of the publication of this state; 0 while the state is written */
	__u64 until_ns; /* expiry, CLOCK_MONOTONIC; a new confirmation of the state extends it */
	__u64 option[LW_OPTION_WORDS]; /* in wire order; next header, counter and tag are zero */
	__u64 midstate[4]; /* SipHash after the words with which all tags of the state begin; a secret */
	__u64 pad[5];
};
/* Publication n is in slot n % 2: the previous publication stays readable during a write. */
struct lw_stamping {
	struct lw_stamp slot[2];
	__u64 current; /* number of the active publication; 0: none */
	__u64 pad[7]; /* separates the fields that every packet writes into their own cache line */
	__u64 counter; /* of the latest packet: shared by all CPUs, because the appraiser's window is 1,024 packets */
	__u64 room[7];
};
LW_ARRAY(stamping, struct lw_stamping, BPF_F_MMAPABLE);

/* Per CPU: packets that passed. */
struct lw_stamp_counts {
	__u64 stamped;
	__u64 not_ipv6;
	__u64 stale; /* without evidence: no state, or the state has expired */
	__u64 unfit; /* without evidence: too long, or malformed headers */
	__u64 notified_second; /* the second to which `notified` belongs */
	__u64 notified; /* senders that were notified of the size */
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct lw_stamp_counts);
} stamp_counts SEC(".maps");

/* A packet that carries evidence. */
struct lw_carrier {
	__u32 ip_at; /* bytes of the frame up to the IPv6 header */
	__u32 payload; /* bytes after the IPv6 header, by its length field */
	__u64 next; /* next header of the IPv6 header */
	__u64 invariants[LW_INVARIANT_WORDS];
};

enum lw_look {
	LW_LOOK_STAMP,
	LW_LOOK_PASS, /* unchanged: of another family, or for the gateway itself */
	LW_LOOK_UNFIT,
	LW_LOOK_FORGED, /* the packet could carry forged evidence */
};

/* Mask of the bits that a tag covers in the first 8 bytes of a transport header, as loaded: all except checksums. */
static __always_inline __u64 lw_counted(__u8 protocol)
{
	switch (protocol) {
	case 6: /* TCP */
	case 50: /* ESP */
	case 132: /* SCTP */
		return ~0ULL;
	case LW_PROTO_UDP:
		return 0x0000ffffffffffffULL;
	case 1: /* ICMP, which is not used with IPv6 */
	case LW_PROTO_ICMPV6:
		return 0xffffffff0000ffffULL;
	}
	return 0;
}

/*
 * Whether the packet can carry an option. The gate passes no VLAN tags except those that are parsed here, and only one
 * extension header, the hop-by-hop header of membership reports.
 */
static __always_inline enum lw_look lw_look(struct xdp_md *ctx, struct lw_carrier *c, struct lw_stamp_counts *counts)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end, *cursor;
	struct lw_eth *eth = data;

	if ((void *)(eth + 1) > end)
		return LW_LOOK_PASS;
	__u16 type = eth->type;

	cursor = eth + 1;
	c->ip_at = sizeof(*eth);
#pragma unroll
	for (int i = 0; i < 2; i++) {
		if (type != LW_ETH_P_8021Q && type != LW_ETH_P_8021AD)
			break;
		struct lw_vlan *vlan = cursor;

		if ((void *)(vlan + 1) > end)
			return LW_LOOK_PASS;
		type = vlan->type;
		cursor = vlan + 1;
		c->ip_at += sizeof(*vlan);
	}
	if (type == LW_ETH_P_CLONE)
		return LW_LOOK_FORGED;
	if (type != LW_ETH_P_IPV6) {
		counts->not_ipv6++;
		return LW_LOOK_PASS;
	}
	struct lw_ip6 *ip = cursor;
	__u64 *transport = (__u64 *)(ip + 1);

	if ((void *)(ip + 1) > end)
		return LW_LOOK_UNFIT;
	/* A membership report: it has its own hop-by-hop header, and ends at the first router. */
	if (!ip->next_header)
		return LW_LOOK_UNFIT;
	if (lw_is_local6(ip->dst))
		return LW_LOOK_PASS;
	__u32 bytes_after = (__u32)((long)end - (long)transport);

	c->payload = bpf_ntohs(ip->payload_length);
	c->next = ip->next_header;
	/* Length 0 means a jumbogram, or a packet without payload. */
	if ((*(__u8 *)cursor) >> 4 != 6 || c->payload > bytes_after || c->payload + LW_OPTION > 0xffff ||
	    (!c->payload && bytes_after > LW_PADDING_MAX))
		return LW_LOOK_UNFIT;
	c->invariants[0] = 6 | c->next << 8 | (__u64)LW_ETH_P_IPV6 << 16 | (__u64)bpf_htonl(c->payload) << 32;
	c->invariants[1] = (__u64)ip->src[1] << 32 | ip->src[0];
	c->invariants[2] = (__u64)ip->src[3] << 32 | ip->src[2];
	c->invariants[3] = (__u64)ip->dst[1] << 32 | ip->dst[0];
	c->invariants[4] = (__u64)ip->dst[3] << 32 | ip->dst[2];
	c->invariants[5] = 0;
	if (c->payload >= sizeof(*transport) && (void *)(transport + 1) <= end)
		c->invariants[5] = *transport & lw_counted(c->next);
	return LW_LOOK_STAMP;
}

/* Copies the active state. Returns 0 if there is none, or if it was replaced during the copy. */
static __always_inline int lw_read_stamp(struct lw_stamping *s, __u64 now_ns, struct lw_stamp *to)
{
	__u64 current = lw_ordered_load(&s->current);
	struct lw_stamp *from = &s->slot[current & 1];

	if (!current || LW_READ(from->until_ns) <= now_ns)
		return 0;
#pragma unroll
	for (int i = 0; i < LW_OPTION_WORDS; i++)
		to->option[i] = LW_READ(from->option[i]);
#pragma unroll
	for (int i = 0; i < 4; i++)
		to->midstate[i] = LW_READ(from->midstate[i]);
	/* A writer that published two states during the copy has changed this number first. */
	return lw_ordered_load(&from->number) == current;
}

/* Writes the parts that differ between packets. */
static __always_inline void lw_sign(struct lw_stamping *s, const struct lw_carrier *c, struct lw_stamp *stamp)
{
	stamp->option[0] |= c->next;
	__u64 counter = bpf_cpu_to_be64(__sync_fetch_and_add(&s->counter, 1) + 1);
	struct lw_sip sip = { stamp->midstate[0], stamp->midstate[1], stamp->midstate[2], stamp->midstate[3] };

	lw_sip_word(&sip, counter);
#pragma unroll
	for (int i = 0; i < LW_INVARIANT_WORDS; i++)
		lw_sip_word(&sip, c->invariants[i]);
	stamp->option[LW_OPTION_COUNTER] = counter;
	lw_sip_finish(&sip, LW_TAG_WORDS, &stamp->option[LW_OPTION_COUNTER + 1]);
}

/* Moves the headers to the front, and inserts the option after them. `at` is the offset of the IPv6 header. */
static __always_inline int lw_lay_option(void *data, void *end, const int at, __u32 payload, const __u64 *option)
{
	struct lw_ip6 *ip = data + at;
	__u64 *to = (__u64 *)(ip + 1);
	const int headers = at + sizeof(*ip);

	if ((void *)(to + LW_OPTION_WORDS) > end)
		return 0;
#define LW_MOVE(i) (*(volatile __u64 *)(data + (i)) = *(volatile __u64 *)(data + LW_OPTION + (i)))
#pragma unroll
	for (int i = 0; i + 8 <= headers; i += 8)
		LW_MOVE(i);
	/* Source and destination do not overlap; some bytes are moved twice. */
	LW_MOVE(headers - 8);
#undef LW_MOVE
	ip->payload_length = bpf_htons(payload + LW_OPTION);
	ip->next_header = 0;
#pragma unroll
	for (int i = 0; i < LW_OPTION_WORDS; i++)
		to[i] = option[i];
	return 1;
}

/* Inserts the option into the packet, which has already grown at its head. Returns `passes` or the reason to drop. */
static __always_inline enum lw_verdict lw_insert(struct xdp_md *ctx, const struct lw_carrier *c, const __u64 *option,
						 struct lw_stamp_counts *counts, enum lw_verdict passes)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	int is_inserted = 0;

	switch (c->ip_at) {
#define LW_CASE(at) \
	case at: is_inserted = lw_lay_option(data, end, at, c->payload, option); break
		LW_CASE(14);
		LW_CASE(18);
		LW_CASE(22);
#undef LW_CASE
	}
	if (!is_inserted)
		return LW_DROP_TRUNCATED;
	counts->stamped++;
	return passes;
}

/*
 * Whether there is a source address for a message to the sender: an address of the gateway, otherwise the packet's
 * destination if this destination is the address of one host.
 */
static __always_inline int lw_has_source_address(const struct lw_carrier *c)
{
	return cfg.local6_count || (c->invariants[3] & 0xff) != 0xff;
}

/* Packets up to this size fit every link with the option. */
#define LW_FITS (LW_IP6_MTU_MIN - LW_OPTION)

static __always_inline int lw_stamp(struct xdp_md *ctx)
{
	const enum lw_verdict passes = cfg.gate == LW_GATE_SEALED ? LW_PASS_DATA : LW_PASS_SESSION;
	enum lw_verdict verdict = passes;
	__u32 zero = 0;
	struct lw_percpu *cpu = bpf_map_lookup_elem(&percpu, &zero);
	struct lw_stamp_counts *counts = bpf_map_lookup_elem(&stamp_counts, &zero);
	struct lw_stamping *s = bpf_map_lookup_elem(&stamping, &zero);
	struct lw_carrier c;
	struct lw_stamp stamp;

	if (!cpu || !counts || !s)
		return XDP_DROP;
	enum lw_look look = lw_look(ctx, &c, counts);
	int mtu = 0;

	if (look == LW_LOOK_STAMP && !lw_read_stamp(s, cpu->clock_ns, &stamp)) {
		counts->stale++;
		look = LW_LOOK_PASS;
	}
	if (look == LW_LOOK_STAMP && c.payload > LW_FITS - sizeof(struct lw_ip6)) {
		mtu = lw_path_mtu(ctx, c.ip_at, LW_OPTION);
		/* At a sealed gate, the sender knows only the sealed packet, not the opened packet that is too big. */
		if (mtu && (cfg.gate == LW_GATE_SEALED || mtu - LW_OPTION < LW_IP6_MTU_MIN || !lw_has_source_address(&c) ||
			    !lw_may_be_notified(ctx)))
			look = LW_LOOK_UNFIT;
		/*
		 * Above the limit of notifications per CPU, the packet passes without evidence: a sender that does not learn
		 * the size would lose its packets.
		 */
		if (mtu && look == LW_LOOK_STAMP &&
		    !lw_within_rate(cpu->clock_ns, LW_TOO_BIG_PER_S, &counts->notified_second, &counts->notified))
			look = LW_LOOK_UNFIT;
	}
	if (look == LW_LOOK_STAMP && mtu) {
		lw_count(cpu, LW_DROP_TOO_BIG);
		return lw_too_big(ctx, c.ip_at, mtu - LW_OPTION) ? XDP_TX : XDP_DROP;
	}
	/* Some drivers reserve no headroom: the packet then passes unchanged. */
	if (look == LW_LOOK_STAMP && bpf_xdp_adjust_head(ctx, -LW_OPTION))
		look = LW_LOOK_UNFIT;
	if (look == LW_LOOK_STAMP) {
		lw_sign(s, &c, &stamp);
		verdict = lw_insert(ctx, &c, stamp.option, counts, passes);
	} else if (look == LW_LOOK_FORGED) {
		verdict = LW_DROP_GATE_EXTENSION;
	} else if (look == LW_LOOK_UNFIT) {
		counts->unfit++;
	}
	lw_count(cpu, verdict);
	if (verdict == LW_PASS_DATA && lw_forwards)
		return lw_forward(ctx);
	return verdict < 16 ? XDP_PASS : XDP_DROP;
}

/*
 * lw_gateway() and lw_sealed_gateway() of gateways that stamp, written out: with a parameter, clang would compile
 * the functions without stamping differently. Packets that pass are counted where they are stamped. The tail call
 * returns if the gateway's process has ended: the packet then passes unchanged.
 */
static __always_inline int lw_gateway_stamping(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct lw_ctx c = { .frame.xdp = ctx };

	c.cpu = bpf_map_lookup_elem(&percpu, &zero);
	c.control = bpf_map_lookup_elem(&control, &zero);
	if (!c.cpu || !c.control)
		return XDP_DROP;
	lw_clock(&c);
	enum lw_verdict verdict = lw_check(&c);

	if (verdict == LW_PASS_SESSION)
		bpf_tail_call(ctx, &programs, LW_PROGRAM_STAMP);
	lw_count(c.cpu, verdict);
	if (verdict < 16)
		return XDP_PASS;
	return verdict < 32 ? XDP_TX : XDP_DROP;
}

static __always_inline int lw_sealed_stamping(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct lw_ctx c = { .frame.xdp = ctx };

	c.cpu = bpf_map_lookup_elem(&percpu, &zero);
	c.control = bpf_map_lookup_elem(&control, &zero);
	if (!c.cpu || !c.control)
		return XDP_DROP;
	lw_clock(&c);
	enum lw_verdict verdict = lw_check_sealed(&c);

	if (verdict == LW_PASS_DATA)
		bpf_tail_call(ctx, &programs, LW_PROGRAM_STAMP);
	lw_count(c.cpu, verdict);
	if (verdict == LW_PASS_DATA && lw_forwards)
		return lw_forward(ctx);
	return verdict < 16 ? XDP_PASS : XDP_DROP;
}

#endif
