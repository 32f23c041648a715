/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The gate decides last, on every packet, and drops by default (LAP/1 1.4.9). */
#ifndef LW_GATE_H
#define LW_GATE_H

#include "lw_always.h"
#include "lw_lap.h"

/* The gate's verdict on a sender by one entry of the binding table: 0 if the entry does not refer to the sender. */
static __always_inline enum lw_verdict lw_sender_by(__u64 entry, const struct lw_key *key, __u32 now_s)
{
	struct lw_line *line = lw_line_at((__u32)entry - 1);
	struct lw_session *session = line ? lw_at(&sessions, line->slot) : NULL;

	if (!line || !session || LW_READ(line->commit) & (LW_REVOKED | LW_BUSY) || !LW_READ(line->session_id) ||
	    !lw_session_matches(session, key))
		return 0;
	return LW_READ(line->session_until_s) > now_s ? LW_PASS_SESSION : LW_DROP_SESSION_EXPIRED;
}

/*
 * Checks all entries with the sender's fingerprint, after the first entry did not refer to the sender. A global function,
 * because this case is rare.
 */
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
		int entry_verdict = lw_sender_by(entry, key, now_s);

		if (entry_verdict == LW_PASS_SESSION)
			return entry_verdict;
		if (entry_verdict)
			verdict = entry_verdict;
	}
	return verdict;
}

/* The verdict on the sender: passes if a live BOUND session has the port, VLANs and MAC address of the sender. */
static __always_inline enum lw_verdict lw_sender(struct lw_ctx *c)
{
	struct lw_key key;

	lw_mac_key(&key, lw_mac(c->frame.eth->src), c->frame.xdp->ingress_ifindex, c->frame.vlans);
	__u64 hash = lw_hash(key.a, key.b);
	__u32 now_s = c->cpu->clock_boot_s;
	struct lw_bucket *bucket = lw_at(&by_mac, lw_bucket_1(hash));
	__u64 entry = bucket ? lw_match(bucket, lw_fingerprint(hash)) : 0;

	if (entry && lw_sender_by(entry, &key, now_s) == LW_PASS_SESSION)
		return LW_PASS_SESSION;
	return lw_sender_slow(&key, now_s);
}

/* Verdicts of every enabled gate that do not depend on the sender: 0 if the sender decides. */
static __always_inline enum lw_verdict lw_gate_any(struct lw_ctx *c, enum lw_kind kind)
{
	switch (kind) {
	case LW_KIND_BROKEN:
	case LW_KIND_BROKEN_OURS:
		return LW_DROP_TRUNCATED;
	case LW_KIND_FRAGMENT:
		return LW_DROP_GATE_FRAGMENT;
	default:
		break;
	}
	if (lw_is_on_list(&c->frame, kind)) {
		int verdict = lw_gate_list(c->frame.xdp);

		if (verdict == LW_GATE_BY_PREFIX)
			verdict = lw_gate_by_prefix(c->frame.xdp, sizeof(struct lw_eth) + c->frame.tags * sizeof(struct lw_vlan));
		if (verdict)
			return verdict;
	}
	return kind == LW_KIND_UDP && c->frame.udp->dst == cfg.lap_port ? LW_DROP_GATE_PORT : 0;
}

/* Counts a dropped non-IP frame by its type. Returns the verdict, which is more specific than LW_DROP_GATE for such a frame. */
static __always_inline enum lw_verdict lw_count_dropped(struct lw_ctx *c, enum lw_kind kind, enum lw_verdict verdict)
{
	if (verdict < 32 || (kind != LW_KIND_ARP && kind != LW_KIND_OTHER))
		return verdict;
	lw_drop_type(bpf_ntohs(c->frame.type));
	return verdict == LW_DROP_GATE ? LW_DROP_GATE_TYPE : verdict;
}

static __always_inline enum lw_verdict lw_gate(struct lw_ctx *c, enum lw_kind kind)
{
	enum lw_verdict verdict = lw_gate_any(c, kind);

	return lw_count_dropped(c, kind, verdict ? verdict : lw_sender(c));
}

#endif
