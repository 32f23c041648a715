// Multicast: groups of nodes, their replication ids, ports in several nodes; truncation, drop per copy, priorities.
#include <core.p4>
#include <v1model.p4>
#include "include/frame.p4"

header order_t {
    bit<16> group;
    bit<8> op;
    bit<8> drop_rid;
    bit<16> rid;
    bit<16> port;
    bit<8> instance_type;
    bit<8> length;
    bit<32> queue;
}

struct headers_t {
    frame_t frame;
    order_t order;
}

struct metadata_t {
    bit<8> mark;
}

#include "include/plain.p4"

parser MulticastParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.frame);
        packet.extract(hdr.order);
        transition accept;
    }
}

control MulticastIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        standard.mcast_grp = hdr.order.group;
        standard.egress_spec = 7;
        meta.mark = 1;
        if (hdr.order.op[0:0] == 1) {
            // Drop clears the group.
            mark_to_drop(standard);
        }
        if (hdr.order.op[1:1] == 1) {
            // Only the port is the drop port; the group has precedence.
            standard.egress_spec = 511;
        }
        if (hdr.order.op[2:2] == 1) {
            truncate(26);
        }
        if (hdr.order.op[3:3] == 1) {
            mark_to_drop(standard);
            standard.egress_spec = 2;
        }
    }
}

control MulticastEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        hdr.order.rid = standard.egress_rid;
        hdr.order.port = (bit<16>)standard.egress_port;
        hdr.order.instance_type = (bit<8>)standard.instance_type;
        hdr.order.length = (bit<8>)standard.packet_length;
        // Each replica has separate fields.
        meta.mark = meta.mark + (bit<8>)standard.egress_rid;
        hdr.order.queue[7:0] = meta.mark;
        if (hdr.order.drop_rid != 0 && (bit<16>)hdr.order.drop_rid == standard.egress_rid) {
            mark_to_drop(standard);
        }
        if (hdr.order.op[4:4] == 1) {
            truncate((bit<32>)standard.egress_rid + 14);
        }
        if (hdr.order.op[5:5] == 1) {
            truncate(200);
        }
    }
}

V1Switch(MulticastParser(), PlainVerify(), MulticastIngress(), MulticastEgress(), PlainCompute(), PlainDeparser()) main;
