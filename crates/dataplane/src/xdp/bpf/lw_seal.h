/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * DATA_DOWN at the sealed gate (LAP/1 1.4.7): a packet that leaves towards the devices is sealed for the session that
 * has its destination address, or is dropped. A classifier on the egress of the devices' side.
 */
#ifndef LW_SEAL_H
#define LW_SEAL_H

#include <linux/pkt_cls.h>

#include "lw_data.h"

/*
 * One message under construction. Per CPU, because a packet may be as long as a link allows, which exceeds every
 * stack. Egress runs with bottom halves disabled, so no message starts before the previous one is done.
 */
struct lw_scratch {
	struct lw_data header;
	__u64 word[LW_SEALED_WORDS + 1];
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct lw_scratch);
} scratch SEC(".maps");

/* By slot: the counter of DATA_DOWN numbers towards the device, gen u8 | count u56, with the rules of data.rs. */
LW_ARRAY(down, __u64, BPF_F_MMAPABLE);

#define LW_DOWN_TRIES 4

/*
 * Whether the packet is a DHCP message that may leave towards a client. If any IPv4 server is named, only messages of named
 * IPv4 servers may leave. For IPv6, messages of every server on the link may leave.
 */
static __always_inline int lw_dhcp_leaves(const struct lw_frame *f)
{
	if (!lw_has_dhcp_ports(f, 0) || !lw_is_padded(f))
		return 0;
	if (!f->is6)
		return !cfg.dhcp4_count || lw_is_dhcp4_server(f->ip4->src) || lw_is_local4(f->ip4->src);
	if ((lw_is_link_local(f->ip6->src) || lw_is_local6(f->ip6->src)) && lw_is_link_local(f->ip6->dst))
		return 1;
	return lw_is_dhcp6_server(f->ip6->src);
}

/*
 * Whether the packet may leave without a session: ARP, neighbor discovery, DHCP of servers, and named protocols. The
 * counterpart of lw_gate_list().
 */
__noinline int lw_leaves_always(struct __sk_buff *skb)
{
	struct lw_frame f = {};

	switch (lw_parse_frame((void *)(long)skb->data, (void *)(long)skb->data_end, &f)) {
	case LW_KIND_ARP:
		return lw_is_arp(&f);
	case LW_KIND_OTHER:
		return f.eth->dst[0] & 1 && lw_is_named(lw_control_key(&f));
	case LW_KIND_IP:
		if (!f.is6 || f.icmp6_type < LW_ND_ROUTER_SOLICITATION || f.icmp6_type > LW_ND_NEIGHBOR_ADVERTISEMENT)
			return 0;
		switch (lw_neighbor_discovery(&f, 0)) {
		case LW_ND_REFUSED:
			return 0;
		case LW_ND_ON_LINK:
			return 1;
		case LW_ND_BY_PREFIX:
			return lw_nd_is_prefixed(f.ip6->dst, f.ip6->src);
		}
		return 0;
	case LW_KIND_UDP:
		return lw_dhcp_leaves(&f);
	default:
		return 0;
	}
}

/* The place of the line whose live session has that address, or a negated verdict. */
__noinline int lw_receiver(struct lw_key *key, __u32 now_s)
{
	if (!key)
		return -LW_DROP_SESSION;
	__u64 hash = lw_hash(key->a, key->b);
	int verdict = LW_DROP_SESSION;

#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < 2 * LW_WAYS; i++) {
		__u32 number = i < LW_WAYS ? lw_bucket_1(hash) : lw_bucket_2(hash);
		struct lw_bucket *bucket = bpf_map_lookup_elem(&by_address, &number);

		if (!bucket)
			break;
		__u64 entry = LW_READ(bucket->entry[i % LW_WAYS]);
		__u32 place = (__u32)entry - 1;

		if ((__u32)(entry >> 32) != lw_fingerprint(hash))
			continue;
		struct lw_line *line = lw_line_at(place);
		struct lw_session *session = line ? lw_at(&sessions, line->slot) : NULL;

		if (!line || !session || LW_READ(line->commit) & (LW_REVOKED | LW_BUSY) ||
		    !LW_READ(line->session_id) || session->addr[0] != key->a || session->addr[1] != key->b)
			continue;
		if (LW_READ(line->session_until_s) > now_s)
			return place;
		verdict = LW_DROP_SESSION_EXPIRED;
	}
	return -verdict;
}

/*
 * The next number towards the device under the key that was read while the commit word was `commit`. Returns 0 if the
 * commit word has changed or all attempts failed, and a value above LW_SEQUENCE_MAX if all numbers are used. A number is
 * never used twice: the counter word changes to another generation only from a value that it had while the commit word
 * was still `commit`, and generations never decrease.
 */
static __always_inline __u64 lw_down_number(struct lw_line *line, __u32 slot, __u64 commit)
{
	__u64 *word = lw_at(&down, slot), generation = (commit & 0xff00) << 48;

	if (!word)
		return 0;
#pragma unroll
	for (int i = 0; i < LW_DOWN_TRIES; i++) {
		__u64 next_word = __sync_fetch_and_add(word, 1) + 1;

		/* The 56 bits of the count do not overflow in the lifetime of a session. */
		if (!((next_word ^ generation) >> 56))
			return next_word & ~(0xffULL << 56);
		if (lw_ordered_load(&line->commit) != commit)
			return 0;
		if (__sync_val_compare_and_swap(word, next_word, generation | 1) == next_word)
			return 1;
	}
	return 0;
}

/*
 * Computes in->tag over the payload in the scratch space, zero padded. Returns 0 if the payload is too long. A global
 * function, so that the kernel's verifier processes the loop one time.
 */
__noinline int lw_scratch_tag(__u32 bytes, struct lw_seal_input *in)
{
	__u32 zero = 0, words = (bytes + 7) / 8;
	struct lw_scratch *m = bpf_map_lookup_elem(&scratch, &zero);
	struct lw_sip s;

	if (!m || !in || bytes > LW_SEALED_MAX)
		return 0;
	lw_data_begin(&s, in);
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < LW_SEALED_WORDS; i++) {
		if (i >= words)
			break;
		lw_sip_word(&s, m->word[i]);
	}
	lw_sip_finish(&s, 5 + words, in->tag);
	return 1;
}

/*
 * Updates lengths and checksums for the longer packet, before it becomes longer. A checksum that is left to the
 * network card (CHECKSUM_PARTIAL) is only the sum of the pseudo header: bpf_l4_csum_replace() does not change such a
 * checksum, which distinguishes both kinds. Returns 0 if the packet is too short.
 */
static __always_inline int lw_seal_headers(struct __sk_buff *skb, __u32 ip_at, __u32 is6, __u16 checksum,
					   __u64 header_sum)
{
	__u32 udp_at = ip_at + sizeof(struct lw_ip4) + is6 * (sizeof(struct lw_ip6) - sizeof(struct lw_ip4));
	int has_checksum = checksum || is6;

	if (has_checksum && bpf_l4_csum_replace(skb, udp_at + 6, 0, bpf_htons(1), sizeof(__u16)))
		return 0;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct lw_udp *udp = data + udp_at;

	if ((void *)(udp + 1) > end)
		return 0;
	if (has_checksum && udp->checksum == checksum) {
		udp->checksum = ~lw_fold((__u64)checksum + bpf_htons(LW_DATA_HEADER));
	} else if (has_checksum) {
		__u16 sum = lw_fold((__u64)(__u16)~checksum + (__u16)~lw_fold(header_sum) +
				    2ULL * bpf_htons(LW_DATA_HEADER));

		udp->checksum = sum ? sum : 0xffff;
	}
	return lw_change_lengths(data, end, ip_at, is6, udp, LW_DATA_HEADER);
}

/* Seals the datagram in `c->frame`. */
static __always_inline enum lw_verdict lw_seal(struct __sk_buff *skb, struct lw_ctx *c)
{
	struct lw_frame *f = &c->frame;
	void *data = (void *)(long)skb->data;
	__u32 zero = 0, bytes = f->payload_length, is6 = f->is6;
	__u32 ip_at = (is6 ? (void *)f->ip6 : (void *)f->ip4) - data, at = (void *)f->payload - data;
	__u64 ports = (__u64)f->udp->src << 16 | f->udp->dst;
	__u16 checksum = f->udp->checksum;
	struct lw_route r;

	if (skb->gso_size)
		return LW_DROP_SEGMENTS;
	ip_at &= 31;
	if (!lw_route_of(data, f->end, ip_at, is6, &r) || r.room != bytes + sizeof(struct lw_udp))
		return LW_DROP_LENGTH;
	struct lw_key key = { .a = r.dst[0], .b = r.dst[1] };
	int place = lw_receiver(&key, c->cpu->clock_boot_s);

	if (place < 0)
		return -place;
	struct lw_line *line = lw_line_at(place);

	if (!line)
		return LW_DROP_SESSION;
	__u64 commit = lw_ordered_load(&line->commit), session_id = lw_ordered_load(&line->session_id);
	__u64 device_id = LW_READ(line->device_id);
	__u32 slot = LW_READ(line->slot);
	struct lw_session *session = lw_at(&sessions, slot);

	if (!session)
		return LW_DROP_SESSION;
	__u64 session_key[2] = { session->session_key[0], session->session_key[1] };
	__u64 differs = (session->addr[0] ^ key.a) | (session->addr[1] ^ key.b);

	/* The values above belong to one session only if no winner changed them during the read. */
	if (commit & (LW_REVOKED | LW_BUSY) || !session_id || differs || lw_ordered_load(&line->commit) != commit ||
	    LW_READ(line->session_id) != session_id)
		return LW_DROP_BUSY;
	__u32 mtu = r.room + (is6 ? sizeof(struct lw_ip6) : sizeof(struct lw_ip4));

	if (bytes > LW_SEALED_MAX || bpf_check_mtu(skb, 0, &mtu, LW_DATA_HEADER, 0))
		return LW_DROP_TOO_BIG;
	struct lw_scratch *m = bpf_map_lookup_elem(&scratch, &zero);

	if (!m)
		return LW_DROP_TOO_BIG;
	/*
	 * Kernel 6.1 tracks a bound only in the register in which it was checked, and in its stack slot from then on. The
	 * UDP header is copied with the payload, to the later position of the tag: no length may be 0.
	 */
	__u32 copied = bytes;

	asm volatile("" : "+r"(copied));
	if (copied > LW_SEALED_MAX)
		return LW_DROP_TOO_BIG;
	asm volatile("" : "+r"(copied));
	__u32 udp = sizeof(struct lw_udp);

	if (bpf_skb_load_bytes(skb, at - udp, (__u8 *)m->word - udp, udp + copied))
		return LW_DROP_TRUNCATED;
	*(__u64 *)((__u8 *)m->word + copied) = 0;
	__u64 number = lw_down_number(line, slot, commit);

	if (!number)
		return LW_DROP_BUSY;
	if (number > LW_SEQUENCE_MAX)
		return LW_DROP_EXHAUSTED;
	__u16 length = bpf_htons(copied + LW_DATA_HEADER);
	struct lw_seal_input in = {
		.key = { session_key[0], session_key[1] },
		.h0 = 0x574cULL | 1ULL << 16 | (__u64)LW_DATA_DOWN << 24 | 1ULL << 32 | (__u64)length << 48,
		.seq = bpf_cpu_to_be64(number), .ports = ports, .peer = { r.src[0], r.src[1] },
	};

	if (!lw_scratch_tag(copied, &in))
		return LW_DROP_TOO_BIG;
	m->header.h0 = in.h0;
	m->header.device_id = device_id;
	m->header.session_id = session_id;
	m->header.seq = in.seq;
	m->header.port = ports & 0xffff;
	m->header.tag[0] = in.tag[0];
	m->header.tag[1] = in.tag[1];
	__u64 header_sum = 0, *word = (__u64 *)&m->header;

#pragma unroll
	for (int i = 0; i < LW_DATA_HEADER / 8; i++)
		header_sum += (word[i] & 0xffffffff) + (word[i] >> 32);
	if (!lw_seal_headers(skb, ip_at, is6, checksum, header_sum))
		return LW_DROP_TRUNCATED;
	/* The packet is extended at its end, so that the offset at which a card starts its checksum stays. */
	if (bpf_skb_change_tail(skb, at + LW_DATA_HEADER + copied, 0) ||
	    bpf_skb_store_bytes(skb, at, m, LW_DATA_HEADER + copied, 0))
		return LW_DROP_TOO_BIG;
	return LW_PASS_SEALED;
}

/* Whether the frame is an ATTEST_REQUEST of the gateway itself. Such a message has its own tag and is not sealed. */
static __always_inline int lw_is_own_request(const struct lw_frame *f, enum lw_kind kind)
{
	if (kind != LW_KIND_UDP || f->udp->src != cfg.lap_port || f->payload_length != LW_MESSAGE)
		return 0;
	const __u64 *m = (const __u64 *)f->payload;

	if ((void *)(m + 2) > f->end || m[0] != LW_H0(LW_ATTEST_REQUEST, 0) || !m[1])
		return 0;
	return f->is6 ? lw_is_local6(f->ip6->src) : lw_is_local4(f->ip4->src);
}

static __always_inline enum lw_verdict lw_check_egress(struct __sk_buff *skb, struct lw_ctx *c)
{
	struct lw_frame *f = &c->frame;

	/* The parser compares lengths with the frame, so the whole frame must be visible. */
	if (skb->len > skb->data_end - skb->data && bpf_skb_pull_data(skb, skb->len))
		return LW_DROP_TRUNCATED;
	enum lw_kind kind = lw_parse_frame((void *)(long)skb->data, (void *)(long)skb->data_end, f);

	switch (kind) {
	case LW_KIND_BROKEN:
	case LW_KIND_BROKEN_OURS:
		return LW_DROP_TRUNCATED;
	case LW_KIND_FRAGMENT:
		return LW_DROP_GATE_FRAGMENT;
	case LW_KIND_EXTENSION:
		return LW_DROP_GATE_EXTENSION;
	default:
		break;
	}
	if ((lw_is_on_list(f, kind) && lw_leaves_always(skb)) || lw_is_own_request(f, kind))
		return LW_PASS_ALWAYS;
	return kind == LW_KIND_UDP ? lw_seal(skb, c) : LW_DROP_UNSEALED;
}

static __always_inline int lw_egress(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct lw_ctx c = {};

	c.cpu = bpf_map_lookup_elem(&percpu, &zero);
	if (!c.cpu)
		return TC_ACT_SHOT;
	lw_clock(&c);
	enum lw_verdict verdict = lw_check_egress(skb, &c);

	lw_count(c.cpu, verdict);
	/* Packets that pass continue to other attached programs. */
	return verdict < 16 ? TC_ACT_UNSPEC : TC_ACT_SHOT;
}

#endif
