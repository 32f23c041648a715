// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Programs for the benches: the gateway's program behind a harness that copies the next message into the packet on every
 * run, and floors, which do the same parsing, look-ups and hashing and nothing else. With cfg.count_work the look-ups and
 * the hashed words of the gateway's program and of the floors are counted, and the bench asserts that the counts are equal.
 */
#define LW_COUNT_WORK
#include "lw_gateway.h"
#include "lw_lay_out.h"

struct lw_case {
	__u8 byte[LW_CASE_BYTES];
};
LW_ARRAY(cases, struct lw_case, BPF_F_MMAPABLE);

struct lw_bench {
	__u64 next; /* the next case */
	__u64 count; /* number of cases */
	__u64 reset; /* 1: restore one device's row before every run; 2: close its session too */
	__u64 sink; /* uses the results of the floors, so that they are not optimized away */
	__u64 place; /* of the line that is restored; the slot of this line is 0 */
	struct lw_line line;
	struct lw_row row; /* the row that follows the row in the line */
};
LW_ARRAY(bench, struct lw_bench, BPF_F_MMAPABLE);

static __always_inline void lw_reset(struct lw_bench *b)
{
	struct lw_line *line = lw_line_at(b->place);
	struct lw_row *row = lw_at(&rows, ((__u32)(b->line.commit >> LW_IDX_SHIFT) + 1) % cfg.ring);

	if (!line || !row)
		return;
	line->commit = b->line.commit;
	if (b->reset > 1)
		line->session_id = 0;
	line->challenge = b->line.challenge;
	line->auth_key[0] = b->line.auth_key[0];
	line->auth_key[1] = b->line.auth_key[1];
	row->challenge = b->row.challenge;
	row->auth_key[0] = b->row.auth_key[0];
	row->auth_key[1] = b->row.auth_key[1];
}

/* Copies the next case into the packet. */
static __always_inline int lw_prepare(struct xdp_md *ctx, struct lw_bench **out)
{
	__u32 zero = 0;
	struct lw_bench *b = bpf_map_lookup_elem(&bench, &zero);

	if (!b)
		return 0;
	*out = b;
	__u32 index = b->next;

	b->next = index + 1 < b->count ? index + 1 : 0;
	struct lw_case *next_case = bpf_map_lookup_elem(&cases, &index);
	__u8 *packet = (__u8 *)(long)ctx->data;

	if (!next_case || (void *)(packet + LW_CASE_BYTES) > (void *)(long)ctx->data_end)
		return 0;
	lw_lay_out(packet, next_case->byte);
	if (b->reset)
		lw_reset(b);
	return 1;
}

SEC("xdp")
int bench_harness(struct xdp_md *ctx)
{
	struct lw_bench *b;

	return lw_prepare(ctx, &b) ? XDP_TX : XDP_ABORTED;
}

SEC("xdp")
int bench_gateway(struct xdp_md *ctx)
{
	struct lw_bench *b;

	return lw_prepare(ctx, &b) ? lw_gateway(ctx) : XDP_ABORTED;
}

/* The part that both floors share: parse the frame and find the device. */
static __always_inline struct lw_line *lw_floor_find(struct lw_ctx *c, __u32 *place)
{
	__u32 zero = 0;

	c->cpu = bpf_map_lookup_elem(&percpu, &zero);
	c->control = bpf_map_lookup_elem(&control, &zero);
	if (!c->cpu || !c->control || lw_parse(&c->frame) != LW_KIND_UDP || !c->frame.local)
		return NULL;
	struct lw_request *m = (struct lw_request *)c->frame.payload;

	if ((void *)(m + 1) > c->frame.end)
		return NULL;
	return lw_find_device(m->device_id, place);
}

SEC("xdp")
int floor_request(struct xdp_md *ctx)
{
	struct lw_bench *b;
	struct lw_ctx c = { .frame.xdp = ctx };
	__u32 place;

	if (!lw_prepare(ctx, &b))
		return XDP_ABORTED;
	struct lw_line *line = lw_floor_find(&c, &place);

	if (!line)
		return XDP_ABORTED;
	struct lw_request *m = (struct lw_request *)c.frame.payload;

	if ((void *)(m + 1) > c.frame.end)
		return XDP_ABORTED;
	__u64 key[2] = { line->auth_key[0], line->auth_key[1] };

	lw_challenge_tag(key, m->device_id, m->nonce, line->commit, line->challenge, c.control->fresh_current,
			 &m->zero[2]);
	c.cpu->counter[0]++;
	return XDP_TX;
}

SEC("xdp")
int floor_response(struct xdp_md *ctx)
{
	struct lw_bench *b;
	struct lw_ctx c = { .frame.xdp = ctx };
	__u32 place;

	if (!lw_prepare(ctx, &b))
		return XDP_ABORTED;
	struct lw_line *line = lw_floor_find(&c, &place);

	if (!line)
		return XDP_ABORTED;
	struct lw_response *m = (struct lw_response *)c.frame.payload;

	if ((void *)(m + 1) > c.frame.end)
		return XDP_ABORTED;
	__u64 addr[2], tag[2], session_key[2], key[2] = { line->auth_key[0], line->auth_key[1] };
	__u64 commit = line->commit;
	__u32 slot = line->slot;

	lw_source_address(&c.frame, addr);
	struct lw_session *session = lw_at(&sessions, slot);

	if (!session)
		return XDP_ABORTED;
	b->sink += session->tag[0];
	lw_response_tag(key, m, 0, tag);
	lw_session_key(key, tag, session_key);
	if (!(commit & LW_KEY)) {
		__u32 idx = (commit >> LW_IDX_SHIFT) + 1;
		struct lw_row *row = lw_at(&rows, slot * cfg.ring + idx % cfg.ring);
		struct lw_row *low = lw_at(&rows, slot * cfg.ring + (idx + LW_READ(lw_live(c.control)->low_rows)) % cfg.ring);

		if (!row || !low)
			return XDP_ABORTED;
		b->sink += row->auth_key[1] + low->auth_key[1];
	}
	lw_ack_tag(session_key, m->idx_gateway, m->tag[0], addr, &m->tag[0]);
	c.cpu->counter[0]++;
	return XDP_TX;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
