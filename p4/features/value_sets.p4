// Parser value sets: the control plane defines the accepted values.
#include <core.p4>
#include <v1model.p4>
#include "include/frame.p4"

header tag_t {
    bit<16> kind;
    bit<4> version;
    bit<12> rest;
}

header known_t {
    bit<16> number;
}

struct headers_t {
    frame_t frame;
    tag_t tag;
    known_t one;
    known_t both;
    known_t ports;
}

struct metadata_t {
    bit<8> path;
}

struct both_t {
    bit<16> kind;
    bit<4> version;
}

#include "include/plain.p4"

parser ValueSetsParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    value_set<bit<16>>(4) kinds;
    value_set<both_t>(8) pairs;
    value_set<bit<9>>(4) trusted;

    state start {
        packet.extract(hdr.frame);
        transition select(standard.ingress_port) {
            trusted: from_trusted;
            default: tagged;
        }
    }
    state from_trusted {
        packet.extract(hdr.ports);
        meta.path = 1;
        transition tagged;
    }
    state tagged {
        packet.extract(hdr.tag);
        transition select(hdr.tag.kind) {
            kinds: one;
            0x9999: accept;
            default: pairs_too;
        }
    }
    state one {
        packet.extract(hdr.one);
        meta.path = meta.path | 2;
        transition pairs_too;
    }
    state pairs_too {
        transition select(hdr.tag.kind, hdr.tag.version) {
            pairs: both;
            default: accept;
        }
    }
    state both {
        packet.extract(hdr.both);
        meta.path = meta.path | 4;
        transition accept;
    }
}

control ValueSetsIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = 1;
        hdr.tag.rest = (bit<12>)meta.path;
        if (hdr.one.isValid()) {
            hdr.one.number = 0x1111;
        }
        if (hdr.both.isValid()) {
            hdr.both.number = 0x2222;
        }
        if (hdr.ports.isValid()) {
            hdr.ports.number = 0x3333;
        }
    }
}

V1Switch(ValueSetsParser(), PlainVerify(), ValueSetsIngress(), PlainEgress(), PlainCompute(), PlainDeparser()) main;
