// Action profiles and selectors: members shared by entries, groups with selection by a hash of fields.
#include <core.p4>
#include <v1model.p4>
#include "include/frame.p4"

header flow_t {
    bit<8> table_number;
    bit<8> route;
    bit<32> src;
    bit<32> dst;
    bit<12> tag;
    bit<4> rest;
    bit<16> chosen;
}

struct headers_t {
    frame_t frame;
    flow_t flow;
}

struct metadata_t {
}

#include "include/plain.p4"

parser SelectorsParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.frame);
        packet.extract(hdr.flow);
        transition accept;
    }
}

control SelectorsIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action_profile(16) profile;
    @mode("fair")
    action_selector(HashAlgorithm.crc16, 64, 16) by_crc16;
    action_selector(HashAlgorithm.crc32, 64, 10) by_crc32;
    action_selector(HashAlgorithm.identity, 64, 16) by_identity;

    action choose(bit<16> number) {
        hdr.flow.chosen = number;
    }
    action drop() {
        mark_to_drop(standard);
    }
    action to_port(bit<9> port) {
        standard.egress_spec = port;
    }

    table shared {
        key = {
            hdr.flow.route: exact;
        }
        actions = {
            choose;
            drop;
        }
        implementation = profile;
    }
    table crc16 {
        key = {
            hdr.flow.route: exact;
            hdr.flow.src: selector;
            hdr.flow.tag: selector;
            hdr.flow.dst: selector;
        }
        actions = {
            choose;
            to_port;
            drop;
        }
        implementation = by_crc16;
    }
    table crc32 {
        key = {
            hdr.flow.route: lpm;
            hdr.flow.dst: selector;
            hdr.flow.src: selector;
        }
        actions = {
            choose;
            drop;
        }
        implementation = by_crc32;
    }
    table identity {
        key = {
            hdr.flow.route: ternary;
            hdr.flow.tag: selector;
        }
        actions = {
            choose;
            drop;
        }
        implementation = by_identity;
    }

    apply {
        standard.egress_spec = 2;
        if (hdr.flow.table_number == 0) {
            if (shared.apply().hit) {
                hdr.flow.table_number = 0xff;
            }
        } else if (hdr.flow.table_number == 1) {
            switch (crc16.apply().action_run) {
                choose: {
                    hdr.flow.table_number = 0xfe;
                }
                to_port: {
                    hdr.flow.table_number = 0xfd;
                }
                default: {
                }
            }
        } else if (hdr.flow.table_number == 2) {
            crc32.apply();
        } else {
            identity.apply();
        }
    }
}

V1Switch(SelectorsParser(), PlainVerify(), SelectorsIngress(), PlainEgress(), PlainCompute(), PlainDeparser()) main;
