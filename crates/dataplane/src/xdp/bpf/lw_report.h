/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Reports of the packet path to user space: events, and messages of devices that are not installed (LAP/1 1.4.6). */
#ifndef LW_REPORT_H
#define LW_REPORT_H

#include "lw_packet.h"
#include "lw_shed.h"

#define LW_MESSAGE 64 /* size of every message except DATA and PROOF */

/* State of the handling of one packet. */
struct lw_ctx {
	struct lw_frame frame;
	struct lw_percpu *cpu;
	struct lw_control *control;
};

/*
 * The clocks, read once per jiffy and CPU: reading them for every packet would cost a tenth of a REQUEST. A jiffy (at
 * most 10 ms) is far shorter than a second, the unit of session lifetimes, and than the 16 s lifetime of a fresh value.
 */
static __always_inline void lw_clock(struct lw_ctx *c)
{
	__u64 jiffies = bpf_jiffies64();

	if (c->cpu->clock_jiffies != jiffies) {
		c->cpu->clock_jiffies = jiffies;
		c->cpu->clock_ns = bpf_ktime_get_ns();
		c->cpu->clock_boot_s = bpf_ktime_get_boot_ns() / 1000000000ULL;
	}
}

/* The active settings. */
static __always_inline const struct lw_live *lw_live(const struct lw_control *control)
{
	return &control->live;
}

static __always_inline void lw_count(struct lw_percpu *cpu, __u32 verdict)
{
	/* One register for the check and the use: kernel 6.1 does not carry a bound from a copy to the other. */
	asm volatile("" : "+r"(verdict));
	if (verdict < LW_VERDICT_SLOTS)
		cpu->counter[verdict]++;
}

/*
 * Reading a clock costs more than a hash: only one in LW_SAMPLE_INTERVAL RESPONSEs is timed, from its parsing until its
 * ACK is written.
 */
static __always_inline void lw_timing_begin(struct lw_ctx *c)
{
	c->cpu->timed_ns = c->cpu->responses++ % LW_SAMPLE_INTERVAL ? 0 : bpf_ktime_get_ns();
}

/* Counts a handling time; mirrors handling_time::bucket_of(). A global function, because it is rarely called. */
__noinline int lw_handled(__u64 duration_ns)
{
	__u32 zero = 0;
	struct lw_percpu *cpu = bpf_map_lookup_elem(&percpu, &zero);
	__u64 ns = duration_ns > 0xffffffffULL ? 0xffffffffULL : duration_ns, remaining = ns, high = 0;

	if (!cpu)
		return 0;
#pragma unroll
	for (int bits = 16; bits; bits >>= 1) {
		/* Without a branch: the difference is negative if `remaining` has more than `bits` bits. */
		__u64 is_beyond = (((1ULL << bits) - 1) - remaining) >> 63;

		high += is_beyond * bits;
		remaining >>= is_beyond * bits;
	}
	__u64 bucket = high < 2 ? ns : (high - 1) << 2 | ((ns >> ((high - 2) & 31)) & 3);

	asm volatile("" : "+r"(bucket));
	if (bucket < LW_HANDLED_BUCKETS)
		cpu->handled[bucket]++;
	return 0;
}

static __always_inline void lw_timing_end(const struct lw_ctx *c)
{
	if (c->cpu->timed_ns)
		lw_handled(bpf_ktime_get_ns() - c->cpu->timed_ns);
}

/* Whether the limit `per_second` permits an operation at `now_ns`; `second` and `count` belong to this CPU. */
static __always_inline int lw_within_rate(__u64 now_ns, __u32 per_second, __u64 *second, __u64 *count)
{
	return lw_is_within(now_ns / 1000000000ULL, per_second, second, count);
}

/*
 * Flags that wake user space for an event that it has to handle: only if user space sleeps, and only one time. A wake-up
 * per event would cost more than the packet. The ring buffer's own rule for wake-ups fails if other events are submitted
 * without a wake-up.
 */
static __always_inline __u64 lw_wake_up(struct lw_control *control)
{
	if (!LW_READ(control->listening))
		return BPF_RB_NO_WAKEUP;
	LW_WRITE(control->listening, 0);
	return BPF_RB_FORCE_WAKEUP;
}

static __always_inline void lw_fill(struct lw_event *event, __u32 kind, __u64 device_id, __u32 idx,
				    const __u64 addr[2], __u32 ingress)
{
	event->kind = kind;
	event->pad = 0;
	event->device_id = device_id;
	event->session_id = 0;
	event->addr[0] = addr[0];
	event->addr[1] = addr[1];
	event->idx = idx;
	event->ingress = ingress;
}

static __always_inline void lw_emit(struct lw_ctx *c, __u32 kind, __u64 device_id, __u32 idx, const __u64 addr[2])
{
	struct lw_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event) {
		c->cpu->events_lost++;
		return;
	}
	lw_fill(event, kind, device_id, idx, addr, c->frame.xdp->ingress_ifindex);
	__u64 wake_up = BPF_RB_NO_WAKEUP;

	if (kind == LW_EVENT_ROWS_LOW || kind == LW_EVENT_ROWS_OUT)
		wake_up = lw_wake_up(c->control);
	bpf_ringbuf_submit(event, wake_up);
}

/*
 * Hands the frame to user space, which requests the device's rows from the controller. A global function with its own
 * stack, because it is rarely called.
 */
__noinline int lw_miss(struct xdp_md *ctx, __u64 device_id, __u64 source, __u64 response_key)
{
	__u32 zero = 0;
	struct lw_percpu *cpu = bpf_map_lookup_elem(&percpu, &zero);
	struct lw_control *control_block = bpf_map_lookup_elem(&control, &zero);

	if (!cpu || !control_block)
		return LW_DROP_UNKNOWN_DEVICE;
	__u32 per_second = LW_READ(lw_live(control_block)->miss_per_s);

	if (!per_second)
		return LW_DROP_UNKNOWN_DEVICE;
	if (LW_READ(control_block->filtering) && !lw_is_enrolled(device_id))
		return LW_DROP_UNKNOWN_DEVICE;
	if (!lw_admits_unknown(cpu, source, response_key, per_second))
		return LW_DROP_SHED;
	struct lw_miss *miss = bpf_ringbuf_reserve(&misses, sizeof(*miss), 0);

	if (!miss)
		return LW_DROP_SHED;
	__u64 length = (void *)(long)ctx->data_end - (void *)(long)ctx->data;

	if (length < LW_MESSAGE || length > LW_MISS_FRAME) {
		bpf_ringbuf_discard(miss, BPF_RB_NO_WAKEUP);
		return LW_DROP_UNKNOWN_DEVICE;
	}
	miss->length = length;
	miss->ingress = ctx->ingress_ifindex;
	if (bpf_xdp_load_bytes(ctx, 0, miss->frame, length)) {
		bpf_ringbuf_discard(miss, BPF_RB_NO_WAKEUP);
		return LW_DROP_UNKNOWN_DEVICE;
	}
	bpf_ringbuf_submit(miss, lw_wake_up(control_block));
	return LW_SLOW_PATH;
}

/* Handles a message of an unknown device. `response_key`: see lw_response_key(); 0 for a REQUEST. */
static __always_inline enum lw_verdict lw_unknown(struct lw_ctx *c, __u64 device_id, __u64 response_key)
{
	__u64 addr[2];

	lw_source_address(&c->frame, addr);
	return lw_miss(c->frame.xdp, device_id, lw_hash(addr[0] ^ c->frame.xdp->ingress_ifindex, addr[1]),
		       response_key);
}

#endif
