/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Decides which frames are addressed to the gateway, by their destination MAC address, and which source addresses a
 * device can have (docs/protocols.md 1.4.12, 1.4.13). Common cases are decided inline; all others by global
 * functions, which the kernel verifies separately. User space writes the data (`store/admission.rs`).
 */
#ifndef LW_ADMISSION_H
#define LW_ADMISSION_H

#include "lw_report.h"

/* The interface's entry, at the place that the interface index selects or at a later place; NULL if there is none. */
static __always_inline struct lw_port *lw_find_port(struct lw_control *control_block, __u32 ifindex)
{
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < LW_PORTS; i++) {
		struct lw_port *port = &control_block->port[(ifindex + i) & (LW_PORTS - 1)];
		__u64 entry_ifindex = LW_READ(port->ifindex);

		if (entry_ifindex == ifindex)
			return port;
		if (!entry_ifindex)
			return NULL;
	}
	return NULL;
}

__noinline int lw_is_own_mac_slow(__u32 ifindex, __u64 mac)
{
	__u32 zero = 0;
	struct lw_control *control_block = bpf_map_lookup_elem(&control, &zero);
	struct lw_port *port = control_block ? lw_find_port(control_block, ifindex) : NULL;

	if (!port)
		return 0;
#pragma unroll
	for (int i = 0; i < LW_PORT_MACS; i++) {
		if (LW_READ(port->mac[i]) == mac)
			return 1;
	}
	return 0;
}

/*
 * Whether the frame is addressed to this station or to a group. A reply to a frame for another station would use that
 * station's MAC address, and the switches on the link would then send that station's frames to the gateway.
 */
static __always_inline int lw_is_addressed(struct lw_ctx *c)
{
	__u32 ifindex = c->frame.xdp->ingress_ifindex;
	struct lw_port *port = &c->control->port[ifindex & (LW_PORTS - 1)];
	__u64 mac = lw_mac(c->frame.eth->dst);

	if (mac & 1 || (LW_READ(port->ifindex) == ifindex && LW_READ(port->mac[0]) == mac))
		return 1;
	return lw_is_own_mac_slow(ifindex, mac);
}

static __always_inline struct lw_sources *lw_sources_of(struct lw_control *control_block, __u32 is6)
{
	return &control_block->sources[LW_READ(control_block->source_bank) & 1].family[is6 & 1];
}

/* Whether the prefixes contain the address. */
static __always_inline int lw_in_prefixes(struct lw_sources *s, __u64 high, __u64 low)
{
	__u32 prefixes = LW_READ(s->prefixes);
	int is_inside = 0;

#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < LW_PREFIXES; i++) {
		if (i >= prefixes)
			break;
		struct lw_prefix *p = &s->prefix[i];

		is_inside |= !(((high & p->mask[0]) ^ p->net[0]) | ((low & p->mask[1]) ^ p->net[1]));
	}
	return is_inside;
}

/* Whether the devices' prefixes contain an IPv6 address, regardless of which host uses it. */
__noinline int lw_is_prefixed6(__u64 high, __u64 low)
{
	__u32 zero = 0;
	struct lw_control *control_block = bpf_map_lookup_elem(&control, &zero);

	return control_block ? lw_in_prefixes(lw_sources_of(control_block, 1), high, low) : 0;
}

/*
 * Whether a device can have the address, which is in the format of lw_source_address(). The caller has checked that the
 * address names a host (lw_is_answerable()).
 */
__noinline int lw_is_device_slow(__u64 high, __u64 low, __u32 is6)
{
	__u32 zero = 0;
	struct lw_control *control_block = bpf_map_lookup_elem(&control, &zero);

	if (!control_block)
		return 0;
	struct lw_sources *s = lw_sources_of(control_block, is6);
	int is_loopback = is6 ? !high : (__u8)(low >> 32) == 127;

	if (is_loopback && !LW_READ(s->loopback))
		return 0;
	__u32 refused = LW_READ(s->refused);

	/* There are more refused addresses than the table can hold. */
	if (refused > LW_REFUSED)
		return 0;
	int is_inside = lw_in_prefixes(s, high, low);

#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < LW_REFUSED; i++) {
		if (i >= refused)
			break;
		is_inside &= !!((high ^ s->address[i][0]) | (low ^ s->address[i][1]));
	}
	return is_inside;
}

/*
 * Whether a device can have the source address. Checked inline: the first prefix and the first two refused addresses,
 * if these suffice. The IPv4 values are next to `fresh_current`, which is read for every message.
 */
static __always_inline int lw_is_device(struct lw_ctx *c)
{
	__u64 addr[2];

	if (!c->frame.is6) {
		__u64 prefix = LW_READ(c->control->ip4_prefix), refused = LW_READ(c->control->ip4_refused);
		__u32 src = c->frame.ip4->src;

		if ((src | (__u32)prefix) == prefix >> 32 && src != (__u32)refused && src != refused >> 32)
			return 1;
		return lw_is_device_slow(0, lw_mapped(src), 0);
	}
	struct lw_sources *s = lw_sources_of(c->control, 1);

	lw_source_address(&c->frame, addr);
	if (LW_READ(s->is_simple)) {
		struct lw_prefix *p = &s->prefix[0];
		__u64 differs = ((addr[0] & p->mask[0]) ^ p->net[0]) | ((addr[1] & p->mask[1]) ^ p->net[1]);
		__u64 first = (addr[0] ^ s->address[0][0]) | (addr[1] ^ s->address[0][1]);
		__u64 second = (addr[0] ^ s->address[1][0]) | (addr[1] ^ s->address[1][1]);

		if (!differs && first && second)
			return 1;
	}
	return lw_is_device_slow(addr[0], addr[1], 1);
}

#endif
