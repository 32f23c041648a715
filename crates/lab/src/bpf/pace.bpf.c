// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Sends frames at a rate regardless of replies, and counts returned frames in a sink: an open loop, in contrast to
 * loadgen.bpf.c. `pace_send` is run by BPF_PROG_TEST_RUN with live frames: the kernel passes frames to the program, which
 * sends one whenever a frame is due and drops the others. No socket buffer is allocated.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define LATE_PS 20000000 /* 20 us */

/* Set by user space before a run. */
__u32 interface = 0; /* output interface of the frames */
__u64 next_ps = 0; /* when the next frame is due, by CLOCK_MONOTONIC */
__u64 interval_ps = 0;
__u64 end_ns = 0;
/* Sent frames, including frames that were lost later. */
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
	/* Skips frames that could not be sent in time: catching up would be a burst that overflows the ring. */
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
