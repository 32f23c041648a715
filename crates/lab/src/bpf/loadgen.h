/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the load generator's programs and src/loadgen share. */
#ifndef LW_LOADGEN_H
#define LW_LOADGEN_H

#include <linux/types.h>

/* Handshakes that can be under way at once. More than a veth's ring (256) could not be in flight anyway. */
#define LOADGEN_WINDOW_MAX 192

/* Set before loading; all multi-byte fields marked be stand as on the wire. */
struct loadgen_config {
	__u32 devices;           /* how many take turns */
	__u32 window;            /* handshakes under way; at most devices and LOADGEN_WINDOW_MAX */
	__u32 rows;              /* RESPONSE tags per device */
	__u32 first_idx;         /* row that tag 0 of a device belongs to */
	__u64 fresh_be;          /* the frozen fresh that all tags were made for */
	__u32 gateway_ip_be;
	__u32 device_ip_base;    /* host order; device i has base + i */
	__u16 source_port_be;
	__u16 lap_port_be;
	__u8 gateway_mac[6];
	__u8 response_flags;     /* FLAG_BOUND or 0 */
	__u8 suite;
	__u8 redirect;           /* leave by XDP_REDIRECT instead of XDP_TX */
};

/* What a token, one of the handshakes under way, is doing. */
enum loadgen_phase {
	LOADGEN_REQUESTED = 0, /* a REQUEST is out */
	LOADGEN_RESPONDED = 1, /* a RESPONSE is out */
	LOADGEN_ENDED = 2,     /* stopped, or its device cannot be served */
};

struct loadgen_token {
	__u32 device; /* index of the device whose turn it is */
	enum loadgen_phase phase;
	__u64 steps;  /* messages sent, so that user space sees whether it moves */
};

struct loadgen_counters {
	__u64 requests;   /* sent by the program */
	__u64 challenges; /* received and answered */
	__u64 responses;  /* sent */
	__u64 completed;  /* ACKs received: complete authentications */
	__u64 naks;
	__u64 exhausted;  /* CHALLENGE for a row without a tag */
	__u64 stale;      /* CHALLENGE with another fresh than the tags were made for */
	__u64 unexpected; /* not what its token waits for, such as a duplicate */
	__u64 ended;      /* tokens that ended */
};

struct reflector_counters {
	__u64 requests;
	__u64 responses;
};

#endif
