// Recirculate: back to the parser as sent, with chosen fields; growing, shrinking, together with clone, multicast and drop.
#include <core.p4>
#include <v1model.p4>
#include "include/frame.p4"

header order_t {
    bit<8> times;
    bit<8> op;
}

header trace_t {
    bit<8> pass;
    bit<8> instance_type;
    bit<16> length;
    bit<16> kept;
    bit<16> lost;
    bit<16> from;
}

struct headers_t {
    frame_t frame;
    order_t order;
    trace_t trace;
}

struct metadata_t {
    @field_list(1, 3)
    bit<8> passes;
    @field_list(3)
    bit<16> kept;
    bit<16> lost;
}

#include "include/plain.p4"

parser RecirculateParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.frame);
        packet.extract(hdr.order);
        transition accept;
    }
}

control RecirculateIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = 1;
        if (hdr.order.op[3:3] == 1) {
            standard.mcast_grp = 1;
        }
    }
}

control RecirculateEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        // Adds one header in front of the previous one.
        hdr.trace.setValid();
        hdr.trace.pass = meta.passes;
        hdr.trace.instance_type = (bit<8>)standard.instance_type;
        hdr.trace.length = (bit<16>)standard.packet_length;
        hdr.trace.kept = meta.kept;
        hdr.trace.lost = meta.lost;
        hdr.trace.from = (bit<16>)standard.ingress_port;
        meta.kept = meta.kept + 0x0101;
        meta.lost = 0x5555;
        if (hdr.order.times != 0) {
            hdr.order.times = hdr.order.times - 1;
            meta.passes = meta.passes + 1;
            if (hdr.order.op[0:0] == 0) {
                recirculate_preserving_field_list(1);
            } else {
                recirculate_preserving_field_list(3);
            }
            if (hdr.order.op[1:1] == 1) {
                // A dropped packet is not recirculated.
                mark_to_drop(standard);
            }
            if (hdr.order.op[2:2] == 1 && standard.instance_type != 2) {
                clone_preserving_field_list(CloneType.E2E, 1, 3);
            }
            if (hdr.order.op[4:4] == 1) {
                truncate(24);
            }
        }
    }
}

V1Switch(RecirculateParser(), PlainVerify(), RecirculateIngress(), RecirculateEgress(), PlainCompute(), PlainDeparser()) main;
