// Clones: from ingress and egress, with and without preserved fields, to ports and groups; each copy contains its metadata.
#include <core.p4>
#include <v1model.p4>
#include "include/frame.p4"

header order_t {
    bit<8> ingress_op;
    bit<8> egress_op;
    bit<32> session;
}

// Metadata of this copy.
header told_t {
    bit<32> instance_type;
    bit<16> rid;
    bit<16> port;
    bit<16> from;
    bit<32> length;
    bit<16> kept;
    bit<16> kept_too;
    bit<16> lost;
}

struct headers_t {
    frame_t frame;
    order_t order;
    told_t told;
}

struct metadata_t {
    @field_list(1, 2)
    bit<16> kept;
    @field_list(2)
    bit<16> kept_too;
    bit<16> lost;
}

#include "include/plain.p4"

parser ClonesParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.frame);
        packet.extract(hdr.order);
        transition accept;
    }
}

control ClonesIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = 1;
        meta.kept = 0x1111;
        meta.kept_too = 0x2222;
        meta.lost = 0x3333;
        if (hdr.order.ingress_op[1:0] == 1) {
            clone(CloneType.I2E, hdr.order.session);
        } else if (hdr.order.ingress_op[1:0] == 2) {
            clone_preserving_field_list(CloneType.I2E, hdr.order.session, 1);
        } else if (hdr.order.ingress_op[1:0] == 3) {
            clone_preserving_field_list(CloneType.I2E, hdr.order.session, 2);
        }
        // A clone has the packet as received, and the preserved fields with their values at the end of ingress.
        meta.kept = 0x4444;
        hdr.order.session = 0xffffffff;
        if (hdr.order.ingress_op[2:2] == 1) {
            mark_to_drop(standard);
        }
        if (hdr.order.ingress_op[3:3] == 1) {
            standard.mcast_grp = 3;
        }
        if (hdr.order.ingress_op[4:4] == 1) {
            // A later clone request replaces an earlier request.
            clone_preserving_field_list(CloneType.I2E, 2, 2);
        }
        if (hdr.order.ingress_op[5:5] == 1) {
            truncate(20);
        }
    }
}

control ClonesEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        hdr.told.setValid();
        hdr.told.instance_type = standard.instance_type;
        hdr.told.rid = standard.egress_rid;
        hdr.told.port = (bit<16>)standard.egress_port;
        hdr.told.from = (bit<16>)standard.ingress_port;
        hdr.told.length = standard.packet_length;
        hdr.told.kept = meta.kept;
        hdr.told.kept_too = meta.kept_too;
        hdr.told.lost = meta.lost;
        // Clones of clones would never end.
        if (standard.instance_type == 0 || standard.instance_type == 5) {
            meta.kept_too = 0x5555;
            if (hdr.order.egress_op[1:0] == 1) {
                clone(CloneType.E2E, 1);
            } else if (hdr.order.egress_op[1:0] == 2) {
                clone_preserving_field_list(CloneType.E2E, 2, 1);
            } else if (hdr.order.egress_op[1:0] == 3) {
                clone_preserving_field_list(CloneType.E2E, 0, 2);
            }
            meta.kept = 0x6666;
            if (hdr.order.egress_op[2:2] == 1) {
                mark_to_drop(standard);
            }
        } else if (hdr.order.egress_op[3:3] == 1) {
            truncate(30);
        }
    }
}

V1Switch(ClonesParser(), PlainVerify(), ClonesIngress(), ClonesEgress(), PlainCompute(), PlainDeparser()) main;
