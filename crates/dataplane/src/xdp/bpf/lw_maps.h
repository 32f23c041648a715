/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Configuration and maps. All state is in arrays, so that no element disappears and a look-up is an address
 * computation. User space maps the arrays with BPF_F_MMAPABLE, and sets the sizes before the program is loaded.
 */
#ifndef LW_MAPS_H
#define LW_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "lw_layout.h"
#include "lw_verdicts.h"

_Static_assert(LW_VERDICT_SLOTS == sizeof(((struct lw_percpu *)0)->counter) / sizeof(__u64), "a counter per verdict");
_Static_assert(sizeof(struct lw_line) == 64 && sizeof(struct lw_session) == 64, "one cache line each");
_Static_assert(sizeof(struct lw_row) == 24, "24 B a row");

const volatile struct lw_config cfg = {};

#define LW_ARRAY(name, value_type, extra_flags)           \
	struct {                                          \
		__uint(type, BPF_MAP_TYPE_ARRAY);         \
		__uint(map_flags, extra_flags);           \
		__uint(max_entries, 1);                   \
		__type(key, __u32);                       \
		__type(value, value_type);                \
	} name SEC(".maps")

LW_ARRAY(lines, struct lw_home, BPF_F_MMAPABLE);
LW_ARRAY(sessions, struct lw_session, BPF_F_MMAPABLE);
LW_ARRAY(rows, struct lw_row, BPF_F_MMAPABLE);
LW_ARRAY(device_index, struct lw_bucket, BPF_F_MMAPABLE); /* device id -> place of a line outside its home */
LW_ARRAY(enrolled, struct lw_filter_block, BPF_F_MMAPABLE); /* ids of all devices that are enrolled anywhere */
LW_ARRAY(by_address, struct lw_bucket, BPF_F_MMAPABLE); /* IP address -> place of the line whose session owns it */
LW_ARRAY(by_mac, struct lw_bucket, BPF_F_MMAPABLE); /* (ingress, VLANs, MAC) -> place of the line of the BOUND session */
LW_ARRAY(notes, struct lw_note, BPF_F_MMAPABLE); /* records of user space, which may restart */
LW_ARRAY(control, struct lw_control, BPF_F_MMAPABLE);

LW_ARRAY(provers, struct lw_prover, BPF_F_MMAPABLE); /* lane of the period * cfg.prover_all + place */
LW_ARRAY(alternate_keys, struct lw_prover_key, BPF_F_MMAPABLE); /* slot * 2 + lane of the period */
LW_ARRAY(prover_index, struct lw_bucket, BPF_F_MMAPABLE); /* device id -> place of a prover outside its home */
LW_ARRAY(open_rounds, struct lw_rounds, BPF_F_MMAPABLE);
LW_ARRAY(waiting, struct lw_waiting, BPF_F_MMAPABLE); /* by CPU */


/* RESPONSEs that follow CHALLENGEs of the slow path, by hash. A later RESPONSE replaces an earlier RESPONSE of the same cell. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, LW_EXPECTED);
	__type(key, __u32);
	__type(value, __u64);
} expected SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct lw_percpu);
} percpu SEC(".maps");

/* Messages for the slow path by source, as window << 32 | count. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LW_SOURCES);
	__type(key, __u32);
	__type(value, __u64);
} sources SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 22);
} events SEC(".maps");

/* Separate from the events, so that a flood of unknown devices displaces no event. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} misses SEC(".maps");

/*
 * Programs that other programs tail-call, and that end with the gateway's process, because only that process reads
 * their results and sets their input. These programs check PROOFs, whose sixteen words do not fit the stack of the main
 * program, and stamp packets that pass. The kernel empties a table of programs when its last descriptor and its last pin
 * are gone; this table is never pinned.
 */
enum lw_program { LW_PROGRAM_PROOF, LW_PROGRAM_STAMP, LW_PROGRAMS };
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, LW_PROGRAMS);
	__type(key, __u32);
	__type(value, __u32);
} programs SEC(".maps");

/*
 * The program that outlives the process if the gate outlives the process. This program authenticates devices behind a
 * sealed gate, and stops by itself when `fresh` is 16 s old. The table is pinned beside the link (attach.rs), because
 * otherwise the kernel would empty the table.
 */
enum lw_pinned_program { LW_PINNED_GATEWAY, LW_PINNED_PROGRAMS };
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, LW_PINNED_PROGRAMS);
	__type(key, __u32);
	__type(value, __u32);
} kept_programs SEC(".maps");

/*
 * SipHash words absorbed and map elements looked up, for the benches; `bench.bpf.c` defines LW_COUNT_WORK. Globals of
 * one CPU: a look-up per count would multiply the states that the kernel's verifier processes.
 */
enum lw_work_kind { LW_WORK_WORDS, LW_WORK_LOOKUPS };

#ifdef LW_COUNT_WORK
__u64 lw_work_done[2];

static __always_inline void lw_work(enum lw_work_kind kind)
{
	if (cfg.count_work)
		lw_work_done[kind]++;
}
#else
static __always_inline void lw_work(enum lw_work_kind kind)
{
}
#endif

static __always_inline void *lw_at(void *map, __u32 index)
{
	lw_work(LW_WORK_LOOKUPS);
	return bpf_map_lookup_elem(map, &index);
}

/* A single access, which the compiler does not tear, repeat or move. */
#define LW_READ(x) (*(volatile typeof(x) *)&(x))
#define LW_WRITE(x, value) (*(volatile typeof(x) *)&(x) = (value))
/* If the CPU may reorder loads, an atomic addition of 0 keeps their order; x86 does not reorder loads. */
static __always_inline __u64 lw_ordered_load(__u64 *from)
{
	return cfg.strong_order ? LW_READ(*from) : __sync_fetch_and_add(from, 0);
}
/* A full barrier in BPF, and on every CPU. */
#define LW_EXCHANGE(x, value) __sync_lock_test_and_set(&(x), value)

#endif
