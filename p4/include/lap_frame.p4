// Headers, metadata and digests of lap.p4.
#ifndef LW_LAP_FRAME_P4
#define LW_LAP_FRAME_P4

#include "datagram.p4"
#include "lap.p4"
#include "lw_verdicts.p4"
#include "proof.p4"
#include "siphash.p4"

#define CPU_PORT 510
// Multicast group of all ports.
#define FLOOD 1
// Port in a packet_out header: the pipeline processes the frame like a frame received at the ingress port in the header.
#define REPLAY 0x8000
#define PACKET_OUT_BYTES 4
// Number of source buckets for the rate limit of the slow path.
#define SOURCES 4096
// Halves of the slow path's rate: for all sources, and for sources with little traffic.
#define ALL_SOURCES 0
#define QUIET_SOURCES 1
#define EXPECTED 4096
#define DEVICES 65536
// Number of owner buckets, indexed by 18 bits of a hash.
#define BUCKETS 262144
#define PAYLOAD_WORDS 16
#define PAYLOAD_BYTES 128

const lw_verdict_t UNDECIDED = 0;
const bit<8> NAK_NO_ROWS = 1;
const bit<8> NAK_STOPPING = 2;

// Value 0 is the default: without an entry in `gateway`, the gate is sealed.
const bit<2> GATE_SEALED = 0;
const bit<2> GATE_BOUND = 1;
const bit<2> GATE_OFF = 2;

// Frame class by the lists of 1.4.17: not listed; passes without a session; forbidden to devices; passes if the DHCP server is listed.
const bit<2> UNLISTED = 0;
const bit<2> LISTED = 1;
const bit<2> FORBIDDEN = 2;
const bit<2> DHCP = 3;

// Types of ICMP (RFC 792, RFC 1256), IGMP (RFC 3376) and ICMPv6 (RFC 4861, RFC 2710, RFC 3810).
const bit<8> ICMP_REDIRECT = 5;
const bit<8> ICMP_ROUTER_ADVERTISEMENT = 9;
const bit<8> IGMP_QUERY = 0x11;
const bit<8> MLD_QUERY = 130;
const bit<8> MLD_REPORT = 131;
const bit<8> MLD_DONE = 132;
const bit<8> ROUTER_SOLICITATION = 133;
const bit<8> ROUTER_ADVERTISEMENT = 134;
const bit<8> NEIGHBOR_SOLICITATION = 135;
const bit<8> NEIGHBOR_ADVERTISEMENT = 136;
const bit<8> REDIRECT = 137;
const bit<8> MLD_REPORT_V2 = 143;

@controller_header("packet_out")
header packet_out_t {
    bit<16> port;
    bit<16> ingress;
}

@controller_header("packet_in")
header packet_in_t {
    bit<16> ingress;
}

// ARP: address types and lengths, and the operation.
header arp_t {
    bit<48> form;
    bit<16> operation;
}

// One word of IPv4 options.
header option4_t {
    bit<32> option;
}

header hop_by_hop_t {
    bit<8> next_header;
    bit<8> length;
    bit<48> options;
}

// First byte of ICMP, IGMP and ICMPv6.
header message_t {
    bit<8> type;
}

// Rest of the ICMPv6 header: code, checksum, and four bytes that depend on the type.
header icmpv6_t {
    bit<8> code;
    bit<48> rest;
}

// Timers of a router advertisement.
header timers_t {
    bit<64> timers;
}

// Target of a neighbor solicitation or advertisement.
header target_t {
    bit<128> address;
}

header word_t {
    bit<64> w;
}

#define TAIL(bytes) header tail##bytes##_t { bit<(8 * bytes)> w; }
TAIL(1)
TAIL(2)
TAIL(3)
TAIL(4)
TAIL(5)
TAIL(6)
TAIL(7)

struct headers_t {
    packet_out_t packet_out;
    packet_in_t packet_in;
    network_t net;
    arp_t arp;
    option4_t option4;
    hop_by_hop_t hop_by_hop;
    message_t message;
    icmpv6_t icmpv6;
    timers_t timers;
    target_t target;
    lap_t lap;
    lap_body_t lap_body;
    lap_data_t lap_data;
    lap_proof_t lap_proof;
    words_t proof;
    word_t[PAYLOAD_WORDS] words;
    tail1_t tail1;
    tail2_t tail2;
    tail3_t tail3;
    tail4_t tail4;
    tail5_t tail5;
    tail6_t tail6;
    tail7_t tail7;
}

// RESPONSE that opened a session, and its origin.
struct session_digest_t {
    bit<64> device_id;
    bit<8> flags;
    bit<64> w0;
    bit<64> w1;
    bit<64> w2;
    bit<64> w3;
    bit<64> w4;
    bit<64> w5;
    bit<48> mac;
    bit<128> address;
    bit<9> ingress;
    bit<48> at_us;
}

struct event_digest_t {
    bit<64> device_id;
    bit<8> verdict;
    // Row number, or round number of a wrong PROOF.
    bit<32> number;
    bit<128> address;
    bit<9> ingress;
}

// kg of the configuration in rollout, as little-endian words.
struct other_key_t {
    bit<32> k0;
    bit<32> k1;
    bit<32> k2;
    bit<32> k3;
    bit<32> k4;
    bit<32> k5;
    bit<32> k6;
    bit<32> k7;
}

struct metadata_t {
    parsed_t parsed;
    bit<16> left;
    bit<16> behind_header;
    frame_t frame;
    lw_verdict_t verdict;
    bit<9> ingress;
    // The destination MAC address belongs to the gateway or is a group address.
    bit<1> addressed;
    // IP address on the side of the gateway: destination of frames from devices, source of other frames.
    bit<128> end;
    // `end` is an address of the gateway.
    bit<1> own;
    // The frame is addressed to the gateway by MAC and IP address.
    bit<1> local;
    // The source address may belong to a device.
    bit<1> admitted;
    // Settings.
    bit<1> is_set;
    bit<1> slow;
    bit<1> filtering;
    bit<1> stopping;
    bit<2> gate;
    bit<32> gateway_id;
    bit<32> session_lifetime_s;
    bit<16> mtu;
    bit<1> attests;
    bit<1> dhcp4_is_named;
    bit<1> from_devices;
    bit<1> to_devices;
    // Results of the lists (docs/protocols.md 1.4.17).
    bit<2> listed;
    bit<1> is_report;
    // IP address on the side of the device: source of frames from devices, destination of other frames.
    bit<128> device_end;
    // Neighbor discovery: which addresses are in the prefixes of devices.
    bit<1> device_end_is_inside;
    bit<1> end_is_inside;
    bit<16> padding;
    // Freshness.
    bit<64> fresh;
    bit<64> fresh_before;
    bit<48> fresh_until;
    // State of the device, and its next row or key.
    bit<32> device;
    bit<1> key_mode;
    bit<1> has_row;
    bit<1> revoked;
    bit<32> next;
    bit<64> challenge;
    bit<64> key0;
    bit<64> key1;
    // Session of the device.
    bit<64> session_id;
    bit<64> session_key0;
    bit<64> session_key1;
    bit<64> tag1;
    bit<48> session_end;
    bit<32> opened_lifetime_s;
    bit<128> address;
    bit<106> session_place;
    bit<56> window;
    bit<64> seq;
    bit<64> sealed_device;
    // Origin of the frame without the IP address, in bits: bound 1, UDP port 16, ingress port 9, VLANs 32, MAC address 48.
    bit<106> place;
    // Candidate buckets of the owner entries: two for the IP address and two for the MAC address.
    bit<32> address_bucket;
    bit<32> address_bucket_b;
    bit<32> mac_bucket;
    bit<32> mac_bucket_b;
    bit<32> source_bucket;
    bit<32> slot;
    bit<1> is_expected;
    bit<1> tag_fits;
    // Hashing.
    sip_t sip;
    bit<64> h0;
    bit<64> ig;
    bit<64> w5;
    bit<64> w6;
    bit<64> d1;
    bit<64> d2;
    bit<64> peer0;
    bit<64> peer1;
    bit<64> t0;
    bit<64> t1;
    bit<8> hashed;
    bit<16> checksum;
    bit<32> sum;
    bit<32> gone;
    bit<32> alarm_number;
    // State of a PROOF.
    PROOF_FIELDS
    bit<1> alternate;
    other_key_t other;
    matrix_t work;
}

parser LapParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    DatagramParser() datagram;

    state start {
        transition select(standard.ingress_port) {
            CPU_PORT: sent;
            default: frame;
        }
    }
    state sent {
        packet.extract(hdr.packet_out);
        transition select(hdr.packet_out.port) {
            REPLAY: frame;
            default: accept;
        }
    }
    state frame {
        datagram.apply(packet, hdr.net, meta.parsed);
        // A datagram without a complete LAP header is not a message, regardless of its port.
        meta.behind_header = meta.parsed.udp_length |-| 23;
        meta.left = meta.parsed.udp_length |-| 8;
        transition select(meta.parsed.is_udp, meta.parsed.udp_port, meta.behind_header) {
            (1, LAP_PORT, 0): accept;
            (1, LAP_PORT, _): lap;
            (1, _, _): payload;
            default: other;
        }
    }
    state other {
        meta.left = meta.parsed.ip_payload_bytes;
        transition select(meta.parsed.ether_type, meta.parsed.next) {
            (ETHER_ARP, _): arp;
            (_, NEXT_MESSAGE): message;
            (_, NEXT_OPTION4): option4;
            (_, NEXT_MESSAGE6): message6;
            (_, NEXT_HOP_BY_HOP): hop_by_hop;
            default: accept;
        }
    }
    state arp {
        packet.extract(hdr.arp);
        transition accept;
    }
    state option4 {
        packet.extract(hdr.option4);
        transition message;
    }
    state message {
        packet.extract(hdr.message);
        transition accept;
    }
    state hop_by_hop {
        packet.extract(hdr.hop_by_hop);
        meta.left = meta.left |-| 8;
        transition select(hdr.hop_by_hop.next_header, hdr.hop_by_hop.length) {
            (PROTOCOL_ICMPV6, 0): message6;
            default: accept;
        }
    }
    state message6 {
        packet.extract(hdr.message);
        transition select(hdr.message.type) {
            MLD_REPORT: report;
            MLD_DONE: report;
            MLD_REPORT_V2: report;
            ROUTER_SOLICITATION: solicitation;
            ROUTER_ADVERTISEMENT: advertisement;
            NEIGHBOR_SOLICITATION: neighbor;
            NEIGHBOR_ADVERTISEMENT: neighbor;
            default: accept;
        }
    }
    state report {
        packet.extract(hdr.icmpv6);
        transition accept;
    }
    state solicitation {
        packet.extract(hdr.icmpv6);
        meta.left = meta.left |-| 8;
        transition payload;
    }
    state advertisement {
        packet.extract(hdr.icmpv6);
        packet.extract(hdr.timers);
        meta.left = meta.left |-| 16;
        transition payload;
    }
    state neighbor {
        packet.extract(hdr.icmpv6);
        packet.extract(hdr.target);
        meta.left = meta.left |-| 24;
        transition payload;
    }
    state lap {
        packet.extract(hdr.lap);
        meta.behind_header = meta.parsed.udp_length |-| (LAP_DATA_BYTES + 7);
        transition select(hdr.lap.type, meta.parsed.udp_length, meta.behind_header) {
            (LAP_REQUEST, LAP_MESSAGE_BYTES + 8, _): lap_body;
            (LAP_RESPONSE, LAP_MESSAGE_BYTES + 8, _): lap_body;
            (LAP_NAK, LAP_MESSAGE_BYTES + 8, _): lap_body;
            (LAP_PROOF, LAP_PROOF_BYTES + 8, _): lap_proof;
            (LAP_DATA_UP, _, 0): accept;
            (LAP_DATA_DOWN, _, 0): accept;
            (LAP_DATA_UP, _, _): lap_data;
            (LAP_DATA_DOWN, _, _): lap_data;
            default: accept;
        }
    }
    state lap_body {
        packet.extract(hdr.lap_body);
        transition accept;
    }
    state lap_proof {
        packet.extract(hdr.lap_proof);
        packet.extract(hdr.proof);
        transition accept;
    }
    state lap_data {
        packet.extract(hdr.lap_data);
        meta.left = meta.parsed.udp_length |-| (LAP_DATA_BYTES + 8);
        transition payload;
    }
    state payload {
        meta.behind_header = meta.left |-| PAYLOAD_BYTES;
        transition select(meta.behind_header) {
            0: words;
            default: accept;
        }
    }
    state words {
        transition select(meta.left) {
            0: accept;
            1: tail1;
            2: tail2;
            3: tail3;
            4: tail4;
            5: tail5;
            6: tail6;
            7: tail7;
            default: word;
        }
    }
    state word {
        packet.extract(hdr.words.next);
        meta.left = meta.left - 8;
        transition words;
    }
#define TAIL_STATE(name) state name { packet.extract(hdr.name); transition accept; }
    TAIL_STATE(tail1)
    TAIL_STATE(tail2)
    TAIL_STATE(tail3)
    TAIL_STATE(tail4)
    TAIL_STATE(tail5)
    TAIL_STATE(tail6)
    TAIL_STATE(tail7)
}

#endif
