/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Which live session owns an IP address, or a MAC address behind a port. A session claims its entry while it is the
 * winner of its line; entries of dead sessions are swept by user space and are harmless until then, because an entry
 * is only believed when the session that it names carries the very address.
 */
#ifndef LW_BINDING_H
#define LW_BINDING_H

#include "lw_packet.h"
#include "lw_table.h"

/* What is bound: an IP address, or a MAC address behind (ingress, VLANs). */
struct lw_key {
	__u64 a, b; /* address; or MAC and ingress << 32 | VLANs */
	__u8 is_mac;
};

static __always_inline void lw_mac_key(struct lw_key *key, __u64 mac, __u32 ingress, const __u16 vlan[2])
{
	key->a = mac;
	key->b = (__u64)ingress << 32 | (__u32)vlan[0] << 16 | vlan[1];
	key->is_mac = 1;
}

static __always_inline int lw_is_live(const struct lw_line *line, __u32 now_s)
{
	__u64 commit = LW_READ(line->commit);

	return !(commit & LW_REVOKED) && (LW_READ(line->session_id) || commit & LW_BUSY) &&
	       LW_READ(line->lease_until_s) > now_s;
}

static __always_inline int lw_carries(const struct lw_line *line, const struct lw_session *session,
				      const struct lw_key *key)
{
	if (!key->is_mac)
		return session->addr[0] == key->a && session->addr[1] == key->b;
	__u16 vlan[2] = { session->vlan[0] & ~LW_BOUND, session->vlan[1] };

	return session->vlan[0] & LW_BOUND && lw_mac(session->mac) == key->a &&
	       ((__u64)line->ingress << 32 | (__u32)vlan[0] << 16 | vlan[1]) == key->b;
}

struct lw_scan {
	__u64 *free; /* first free entry, if any */
	__u8 mine; /* the slot holds an entry already */
};

/* Looks for another live owner of `key`: 0 if there is none, else the verdict. */
static __always_inline enum lw_verdict lw_binding_scan(void *table, const struct lw_key *key, __u64 hash, __u32 slot,
						       __u32 now_s, struct lw_scan *scan)
{
	__u32 fingerprint = lw_fingerprint(hash);

	scan->free = NULL;
	scan->mine = 0;
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < 2; i++) {
		struct lw_bucket *bucket = lw_at(table, i ? lw_bucket_2(hash) : lw_bucket_1(hash));

		if (!bucket)
			return LW_DROP_TABLE_FULL;
#pragma unroll
		for (__u32 way = 0; way < LW_WAYS; way++) {
			__u64 entry = LW_READ(bucket->entry[way]);

			if (!entry) {
				if (!scan->free)
					scan->free = &bucket->entry[way];
				continue;
			}
			if ((__u32)(entry >> 32) != fingerprint)
				continue;
			__u32 owner = (__u32)entry - 1;

			if (owner == slot) {
				scan->mine = 1;
				continue;
			}
			struct lw_line *line = lw_at(&lines, owner);
			struct lw_session *session = lw_at(&sessions, owner);

			if (line && session && lw_is_live(line, now_s) && lw_carries(line, session, key))
				return LW_DROP_ADDRESS_OWNED;
		}
	}
	return 0;
}

/*
 * Claims `key` for `slot`, whose line the caller owns (BUSY) and whose session carries the key already. After an
 * entry was written the table is read once more: of two that claim one address at a time, none keeps it.
 */
static __always_inline enum lw_verdict lw_binding_claim(void *table, const struct lw_key *key, __u64 hash,
							__u32 slot, __u32 now_s, struct lw_scan *scan)
{
	if (scan->mine)
		return 0;
	if (!scan->free)
		return LW_DROP_TABLE_FULL;
	__u64 entry = (__u64)lw_fingerprint(hash) << 32 | (slot + 1);

	if (__sync_val_compare_and_swap(scan->free, 0, entry) != 0)
		return LW_DROP_TABLE_FULL;
	return lw_binding_scan(table, key, hash, slot, now_s, scan);
}

#endif
