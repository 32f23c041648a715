// Headers shared by several programs, in wire order, and their constants.
#ifndef LW_HEADERS_P4
#define LW_HEADERS_P4

const bit<16> ETHER_IPV4 = 0x0800;
const bit<16> ETHER_ARP = 0x0806;
const bit<16> ETHER_VLAN = 0x8100;
const bit<16> ETHER_IPV6 = 0x86dd;
const bit<16> ETHER_QINQ = 0x88a8;

const bit<8> PROTOCOL_HOP_BY_HOP = 0;
const bit<8> PROTOCOL_UDP = 17;
const bit<8> PROTOCOL_ROUTING = 43;
const bit<8> PROTOCOL_FRAGMENT = 44;
const bit<8> PROTOCOL_AH = 51;
const bit<8> PROTOCOL_ICMPV6 = 58;
const bit<8> PROTOCOL_DESTINATION = 60;
const bit<8> PROTOCOL_MOBILITY = 135;
const bit<8> PROTOCOL_HIP = 139;
const bit<8> PROTOCOL_SHIM6 = 140;

// standard_metadata.instance_type of simple_switch.
const bit<32> INSTANCE_NORMAL = 0;
const bit<32> INSTANCE_RECIRCULATED = 4;

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> ether_type;
}

header vlan_t {
    bit<4> priority;
    bit<12> vid;
    bit<16> ether_type;
}

header ipv4_t {
    bit<4> version;
    bit<4> header_words;
    bit<8> tos;
    bit<16> total_length;
    bit<16> identification;
    bit<1> reserved;
    bit<1> dont_fragment;
    bit<1> more_fragments;
    bit<13> fragment_offset;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

header ipv6_t {
    bit<4> version;
    bit<8> traffic_class;
    bit<20> flow_label;
    bit<16> payload_length;
    bit<8> next_header;
    bit<8> hop_limit;
    bit<128> src;
    bit<128> dst;
}

header udp_t {
    bit<16> src_port;
    bit<16> dst_port;
    bit<16> length;
    bit<16> checksum;
}

// Words of the IPv4 header checksum.
#define IPV4_CHECKSUM_WORDS(h) { h.version, h.header_words, h.tos, h.total_length, h.identification, h.reserved, \
    h.dont_fragment, h.more_fragments, h.fragment_offset, h.ttl, h.protocol, h.src, h.dst }

#endif
