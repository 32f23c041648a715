// IPv4 and IPv6 router: longest prefix match, TTL, checksum, MAC addresses. Used for speed measurements: it has no tables, headers
// or statements that forwarding does not need.
//
// A route forwards, drops, or sends to the CPU port (own addresses, multicast, neighbor discovery). Other frames are handled by
// Ethernet type (ARP to the CPU port). A packet with an expired TTL, a wrong IPv4 checksum or IPv4 options is dropped: the
// control plane is responsible for ICMP errors.
#include <core.p4>
#include <v1model.p4>
#include "include/headers.p4"

struct headers_t {
    ethernet_t ethernet;
    ipv4_t ipv4;
    ipv6_t ipv6;
}

struct metadata_t {
}

parser RouterParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHER_IPV4: ipv4;
            ETHER_IPV6: ipv6;
            default: accept;
        }
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        transition accept;
    }
    state ipv6 {
        packet.extract(hdr.ipv6);
        transition accept;
    }
}

control RouterVerify(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid(), IPV4_CHECKSUM_WORDS(hdr.ipv4), hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control RouterIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action drop() {
        mark_to_drop(standard);
    }
    action to_port(bit<9> port) {
        standard.egress_spec = port;
    }
    action forward4(bit<9> port, bit<48> next_hop) {
        standard.egress_spec = port;
        hdr.ethernet.dst = next_hop;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
    }
    action forward6(bit<9> port, bit<48> next_hop) {
        standard.egress_spec = port;
        hdr.ethernet.dst = next_hop;
        hdr.ipv6.hop_limit = hdr.ipv6.hop_limit - 1;
    }

    table routes4 {
        key = { hdr.ipv4.dst: lpm; }
        actions = { forward4; to_port; drop; }
        default_action = drop();
        size = 1048576;
    }
    table routes6 {
        key = { hdr.ipv6.dst: lpm; }
        actions = { forward6; to_port; drop; }
        default_action = drop();
        size = 262144;
    }
    table others {
        key = { hdr.ethernet.ether_type: exact; }
        actions = { to_port; drop; }
        default_action = drop();
        size = 64;
    }

    apply {
        if (hdr.ipv4.isValid()) {
            if (hdr.ipv4.ttl > 1 && hdr.ipv4.version == 4 && hdr.ipv4.header_words == 5 && standard.checksum_error == 0) {
                routes4.apply();
            } else {
                drop();
            }
        } else if (hdr.ipv6.isValid()) {
            if (hdr.ipv6.hop_limit > 1 && hdr.ipv6.version == 6) {
                routes6.apply();
            } else {
                drop();
            }
        } else {
            others.apply();
        }
    }
}

control RouterEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action set_source(bit<48> mac) {
        hdr.ethernet.src = mac;
    }

    // Own MAC addresses. A port without an entry, such as the CPU port, does not modify the frame.
    table ports {
        key = { standard.egress_port: exact; }
        actions = { set_source; NoAction; }
        default_action = NoAction();
        size = 512;
    }

    apply {
        ports.apply();
    }
}

control RouterUpdate(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.ipv4.isValid(), IPV4_CHECKSUM_WORDS(hdr.ipv4), hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control RouterDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.ipv6);
    }
}

V1Switch(RouterParser(), RouterVerify(), RouterIngress(), RouterEgress(), RouterUpdate(), RouterDeparser()) main;
