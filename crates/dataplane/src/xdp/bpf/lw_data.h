/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * DATA_UP at the sealed gate (LAP/1 1.4.7): verifies the message, marks its number and removes the LAP header. A
 * separate program, because the stack of linewarden_gateway is full. The steps are global functions, which the kernel
 * verifies separately and which locate their position in the packet again.
 */
#ifndef LW_DATA_H
#define LW_DATA_H

#include "lw_forward.h"
#include "lw_gate.h"

/* Maximum sealed payload, bytes; enough for a link with an MTU of 9,000. */
#define LW_SEALED_MAX 9000
#define LW_SEALED_WORDS (LW_SEALED_MAX / 8)
#define LW_WINDOW 24
#define LW_WINDOW_TRIES 4
#define LW_SEQUENCE_MAX 0xffffffffULL

struct lw_data {
	__u64 h0, device_id, session_id, seq, port, tag[2]; /* port in the first two bytes, the others zero */
};
_Static_assert(sizeof(struct lw_data) == LW_DATA_HEADER, "56 B");

/* Magic, version and type DATA_UP, as a little-endian load. */
#define LW_IS_DATA_UP 0x0601574cU

/* DATA.tag = F(session_key, H0, seq, port || sport || 0[4], peer, payload padded). */
struct lw_seal_input {
	__u64 key[2];
	__u64 h0, seq, ports, peer[2];
	__u64 tag[2]; /* the result */
};

static __always_inline void lw_data_begin(struct lw_sip *s, const struct lw_seal_input *in)
{
	lw_sip_init(s, in->key[0], in->key[1]);
	lw_sip_word(s, in->h0);
	lw_sip_word(s, in->seq);
	lw_sip_word(s, in->ports);
	lw_sip_word(s, in->peer[0]);
	lw_sip_word(s, in->peer[1]);
}

/*
 * Computes in->tag over `bytes` bytes of payload after the LAP header at offset `at` of the packet. Returns 0 if the packet
 * ends earlier. A global function, so that the kernel's verifier processes the loop one time and not for every path that
 * leads to it.
 */
__noinline int lw_data_tag(struct xdp_md *ctx, __u32 at, __u32 bytes, struct lw_seal_input *in)
{
	if (!in)
		return 0;
	/* Masks instead of comparisons: clang would compare a copy, from which the kernel's verifier learns nothing. */
	at &= 127;
	bytes &= 16383;
	__u8 *p = (void *)(long)ctx->data + (at + LW_DATA_HEADER), *end = (void *)(long)ctx->data_end;
	__u32 words = bytes / 8;
	struct lw_sip s;

	lw_data_begin(&s, in);
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < LW_SEALED_WORDS; i++) {
		if (i >= words)
			break;
		/* Prevents clang from moving the check to another pointer. */
		asm volatile("" : "+r"(p));
		if (p + 8 > end)
			return 0;
		lw_sip_word(&s, *(__u64 *)p);
		p += 8;
	}
	if (bytes & 7) {
		/* The last eight bytes. Bytes that are already hashed or belong to the header are shifted out. */
		__u8 *last = (void *)(long)ctx->data + (at + LW_DATA_HEADER - 8 + bytes);

		asm volatile("" : "+r"(last));
		if (last + 8 > end)
			return 0;
		lw_sip_word(&s, *(__u64 *)last >> (64 - 8 * (bytes & 7)));
		words++;
	}
	lw_sip_finish(&s, 5 + words, in->tag);
	return 1;
}

/* The window after accepting `seq`; 0 if `seq` was seen or is too old. A window that accepted a number is never 0. */
static __always_inline __u64 lw_window_accept(__u64 window, __u32 seq)
{
	__u32 top = window >> 24;
	__u64 bitmap = window & 0xffffff;

	if (seq > top) {
		__u32 ahead = seq - top;

		bitmap = ahead < LW_WINDOW ? bitmap << ahead : 0;
		return (window & (0xffULL << 56)) | (__u64)seq << 24 | ((bitmap | 1) & 0xffffff);
	}
	__u32 back = top - seq;

	if (back >= LW_WINDOW || bitmap >> back & 1)
		return 0;
	return window | 1ULL << back;
}

/* Marks `seq` as received. If two CPUs have the same number, only one of them gets LW_PASS_DATA. */
static __always_inline enum lw_verdict lw_window_mark(struct lw_line *line, __u64 window, __u32 seq)
{
#pragma unroll
	for (int i = 0; i < LW_WINDOW_TRIES; i++) {
		__u64 next = lw_window_accept(window, seq);

		if (!next)
			return LW_DROP_SEQUENCE;
		__u64 current = __sync_val_compare_and_swap(&line->window, window, next);

		if (current == window)
			return LW_PASS_DATA;
		if ((current ^ window) >> 56)
			return LW_DROP_SEQUENCE;
		window = current;
	}
	return LW_DROP_SEQUENCE;
}

/* Fields of the IP header; each address has 16 bytes. */
struct lw_route {
	__u64 src[2], dst[2];
	__u32 room; /* bytes after the IP header */
};

static __always_inline int lw_route_of(void *data, void *end, __u32 ip_at, __u32 is6, struct lw_route *r)
{
	if (!is6) {
		struct lw_ip4 *ip = data + ip_at;

		if ((void *)(ip + 1) > end)
			return 0;
		r->src[0] = 0;
		r->dst[0] = 0;
		r->src[1] = (__u64)ip->src << 32 | 0xffff0000ULL;
		r->dst[1] = (__u64)ip->dst << 32 | 0xffff0000ULL;
		r->room = bpf_ntohs(ip->total_length) - sizeof(*ip);
		return 1;
	}
	struct lw_ip6 *ip = data + ip_at;

	if ((void *)(ip + 1) > end)
		return 0;
	r->src[0] = (__u64)ip->src[1] << 32 | ip->src[0];
	r->src[1] = (__u64)ip->src[3] << 32 | ip->src[2];
	r->dst[0] = (__u64)ip->dst[1] << 32 | ip->dst[0];
	r->dst[1] = (__u64)ip->dst[3] << 32 | ip->dst[2];
	r->room = bpf_ntohs(ip->payload_length);
	return 1;
}

/*
 * Adds `change` to the lengths in the IP and UDP headers, and updates the IPv4 checksum (RFC 1624): a wrong checksum
 * stays wrong. The caller has checked `udp`.
 */
static __always_inline int lw_change_lengths(void *data, void *end, __u32 ip_at, __u32 is6, struct lw_udp *udp,
					     __s32 change)
{
	udp->length = bpf_htons(bpf_ntohs(udp->length) + change);
	if (is6) {
		struct lw_ip6 *ip = data + ip_at;

		if ((void *)(ip + 1) > end)
			return 0;
		ip->payload_length = bpf_htons(bpf_ntohs(ip->payload_length) + change);
		return 1;
	}
	struct lw_ip4 *ip = data + ip_at;

	if ((void *)(ip + 1) > end)
		return 0;
	__u16 old = ip->total_length, new = bpf_htons(bpf_ntohs(old) + change);

	ip->total_length = new;
	ip->checksum = lw_fold((__u64)(__u16)~ip->checksum + (__u16)~old + new);
	return 1;
}

/*
 * Moves `bytes` bytes of headers towards the end of the packet, by the length of the LAP header. Copies the last bytes
 * first, because source and destination overlap.
 */
static __always_inline int lw_move_headers(void *data, void *end, const __u32 bytes)
{
	if (data + bytes + LW_DATA_HEADER > end)
		return 0;
#define LW_MOVE(at) (*(volatile __u64 *)(data + LW_DATA_HEADER + (at)) = *(volatile __u64 *)(data + (at)))
#pragma unroll
	for (int at = (int)bytes - 8; at > 0; at -= 8)
		LW_MOVE(at);
	LW_MOVE(0);
#undef LW_MOVE
	return 1;
}

/*
 * Removes the LAP header. Data after the packet, `room` bytes after the IP header, is cut off, because no tag covers
 * it. Returns 0 if the packet has changed.
 */
__noinline int lw_strip(struct xdp_md *ctx, __u32 ip_at, __u32 is6, __u32 room)
{
	ip_at &= 31;
	is6 &= 1;
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 udp_at = ip_at + sizeof(struct lw_ip4) + is6 * (sizeof(struct lw_ip6) - sizeof(struct lw_ip4));
	struct lw_udp *udp = data + udp_at;
	struct lw_data *m = (struct lw_data *)(udp + 1);

	if ((void *)(m + 1) > end)
		return 0;
	__s32 behind = (__s32)((__u32)((long)end - (long)data) - udp_at - room);
	__u64 header_sum = 0, *word = (__u64 *)m;

#pragma unroll
	for (int i = 0; i < LW_DATA_HEADER / 8; i++)
		header_sum += (word[i] & 0xffffffff) + (word[i] >> 32);
	__u16 port = m->port, old_port = udp->dst, old = udp->length;

	if (!lw_change_lengths(data, end, ip_at, is6, udp, -LW_DATA_HEADER))
		return 0;
	udp->dst = port;
	if (udp->checksum || is6) {
		/* The length is also in the pseudo header. lw_fold() returns a complement, so its result is subtracted. */
		__u64 sum = (__u64)(__u16)~udp->checksum + lw_fold(header_sum) + 2ULL * (__u16)~old + (__u16)~old_port +
			    2ULL * udp->length + port;
		__u16 checksum = lw_fold(sum);

		udp->checksum = checksum ? checksum : 0xffff;
	}
	int is_moved = 0;

	switch (udp_at + sizeof(*udp)) {
#define LW_CASE(bytes) \
	case bytes: is_moved = lw_move_headers(data, end, bytes); break
		LW_CASE(42);
		LW_CASE(46);
		LW_CASE(50);
		LW_CASE(62);
		LW_CASE(66);
		LW_CASE(70);
#undef LW_CASE
	}
	if (!is_moved || bpf_xdp_adjust_head(ctx, LW_DATA_HEADER))
		return 0;
	return behind <= 0 || !bpf_xdp_adjust_tail(ctx, -behind);
}

/*
 * Verifies a DATA_UP whose header wire::parse would accept. `ip_at` is the offset of the IP header, `length` the length
 * of the UDP payload.
 */
__noinline int lw_data_up(struct xdp_md *ctx, __u32 ip_at, __u32 is6, __u32 length)
{
	__u32 zero = 0;
	struct lw_ctx c = { .frame.xdp = ctx };

	c.cpu = bpf_map_lookup_elem(&percpu, &zero);
	ip_at &= 31;
	is6 &= 1;
	if (!c.cpu || length < LW_DATA_HEADER || length > LW_SEALED_MAX + LW_DATA_HEADER)
		return LW_DROP_LENGTH;
	__u32 bytes = length - LW_DATA_HEADER, now_s = c.cpu->clock_boot_s;
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 udp_at = ip_at + sizeof(struct lw_ip4) + is6 * (sizeof(struct lw_ip6) - sizeof(struct lw_ip4));
	struct lw_data *m = data + udp_at + sizeof(struct lw_udp);
	struct lw_route r;

	if ((void *)(m + 1) > end || !lw_route_of(data, end, ip_at, is6, &r))
		return LW_DROP_LENGTH;
	if (r.room != length + sizeof(struct lw_udp))
		return LW_DROP_LENGTH;
	if (lw_is_for_dhcp_client(m->port, is6))
		return LW_DROP_GATE_ROLE;
	if (!(__u16)m->port || (__u16)m->port == cfg.lap_port)
		return LW_DROP_GATE_PORT;
	__u32 place;
	struct lw_line *line = lw_find_device(m->device_id, &place);

	if (!line)
		return LW_DROP_UNKNOWN_DEVICE;
	__u64 commit = lw_ordered_load(&line->commit);

	if (commit & LW_REVOKED)
		return LW_DROP_REVOKED;
	if (commit & LW_BUSY)
		return LW_DROP_BUSY;
	/*
	 * The window is read before session id and key: if the session is replaced after this read, the swap below
	 * fails because of the generation.
	 */
	__u64 window = lw_ordered_load(&line->window);
	__u64 session_id = lw_ordered_load(&line->session_id);
	struct lw_session *session = lw_at(&sessions, line->slot);

	if (!session || !session_id || session_id != m->session_id)
		return LW_DROP_SESSION;
	if (LW_READ(line->session_until_s) <= now_s)
		return LW_DROP_SESSION_EXPIRED;
	if ((session->addr[0] ^ r.src[0]) | (session->addr[1] ^ r.src[1]))
		return LW_DROP_SOURCE;
	__u64 seq = bpf_be64_to_cpu(m->seq);

	if (!seq || seq > LW_SEQUENCE_MAX || !lw_window_accept(window, seq))
		return LW_DROP_SEQUENCE;
	struct lw_seal_input in = {
		.key = { session->session_key[0], session->session_key[1] },
		.h0 = m->h0, .seq = m->seq, .ports = m->port, .peer = { r.dst[0], r.dst[1] },
	};
	__u64 tag[2] = { m->tag[0], m->tag[1] };

	if (!lw_data_tag(ctx, udp_at + sizeof(struct lw_udp), bytes, &in))
		return LW_DROP_LENGTH;
	if (lw_tags_differ(tag, in.tag)) {
		c.control = lw_at(&control, 0);
		if (c.control && lw_within_rate(c.cpu->clock_ns, LW_READ(lw_live(c.control)->alarm_per_s),
						&c.cpu->alarm_second, &c.cpu->alarm_count))
			lw_emit(&c, LW_EVENT_WRONG_TAG, line->device_id, commit >> LW_IDX_SHIFT, r.src);
		return LW_DROP_TAG;
	}
	/* The values above belong to one session only if no winner changed them during the read. */
	if (lw_ordered_load(&line->commit) != commit || LW_READ(line->session_id) != session_id)
		return LW_DROP_BUSY;
	return lw_window_mark(line, window, seq);
}

static __always_inline int lw_is_data_up(const struct lw_frame *f)
{
	return f->payload_length >= 16 && (void *)(f->payload + 16) <= f->end &&
	       *(__u32 *)f->payload == LW_IS_DATA_UP;
}

static __always_inline enum lw_verdict lw_sealed(struct lw_ctx *c)
{
	struct lw_frame *f = &c->frame;

	if (!lw_is_answerable(f))
		return LW_DROP_UNANSWERABLE;
	enum lw_verdict verdict = lw_malformed(f);

	if (verdict != LW_DROP_GATE_NOT_SEALED)
		return verdict;
	__u32 is6 = f->is6, length = f->payload_length;
	/* Computed from the tags: the kernel's verifier forbids the pointer subtraction that clang would emit. */
	__u32 ip_at = sizeof(struct lw_eth) + f->tags * sizeof(struct lw_vlan);

	verdict = lw_data_up(c->frame.xdp, ip_at, is6, length);
	if (verdict != LW_PASS_DATA)
		return verdict;
	return lw_strip(c->frame.xdp, ip_at, is6, length + sizeof(struct lw_udp)) ? LW_PASS_DATA : LW_DROP_TRUNCATED;
}

static __always_inline enum lw_verdict lw_check_sealed(struct lw_ctx *c)
{
	enum lw_kind kind = lw_parse(&c->frame);

	if (kind == LW_KIND_UDP) {
		__u16 port = c->frame.udp->dst;

		if (port == cfg.lap_port && lw_is_data_up(&c->frame))
			return lw_sealed(c);
		if (c->frame.local && port == cfg.lap_port && lw_is_addressed(c)) {
			bpf_tail_call(c->frame.xdp, &kept_programs, LW_PINNED_GATEWAY);
			/* The table is empty: its pin was removed, and the process has ended. */
			return LW_DROP_STOPPED;
		}
	}
	enum lw_verdict verdict = lw_gate_any(c, kind);

	return lw_count_dropped(c, kind, verdict ? verdict : LW_DROP_GATE);
}

static __always_inline int lw_sealed_gateway(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct lw_ctx c = { .frame.xdp = ctx };

	c.cpu = bpf_map_lookup_elem(&percpu, &zero);
	c.control = bpf_map_lookup_elem(&control, &zero);
	if (!c.cpu || !c.control)
		return XDP_DROP;
	lw_clock(&c);
	enum lw_verdict verdict = lw_check_sealed(&c);

	lw_count(c.cpu, verdict);
	if (verdict == LW_PASS_DATA && lw_forwards)
		return lw_forward(ctx);
	return verdict < 16 ? XDP_PASS : XDP_DROP;
}

#endif
