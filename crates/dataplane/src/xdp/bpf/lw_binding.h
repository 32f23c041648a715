/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Determines which live session owns an IP address, or a MAC address on a port. The winner of a line claims the entries of
 * the line's session. User space sweeps entries of dead sessions. Until then these entries are harmless, because an entry
 * counts only if the session that the entry names has the address.
 */
#ifndef LW_BINDING_H
#define LW_BINDING_H

#include "lw_packet.h"
#include "lw_table.h"

/* The key of a binding: an IP address, or a MAC address on (ingress, VLANs). */
struct lw_key {
	__u64 a, b; /* address; or MAC and ingress << 32 | VLANs */
	__u8 is_mac;
};

static __always_inline void lw_mac_key(struct lw_key *key, __u64 mac, __u32 ingress, __u32 vlans)
{
	key->a = mac;
	key->b = (__u64)ingress << 32 | vlans;
	key->is_mac = 1;
}

static __always_inline int lw_is_live(const struct lw_line *line, __u32 now_s)
{
	__u64 commit = LW_READ(line->commit);

	return !(commit & LW_REVOKED) && (LW_READ(line->session_id) || commit & LW_BUSY) &&
	       LW_READ(line->session_until_s) > now_s;
}

static __always_inline int lw_session_matches(const struct lw_session *session, const struct lw_key *key)
{
	if (!key->is_mac)
		return session->addr[0] == key->a && session->addr[1] == key->b;
	__u16 vlan[2] = { session->vlan[0] & ~LW_BOUND, session->vlan[1] };

	return session->vlan[0] & LW_BOUND && lw_mac(session->mac) == key->a &&
	       ((__u64)session->ingress << 32 | (__u32)vlan[0] << 16 | vlan[1]) == key->b;
}

/* A bucket of the key's table, by its number. */
static __always_inline struct lw_bucket *lw_bucket_of(const struct lw_key *key, __u32 number)
{
	return key->is_mac ? bpf_map_lookup_elem(&by_mac, &number) : bpf_map_lookup_elem(&by_address, &number);
}

/* The result of scanning the two buckets of a key. */
struct lw_scan {
	__u64 has_own_entry; /* 1: the line already has an entry */
	__u64 has_foreign_entry; /* 1: another line's entry has this fingerprint and must be compared in full */
	__u64 has_room; /* 1: a place is free */
};

static __always_inline __u64 lw_binding_entry(__u64 hash, __u32 place)
{
	return (__u64)lw_fingerprint(hash) << 32 | (place + 1);
}

static __always_inline int lw_binding_scan(void *table, __u64 hash, __u32 place, struct lw_scan *scan)
{
	__u64 entry = lw_binding_entry(hash, place);
	struct lw_bucket *bucket1 = lw_at(table, lw_bucket_1(hash)), *bucket2 = lw_at(table, lw_bucket_2(hash));

	scan->has_own_entry = 0;
	scan->has_foreign_entry = 0;
	scan->has_room = 0;
	if (!bucket1 || !bucket2)
		return 0;
#pragma unroll
	for (int way = 0; way < 2 * LW_WAYS; way++) {
		__u64 stored = LW_READ((way < LW_WAYS ? bucket1 : bucket2)->entry[way % LW_WAYS]);
		__u64 differs = entry ^ stored;
		__u64 same_place = lw_is_zero(differs & 0xffffffff);
		__u64 same_fingerprint = lw_is_zero(differs >> 32);

		scan->has_own_entry |= same_fingerprint & same_place;
		scan->has_foreign_entry |= same_fingerprint & (same_place ^ 1);
		/* The low half of an entry is never 0. */
		scan->has_room |= lw_is_zero(stored & 0xffffffff);
	}
	return 1;
}

/*
 * The full comparison, for the case that another line has an entry with the fingerprint. Returns 1 if a live session of
 * another device has the key. A global function, because this case is rare.
 */
__noinline int lw_binding_conflict(struct lw_key *key, __u32 place, __u32 now_s)
{
	if (!key)
		return 1;
	__u64 hash = lw_hash(key->a, key->b);

#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < 2 * LW_WAYS; i++) {
		__u32 number = i < LW_WAYS ? lw_bucket_1(hash) : lw_bucket_2(hash);
		struct lw_bucket *bucket = lw_bucket_of(key, number);

		if (!bucket)
			return 1;
		__u64 entry = LW_READ(bucket->entry[i % LW_WAYS]);
		__u32 owner = (__u32)entry - 1;

		if ((__u32)(entry >> 32) != lw_fingerprint(hash) || owner == place)
			continue;
		struct lw_line *line = lw_line_at(owner);

		if (!line)
			continue;
		__u32 slot = line->slot;
		struct lw_session *session = bpf_map_lookup_elem(&sessions, &slot);

		if (session && lw_is_live(line, now_s) && lw_session_matches(session, key))
			return 1;
	}
	return 0;
}

/*
 * Writes an entry for the line at `place` into a free place of the table. Returns 0 if no place is free. A global function,
 * because it is called only if a device's address is new.
 */
__noinline int lw_binding_insert(struct lw_key *key, __u32 place)
{
	if (!key)
		return 0;
	__u64 hash = lw_hash(key->a, key->b);
	__u64 own_entry = lw_binding_entry(hash, place);

#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < 2 * LW_WAYS; i++) {
		/* Alternates between the buckets, way by way, so that both fill evenly. */
		__u32 number = i & 1 ? lw_bucket_2(hash) : lw_bucket_1(hash);
		struct lw_bucket *bucket = lw_bucket_of(key, number);

		if (!bucket)
			break;
		if (__sync_val_compare_and_swap(&bucket->entry[i / 2], 0, own_entry) == 0)
			return 1;
	}
	return 0;
}

/* Removes the entry that the line at `place` has for `key`. */
static __always_inline void lw_binding_release(const struct lw_key *key, __u32 place)
{
	__u64 hash = lw_hash(key->a, key->b);
	__u64 own_entry = lw_binding_entry(hash, place);

#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < 2 * LW_WAYS; i++) {
		__u32 number = i < LW_WAYS ? lw_bucket_1(hash) : lw_bucket_2(hash);
		struct lw_bucket *bucket = lw_bucket_of(key, number);

		if (!bucket)
			break;
		__sync_val_compare_and_swap(&bucket->entry[i % LW_WAYS], own_entry, 0);
	}
}

/*
 * Claims `key` for the line at `place`, which the caller owns (BUSY) and whose session already has the key. Returns 0
 * or the verdict. The table is read again at the end, whether or not an entry existed: if two CPUs claim one address
 * at the same time, neither CPU keeps the address.
 */
static __always_inline enum lw_verdict lw_binding_claim(struct lw_key *key, __u32 place, __u32 now_s,
						    __u64 has_own_entry)
{
	void *table = key->is_mac ? (void *)&by_mac : (void *)&by_address;
	__u64 hash = lw_hash(key->a, key->b);
	struct lw_scan scan;

	if (!has_own_entry && !lw_binding_insert(key, place))
		return LW_DROP_TABLE_FULL;
	if (!lw_binding_scan(table, hash, place, &scan))
		return LW_DROP_TABLE_FULL;
	/* The sweep removed an entry of a dead session that existed when the message arrived. */
	if (!scan.has_own_entry && (!lw_binding_insert(key, place) || !lw_binding_scan(table, hash, place, &scan)))
		return LW_DROP_TABLE_FULL;
	return scan.has_foreign_entry && lw_binding_conflict(key, place, now_s) ? LW_DROP_ADDRESS_OWNED : 0;
}

#endif
