// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The verifier and gate of a gateway's port. */
#include "lw_gateway.h"

SEC("xdp")
int linewarden_gateway(struct xdp_md *ctx)
{
	return lw_gateway(ctx);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
