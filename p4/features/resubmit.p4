// Resubmit: back to the parser as received, with chosen fields; together with drop, clone and multicast.
#include <core.p4>
#include <v1model.p4>
#include "include/frame.p4"

header order_t {
    bit<8> times;
    bit<8> op;
    bit<8> trace;
    bit<32> instance_type;
    bit<16> kept;
    bit<16> lost;
    bit<16> from;
}

struct headers_t {
    frame_t frame;
    order_t order;
}

struct metadata_t {
    @field_list(1, 2)
    bit<8> passes;
    @field_list(2)
    bit<16> kept;
    bit<16> lost;
}

#include "include/plain.p4"

parser ResubmitParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.frame);
        packet.extract(hdr.order);
        transition accept;
    }
}

control ResubmitIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = 1;
        hdr.order.trace = hdr.order.trace + 1;
        hdr.order.instance_type = standard.instance_type;
        hdr.order.kept = meta.kept;
        hdr.order.lost = meta.lost;
        hdr.order.from = (bit<16>)standard.ingress_port;
        meta.kept = meta.kept + 0x0101;
        meta.lost = 0x5555;
        if (meta.passes < hdr.order.times) {
            meta.passes = meta.passes + 1;
            if (hdr.order.op[0:0] == 0) {
                resubmit_preserving_field_list(1);
            } else {
                resubmit_preserving_field_list(2);
            }
            // Resubmission has precedence over drop and multicast.
            if (hdr.order.op[1:1] == 1) {
                mark_to_drop(standard);
            }
            if (hdr.order.op[2:2] == 1) {
                standard.mcast_grp = 1;
            }
            // The switch sends the clone in addition to the resubmission.
            if (hdr.order.op[3:3] == 1) {
                clone_preserving_field_list(CloneType.I2E, 1, 2);
            }
        } else if (hdr.order.op[4:4] == 1) {
            mark_to_drop(standard);
        }
    }
}

control ResubmitEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        if (standard.instance_type == 1) {
            hdr.order.instance_type = 0xffffffff;
            hdr.order.kept = meta.kept;
            hdr.order.lost = meta.lost;
        }
    }
}

V1Switch(ResubmitParser(), PlainVerify(), ResubmitIngress(), ResubmitEgress(), PlainCompute(), PlainDeparser()) main;
