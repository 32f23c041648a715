/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The gate decides last, on every packet, and drops by default (LAP/1 1.4.9). */
#ifndef LW_GATE_H
#define LW_GATE_H

#include "lw_lap.h"

/* Neighbour discovery and DHCP of devices, which must work before they authenticate. ARP is a kind of its own. */
static __always_inline int lw_passes_always(const struct lw_frame *f, enum lw_kind kind)
{
	if (kind == LW_KIND_ARP)
		return 1;
	if (kind == LW_KIND_IP) /* router solicitation, neighbour solicitation and advertisement */
		return f->icmp6_type == 133 || f->icmp6_type == 135 || f->icmp6_type == 136;
	if (kind != LW_KIND_UDP)
		return 0;
	if (!f->is6)
		return f->udp->src == bpf_htons(68) && f->udp->dst == bpf_htons(67);
	return f->udp->src == bpf_htons(546) && f->udp->dst == bpf_htons(547);
}

/* What the gate says of a sender by one entry of the binding table: 0 when the entry does not mean the sender. */
static __always_inline enum lw_verdict lw_sender_by(__u64 entry, const struct lw_key *key, __u32 now_s)
{
	struct lw_line *line = lw_line_at((__u32)entry - 1);
	struct lw_session *session = line ? lw_at(&sessions, line->slot) : NULL;

	if (!line || !session || LW_READ(line->commit) & (LW_REVOKED | LW_BUSY) || !LW_READ(line->session_id) ||
	    !lw_carries(session, key))
		return 0;
	return LW_READ(line->lease_until_s) > now_s ? LW_PASS_SESSION : LW_DROP_GATE_LEASE;
}

/* All entries of the sender's fingerprint, when the first look found none that means it. A global function: rare. */
__noinline int lw_sender_slow(struct lw_key *key, __u32 now_s)
{
	if (!key)
		return LW_DROP_GATE;
	__u64 hash = lw_hash(key->a, key->b);
	int verdict = LW_DROP_GATE;

#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < 2 * LW_WAYS; i++) {
		__u32 number = i < LW_WAYS ? lw_bucket_1(hash) : lw_bucket_2(hash);
		struct lw_bucket *bucket = bpf_map_lookup_elem(&by_mac, &number);

		if (!bucket)
			return LW_DROP_GATE;
		__u64 entry = LW_READ(bucket->entry[i % LW_WAYS]);

		if ((__u32)(entry >> 32) != lw_fingerprint(hash))
			continue;
		int one = lw_sender_by(entry, key, now_s);

		if (one == LW_PASS_SESSION)
			return one;
		if (one)
			verdict = one;
	}
	return verdict;
}

/* Whether the sender, by port, VLANs and MAC address, has a live BOUND session. */
static __always_inline enum lw_verdict lw_sender(struct lw_ctx *c)
{
	struct lw_key key;

	lw_mac_key(&key, lw_mac(c->frame.eth->src), c->xdp->ingress_ifindex, c->frame.vlan);
	__u64 hash = lw_hash(key.a, key.b);
	__u32 now_s = c->cpu->clock_boot_s;
	struct lw_bucket *bucket = lw_at(&by_mac, lw_bucket_1(hash));
	__u64 entry = bucket ? lw_match(bucket, lw_fingerprint(hash)) : 0;

	if (entry && lw_sender_by(entry, &key, now_s) == LW_PASS_SESSION)
		return LW_PASS_SESSION;
	return lw_sender_slow(&key, now_s);
}

/* What every gate that is not off says without a look at the sender: 0 if it matters who that is. */
static __always_inline enum lw_verdict lw_gate_any(struct lw_ctx *c, enum lw_kind kind)
{
	switch (kind) {
	case LW_KIND_BROKEN:
	case LW_KIND_BROKEN_OURS:
		return LW_DROP_TRUNCATED;
	case LW_KIND_FRAGMENT:
		return LW_DROP_GATE_FRAGMENT;
	case LW_KIND_EXTENSION:
		return LW_DROP_GATE_EXTENSION;
	default:
		break;
	}
	if (lw_passes_always(&c->frame, kind))
		return LW_PASS_ALWAYS;
	if (kind == LW_KIND_UDP && c->frame.udp->dst == cfg.lap_port)
		return LW_DROP_GATE_PORT;
	return 0;
}

static __always_inline enum lw_verdict lw_gate(struct lw_ctx *c, enum lw_kind kind)
{
	enum lw_verdict verdict = lw_gate_any(c, kind);

	return verdict ? verdict : lw_sender(c);
}

#endif
