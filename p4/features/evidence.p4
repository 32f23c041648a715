// Program that writes registers, reads the digests of its switch, and tries to forge evidence. Used for tests of evidence and
// to measure the cost of a register write.
//
// A frame of type 0x88b5 (IEEE 802, local experiments) requests an operation and is sent back to its ingress port:
//   1 write `value` to a cell of the small array      4 write `value` over the digests of the switch
//   2 write `value` to a cell of the large array      5 send the frame with the type of evidence
//   3 write `value` to a cell of the wide array       0 no operation
// The reply contains the digests that the program read. IPv6 packets are sent from port 0 to 1 and from other ports to 0. For
// packets that table `forge` selects, the program overwrites the digests of the option, or adds an option with false digests.
#include <core.p4>
#include <v1model.p4>
#include "../include/headers.p4"

const bit<16> ETHER_ASK = 0x88b5;
const bit<16> ETHER_EVIDENCE = 0x5241;
const bit<8> OPTION_EVIDENCE = 0x37;
const bit<16> OPTION_GROWTH = 104;

header ask_t {
    bit<8> what;
    bit<32> index;
    bit<32> value;
    bit<128> registers;
    bit<128> tables;
    bit<128> program;
}

// Hop-by-hop header with one option of 100 bytes.
header options_t {
    bit<8> next_header;
    bit<8> length;
    bit<8> option;
    bit<8> option_length;
    bit<32> head;
    bit<384> digests;
    bit<384> rest;
}

struct headers_t {
    ethernet_t ethernet;
    ask_t ask;
    ipv6_t ipv6;
    options_t options;
}

struct metadata_t {
}

parser EvidenceParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHER_ASK: ask;
            ETHER_IPV6: ipv6;
            default: accept;
        }
    }
    state ask {
        packet.extract(hdr.ask);
        transition accept;
    }
    state ipv6 {
        packet.extract(hdr.ipv6);
        transition select(hdr.ipv6.next_header) {
            PROTOCOL_HOP_BY_HOP: options;
            default: accept;
        }
    }
    state options {
        packet.extract(hdr.options);
        transition accept;
    }
}

control EvidenceVerify(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control EvidenceIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    register<bit<32>>(16) small;
    register<bit<32>>(65536) large;
    register<bit<200>>(4) wide;
    register<bit<128>>(3) linewarden_evidence;

    action false_digests(bit<384> digests, bit<32> head) {
        hdr.options.digests = digests;
        hdr.options.head = head;
    }
    table forge {
        key = { hdr.ipv6.dst: exact; }
        actions = { false_digests; NoAction; }
        default_action = NoAction();
    }

    action write_small() {
        small.write(hdr.ask.index, hdr.ask.value);
    }
    action write_large() {
        large.write(hdr.ask.index, hdr.ask.value);
    }
    action write_wide() {
        wide.write(hdr.ask.index, hdr.ask.value ++ 136w0 ++ hdr.ask.value);
    }
    action write_digest() {
        linewarden_evidence.write(hdr.ask.index, 96w0 ++ hdr.ask.value);
    }
    action leave_as_evidence() {
        hdr.ethernet.ether_type = ETHER_EVIDENCE;
    }
    table requests {
        key = { hdr.ask.what: exact; }
        actions = { write_small; write_large; write_wide; write_digest; leave_as_evidence; NoAction; }
        default_action = NoAction();
        const entries = {
            1: write_small();
            2: write_large();
            3: write_wide();
            4: write_digest();
            5: leave_as_evidence();
        }
    }

    apply {
        if (hdr.ask.isValid()) {
            linewarden_evidence.read(hdr.ask.registers, 0);
            linewarden_evidence.read(hdr.ask.tables, 1);
            linewarden_evidence.read(hdr.ask.program, 2);
            requests.apply();
            standard.egress_spec = standard.ingress_port;
            return;
        }
        if (standard.ingress_port == 0) {
            standard.egress_spec = 1;
        } else {
            standard.egress_spec = 0;
        }
        if (hdr.ipv6.isValid()) {
            bool is_true = hdr.options.isValid();
            if (!is_true) {
                hdr.options.setValid();
                hdr.options.next_header = hdr.ipv6.next_header;
                hdr.options.length = 12;
                hdr.options.option = OPTION_EVIDENCE;
                hdr.options.option_length = 100;
                hdr.options.rest = 0;
            }
            if (!forge.apply().hit && !is_true) {
                hdr.options.setInvalid();
            }
        }
    }
}

control EvidenceEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        if (hdr.options.isValid() && hdr.ipv6.next_header != PROTOCOL_HOP_BY_HOP) {
            hdr.ipv6.next_header = PROTOCOL_HOP_BY_HOP;
            hdr.ipv6.payload_length = hdr.ipv6.payload_length + OPTION_GROWTH;
        }
    }
}

control EvidenceUpdate(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control EvidenceDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ask);
        packet.emit(hdr.ipv6);
        packet.emit(hdr.options);
    }
}

V1Switch(EvidenceParser(), EvidenceVerify(), EvidenceIngress(), EvidenceEgress(), EvidenceUpdate(), EvidenceDeparser()) main;
