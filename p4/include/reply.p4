// Conversion of a datagram to a reply of the same length (docs/protocols.md 1.4.14).
#ifndef LW_REPLY_P4
#define LW_REPLY_P4

#include "datagram.p4"

// A reply is sent to the origin (1.4.14); its UDP checksum is computed later, when the payload is complete.
control TurnRound(inout network_t net) {
    apply {
        bit<48> mac = net.ethernet.dst;
        net.ethernet.dst = net.ethernet.src;
        net.ethernet.src = mac;
        if (net.ipv4.isValid()) {
            bit<32> address = net.ipv4.dst;
            net.ipv4.dst = net.ipv4.src;
            net.ipv4.src = address;
            net.ipv4.ttl = 64;
        }
        if (net.ipv6.isValid()) {
            bit<128> address6 = net.ipv6.dst;
            net.ipv6.dst = net.ipv6.src;
            net.ipv6.src = address6;
            net.ipv6.hop_limit = 64;
        }
        bit<16> port = net.udp.dst_port;
        net.udp.dst_port = net.udp.src_port;
        net.udp.src_port = port;
    }
}

#endif
