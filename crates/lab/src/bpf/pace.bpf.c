// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Frames at a rate, whatever becomes of them, and a sink that counts what comes back: an open loop, where loadgen.bpf.c
 * closes it. `pace_send` is run by BPF_PROG_TEST_RUN with live frames: the kernel offers it one frame after the other, and
 * it takes the next when its time has come. No socket buffer is made on the way.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define LATE_PS 20000000 /* 20 us */

/* Set by user space before a run. */
__u32 interface = 0; /* that frames leave through */
__u64 next_ps = 0; /* when the next frame is due, by CLOCK_MONOTONIC */
__u64 interval_ps = 0;
__u64 end_ns = 0;
/* Frames that were due, lost ones included. */
__u64 sent = 0;

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} received SEC(".maps");

SEC("xdp")
int pace_send(struct xdp_md *ctx)
{
	__u64 now_ns = bpf_ktime_get_ns();

	if (now_ns * 1000 < next_ps || now_ns >= end_ns)
		return XDP_DROP;
	/* What could not be sent in time is not sent at all: to catch up would be a burst, which no ring holds. */
	if (next_ps + LATE_PS < now_ns * 1000)
		next_ps = now_ns * 1000;
	next_ps += interval_ps;
	sent++;
	return bpf_redirect(interface, 0);
}

SEC("xdp")
int pace_sink(struct xdp_md *ctx)
{
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&received, &zero);

	if (count)
		*count += 1;
	return XDP_DROP;
}
