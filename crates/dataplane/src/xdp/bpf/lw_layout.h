/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Memory that the packet path and user space share. `layout.rs` is its mirror; a test compares both through BTF,
 * field by field. Native byte order unless a comment says otherwise.
 */
#ifndef LW_LAYOUT_H
#define LW_LAYOUT_H

#include <linux/types.h>

#include "lw_verdicts.h"

/* Flags in the low byte of the commit word (LAP/1 1.4.3). */
#define LW_VALID 0x01ULL /* the row in the line may be spent */
#define LW_BUSY 0x02ULL /* a winner owns the line until it clears this flag */
#define LW_REVOKED 0x04ULL
#define LW_KEY 0x08ULL /* key mode: the row is kept, idx only counts */
/*
 * The credit: the number of rows that may be spent before user space advances the device's durable mark. UNLIMITED is
 * not counted; it is always set in key mode.
 */
#define LW_CREDIT 0xf0ULL
#define LW_CREDIT_ONE 0x10ULL
#define LW_UNLIMITED LW_CREDIT
#define LW_CREDIT_SHIFT 4
#define LW_GEN_ONE 0x100ULL
#define LW_GEN_MASK 0xffffff00ULL
#define LW_IDX_SHIFT 32

/* The hot line of a device: everything that a REQUEST reads, in one cache line. */
struct lw_line {
	__u64 device_id; /* 0: the slot is empty */
	__u64 commit; /* idx u32 | gen u24 | flags u8 */
	__u64 window; /* gen u8 | top u32 | bitmap u24 */
	__u64 session_id; /* first 8 bytes of the winning tag as loaded; 0: no session */
	__u64 challenge; /* in wire order */
	__u64 auth_key[2]; /* zero and never used unless VALID or BUSY */
	__u32 session_until_s; /* end of the session, boot-time clock */
	__u32 slot; /* index of its session and rows */
};

/*
 * Lines are in homes of four, 256 B in one page. A device's home is found by hashing its id, so that finding the line
 * takes one memory access. A device that does not fit into its home is stored elsewhere, and device_index has the
 * place. A line's place is home * 4 + way.
 */
#define LW_HOME_WAYS 4
struct lw_home {
	struct lw_line way[LW_HOME_WAYS];
};

/* The session that the line's session_id names. Its lifetime is not stored: see lw_repeated_lifetime_s(). */
struct lw_session {
	__u64 session_key[2];
	__u64 tag[2]; /* the winning RESPONSE.tag */
	__u64 addr[2]; /* IPv6, or IPv4 as ::ffff:a.b.c.d, in wire order */
	__u32 ingress; /* ifindex to which the session is bound */
	__u16 port; /* UDP source port, in wire order */
	__u8 mac[6];
	__u16 vlan[2]; /* VID | LW_VLAN_TAGGED, with LW_VLAN_SERVICE; vlan[0] carries LW_BOUND */
};
#define LW_VLAN_TAGGED 0x1000
#define LW_VLAN_SERVICE 0x2000 /* the tag has type 0x88a8, not 0x8100 */
#define LW_BOUND 0x8000

/*
 * A row after the line's own, at rows[slot * ring + idx % ring]. The writer stores auth_key[1] last; the winner takes
 * the row by exchanging auth_key[1] with 0. Zero means absent, so a key whose second half is zero (2^-64) is never
 * installed.
 */
struct lw_row {
	__u64 challenge;
	__u64 auth_key[2];
};

/*
 * A prover (LAP/1 3.2) in the periods of one lane. Rounds with even and odd numbers have one lane each, and so have
 * periods. Everything that a PROOF needs is in one cache line. Its place is the one that the hash of the id selects, or
 * the place beside it, or the place in the index.
 */
struct lw_prover {
	__u64 device_id; /* 0: the place is empty */
	__u32 proved[2]; /* by lane of the round: bits 1 to 16 of the round number u16 | LW_PROVED | LW_ALTERNATE | elapsed u14; 0: none */
	__u64 key[4]; /* the first word is 0 if no key is stored */
	__u32 slot; /* index of its alternate keys */
	__u32 pad[3];
};
#define LW_ROUND_BITS_SHIFT 16
#define LW_PROVED (1U << 15)
#define LW_ALTERNATE (1U << 14)
#define LW_ELAPSED_MAX 0x3fffU
/* The key of the configuration that is being rolled out, at slot * 2 + lane, in the same format. */
struct lw_prover_key {
	__u64 word[4];
};
struct lw_round {
	__u64 r; /* gateway_id and number, in wire order; 0: none */
	__u64 nonce;
	__u64 started_ns; /* CLOCK_MONOTONIC */
	__u64 until_ns;
	__u32 number;
	__u32 key_lane;
	__u32 elapsed_shift; /* elapsed times are in units of 2^elapsed_shift ns: no division */
	__u32 pad[5];
};
struct lw_rounds {
	struct lw_round lane[2];
};

/*
 * One per CPU: a PROOF that passed all checks except that of its block. It waits for the next PROOF on that CPU,
 * because two blocks in parallel take a third less time than one after the other, or for user space, which takes
 * waiting PROOFs before it reads verdicts.
 */
struct lw_waiting {
	__u32 state; /* LW_WAITING_* */
	__u32 line; /* of the prover, in `provers` */
	__u32 before; /* the prover's verdict word as it was read */
	__u32 after; /* the new verdict word, without LW_ALTERNATE */
	__u64 addr[2]; /* source address */
	__u32 ingress;
	__u32 pad;
	__u64 device_id; /* in wire order, as are the next three */
	__u64 r;
	__u64 nonce;
	__u64 proof[8];
	__u64 settled_counts[4]; /* written by user space: PROOFs that it settled as ok, already proved, wrong, and without a key */
	__u64 reserved[4];
};
/* The packet path fills a free place. The side that swaps FULL for TAKEN settles the PROOF and frees the place. */
#define LW_WAITING_FREE 0
#define LW_WAITING_FULL 1
#define LW_WAITING_TAKEN 2

/* Bucket of a two-choice hash table. An entry is fingerprint << 32 | place of the line + 1; 0 is free. */
#define LW_WAYS 4
struct lw_bucket {
	__u64 entry[LW_WAYS];
};

/* Block of a Bloom filter: a cache line. */
#define LW_FILTER_WORDS 8
struct lw_filter_block {
	__u64 word[LW_FILTER_WORDS];
};

/* By slot: what user space records in addition to the rows and the session. */
struct lw_note {
	__u32 end;
	__u32 mark;
	__u32 epoch;
	__u32 ticket;
};

#define LW_EXPECTED 65536 /* RESPONSEs that the slow path can expect at once */
#define LW_SOURCES 16384 /* per CPU */

/*
 * Settings that may change while packets flow. They are independent, except the session lifetimes, see
 * lw_repeated_lifetime_s().
 */
struct lw_live {
	__u32 session_lifetime_s;
	__u32 session_lifetime_min_s; /* the shortest ever active: used for sessions from before `session_lifetime_from_s` */
	__u32 session_lifetime_from_s; /* since when session_lifetime_s applies, boot-time clock; 0: since the start */
	__u32 low_rows; /* an event if fewer rows are left; below `ring` */
	__u32 low_credit; /* an event if the credit is not above this */
	__u32 nak_per_s;
	__u32 alarm_per_s;
	__u32 miss_per_s; /* slow-path messages of unknown devices per second and CPU; 0: no slow path */
};

/*
 * An interface on the devices' side, at the place given by its index, or after it. Its MAC addresses as loaded: its
 * own, then those of interfaces that receive its frames (a bridge, a VLAN, a macvlan); all ones if unused.
 */
#define LW_PORTS 64
#define LW_PORT_MACS 8
struct lw_port {
	__u64 ifindex; /* 0: the place is free */
	__u64 mac[LW_PORT_MACS];
};

/* Source addresses of one family that devices can have. Addresses as loaded, IPv4 mapped into IPv6. */
#define LW_PREFIXES 16
#define LW_REFUSED 64
struct lw_prefix {
	__u64 net[2];
	__u64 mask[2];
};
struct lw_sources {
	__u32 is_simple; /* not 0: an address in the first prefix, except the first two refused ones, is a device's; for IPv4 see ip4_prefix */
	__u32 loopback; /* not 0: loopback addresses are admitted, if the prefixes contain them */
	__u32 prefixes; /* number of prefixes */
	__u32 refused; /* number of refused addresses */
	struct lw_prefix prefix[LW_PREFIXES];
	__u64 address[LW_REFUSED][2]; /* inside the prefixes, but not usable by devices */
};
/* By family: IPv4, IPv6. */
struct lw_source_bank {
	struct lw_sources family[2];
};

/* Data that user space writes while packets flow. fresh_previous is written before fresh_current (LAP/1 1.4.1). */
struct lw_control {
	__u64 fresh_current; /* in wire order; 0: not set, no message is answered */
	__u64 fresh_previous;
	__u64 fresh_at_ns; /* CLOCK_MONOTONIC when fresh_current was drawn */
	__u64 stopping; /* not 0: REQUESTs are answered with a NAK */
	__u64 listening; /* not 0: user space sleeps and must be woken by events that it has to handle */
	__u64 filtering; /* not 0: `enrolled` contains every enrolled device */
	__u64 ip4_prefix; /* IPv4 sources that are checked inline, as loaded: the prefix's last address << 32 | its host bits */
	__u64 ip4_refused; /* and two addresses in it that devices must not use */
	/* The following fields are only read by packets and have their own cache lines. */
	struct lw_live live;
	__u64 owner; /* user space only: the process that owns the memory */
	__u64 identity[4]; /* user space only: decides which process may adopt the memory */
	__u64 source_bank; /* the lowest bit selects the active bank of `sources`; the other one is written */
	struct lw_source_bank sources[2];
	struct lw_port port[LW_PORTS];
};

#define LW_HANDLED_BUCKETS 128 /* four per power of two */
#define LW_SAMPLE_INTERVAL 16 /* one in this many RESPONSEs is timed */

/* Per CPU. */
struct lw_percpu {
	__u64 counter[LW_VERDICT_SLOTS]; /* by verdict */
	__u64 events_lost;
	__u64 nak_second; /* the second to which nak_count belongs */
	__u64 nak_count;
	__u64 alarm_second; /* likewise, for wrong-tag events */
	__u64 alarm_count;
	__u64 miss_window; /* likewise, for REQUESTs of unknown devices, in shorter windows */
	__u64 miss_count;
	__u64 unsolicited_window; /* likewise, for their unexpected RESPONSEs */
	__u64 unsolicited_count;
	__u64 reserved;
	__u64 clock_jiffies; /* when the two clocks below were read, see lw_clock() */
	__u64 clock_ns; /* CLOCK_MONOTONIC */
	__u64 clock_boot_s; /* CLOCK_BOOTTIME, seconds */
	__u64 session_lifetime_s; /* for the RESPONSE that is being accepted */
	__u64 proof_at; /* offset in the frame of the PROOF that is passed on, bytes; LW_PROOF_IP6 */
	__u64 responses; /* number of RESPONSEs */
	__u64 timed_ns; /* start of the current one, CLOCK_MONOTONIC; 0: not timed */
	__u64 handled[LW_HANDLED_BUCKETS]; /* accepted and timed RESPONSEs by duration: see lw_handled() */
};

#define LW_PROOF_IP6 0x80 /* the frame is IPv6; the lower bits are the offset */

enum lw_gate { LW_GATE_OFF = 0, LW_GATE_BOUND = 1, LW_GATE_SEALED = 2 };

#define LW_LOCAL_MAX 4
#define LW_ALWAYS_MAX 16
#define LW_DROPPED_TYPES 40

/* Fixed when the program is loaded, so that the kernel's verifier removes code that is not configured. */
struct lw_config {
	__u64 hash_seed[2];
	__u64 local6[LW_LOCAL_MAX][2]; /* the gateway's own addresses, in wire order */
	__u64 dhcp6[LW_LOCAL_MAX][2]; /* DHCP servers, likewise */
	__u64 always[LW_ALWAYS_MAX]; /* addresses that pass without a session: see lw_control_key() */
	__u32 local4[LW_LOCAL_MAX];
	__u32 dhcp4[LW_LOCAL_MAX];
	__u32 local4_count;
	__u32 local6_count;
	__u32 dhcp4_count;
	__u32 dhcp6_count;
	__u32 always_count;
	__u32 gateway_id;
	__u32 slots;
	__u32 ring; /* rows per slot */
	__u32 home_mask; /* homes that ids are hashed to, minus one; spare homes follow */
	__u32 index_mask; /* buckets of device_index, minus one */
	__u32 bucket_mask; /* buckets of the binding tables, minus one */
	__u32 filter_mask; /* blocks of `enrolled`, minus one */
	__u32 provers; /* 0: PROOFs are not served */
	__u32 prover_places; /* places that ids are hashed to, an even number; spare places follow, and the same again for odd periods */
	__u32 prover_all; /* all places of a lane */
	__u32 prover_index_mask;
	__u16 lap_port; /* in wire order */
	__u8 gate; /* enum lw_gate */
	__u8 strong_order; /* the CPU keeps stores in order (x86) */
	__u8 count_work;
	__u8 stamp; /* 1: packets carry evidence when they pass the gate */
	__u8 frags; /* 1: a frame may continue in fragments after the mapped part */
	__u8 pad[1];
};

enum lw_event_kind {
	LW_EVENT_SESSION = 1, /* a session was opened or moved; renewals are only counted */
	LW_EVENT_ROWS_LOW = 2, /* fewer than low_rows rows are left, or the credit is at most low_credit */
	LW_EVENT_ROWS_OUT = 3, /* the last row was spent */
	LW_EVENT_WRONG_TAG = 4, /* rate-limited */
	LW_EVENT_WRONG_PROOF = 5, /* rate-limited */
};

struct lw_event {
	__u32 kind;
	__u32 pad;
	__u64 device_id;
	__u64 session_id;
	__u64 addr[2];
	__u32 idx; /* SESSION: the spent row; WRONG_PROOF: the round; others: the current row */
	__u32 ingress;
};

/* LW_EVENT_SESSION has further fields: they prove the session to the controller (LAP/1 1.4.11). */
struct lw_session_event {
	struct lw_event event;
	__u64 began_ns; /* CLOCK_BOOTTIME */
	__u64 response[8]; /* the winning RESPONSE, in wire order */
	__u64 loc; /* as covered by its tag */
};

/* A message of a device that is not installed, as its frame arrived. */
#define LW_MISS_FRAME 192
struct lw_miss {
	__u32 length;
	__u32 ingress;
	__u8 frame[LW_MISS_FRAME];
};

#endif
