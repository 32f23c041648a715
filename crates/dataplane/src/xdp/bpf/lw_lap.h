/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* LAP/1 1.3, 1.4: REQUEST and RESPONSE, in the order of checks of docs/protocols.md. */
#ifndef LW_LAP_H
#define LW_LAP_H

#include "lw_admission.h"
#include "lw_binding.h"
#include "lw_compare.h"
#include "lw_siphash.h"

/* The first 8 bytes of a 64-byte message of suite 1, as a little-endian load. */
#define LW_H0(type, flags) \
	(0x574cULL | 1ULL << 16 | (__u64)(type) << 24 | 1ULL << 32 | (__u64)(flags) << 40 | 0x4000ULL << 48)
#define LW_REQUEST 1
#define LW_CHALLENGE 2
#define LW_RESPONSE 3
#define LW_ACK 4
#define LW_NAK 5
#define LW_DATA_UP 6
#define LW_DATA_DOWN 7
#define LW_ATTEST_REQUEST 16
#define LW_PROOF 17
#define LW_FLAG_BOUND 1
#define LW_H0_BOUND_BIT (1ULL << 40)
#define LW_DATA_HEADER 56
#define LW_PROOF_MESSAGE 96
/* The first 8 bytes of a PROOF, as a little-endian load. */
#define LW_H0_PROOF (0x574cULL | 1ULL << 16 | (__u64)LW_PROOF << 24 | 1ULL << 32 | 0x6000ULL << 48)

#define LW_NAK_NO_ROWS 1
#define LW_NAK_STOPPING 2

#define LW_FRESH_NS_MAX 16000000000ULL

/* L(x): bytes 00 00 01 x suite 00 00 00. */
#define LW_LABEL(x) (1ULL << 16 | (__u64)(x) << 24 | 1ULL << 32)

/* Messages as eight aligned words; a packed struct would be read byte by byte. */
struct lw_request {
	__u64 h0, device_id, nonce[2], zero[4];
};
struct lw_challenge {
	__u64 h0, device_id, idx_gateway, challenge, fresh, echo, tag[2];
};
struct lw_response {
	__u64 h0, device_id, nonce[2], idx_gateway, fresh, tag[2];
};
struct lw_ack {
	__u64 h0, device_id, idx_lifetime, session_id, tag[2], seen_ip[2];
};
struct lw_nak {
	__u64 h0, device_id, idx_reason, zero[5];
};
_Static_assert(sizeof(struct lw_request) == LW_MESSAGE && sizeof(struct lw_challenge) == LW_MESSAGE &&
		       sizeof(struct lw_response) == LW_MESSAGE && sizeof(struct lw_ack) == LW_MESSAGE &&
		       sizeof(struct lw_nak) == LW_MESSAGE,
	       "64 B, so that no reply is longer than its request");

static __always_inline __u64 lw_idx_gateway(__u32 idx)
{
	return (__u64)bpf_htonl(cfg.gateway_id) << 32 | bpf_htonl(idx);
}

/* Sum of a message's words as 32-bit halves, for the UDP checksum. */
static __always_inline __u64 lw_sum(const __u64 *message)
{
	__u64 sum = 0;

#pragma unroll
	for (int i = 0; i < LW_MESSAGE / 8; i++)
		sum += (message[i] & 0xffffffff) + (message[i] >> 32);
	return sum;
}

static __always_inline int lw_is_fresh(const struct lw_ctx *c, __u64 fresh)
{
	return fresh && (fresh == LW_READ(c->control->fresh_current) || fresh == LW_READ(c->control->fresh_previous));
}

/* No message is answered if the fresh value is 16 s old (LAP/1 1.4.1). */
static __always_inline int lw_is_stopped(const struct lw_ctx *c)
{
	__u64 fresh_at_ns = LW_READ(c->control->fresh_at_ns);

	/* This clock may lag one jiffy behind the clock that user space read. */
	return !LW_READ(c->control->fresh_current) ||
	       (c->cpu->clock_ns > fresh_at_ns && c->cpu->clock_ns - fresh_at_ns > LW_FRESH_NS_MAX);
}

static __always_inline enum lw_verdict lw_nak(struct lw_ctx *c, struct lw_nak *reply, __u32 idx, __u64 reason,
					      __u64 headers)
{
	if (!lw_within_rate(c->cpu->clock_ns, LW_READ(lw_live(c->control)->nak_per_s), &c->cpu->nak_second,
			    &c->cpu->nak_count))
		return LW_DROP_NAK_LIMIT;
	reply->h0 = LW_H0(LW_NAK, 0);
	reply->idx_reason = bpf_htonl(idx) | reason << 32;
#pragma unroll
	for (int i = 0; i < 5; i++)
		reply->zero[i] = 0;
	lw_close(&c->frame, headers + lw_sum((__u64 *)reply));
	return LW_REPLY_NAK;
}

/* CHALLENGE.tag = F(auth_key, H0, ID, N0, N1, IG, challenge, fresh). */
static __always_inline void lw_challenge_tag(const __u64 key[2], __u64 id, const __u64 nonce[2], __u64 ig,
					     __u64 challenge, __u64 fresh, __u64 tag[2])
{
	struct lw_sip s;

	lw_sip_init(&s, key[0], key[1]);
	lw_sip_word(&s, LW_H0(LW_CHALLENGE, 0));
	lw_sip_word(&s, id);
	lw_sip_word(&s, nonce[0]);
	lw_sip_word(&s, nonce[1]);
	lw_sip_word(&s, ig);
	lw_sip_word(&s, challenge);
	lw_sip_word(&s, fresh);
	lw_sip_finish(&s, 7, tag);
}

static __always_inline enum lw_verdict lw_request(struct lw_ctx *c, struct lw_request *m)
{
	if (m->zero[0] | m->zero[1] | m->zero[2] | m->zero[3])
		return LW_DROP_RESERVED;
	if (lw_is_stopped(c))
		return LW_DROP_STOPPED;
	if (!lw_is_device(c))
		return LW_DROP_SOURCE_NOT_DEVICE;
	__u32 place;
	struct lw_line *line = lw_find_device(m->device_id, &place);

	if (!line)
		return lw_unknown(c, m->device_id, 0);
	/*
	 * Work that does not need the line, while the line is loaded from memory. The headers of a frame that is dropped may
	 * be swapped as well.
	 */
	__u64 headers = lw_turn_headers(&c->frame);
	__u64 commit = LW_READ(line->commit);
	__u32 idx = commit >> LW_IDX_SHIFT;

	if (commit & LW_REVOKED)
		return LW_DROP_REVOKED;
	if (commit & LW_BUSY)
		return LW_DROP_BUSY;
	if (LW_READ(c->control->stopping))
		return lw_nak(c, (struct lw_nak *)m, idx, LW_NAK_STOPPING, headers);
	if (!(commit & LW_VALID))
		return lw_nak(c, (struct lw_nak *)m, idx, LW_NAK_NO_ROWS, headers);

	__u64 key[2] = { LW_READ(line->auth_key[0]), LW_READ(line->auth_key[1]) };
	__u64 challenge = LW_READ(line->challenge);

	/*
	 * A winner on another CPU may have installed the next row during the read. Key and challenge may then belong to
	 * different rows.
	 */
	if (LW_READ(line->commit) != commit)
		return LW_DROP_BUSY;
	__u64 fresh = LW_READ(c->control->fresh_current);
	__u64 id = m->device_id, nonce[2] = { m->nonce[0], m->nonce[1] }, ig = lw_idx_gateway(idx), tag[2];

	lw_challenge_tag(key, id, nonce, ig, challenge, fresh, tag);

	struct lw_challenge *reply = (struct lw_challenge *)m;

	reply->h0 = LW_H0(LW_CHALLENGE, 0);
	reply->idx_gateway = ig;
	reply->challenge = challenge;
	reply->fresh = fresh;
	reply->echo = nonce[0];
	reply->tag[0] = tag[0];
	reply->tag[1] = tag[1];
	lw_close(&c->frame, headers + lw_sum((__u64 *)reply));
	return LW_REPLY_CHALLENGE;
}

/* RESPONSE.tag = F(auth_key, H0, ID, N0, N1, IG, fresh, loc). */
static __always_inline void lw_response_tag(const __u64 key[2], const struct lw_response *m, __u64 loc, __u64 tag[2])
{
	struct lw_sip s;

	lw_sip_init(&s, key[0], key[1]);
	lw_sip_word(&s, m->h0);
	lw_sip_word(&s, m->device_id);
	lw_sip_word(&s, m->nonce[0]);
	lw_sip_word(&s, m->nonce[1]);
	lw_sip_word(&s, m->idx_gateway);
	lw_sip_word(&s, m->fresh);
	lw_sip_word(&s, loc);
	lw_sip_finish(&s, 7, tag);
}

/* session_key = F(auth_key, L(2), RESPONSE.tag). */
static __always_inline void lw_session_key(const __u64 key[2], const __u64 tag[2], __u64 session_key[2])
{
	struct lw_sip s;

	lw_sip_init(&s, key[0], key[1]);
	lw_sip_word(&s, LW_LABEL(2));
	lw_sip_word(&s, tag[0]);
	lw_sip_word(&s, tag[1]);
	lw_sip_finish(&s, 3, session_key);
}

/* ACK.tag = F(session_key, H0, idx || session_lifetime_s, session_id, seen_ip). */
static __always_inline void lw_ack_tag(const __u64 session_key[2], __u64 idx_lifetime, __u64 session_id,
				       const __u64 seen_ip[2], __u64 tag[2])
{
	struct lw_sip s;

	lw_sip_init(&s, session_key[0], session_key[1]);
	lw_sip_word(&s, LW_H0(LW_ACK, 0));
	lw_sip_word(&s, idx_lifetime);
	lw_sip_word(&s, session_id);
	lw_sip_word(&s, seen_ip[0]);
	lw_sip_word(&s, seen_ip[1]);
	lw_sip_finish(&s, 5, tag);
}

/* Writes the ACK over the RESPONSE. */
static __always_inline void lw_ack(struct lw_ctx *c, struct lw_response *m, const __u64 session_key[2], __u32 idx,
				   __u32 session_lifetime_s, const __u64 addr[2])
{
	struct lw_ack *reply = (struct lw_ack *)m;
	__u64 idx_lifetime = (__u64)bpf_htonl(session_lifetime_s) << 32 | bpf_htonl(idx);
	__u64 session_id = m->tag[0], tag[2];

	lw_ack_tag(session_key, idx_lifetime, session_id, addr, tag);
	reply->h0 = LW_H0(LW_ACK, 0);
	reply->idx_lifetime = idx_lifetime;
	reply->session_id = session_id;
	reply->tag[0] = tag[0];
	reply->tag[1] = tag[1];
	reply->seen_ip[0] = addr[0];
	reply->seen_ip[1] = addr[1];
	lw_swap_and_close(&c->frame, lw_sum((__u64 *)reply));
}

/*
 * Stores that must stay in order. If the CPU orders stores and loads (x86), a plain store suffices: only the winner
 * takes rows and sets the session id, and user space writes a row only where it is absent.
 */
static __always_inline void lw_ordered_store(__u64 *to, __u64 value)
{
	if (cfg.strong_order)
		LW_WRITE(*to, value);
	else
		LW_EXCHANGE(*to, value);
}
static __always_inline __u64 lw_take(__u64 *from)
{
	if (!cfg.strong_order)
		return LW_EXCHANGE(*from, 0);
	__u64 value = LW_READ(*from);

	if (value)
		LW_WRITE(*from, 0);
	return value;
}

/* Moves the row into the line, or clears the line's row if `row` is absent. Returns whether the row was present. */
static __always_inline int lw_next_row(struct lw_line *line, struct lw_row *row)
{
	__u64 last = lw_take(&row->auth_key[1]);

	if (!last) {
		line->challenge = 0;
		line->auth_key[0] = 0;
		line->auth_key[1] = 0;
		return 0;
	}
	line->challenge = row->challenge;
	line->auth_key[0] = row->auth_key[0];
	line->auth_key[1] = last;
	row->challenge = 0;
	row->auth_key[0] = 0;
	return 1;
}

/* The row `low_rows` after `idx`. If this row is absent, rows are low. */
static __always_inline struct lw_row *lw_low_row(__u32 slot, __u32 idx, __u32 low_rows)
{
	__u32 place = idx % cfg.ring + low_rows;

	return lw_at(&rows, slot * cfg.ring + (place < cfg.ring ? place : place - cfg.ring));
}

/* Whether rows or credit are low, so that user space must act. `low` is the row from lw_low_row(). */
static __always_inline int lw_is_low(const struct lw_control *control, const struct lw_row *low, __u64 commit)
{
	const struct lw_live *live = lw_live(control);
	__u64 credit = commit & LW_CREDIT;

	if (!LW_READ(low->auth_key[1]) && LW_READ(live->low_rows))
		return 1;
	return credit != LW_UNLIMITED && credit >> LW_CREDIT_SHIFT <= LW_READ(live->low_credit);
}

/* The origin of a RESPONSE, to which a session is bound. */
struct lw_origin {
	__u64 addr[2];
	__u64 mac;
	__u32 ingress;
	__u16 vlan[2]; /* the first word has LW_BOUND if the RESPONSE is BOUND */
	__u16 port;
};

static __always_inline void lw_origin(const struct lw_ctx *c, struct lw_origin *o, int bound)
{
	const struct lw_frame *f = &c->frame;

	lw_source_address(f, o->addr);
	o->mac = lw_mac(f->eth->src);
	o->ingress = c->frame.xdp->ingress_ifindex;
	o->vlan[0] = f->vlans >> 16 | (bound ? LW_BOUND : 0);
	o->vlan[1] = f->vlans;
	o->port = f->udp->src;
}

/* 0 if the session is bound to the origin. The BOUND flag is compared only if `flag` is not 0. */
static __always_inline __u64 lw_differs(const struct lw_session *session, const struct lw_origin *o, int flag)
{
	__u64 vlan = (session->vlan[0] ^ o->vlan[0]) | (session->vlan[1] ^ o->vlan[1]);

	return (session->addr[0] ^ o->addr[0]) | (session->addr[1] ^ o->addr[1]) | (session->port ^ o->port) |
	       (flag ? vlan : vlan & ~LW_BOUND) | (session->ingress ^ o->ingress) | (lw_mac(session->mac) ^ o->mac);
}

static __always_inline void lw_bind_session(struct lw_session *session, const struct lw_origin *o)
{
	session->addr[0] = o->addr[0];
	session->addr[1] = o->addr[1];
	session->port = o->port;
	*(__u16 *)session->mac = o->mac;
	*(__u32 *)(session->mac + 2) = o->mac >> 16;
	session->vlan[0] = o->vlan[0];
	session->vlan[1] = o->vlan[1];
	session->ingress = o->ingress;
}

/*
 * Removes the bindings of the line's previous session that the new session does not reuse. Otherwise a device with
 * ever-changing addresses would fill the tables. A global function with its own stack.
 */
__noinline int lw_release_bindings(struct lw_session *session, struct lw_origin *o, __u32 place)
{
	if (!session || !o)
		return 0;
	struct lw_key old = { .a = session->addr[0], .b = session->addr[1] };

	if ((old.a | old.b) && ((old.a ^ o->addr[0]) | (old.b ^ o->addr[1])))
		lw_binding_release(&old, place);
	if (!(session->vlan[0] & LW_BOUND))
		return 0;
	__u16 vlan[2] = { session->vlan[0] & ~LW_BOUND, session->vlan[1] };
	__u64 is_different = (lw_mac(session->mac) ^ o->mac) | (session->ingress ^ o->ingress) |
			     (session->vlan[0] ^ o->vlan[0]) | (session->vlan[1] ^ o->vlan[1]);

	/* The loss of BOUND is a difference too. */
	if (is_different) {
		lw_mac_key(&old, lw_mac(session->mac), session->ingress, (__u32)vlan[0] << 16 | vlan[1]);
		lw_binding_release(&old, place);
	}
	return 0;
}

/*
 * The lifetime for the repeated ACK of the line's session. The lifetime in the first ACK is not stored. A session from
 * before the last change gets the shortest lifetime that was ever active, so that no device relies on a longer session
 * than it has.
 */
static __always_inline __u32 lw_repeated_lifetime_s(const struct lw_control *control, const struct lw_line *line)
{
	const struct lw_live *live = lw_live(control);
	/*
	 * Read first and written last: if the settings change meanwhile, the old value is combined with a later
	 * session_lifetime_from_s, so the shortest lifetime is selected.
	 */
	__u32 session_lifetime_s = LW_READ(live->session_lifetime_s);

	return LW_READ(line->session_until_s) >= (__u64)LW_READ(live->session_lifetime_from_s) + session_lifetime_s ?
		       session_lifetime_s :
		       LW_READ(live->session_lifetime_min_s);
}

/* Repeats the ACK for a copy of the RESPONSE that opened the session: the first ACK was lost (LAP/1 1.4.4). */
static __always_inline enum lw_verdict lw_repeat_ack(struct lw_ctx *c, struct lw_response *m, struct lw_line *line,
						    struct lw_session *session, __u32 idx, const struct lw_origin *o,
						    __u32 now_s)
{
	__u64 commit = LW_READ(line->commit), session_id = LW_READ(line->session_id);
	__u64 differs = lw_tags_differ(session->tag, m->tag) | lw_differs(session, o, 0);

	LW_BARRIER(differs);

	if (differs || !session_id || LW_READ(line->session_until_s) <= now_s)
		return LW_DROP_REPLAY;
	__u64 session_key[2] = { session->session_key[0], session->session_key[1] };

	/* The values above belong to one session only if no winner changed them during the read. */
	if (LW_READ(line->commit) != commit || commit & LW_BUSY || LW_READ(line->session_id) != m->tag[0])
		return LW_DROP_REPLAY;
	lw_ack(c, m, session_key, idx, lw_repeated_lifetime_s(c->control, line), o->addr);
	return LW_REPLY_ACK_REPEATED;
}

/* Clears BUSY, and sets VALID if a row is present. REVOKED, which user space may set concurrently, is kept. */
static __always_inline void lw_release(struct lw_line *line, int has_row)
{
	if (has_row)
		__sync_fetch_and_xor(&line->commit, LW_BUSY | LW_VALID);
	else
		__sync_fetch_and_and(&line->commit, ~LW_BUSY);
}

/*
 * Reports a new or moved session with its RESPONSE as proof: the controller closes older sessions at other gateways.
 */
static __always_inline void lw_emit_session(struct lw_ctx *c, const struct lw_line *line, __u32 idx,
					    const struct lw_response *m, __u64 loc, const __u64 addr[2])
{
	struct lw_session_event *session = bpf_ringbuf_reserve(&events, sizeof(*session), 0);
	const __u64 *words = (const __u64 *)m;

	if (!session) {
		c->cpu->events_lost++;
		return;
	}
	lw_fill(&session->event, LW_EVENT_SESSION, line->device_id, idx, addr, c->frame.xdp->ingress_ifindex);
	session->event.session_id = m->tag[0];
	session->began_ns = bpf_ktime_get_boot_ns();
#pragma unroll
	for (int i = 0; i < LW_MESSAGE / 8; i++)
		session->response[i] = words[i];
	session->loc = loc;
	bpf_ringbuf_submit(session, BPF_RB_NO_WAKEUP);
}

/*
 * Whether no other live session owns the origin's IP address and, if BOUND, its MAC address, and the tables have
 * room. Returns 0 or the verdict. `claimed` shows for which of both keys the line has entries.
 */
static __always_inline enum lw_verdict lw_check_owner(struct lw_key *addr_key, struct lw_key *mac_key, int bound,
						      __u32 place, __u32 now_s, __u64 claimed[2])
{
	struct lw_scan scan;

	if (!lw_binding_scan(&by_address, lw_hash(addr_key->a, addr_key->b), place, &scan))
		return LW_DROP_TABLE_FULL;
	if (scan.has_foreign_entry && lw_binding_conflict(addr_key, place, now_s))
		return LW_DROP_ADDRESS_OWNED;
	if (!(scan.has_own_entry | scan.has_room))
		return LW_DROP_TABLE_FULL;
	claimed[0] = scan.has_own_entry;
	if (!bound)
		return 0;
	if (!lw_binding_scan(&by_mac, lw_hash(mac_key->a, mac_key->b), place, &scan))
		return LW_DROP_TABLE_FULL;
	if (scan.has_foreign_entry && lw_binding_conflict(mac_key, place, now_s))
		return LW_DROP_ADDRESS_OWNED;
	if (!(scan.has_own_entry | scan.has_room))
		return LW_DROP_TABLE_FULL;
	claimed[1] = scan.has_own_entry;
	return 0;
}

static __always_inline enum lw_verdict lw_response(struct lw_ctx *c, struct lw_response *m)
{
	lw_timing_begin(c);
	if (lw_is_stopped(c))
		return LW_DROP_STOPPED;
	if (!lw_is_device(c))
		return LW_DROP_SOURCE_NOT_DEVICE;
	if ((__u32)(m->idx_gateway >> 32) != bpf_htonl(cfg.gateway_id))
		return LW_DROP_GATEWAY;
	__u32 place;
	struct lw_line *line = lw_find_device(m->device_id, &place);

	if (!line)
		return lw_is_fresh(c, m->fresh) ? lw_unknown(c, m->device_id, lw_response_key(m->device_id, m->nonce)) :
						  LW_DROP_UNKNOWN_DEVICE;
	__u32 slot = line->slot;
	struct lw_session *session = lw_at(&sessions, slot);

	if (!session)
		return LW_DROP_UNKNOWN_DEVICE;
	__u64 commit = LW_READ(line->commit);
	__u32 idx = commit >> LW_IDX_SHIFT, requested = bpf_ntohl((__u32)m->idx_gateway);

	if (commit & LW_REVOKED)
		return LW_DROP_REVOKED;
	if (commit & LW_BUSY)
		return LW_DROP_BUSY;
	__u32 now_s = c->cpu->clock_boot_s;
	int bound = m->h0 == LW_H0(LW_RESPONSE, LW_FLAG_BOUND);
	struct lw_origin o;

	lw_origin(c, &o, bound);
	if (idx && requested == idx - 1)
		return lw_repeat_ack(c, m, line, session, requested, &o, now_s);
	if (requested != idx)
		return LW_DROP_INDEX;
	if (!(commit & LW_VALID))
		return LW_DROP_NO_ROWS;
	if (!lw_is_fresh(c, m->fresh))
		return LW_DROP_FRESH;

	/*
	 * A live session that is renewed from its bound origin already owns its addresses: no other device can have
	 * claimed these addresses since. Otherwise the owners are looked up. The extra second covers the jiffy by which the
	 * clocks of CPUs differ.
	 */
	int is_renewal = LW_READ(line->session_id) && LW_READ(line->session_until_s) > now_s + 1 &&
			 !lw_differs(session, &o, 1);
	struct lw_key addr_key = { .a = o.addr[0], .b = o.addr[1] }, mac_key = {};
	__u64 claimed[2] = {};

	if (!is_renewal) {
		if (bound)
			lw_mac_key(&mac_key, o.mac, o.ingress, c->frame.vlans);
		enum lw_verdict owner_verdict = lw_check_owner(&addr_key, &mac_key, bound, place, now_s, claimed);

		if (owner_verdict)
			return owner_verdict;
	}

	/* Prefetched now, so that the memory accesses overlap with each other and with the hashing. */
	struct lw_row *next = lw_at(&rows, slot * cfg.ring + (idx + 1) % cfg.ring),
		      *low = lw_low_row(slot, idx + 1, LW_READ(lw_live(c->control)->low_rows));

	if (!next || !low)
		return LW_DROP_UNKNOWN_DEVICE;
	(void)LW_READ(next->auth_key[1]);
	(void)LW_READ(low->auth_key[1]);
	(void)LW_READ(session->tag[0]);

	__u64 key[2] = { LW_READ(line->auth_key[0]), LW_READ(line->auth_key[1]) }, tag[2], session_key[2];

	lw_response_tag(key, m, bound ? o.mac : 0, tag);
	if (lw_tags_differ(tag, m->tag)) {
		if (lw_within_rate(c->cpu->clock_ns, LW_READ(lw_live(c->control)->alarm_per_s), &c->cpu->alarm_second,
				   &c->cpu->alarm_count))
			lw_emit(c, LW_EVENT_WRONG_TAG, m->device_id, idx, o.addr);
		return LW_DROP_TAG;
	}
	if (!(commit & LW_CREDIT)) {
		/*
		 * Only a verified message may request an advance of the mark, because rows below the mark are lost if the
		 * memory is lost.
		 */
		lw_emit(c, LW_EVENT_ROWS_LOW, line->device_id, idx, o.addr);
		return LW_DROP_MARK;
	}
	if (!m->tag[0])
		return LW_DROP_SESSION_ZERO;
	if (idx == 0xffffffff)
		return LW_DROP_NO_ROWS;
	lw_session_key(key, tag, session_key);

	/* From here to lw_release() this CPU owns the line: the order of LAP/1 1.4.3. */
	__u64 new_commit = (((commit & ~LW_GEN_MASK) | ((commit + LW_GEN_ONE) & LW_GEN_MASK)) & ~LW_VALID) | LW_BUSY;

	new_commit += 1ULL << LW_IDX_SHIFT;
	if ((commit & LW_CREDIT) != LW_UNLIMITED)
		new_commit -= LW_CREDIT_ONE;
	if (__sync_val_compare_and_swap(&line->commit, commit, new_commit) != commit)
		return LW_DROP_LOST_RACE;
	/*
	 * Detects whether user space closed the session after it was read: another device may then have claimed the
	 * session's addresses. The id is read and cleared in one step: a close between two steps would be reported as
	 * done, although this CPU then opens the session again.
	 */
	int is_closed = 0;

	if (is_renewal)
		is_closed = !LW_EXCHANGE(line->session_id, 0);
	else
		lw_ordered_store(&line->session_id, 0);
	LW_WRITE(line->window, (new_commit & 0xff00) << 48);
	session->session_key[0] = session_key[0];
	session->session_key[1] = session_key[1];
	session->tag[0] = m->tag[0];
	session->tag[1] = m->tag[1];
	/* Stored for the ACK: the setting may change before the ACK is written, and no stack is left. */
	c->cpu->session_lifetime_s = LW_READ(lw_live(c->control)->session_lifetime_s);
	/* Limited to the clock's last second: a sum that wrapped would be an expired session. */
	line->session_until_s = c->cpu->session_lifetime_s < ~now_s ? now_s + c->cpu->session_lifetime_s : ~0U;
	if (!is_renewal) {
		lw_release_bindings(session, &o, place);
		lw_bind_session(session, &o);
	}
	int has_row = commit & LW_KEY ? 1 : lw_next_row(line, next);

	/* A full barrier: the session's binding must be visible before this CPU looks for other owners. */
	if (!is_renewal)
		LW_EXCHANGE(line->session_id, 0);
	enum lw_verdict verdict = is_closed ? LW_DROP_LOST_RACE : 0;

	if (!is_renewal)
		verdict = lw_binding_claim(&addr_key, place, now_s, claimed[0]);

	if (!verdict && !is_renewal && bound)
		verdict = lw_binding_claim(&mac_key, place, now_s, claimed[1]);
	if (!verdict)
		lw_ordered_store(&line->session_id, m->tag[0]);
	lw_release(line, has_row);

	if (!has_row)
		lw_emit(c, LW_EVENT_ROWS_OUT, line->device_id, idx + 1, o.addr);
	else if (!(commit & LW_KEY) && lw_is_low(c->control, low, new_commit))
		lw_emit(c, LW_EVENT_ROWS_LOW, line->device_id, idx + 1, o.addr);
	if (verdict)
		return verdict;
	if (!is_renewal)
		lw_emit_session(c, line, idx, m, bound ? o.mac : 0, o.addr);
	lw_ack(c, m, session_key, idx, c->cpu->session_lifetime_s, o.addr);
	lw_timing_end(c);
	return LW_REPLY_ACK;
}

/*
 * The reason why a payload to the LAP port is not a REQUEST, RESPONSE or PROOF, in the order of wire::parse.
 * `payload` may be shorter than a message.
 */
static __always_inline enum lw_verdict lw_malformed(const struct lw_frame *f)
{
	const __u8 *p = f->payload;
	__u32 length = f->payload_length;

	if (length < 16 || (void *)(p + 16) > f->end)
		return LW_DROP_LENGTH;
	__u8 type = p[3], suite = p[4], flags = p[5];

	if (*(__u16 *)p != bpf_htons(0x4c57))
		return LW_DROP_MAGIC;
	if (p[2] != 1)
		return LW_DROP_VERSION;
	if (type != LW_ATTEST_REQUEST && type != LW_PROOF && (type < LW_REQUEST || type > LW_DATA_DOWN))
		return LW_DROP_TYPE;
	if (suite != 1)
		return LW_DROP_SUITE;
	int is_data = type == LW_DATA_UP || type == LW_DATA_DOWN;
	__u32 expected_length = type == LW_PROOF ? LW_PROOF_MESSAGE : LW_MESSAGE;

	if ((is_data ? length < LW_DATA_HEADER : length != expected_length) || bpf_ntohs(*(__u16 *)(p + 6)) != length)
		return LW_DROP_LENGTH;
	if (flags & (type == LW_RESPONSE ? ~LW_FLAG_BOUND : ~0))
		return LW_DROP_FLAGS;
	if (!*(__u64 *)(p + 8))
		return LW_DROP_DEVICE_ZERO;
	if ((void *)(p + LW_DATA_HEADER) > f->end)
		return LW_DROP_LENGTH;
	if (is_data) {
		if (*(__u32 *)(p + 34) | *(__u16 *)(p + 38))
			return LW_DROP_RESERVED;
		return type == LW_DATA_UP ? LW_DROP_GATE_NOT_SEALED : LW_DROP_DIRECTION;
	}
	if (type == LW_NAK) {
		if ((void *)(p + LW_MESSAGE) > f->end)
			return LW_DROP_LENGTH;
		const __u64 *w = (const __u64 *)p;

		if ((w[2] >> 40) | w[3] | w[4] | w[5] | w[6] | w[7])
			return LW_DROP_RESERVED;
	}
	return LW_DROP_DIRECTION;
}

/* Handles a datagram to the LAP port of the gateway. Such a datagram is never forwarded. */
static __always_inline enum lw_verdict lw_lap(struct lw_ctx *c)
{
	struct lw_frame *f = &c->frame;
	struct lw_request *m = (struct lw_request *)f->payload;

	if (f->payload_length == LW_PROOF_MESSAGE && (void *)(m + 1) <= f->end && m->h0 == LW_H0_PROOF &&
	    m->device_id) {
		if (!cfg.provers)
			return LW_DROP_UNSUPPORTED_TYPE;
		c->cpu->proof_at = ((void *)m - (void *)(long)c->frame.xdp->data) | (f->is6 ? LW_PROOF_IP6 : 0);
		bpf_tail_call(c->frame.xdp, &programs, LW_PROGRAM_PROOF);
		/* The kernel empties the table when the process ends; then no process opens rounds. */
		return LW_DROP_STOPPED;
	}
	if (f->payload_length != LW_MESSAGE || (void *)(m + 1) > f->end)
		return lw_malformed(f);
	if (m->h0 == LW_H0(LW_REQUEST, 0) && m->device_id)
		return lw_request(c, m);
	if ((m->h0 & ~LW_H0_BOUND_BIT) == LW_H0(LW_RESPONSE, 0) && m->device_id)
		return lw_response(c, (struct lw_response *)m);
	return lw_malformed(f);
}

#endif
