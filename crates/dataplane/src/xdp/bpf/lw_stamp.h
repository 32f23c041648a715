/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Evidence in the packets that pass the gate towards services (docs/protocols.md 4.5): an IPv6 option of the hop-by-hop
 * header. In a program of its own, which the gates end by calling: the kernel empties the table of programs with the
 * gateway's process, so nobody stamps for a gateway that is gone, and a gateway that does not stamp runs not an
 * instruction of this.
 */
#ifndef LW_STAMP_H
#define LW_STAMP_H

#include "lw_data.h"
#include "lw_gateway.h"
#include "lw_too_big.h"

/* Bytes of a hop-by-hop header with the option, and words. */
#define LW_OPTION 104
#define LW_OPTION_WORDS (LW_OPTION / 8)
/* Where what is each packet's own stands: the counter, and the tag behind it. */
#define LW_OPTION_COUNTER 10
#define LW_INVARIANT_WORDS 6
/* Words of a tag's input: those in the midstate, the counter, the invariants. */
#define LW_TAG_WORDS (15 + 1 + LW_INVARIANT_WORDS)

#define LW_ETH_P_CLONE bpf_htons(0x5241)
/* What an Ethernet frame of the smallest size has behind an IPv6 header without payload. */
#define LW_PADDING_MAX 6

/* Evidence of one state, all but what is each packet's own. */
struct lw_stamp {
	__u64 number; /* of its publication; 0 while it is written */
	__u64 until_ns; /* CLOCK_MONOTONIC; from then on nobody has confirmed it for too long */
	__u64 option[LW_OPTION_WORDS]; /* as on the wire; next header, counter and tag are zero */
	__u64 midstate[4]; /* SipHash after the words that all tags of the state begin with; a secret */
	__u64 pad[5];
};
/* Publication n is in slot n % 2: the one before stays readable while it is written. */
struct lw_stamping {
	struct lw_stamp slot[2];
	__u64 current; /* number of the last publication; 0: none */
	__u64 pad[7]; /* what follows is written by every packet, and has a cache line of its own */
	__u64 counter; /* of the last packet: of all CPUs, for the appraiser's window is 1,024 packets */
	__u64 room[7];
};
LW_ARRAY(stamping, struct lw_stamping, BPF_F_MMAPABLE);

/* Per CPU, packets that have passed. */
struct lw_stamp_counts {
	__u64 stamped;
	__u64 not_ipv6;
	__u64 stale; /* without: there is no state, or nobody has confirmed it */
	__u64 unfit; /* without: it would be too long, or its headers say nothing */
	__u64 told_second; /* the second that `told` counts in */
	__u64 told; /* senders that were told the size */
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct lw_stamp_counts);
} stamp_counts SEC(".maps");

/* A packet that is to carry evidence. */
struct lw_carrier {
	__u32 ip_at; /* bytes of the frame up to the IPv6 header */
	__u32 payload; /* bytes behind it, by its length field */
	__u64 next; /* its next header */
	__u64 invariants[LW_INVARIANT_WORDS];
};

enum lw_look {
	LW_LOOK_STAMP,
	LW_LOOK_PASS, /* as it is: of another family, or for the gateway itself */
	LW_LOOK_UNFIT,
	LW_LOOK_FORGED, /* it could bring evidence of its own */
};

/* The first 8 bytes of a transport's header, as they are loaded, that count: checksums do not. */
static __always_inline __u64 lw_counted(__u8 protocol)
{
	switch (protocol) {
	case 6: /* TCP */
	case 50: /* ESP */
	case 132: /* SCTP */
		return ~0ULL;
	case LW_PROTO_UDP:
		return 0x0000ffffffffffffULL;
	case 1: /* ICMP, which here nobody sends */
	case LW_PROTO_ICMPV6:
		return 0xffffffff0000ffffULL;
	}
	return 0;
}

/* Judges whether the packet can carry an option: the gate has let no other tags pass, and one extension header, of membership reports. */
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
	/* A membership report: it has a hop-by-hop header of its own, and ends at the first router. */
	if (!ip->next_header)
		return LW_LOOK_UNFIT;
	if (lw_is_local6(ip->dst))
		return LW_LOOK_PASS;
	__u32 behind = (__u32)((long)end - (long)transport);

	c->payload = bpf_ntohs(ip->payload_length);
	c->next = ip->next_header;
	/* No length is a jumbogram's, but of a packet that has nothing. */
	if ((*(__u8 *)cursor) >> 4 != 6 || c->payload > behind || c->payload + LW_OPTION > 0xffff ||
	    (!c->payload && behind > LW_PADDING_MAX))
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

/* Copies the state that is in force; 0: there is none, or it was replaced meanwhile. */
static __always_inline int lw_read_stamp(struct lw_stamping *s, __u64 now_ns, struct lw_stamp *to)
{
	__u64 current = lw_ordered_load(&s->current);
	struct lw_stamp *from = &s->slot[current & 1];

	if (!current || LW_READ(from->until_ns) <= now_ns)
		return 0;
	/* As many as the content needs: in classic content nothing is secret, and the midstate is zero. */
#pragma unroll
	for (int i = 0; i < LW_OPTION_WORDS; i++)
		to->option[i] = LW_READ(from->option[i]);
#pragma unroll
	for (int i = 0; i < 4; i++)
		to->midstate[i] = LW_READ(from->midstate[i]);
	/* Whoever writes two states meanwhile has begun by changing this. */
	return lw_ordered_load(&from->number) == current;
}

/* Writes what is this packet's own. */
static __always_inline void lw_sign(struct lw_stamping *s, const struct lw_carrier *c, struct lw_stamp *stamp)
{
	stamp->option[0] |= c->next;
	if (cfg.stamp == LW_STAMP_CLASSIC)
		return;
	__u64 counter = bpf_cpu_to_be64(__sync_fetch_and_add(&s->counter, 1) + 1);
	struct lw_sip sip = { stamp->midstate[0], stamp->midstate[1], stamp->midstate[2], stamp->midstate[3] };

	lw_sip_word(&sip, counter);
#pragma unroll
	for (int i = 0; i < LW_INVARIANT_WORDS; i++)
		lw_sip_word(&sip, c->invariants[i]);
	stamp->option[LW_OPTION_COUNTER] = counter;
	lw_sip_finish(&sip, LW_TAG_WORDS, &stamp->option[LW_OPTION_COUNTER + 1]);
}

/* The headers go to the front, and the option between them and the rest. `at` is where the IPv6 header is. */
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
	/* The two do not overlap: some bytes are moved twice. */
	LW_MOVE(headers - 8);
#undef LW_MOVE
	ip->payload_length = bpf_htons(payload + LW_OPTION);
	ip->next_header = 0;
#pragma unroll
	for (int i = 0; i < LW_OPTION_WORDS; i++)
		to[i] = option[i];
	return 1;
}

/* Some driver leaves no room in front: then the packet is as it was. */
static __always_inline enum lw_verdict lw_insert(struct xdp_md *ctx, const struct lw_carrier *c, const __u64 *option,
						 struct lw_stamp_counts *counts, enum lw_verdict passes)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	int laid = 0;

	switch (c->ip_at) {
#define LW_CASE(at) \
	case at: laid = lw_lay_option(data, end, at, c->payload, option); break
		LW_CASE(14);
		LW_CASE(18);
		LW_CASE(22);
#undef LW_CASE
	}
	if (!laid)
		return LW_DROP_TRUNCATED;
	counts->stamped++;
	return passes;
}

/* Whether there is an address to tell a sender from: an own one, else the one that it has sent to, if that is one host's. */
static __always_inline int lw_has_speaker(const struct lw_carrier *c)
{
	return cfg.local6_count || (c->invariants[3] & 0xff) != 0xff;
}

/* Packets up to this fit every link with the option. */
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
		mtu = lw_way_mtu(ctx, c.ip_at, LW_OPTION);
		/* Past a seal, the sender knows another packet than the one that is too big. */
		if (mtu && (cfg.gate == LW_GATE_SEALED || mtu - LW_OPTION < LW_IP6_MTU_MIN || !lw_has_speaker(&c) ||
			    !lw_may_be_told(ctx)))
			look = LW_LOOK_UNFIT;
		/* Who sends many such packets must not keep others from learning the size: theirs would be lost. */
		if (mtu && look == LW_LOOK_STAMP &&
		    !lw_within_rate(cpu->clock_ns, LW_TOLD_PER_S, &counts->told_second, &counts->told))
			look = LW_LOOK_UNFIT;
	}
	if (look == LW_LOOK_STAMP && mtu) {
		lw_count(cpu, LW_DROP_TOO_BIG);
		return lw_too_big(ctx, c.ip_at, mtu - LW_OPTION) ? XDP_TX : XDP_DROP;
	}
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
 * lw_gateway() and lw_sealed_gateway() of gateways that stamp, written out: with a parameter for it, theirs would be
 * compiled otherwise. What passes is counted where it is stamped. The call comes back when the gateway's process has
 * ended: then it passes as it is.
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
	enum lw_verdict verdict = lw_judge(&c);

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
	enum lw_verdict verdict = lw_judge_sealed(&c);

	if (verdict == LW_PASS_DATA)
		bpf_tail_call(ctx, &programs, LW_PROGRAM_STAMP);
	lw_count(c.cpu, verdict);
	if (verdict == LW_PASS_DATA && lw_forwards)
		return lw_forward(ctx);
	return verdict < 16 ? XDP_PASS : XDP_DROP;
}

#endif
