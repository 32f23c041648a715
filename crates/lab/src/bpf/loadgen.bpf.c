// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * A closed-loop load generator for LAP/1 verifiers, and a reflector that acts as the fastest possible verifier.
 *
 * `loadgen_generate` is attached to the devices' end of a veth and simulates `window` devices at once. The program
 * turns each CHALLENGE into the RESPONSE whose tag user space has computed before, and each ACK into the REQUEST of
 * the next device, in the same packet buffer. The verifier always has work, no packet is allocated or freed, and no
 * frame is lost, so the measured rate is the verifier's rate. Token w simulates the devices w, w + window, w + 2 window, ... and
 * starts over, so two tokens never use the same device and share no state.
 *
 * `loadgen_reflect` on the gateway's end replies with minimal work. The rate against it is the generator's own rate,
 * which must be well above every rate measured with the generator.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "loadgen.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

const volatile struct loadgen_config config = {};
/* Set by user space: tokens end at their next ACK. */
volatile __u32 stopping = 0;

/* device_id of each device as on the wire. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* devices, set before loading */
	__type(key, __u32);
	__type(value, __u64);
} device_ids SEC(".maps");

struct tag {
	__u64 halves[2];
};

/* RESPONSE.tag by device * rows + (idx - first_idx). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* devices * rows, set before loading */
	__type(key, __u32);
	__type(value, struct tag);
} response_tags SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LOADGEN_WINDOW_MAX);
	__type(key, __u32);
	__type(value, struct loadgen_token);
} tokens SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct loadgen_counters);
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct reflector_counters);
} reflector_counters SEC(".maps");

/* Offsets in an Ethernet II, IPv4 without options, UDP frame with a 64-byte message. */
#define AT_MAC_DST 0
#define AT_MAC_SRC 6
#define AT_ETHERTYPE 12
#define AT_IP 14
#define AT_IP_PROTOCOL 23
#define AT_IP_CHECKSUM 24
#define AT_IP_SRC 26
#define AT_IP_DST 30
#define AT_UDP_SRC 34
#define AT_UDP_DST 36
#define AT_UDP_CHECKSUM 40
#define AT_LAP 42
#define AT_LAP_KIND (AT_LAP + 3)
#define AT_LAP_ID (AT_LAP + 8)
#define FRAME_BYTES (AT_LAP + 64)
/* REQUEST and RESPONSE */
#define AT_NONCE (AT_LAP + 16)
/* CHALLENGE */
#define AT_CHALLENGE_IDX (AT_LAP + 16)
#define AT_CHALLENGE_FRESH (AT_LAP + 32)
#define AT_CHALLENGE_ECHO (AT_LAP + 40)
/* RESPONSE */
#define AT_RESPONSE_IDX (AT_LAP + 32)
#define AT_RESPONSE_FRESH (AT_LAP + 40)
#define AT_RESPONSE_TAG (AT_LAP + 48)

#define KIND_REQUEST 1
#define KIND_CHALLENGE 2
#define KIND_RESPONSE 3
#define KIND_ACK 4
#define KIND_NAK 5

/* The first four bytes of a nonce are the device's index; these are the other bytes. */
#define NONCE_REST_BE bpf_htonl(0x6c6f6164)
#define NONCE_HIGH_BE bpf_cpu_to_be64(0x67656e6572617465ULL)

/* Unaligned access to packet bytes, which x86 and arm64 allow in BPF. */
#define U8(p, at) (*(__u8 *)((p) + (at)))
#define U16(p, at) (*(__u16 *)((p) + (at)))
#define U32(p, at) (*(__u32 *)((p) + (at)))
#define U64(p, at) (*(__u64 *)((p) + (at)))

static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* Over pseudo header and message; never 0 on the wire (RFC 768). */
static __always_inline void write_udp_checksum(void *p)
{
	__u64 sum = bpf_htons(IPPROTO_UDP) + bpf_htons(72);

	U16(p, AT_UDP_CHECKSUM) = 0;
#pragma unroll
	for (int at = AT_IP_SRC; at < FRAME_BYTES; at += 4)
		sum += U32(p, at);
	__u16 folded = fold(sum);
	U16(p, AT_UDP_CHECKSUM) = folded ? folded : 0xffff;
}

static __always_inline void swap_addresses(void *p)
{
	__u32 dst_mac_high = U32(p, AT_MAC_DST);
	__u16 dst_mac_low = U16(p, AT_MAC_DST + 4);
	__u32 ip_src = U32(p, AT_IP_SRC);
	__u16 port_src = U16(p, AT_UDP_SRC);

	U32(p, AT_MAC_DST) = U32(p, AT_MAC_SRC);
	U16(p, AT_MAC_DST + 4) = U16(p, AT_MAC_SRC + 4);
	U32(p, AT_MAC_SRC) = dst_mac_high;
	U16(p, AT_MAC_SRC + 4) = dst_mac_low;
	U32(p, AT_IP_SRC) = U32(p, AT_IP_DST);
	U32(p, AT_IP_DST) = ip_src;
	U16(p, AT_UDP_SRC) = U16(p, AT_UDP_DST);
	U16(p, AT_UDP_DST) = port_src;
}

static __always_inline int is_lap(void *p, int port_at, __u16 lap_port_be)
{
	return U16(p, AT_ETHERTYPE) == bpf_htons(ETH_P_IP) && U8(p, AT_IP) == 0x45 &&
	       U8(p, AT_IP_PROTOCOL) == IPPROTO_UDP && U16(p, port_at) == lap_port_be &&
	       (U32(p, AT_LAP) & bpf_htonl(0xffffff00)) == bpf_htonl(0x4c570100);
}

/* Overwrites the buffer with the REQUEST of a device. */
static __always_inline void write_request(void *p, __u32 device, __u64 id_be)
{
	__u32 device_ip_be = bpf_htonl(config.device_ip_base + device);
	__u32 device_be = bpf_htonl(device);

	/* Byte by byte: a memcpy would drop the volatile, and clang would fold the zero-initialized const. */
#pragma unroll
	for (int i = 0; i < 6; i++)
		U8(p, AT_MAC_DST + i) = config.gateway_mac[i];
	U16(p, AT_MAC_SRC) = bpf_htons(0x0200);
	U32(p, AT_MAC_SRC + 2) = device_be;
	U16(p, AT_ETHERTYPE) = bpf_htons(ETH_P_IP);

	U32(p, AT_IP) = bpf_htonl(0x4500005c); /* 92 bytes */
	U32(p, AT_IP + 4) = bpf_htonl(0x00004000); /* do not fragment */
	U32(p, AT_IP + 8) = bpf_htonl(0x40110000); /* 64 hops, UDP */
	U32(p, AT_IP_SRC) = device_ip_be;
	U32(p, AT_IP_DST) = config.gateway_ip_be;
	U16(p, AT_IP_CHECKSUM) = fold((__u64)U32(p, AT_IP) + U32(p, AT_IP + 4) + U32(p, AT_IP + 8) + device_ip_be +
				   config.gateway_ip_be);

	U16(p, AT_UDP_SRC) = config.source_port_be;
	U16(p, AT_UDP_DST) = config.lap_port_be;
	U16(p, AT_UDP_CHECKSUM - 2) = bpf_htons(72);

	U32(p, AT_LAP) = bpf_htonl(0x4c570100 | KIND_REQUEST);
	U8(p, AT_LAP + 4) = config.suite;
	U8(p, AT_LAP + 5) = 0;
	U16(p, AT_LAP + 6) = bpf_htons(64);
	U64(p, AT_LAP_ID) = id_be;
	U32(p, AT_NONCE) = device_be;
	U32(p, AT_NONCE + 4) = NONCE_REST_BE;
	U64(p, AT_NONCE + 8) = NONCE_HIGH_BE;
#pragma unroll
	for (int at = AT_NONCE + 16; at < FRAME_BYTES; at += 8)
		U64(p, at) = 0;
	write_udp_checksum(p);
}

static __always_inline int transmit(struct xdp_md *ctx)
{
	if (config.redirect)
		return bpf_redirect(ctx->ingress_ifindex, 0);
	return XDP_TX;
}

static __always_inline int end(struct loadgen_token *token, struct loadgen_counters *count)
{
	token->phase = LOADGEN_ENDED;
	count->ended++;
	return XDP_DROP;
}

static __always_inline int on_challenge(struct xdp_md *ctx, void *p, struct loadgen_token *token, struct loadgen_counters *count)
{
	__u32 row = bpf_ntohl(U32(p, AT_CHALLENGE_IDX)) - config.first_idx;
	__u32 tag_index = token->device * config.rows + row;
	struct tag *tag = bpf_map_lookup_elem(&response_tags, &tag_index);

	if (token->phase != LOADGEN_REQUESTED) {
		count->unexpected++;
		return XDP_DROP;
	}
	if (row >= config.rows || !tag) {
		count->exhausted++;
		return end(token, count);
	}
	if (U64(p, AT_CHALLENGE_FRESH) != config.fresh_be) {
		count->stale++;
		return end(token, count);
	}
	count->challenges++;

	__u64 idx_gateway = U64(p, AT_CHALLENGE_IDX);
	__u64 echo = U64(p, AT_CHALLENGE_ECHO);

	swap_addresses(p);
	U8(p, AT_LAP_KIND) = KIND_RESPONSE;
	U8(p, AT_LAP + 5) = config.response_flags;
	U64(p, AT_NONCE) = echo;
	U64(p, AT_NONCE + 8) = NONCE_HIGH_BE;
	U64(p, AT_RESPONSE_IDX) = idx_gateway;
	U64(p, AT_RESPONSE_FRESH) = config.fresh_be;
	U64(p, AT_RESPONSE_TAG) = tag->halves[0];
	U64(p, AT_RESPONSE_TAG + 8) = tag->halves[1];
	write_udp_checksum(p);

	token->phase = LOADGEN_RESPONDED;
	token->steps++;
	count->responses++;
	return transmit(ctx);
}

static __always_inline int on_ack(struct xdp_md *ctx, void *p, struct loadgen_token *token, __u32 token_index,
				  struct loadgen_counters *count)
{
	if (token->phase != LOADGEN_RESPONDED) {
		count->unexpected++;
		return XDP_DROP;
	}
	count->completed++;
	if (stopping)
		return end(token, count);

	__u32 next = token->device + config.window;
	if (next >= config.devices)
		next = token_index;
	__u64 *id_be = bpf_map_lookup_elem(&device_ids, &next);
	if (!id_be)
		return end(token, count);
	write_request(p, next, *id_be);

	token->device = next;
	token->phase = LOADGEN_REQUESTED;
	token->steps++;
	count->requests++;
	return transmit(ctx);
}

SEC("xdp")
int loadgen_generate(struct xdp_md *ctx)
{
	void *p = (void *)(long)ctx->data;
	void *packet_end = (void *)(long)ctx->data_end;
	__u32 zero = 0;

	if (p + FRAME_BYTES > packet_end || !is_lap(p, AT_UDP_SRC, config.lap_port_be) || !config.window)
		return XDP_PASS;
	struct loadgen_counters *count = bpf_map_lookup_elem(&counters, &zero);
	if (!count)
		return XDP_ABORTED;

	__u32 device = bpf_ntohl(U32(p, AT_MAC_DST + 2));
	__u32 token_index = device % config.window;
	struct loadgen_token *token = bpf_map_lookup_elem(&tokens, &token_index);
	if (!token || token->device != device) {
		count->unexpected++;
		return XDP_DROP;
	}
	switch (U8(p, AT_LAP_KIND)) {
	case KIND_CHALLENGE:
		return on_challenge(ctx, p, token, count);
	case KIND_ACK:
		return on_ack(ctx, p, token, token_index, count);
	case KIND_NAK:
		count->naks++;
		return end(token, count);
	default:
		count->unexpected++;
		return XDP_DROP;
	}
}

SEC("xdp")
int loadgen_reflect(struct xdp_md *ctx)
{
	void *p = (void *)(long)ctx->data;
	void *packet_end = (void *)(long)ctx->data_end;
	__u32 zero = 0;

	if (p + FRAME_BYTES > packet_end || !is_lap(p, AT_UDP_DST, config.lap_port_be))
		return XDP_PASS;
	struct reflector_counters *count = bpf_map_lookup_elem(&reflector_counters, &zero);
	if (!count)
		return XDP_ABORTED;

	switch (U8(p, AT_LAP_KIND)) {
	case KIND_REQUEST:
		count->requests++;
		U8(p, AT_LAP_KIND) = KIND_CHALLENGE;
		U64(p, AT_CHALLENGE_ECHO) = U64(p, AT_NONCE);
		U64(p, AT_CHALLENGE_FRESH) = config.fresh_be;
		U32(p, AT_CHALLENGE_IDX) = bpf_htonl(config.first_idx);
		break;
	case KIND_RESPONSE:
		count->responses++;
		U8(p, AT_LAP_KIND) = KIND_ACK;
		break;
	default:
		return XDP_DROP;
	}
	swap_addresses(p);
	return XDP_TX;
}
