/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Definitions that the load generator's programs share with src/loadgen. */
#ifndef LW_LOADGEN_H
#define LW_LOADGEN_H

#include <linux/types.h>

/* Maximum number of concurrent handshakes; a veth's ring holds at most 256 frames. */
#define LOADGEN_WINDOW_MAX 192

/* Set before loading; multi-byte fields marked be are in network byte order. */
struct loadgen_config {
	__u32 devices;           /* number of devices that take turns */
	__u32 window;            /* concurrent handshakes; at most devices and LOADGEN_WINDOW_MAX */
	__u32 rows;              /* RESPONSE tags per device */
	__u32 first_idx;         /* row of tag 0 of each device */
	__u64 fresh_be;          /* the fixed freshness value of all tags */
	__u32 gateway_ip_be;
	__u32 device_ip_base;    /* host order; device i has base + i */
	__u16 source_port_be;
	__u16 lap_port_be;
	__u8 gateway_mac[6];
	__u8 response_flags;     /* FLAG_BOUND or 0 */
	__u8 suite;
	__u8 redirect;           /* leave by XDP_REDIRECT instead of XDP_TX */
};

/* The phase of a token, which is one concurrent handshake. */
enum loadgen_phase {
	LOADGEN_REQUESTED = 0, /* a REQUEST was sent */
	LOADGEN_RESPONDED = 1, /* a RESPONSE was sent */
	LOADGEN_ENDED = 2,     /* stopped, or its device cannot be served */
};

struct loadgen_token {
	__u32 device; /* index of the current device */
	enum loadgen_phase phase;
	__u64 steps;  /* messages sent, so that user space detects a stalled token */
};

struct loadgen_counters {
	__u64 requests;   /* sent by the program */
	__u64 challenges; /* received and answered */
	__u64 responses;  /* sent */
	__u64 completed;  /* ACKs received: complete authentications */
	__u64 naks;
	__u64 exhausted;  /* CHALLENGE for a row without a tag */
	__u64 stale;      /* CHALLENGE with another freshness value than the tags have */
	__u64 unexpected; /* message that is unexpected for its token, such as a duplicate */
	__u64 ended;      /* tokens that ended */
};

struct reflector_counters {
	__u64 requests;
	__u64 responses;
};

#endif
