// Parsing of a frame to a UDP datagram, as in the frame parser of crates/protocol (docs/protocols.md 1.4.12).
#ifndef LW_DATAGRAM_P4
#define LW_DATAGRAM_P4

#include "headers.p4"

// Class of a frame.
const bit<4> FRAME_OTHER = 0;       // not IP and not ARP
const bit<4> FRAME_ARP = 1;
const bit<4> FRAME_BROKEN = 2;      // truncated header or inconsistent lengths
const bit<4> FRAME_FRAGMENT = 3;
const bit<4> FRAME_EXTENSION = 4;   // IPv4 options or IPv6 extension headers: not parsed further
const bit<4> FRAME_UDP = 5;
const bit<4> FRAME_UDP_LENGTH = 6;  // only the UDP length is inconsistent
const bit<4> FRAME_IP = 7;          // any other protocol
const bit<4> FRAME_TAG = 8;         // third tag, or tag of an unsupported type

// Content after the IP header: ICMP or IGMP, IGMP after an option, ICMPv6, or a hop-by-hop header.
const bit<3> NEXT_OTHER = 0;
const bit<3> NEXT_MESSAGE = 1;
const bit<3> NEXT_OPTION4 = 2;
const bit<3> NEXT_MESSAGE6 = 3;
const bit<3> NEXT_HOP_BY_HOP = 4;
const bit<8> PROTOCOL_ICMP = 1;
const bit<8> PROTOCOL_IGMP = 2;

// VLAN tag, or service tag by its type. VID 0 (priority tag) means no VLAN.
const bit<16> VLAN_TAGGED = 0x1000;
const bit<16> VLAN_SERVICE = 0x2000;
// Smaller values are lengths (IEEE 802.3).
const bit<16> ETHER_TYPE_LEAST = 0x0600;
#define IS_UNPARSED_TAG(type) type == 0x9100 || type == 0x9200 || type == 0x9300 || type == 0x88e7 || type == 0x8926 || type == 0x893f

struct network_t {
    ethernet_t ethernet;
    vlan_t vlan0;
    vlan_t vlan1;
    ipv4_t ipv4;
    ipv6_t ipv6;
    udp_t udp;
}

struct frame_t {
    bit<4> kind;
    // Bytes of the frame after the Ethernet header and tags.
    bit<16> room;
    bit<16> ip_payload_bytes;
    bit<16> payload_bytes;
    // IPv4 as ::ffff:a.b.c.d.
    bit<128> src;
    bit<128> dst;
    // Outer tag first.
    bit<32> vlans;
    // Ethernet type after the innermost tag; 0 if the field is a length.
    bit<16> ether_type;
    // Both MAC addresses are unicast, and the IP source is a unicast address.
    bit<1> answerable;
}

// Values for later parser states.
struct parsed_t {
    // Ethernet type after the innermost tag.
    bit<16> ether_type;
    bit<1> is_udp;
    bit<3> next;
    // IPv6 next header.
    bit<16> ip_payload_bytes;
    bit<16> udp_port;
    bit<16> udp_length;
}

parser DatagramParser(packet_in packet, out network_t net, out parsed_t parsed) {
    state start {
        parsed = { 0, 0, NEXT_OTHER, 0, 0, 0 };
        packet.extract(net.ethernet);
        parsed.ether_type = net.ethernet.ether_type;
        transition select(net.ethernet.ether_type) {
            ETHER_VLAN: vlan0;
            ETHER_QINQ: vlan0;
            ETHER_IPV4: ipv4;
            ETHER_IPV6: ipv6;
            default: accept;
        }
    }
    state vlan0 {
        packet.extract(net.vlan0);
        parsed.ether_type = net.vlan0.ether_type;
        transition select(net.vlan0.ether_type) {
            ETHER_VLAN: vlan1;
            ETHER_QINQ: vlan1;
            ETHER_IPV4: ipv4;
            ETHER_IPV6: ipv6;
            default: accept;
        }
    }
    state vlan1 {
        packet.extract(net.vlan1);
        parsed.ether_type = net.vlan1.ether_type;
        transition select(net.vlan1.ether_type) {
            ETHER_IPV4: ipv4;
            ETHER_IPV6: ipv6;
            default: accept;
        }
    }
    state ipv4 {
        packet.extract(net.ipv4);
        transition select(net.ipv4.version, net.ipv4.header_words, net.ipv4.more_fragments, net.ipv4.fragment_offset,
                          net.ipv4.protocol) {
            (4, 5, 0, 0, PROTOCOL_UDP): udp;
            (4, 5, 0, 0, PROTOCOL_ICMP): message;
            (4, 5, 0, 0, PROTOCOL_IGMP): message;
            (4, 6, 0, 0, PROTOCOL_IGMP): option4;
            default: accept;
        }
    }
    state message {
        parsed.next = NEXT_MESSAGE;
        transition accept;
    }
    state option4 {
        parsed.next = NEXT_OPTION4;
        transition accept;
    }
    state ipv6 {
        packet.extract(net.ipv6);
        parsed.ip_payload_bytes = net.ipv6.payload_length;
        transition select(net.ipv6.version, net.ipv6.next_header, net.ipv6.payload_length) {
            (6, PROTOCOL_UDP, _): udp;
            (6, PROTOCOL_ICMPV6, 0): accept;
            (6, PROTOCOL_ICMPV6, _): message6;
            (6, PROTOCOL_HOP_BY_HOP, _): hop_by_hop;
            default: accept;
        }
    }
    state message6 {
        parsed.next = NEXT_MESSAGE6;
        transition accept;
    }
    state hop_by_hop {
        parsed.next = NEXT_HOP_BY_HOP;
        transition accept;
    }
    state udp {
        packet.extract(net.udp);
        parsed.is_udp = 1;
        parsed.udp_port = net.udp.dst_port;
        parsed.udp_length = net.udp.length;
        transition accept;
    }
}

#define NAME_VLAN(vlan, tag_type, vid) \
    if (vid != 0) { \
        vlan = VLAN_TAGGED | (bit<16>)vid; \
        if (tag_type == ETHER_QINQ) { \
            vlan = vlan | VLAN_SERVICE; \
        } \
    }

// Input: length of the frame, bytes.
control Classify(in network_t net, in bit<32> frame_bytes, inout frame_t frame) {
    apply {
        bit<16> link_bytes = 14;
        bit<16> ether_type = net.ethernet.ether_type;
        bit<16> outer = 0;
        bit<16> inner = 0;
        if (net.vlan0.isValid()) {
            NAME_VLAN(outer, ether_type, net.vlan0.vid)
            link_bytes = 18;
            ether_type = net.vlan0.ether_type;
        }
        if (net.vlan1.isValid()) {
            NAME_VLAN(inner, ether_type, net.vlan1.vid)
            link_bytes = 22;
            ether_type = net.vlan1.ether_type;
        }
        if (outer == 0) {
            outer = inner;
            inner = 0;
        }
        frame.vlans = outer ++ inner;
        frame.ether_type = ether_type;
        if (ether_type < ETHER_TYPE_LEAST) {
            frame.ether_type = 0;
        }
        frame.room = (bit<16>)frame_bytes - link_bytes;
        frame.answerable = 1;
        frame.ip_payload_bytes = 0;
        frame.payload_bytes = 0;
        frame.kind = FRAME_IP;
        if (net.ipv4.isValid()) {
            frame.src = 80w0 ++ 16w0xffff ++ net.ipv4.src;
            frame.dst = 80w0 ++ 16w0xffff ++ net.ipv4.dst;
            bit<16> header_bytes = (bit<16>)net.ipv4.header_words << 2;
            if (net.ipv4.version != 4 || net.ipv4.header_words < 5 || net.ipv4.total_length < header_bytes
                    || net.ipv4.total_length > frame.room) {
                frame.kind = FRAME_BROKEN;
            } else {
                frame.ip_payload_bytes = net.ipv4.total_length - header_bytes;
                if (net.ipv4.more_fragments == 1 || net.ipv4.fragment_offset != 0) {
                    frame.kind = FRAME_FRAGMENT;
                } else if (net.ipv4.header_words != 5) {
                    frame.kind = FRAME_EXTENSION;
                } else if (net.ipv4.protocol == PROTOCOL_UDP) {
                    frame.kind = FRAME_UDP;
                }
            }
            if (net.ipv4.src[31:24] == 0 || net.ipv4.src[31:29] == 7) {
                frame.answerable = 0;
            }
        } else if (net.ipv6.isValid()) {
            frame.src = net.ipv6.src;
            frame.dst = net.ipv6.dst;
            if (net.ipv6.version != 6 || net.ipv6.payload_length > frame.room - 40) {
                frame.kind = FRAME_BROKEN;
            } else {
                frame.ip_payload_bytes = net.ipv6.payload_length;
                if (net.ipv6.next_header == PROTOCOL_FRAGMENT) {
                    frame.kind = FRAME_FRAGMENT;
                } else if (net.ipv6.next_header == PROTOCOL_HOP_BY_HOP || net.ipv6.next_header == PROTOCOL_ROUTING
                        || net.ipv6.next_header == PROTOCOL_AH || net.ipv6.next_header == PROTOCOL_DESTINATION
                        || net.ipv6.next_header == PROTOCOL_MOBILITY || net.ipv6.next_header == PROTOCOL_HIP
                        || net.ipv6.next_header == PROTOCOL_SHIM6) {
                    frame.kind = FRAME_EXTENSION;
                } else if (net.ipv6.next_header == PROTOCOL_UDP) {
                    frame.kind = FRAME_UDP;
                }
            }
            if ((net.ipv6.src[127:64] == 0 && net.ipv6.src[63:0] != 1) || net.ipv6.src[127:120] == 0xff) {
                frame.answerable = 0;
            }
        } else if (!net.ethernet.isValid() || ether_type == ETHER_IPV4 || ether_type == ETHER_IPV6) {
            frame.kind = FRAME_BROKEN;
        } else if ((ether_type == ETHER_VLAN || ether_type == ETHER_QINQ) && !net.vlan1.isValid()) {
            frame.kind = FRAME_BROKEN;
        } else if (ether_type == ETHER_ARP) {
            frame.kind = FRAME_ARP;
        } else if (ether_type == ETHER_VLAN || ether_type == ETHER_QINQ || IS_UNPARSED_TAG(ether_type)) {
            frame.kind = FRAME_TAG;
        } else {
            frame.kind = FRAME_OTHER;
        }
        if (frame.kind == FRAME_UDP) {
            if (!net.udp.isValid() || frame.ip_payload_bytes < 8) {
                frame.kind = FRAME_BROKEN;
            } else if (net.udp.length < 8 || net.udp.length > frame.ip_payload_bytes) {
                frame.kind = FRAME_UDP_LENGTH;
            } else {
                frame.payload_bytes = net.udp.length - 8;
            }
        }
        if ((net.ethernet.dst | net.ethernet.src)[40:40] == 1) {
            frame.answerable = 0;
        }
    }
}

#endif
