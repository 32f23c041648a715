// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Sends frames that user space has prepared, each once and in order, up to the number that user space allows. `burst_send` is
 * run by BPF_PROG_TEST_RUN with live frames: the kernel passes frames from a pool to the program, which rewrites and sends one
 * when another frame is allowed and drops the others.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define FRAME_BYTES 138 /* of a PROOF */
#define FRAME_WORDS 17

struct burst_frame {
	__u64 word[FRAME_WORDS];
	__u16 last_bytes; /* after the words */
	__u16 pad[3];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set before loading */
	__type(key, __u32);
	__type(value, struct burst_frame);
} prepared SEC(".maps");

/* Number of frames that may be sent; user space increases it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} allowed SEC(".maps");

/* Set by user space before a run. */
__u32 interface = 0; /* output interface of the frames */
__u32 next = 0; /* index of the next frame to send */

SEC("xdp")
int burst_send(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 index = next, zero = 0;
	__u32 *frames_allowed = bpf_map_lookup_elem(&allowed, &zero);

	if (!frames_allowed || index >= *(volatile __u32 *)frames_allowed)
		return XDP_DROP;
	struct burst_frame *frame = bpf_map_lookup_elem(&prepared, &index);

	if (!frame || data + FRAME_BYTES > end)
		return XDP_DROP;
	__u64 *word = data;

#pragma unroll
	for (int i = 0; i < FRAME_WORDS; i++)
		word[i] = frame->word[i];
	*(__u16 *)(word + FRAME_WORDS) = frame->last_bytes;
	next = index + 1;
	return bpf_redirect(interface, 0);
}
