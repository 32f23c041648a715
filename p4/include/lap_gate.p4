// Lists of frames that pass a gate without a session, or are forbidden to devices (docs/protocols.md 1.4.17): body of an ingress control.
//
// The result is `meta.listed`. Only frames of exactly the specified form are listed.
#ifndef LW_LAP_GATE_P4
#define LW_LAP_GATE_P4

// Maximum length of Ethernet padding after an ARP packet.
#define PADDING_BYTES 18
#define ARP_BYTES 28
// ARP for IPv4 over Ethernet: types 1 and 0x0800, lengths 6 and 4.
#define ARP_FORM 0x000108000604
// Maximum options in neighbor discovery of a host. A router may send as many options as are parsed.
#define HOST_OPTION_BYTES 64
#define IS_LINK_LOCAL(address) address[127:118] == 0x3fa

    counter(32, CounterType.packets) dropped_types;

    action pass_always() {
        meta.listed = LISTED;
    }
    action forbid() {
        meta.listed = FORBIDDEN;
    }
    // Control protocols from the configuration, and protocols of bridges.
    table control_protocols {
        key = { hdr.net.ethernet.dst: exact; meta.frame.ether_type: exact; }
        actions = { pass_always; forbid; NoAction; }
        default_action = NoAction();
        size = 32;
    }
    // DHCP servers from the configuration: matches the destination upstream and the source downstream.
    table dhcp_servers {
        key = { meta.end: exact; }
        actions = { pass_always; NoAction; }
        default_action = NoAction();
        size = 16;
    }
    action device_end_inside() {
        meta.device_end_is_inside = 1;
    }
    action end_inside() {
        meta.end_is_inside = 1;
    }
    // IPv6 prefixes of devices, independent of hosts: two tables for both addresses of a packet.
    table device_end_prefixes {
        key = { meta.device_end: lpm; }
        actions = { device_end_inside; NoAction; }
        default_action = NoAction();
        size = 16;
    }
    table end_prefixes {
        key = { meta.end: lpm; }
        actions = { end_inside; NoAction; }
        default_action = NoAction();
        size = 16;
    }
    action count_type(bit<32> at) {
        dropped_types.count(at);
    }
    // Counters of non-IP frames dropped by the gate; counter 0 counts all other types.
    table gate_types {
        key = { meta.frame.ether_type: exact; }
        actions = { count_type; }
        default_action = count_type(0);
        size = 32;
    }

    action look_at_arp() {
        if (hdr.arp.isValid() && hdr.arp.form == ARP_FORM && (hdr.arp.operation == 1 || hdr.arp.operation == 2)
                && meta.frame.room >= ARP_BYTES && meta.frame.room <= ARP_BYTES + PADDING_BYTES) {
            meta.listed = LISTED;
        }
    }

    // Length of the padding after an IP packet without options.
    action measure_padding() {
        meta.padding = meta.frame.room - meta.frame.ip_payload_bytes - 20;
        if (hdr.net.ipv6.isValid()) {
            meta.padding = meta.padding - 20;
        }
    }

    // DHCP messages. If the result is DHCP, `dhcp_servers` decides.
    action look_at_datagram() {
        measure_padding();
        bit<16> client = 68;
        bit<16> server = 67;
        if (hdr.net.ipv6.isValid()) {
            client = 546;
            server = 547;
        }
        if (meta.from_devices == 1) {
            if (hdr.net.udp.dst_port == client) {
                meta.listed = FORBIDDEN;
            } else if (hdr.net.udp.src_port == client && hdr.net.udp.dst_port == server && meta.padding <= PADDING_BYTES) {
                meta.listed = DHCP;
                if (hdr.net.ipv4.isValid()) {
                    if (hdr.net.ipv4.dst == 0xffffffff) {
                        meta.listed = LISTED;
                    }
                } else if (hdr.net.ipv6.dst == 0xff020000000000000000000000010002 && IS_LINK_LOCAL(hdr.net.ipv6.src)) {
                    meta.listed = LISTED;
                }
            }
        } else if (hdr.net.udp.src_port == server && hdr.net.udp.dst_port == client && meta.padding <= PADDING_BYTES) {
            meta.listed = DHCP;
            if (hdr.net.ipv4.isValid()) {
                if (meta.dhcp4_is_named == 0 || meta.own == 1) {
                    meta.listed = LISTED;
                }
            } else if ((IS_LINK_LOCAL(hdr.net.ipv6.src) || meta.own == 1) && IS_LINK_LOCAL(hdr.net.ipv6.dst)) {
                meta.listed = LISTED;
            }
        }
    }

// Parses eight bytes: the start or the next part of an option. An option of length 0 counts as longer than all parsed words.
#define OPTION_WORD(i) \
    if (hdr.words[i].isValid()) { \
        if (behind == 0) { \
            behind = hdr.words[i].w[55:48] - 1; \
        } else { \
            behind = behind - 1; \
        } \
    }

    // Checks of RFC 4861 6.1 and 7.1, except the checksum.
    action look_at_neighbor_discovery() {
        bit<16> fixed = 24;
        bit<16> most = HOST_OPTION_BYTES;
        bit<16> bytes;
        bit<8> behind = 0;
        bit<1> reaches = 0;
        bit<8> type = hdr.message.type;
        if (type == ROUTER_SOLICITATION) {
            fixed = 8;
        } else if (type == ROUTER_ADVERTISEMENT) {
            fixed = 16;
            most = PAYLOAD_BYTES;
        }
        bytes = meta.frame.ip_payload_bytes - fixed;
        OPTION_WORD(0)
        OPTION_WORD(1)
        OPTION_WORD(2)
        OPTION_WORD(3)
        OPTION_WORD(4)
        OPTION_WORD(5)
        OPTION_WORD(6)
        OPTION_WORD(7)
        OPTION_WORD(8)
        OPTION_WORD(9)
        OPTION_WORD(10)
        OPTION_WORD(11)
        OPTION_WORD(12)
        OPTION_WORD(13)
        OPTION_WORD(14)
        OPTION_WORD(15)
        // The destination is the group of the type, or a host on the link.
        if (hdr.net.ipv6.dst[127:120] == 0xff) {
            if (type == ROUTER_SOLICITATION) {
                if (hdr.net.ipv6.dst == 0xff020000000000000000000000000002) {
                    reaches = 1;
                }
            } else if (type == NEIGHBOR_SOLICITATION) {
                if (hdr.net.ipv6.dst[127:24] == 104w0xff0200000000000000000001ff) {
                    reaches = 1;
                }
            } else if (hdr.net.ipv6.dst == 0xff020000000000000000000000000001) {
                reaches = 1;
            }
        } else if (hdr.net.ipv6.src != 0 && (IS_LINK_LOCAL(hdr.net.ipv6.src) || IS_LINK_LOCAL(hdr.net.ipv6.dst)
                || meta.own == 1 || (meta.device_end_is_inside == 1
                    && (meta.end_is_inside == 1 || hdr.net.ipv6.src[127:64] == hdr.net.ipv6.dst[127:64])))) {
            reaches = 1;
        }
        if (hdr.net.ipv6.src[127:120] == 0xff || (type == ROUTER_ADVERTISEMENT && !(IS_LINK_LOCAL(hdr.net.ipv6.src)))
                || (hdr.target.isValid() && hdr.target.address[127:120] == 0xff)) {
            reaches = 0;
        }
        if (reaches == 1 && hdr.icmpv6.isValid() && hdr.icmpv6.code == 0 && hdr.net.ipv6.hop_limit == 255
                && meta.frame.ip_payload_bytes >= fixed && bytes <= most && bytes[2:0] == 0 && behind == 0
                && meta.padding <= PADDING_BYTES) {
            meta.listed = LISTED;
        }
    }

    // ICMP, IGMP and ICMPv6.
    action look_at_message() {
        measure_padding();
        bit<8> type = hdr.message.type;
        if (hdr.net.ipv6.isValid()) {
            if (meta.from_devices == 1 && (type == MLD_QUERY || type == ROUTER_ADVERTISEMENT || type == REDIRECT)) {
                meta.listed = FORBIDDEN;
            } else if (type >= ROUTER_SOLICITATION && type <= NEIGHBOR_ADVERTISEMENT) {
                look_at_neighbor_discovery();
            }
        } else if (meta.from_devices == 1 && meta.frame.ip_payload_bytes != 0) {
            if (hdr.net.ipv4.protocol == PROTOCOL_IGMP) {
                if (type == IGMP_QUERY) {
                    meta.listed = FORBIDDEN;
                }
            } else if (type == ICMP_REDIRECT || type == ICMP_ROUTER_ADVERTISEMENT) {
                meta.listed = FORBIDDEN;
            }
        }
    }

    // A membership report with only a router alert option is treated as a packet without options.
    action look_for_report() {
        bit<8> type = hdr.message.type;
        bit<16> least = 8 + 24;
        if (hdr.option4.isValid() && hdr.message.isValid()) {
            if (hdr.option4.option == 0x94040000 && hdr.net.ipv4.ttl == 1 && hdr.net.ipv4.dst[31:28] == 0xe
                    && meta.frame.ip_payload_bytes >= 8 && (type == 0x12 || type == 0x16 || type == 0x17 || type == 0x22)) {
                meta.is_report = 1;
            }
        } else if (hdr.hop_by_hop.isValid() && hdr.icmpv6.isValid()) {
            if (type == MLD_REPORT_V2) {
                least = 8 + 8;
            }
            if ((hdr.hop_by_hop.options == 0x050200000100 || hdr.hop_by_hop.options == 0x050200000000
                        || hdr.hop_by_hop.options == 0x010005020000 || hdr.hop_by_hop.options == 0x000005020000)
                    && hdr.net.ipv6.hop_limit == 1 && hdr.icmpv6.code == 0 && meta.frame.ip_payload_bytes >= least
                    && (type == MLD_REPORT || type == MLD_DONE || type == MLD_REPORT_V2)
                    && (hdr.net.ipv6.src == 0 || IS_LINK_LOCAL(hdr.net.ipv6.src)) && hdr.net.ipv6.dst[127:120] == 0xff) {
                meta.is_report = 1;
            }
        }
    }

#endif
