// Traffic: a packet contains the operations for each of its passes: clones, resubmission, recirculation, multicast, digest, drop,
// truncation, in any combination. Only one copy performs further operations, so the order of sent packets is defined.
#include <core.p4>
#include <v1model.p4>
#include "include/frame.p4"

header orders_t {
    bit<8> ingress0;
    bit<8> egress0;
    bit<8> ingress1;
    bit<8> egress1;
    bit<8> ingress2;
    bit<8> egress2;
    bit<8> ingress3;
    bit<8> egress3;
    bit<32> number;
}

header told_t {
    bit<8> instance_type;
    bit<8> pass;
    bit<16> mark;
    bit<16> length;
    bit<8> rid;
    bit<8> port;
}

struct headers_t {
    frame_t frame;
    orders_t orders;
    told_t told;
}

struct metadata_t {
    @field_list(1, 2)
    bit<8> pass;
    @field_list(2)
    bit<16> mark;
    bit<8> order;
}

struct digest_t {
    bit<32> number;
    bit<8> pass;
    bit<16> mark;
    bit<32> instance_type;
}

#include "include/plain.p4"

parser TrafficParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.frame);
        packet.extract(hdr.orders);
        transition accept;
    }
}

control TrafficIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = 1;
        switch (meta.pass) {
            0: {
                meta.order = hdr.orders.ingress0;
            }
            1: {
                meta.order = hdr.orders.ingress1;
            }
            2: {
                meta.order = hdr.orders.ingress2;
            }
            3: {
                meta.order = hdr.orders.ingress3;
            }
            default: {
                meta.order = 0;
            }
        }
        meta.pass = meta.pass + 1;
        meta.mark = meta.mark + 0x0100;
        if (meta.order[0:0] == 1) {
            clone_preserving_field_list(CloneType.I2E, (bit<32>)meta.order[2:1], 2);
        }
        if (meta.order[3:3] == 1) {
            if (meta.order[4:4] == 1) {
                resubmit_preserving_field_list(1);
            } else {
                resubmit_preserving_field_list(2);
            }
        }
        if (meta.order[5:5] == 1) {
            standard.mcast_grp = 1;
        }
        if (meta.order[7:6] == 1) {
            mark_to_drop(standard);
        } else if (meta.order[7:6] == 2) {
            digest<digest_t>(1, { hdr.orders.number, meta.pass, meta.mark, standard.instance_type });
        } else if (meta.order[7:6] == 3) {
            truncate(36);
        }
    }
}

control TrafficEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        hdr.told.setValid();
        hdr.told.instance_type = (bit<8>)standard.instance_type;
        hdr.told.pass = meta.pass;
        hdr.told.mark = meta.mark;
        hdr.told.length = (bit<16>)standard.packet_length;
        hdr.told.rid = (bit<8>)standard.egress_rid;
        hdr.told.port = (bit<8>)standard.egress_port;
        meta.order = 0;
        if (standard.instance_type == 0 || standard.instance_type == 4 || standard.instance_type == 6 ||
            standard.egress_rid == 1) {
            switch (meta.pass) {
                1: {
                    meta.order = hdr.orders.egress0;
                }
                2: {
                    meta.order = hdr.orders.egress1;
                }
                3: {
                    meta.order = hdr.orders.egress2;
                }
                4: {
                    meta.order = hdr.orders.egress3;
                }
                default: {
                }
            }
        }
        meta.mark = meta.mark + 1;
        if (meta.order[0:0] == 1) {
            clone_preserving_field_list(CloneType.E2E, (bit<32>)meta.order[2:1], 2);
        }
        if (meta.order[3:3] == 1) {
            if (meta.order[4:4] == 1) {
                recirculate_preserving_field_list(1);
            } else {
                recirculate_preserving_field_list(2);
            }
        }
        if (meta.order[6:5] == 1) {
            mark_to_drop(standard);
        } else if (meta.order[6:5] == 2) {
            truncate(44);
        }
    }
}

V1Switch(TrafficParser(), PlainVerify(), TrafficIngress(), TrafficEgress(), PlainCompute(), PlainDeparser()) main;
