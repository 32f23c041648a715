// Idle timeouts: notifications of unused entries.
#include <core.p4>
#include <v1model.p4>
#include "include/frame.p4"

header host_t {
    bit<8> id;
}

struct headers_t {
    frame_t frame;
    host_t host;
}

struct metadata_t {
}

#include "include/plain.p4"

parser IdleParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.frame);
        packet.extract(hdr.host);
        transition accept;
    }
}

control IdleIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action to_port(bit<9> port) {
        standard.egress_spec = port;
    }
    table hosts {
        key = {
            hdr.host.id: exact;
        }
        actions = {
            to_port;
        }
        default_action = to_port(7);
        support_timeout = true;
    }
    table ranges {
        key = {
            hdr.host.id: ternary;
        }
        actions = {
            to_port;
            NoAction;
        }
        default_action = NoAction;
        support_timeout = true;
    }

    apply {
        hosts.apply();
        ranges.apply();
    }
}

V1Switch(IdleParser(), PlainVerify(), IdleIngress(), PlainEgress(), PlainCompute(), PlainDeparser()) main;
