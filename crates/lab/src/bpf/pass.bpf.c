// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Passes all frames; only its presence matters, see src/xdp_pass.rs. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

SEC("xdp")
int pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}
