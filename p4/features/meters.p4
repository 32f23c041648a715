// Meters: indirect meters of packets and bytes with two rates, and a direct meter. Each packet contains its colors.
#include <core.p4>
#include <v1model.p4>
#include "include/frame.p4"

header metered_t {
    bit<8> packets_cell;
    bit<8> bytes_cell;
    bit<8> user;
    bit<8> packets_color;
    bit<2> bytes_color;
    bit<6> rest;
    bit<32> user_color;
}

struct headers_t {
    frame_t frame;
    metered_t metered;
}

struct metadata_t {
    bit<32> user_color;
}

#include "include/plain.p4"

parser MetersParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.frame);
        packet.extract(hdr.metered);
        transition accept;
    }
}

control MetersIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    meter(4, MeterType.packets) by_packets;
    meter(4, MeterType.bytes) by_bytes;
    direct_meter<bit<32>>(MeterType.packets) by_user;

    action metered() {
        by_user.read(meta.user_color);
    }
    action no_meter() {
        meta.user_color = 7;
    }
    table users {
        key = {
            hdr.metered.user: exact;
        }
        actions = {
            metered;
            no_meter;
        }
        default_action = no_meter;
        meters = by_user;
    }

    apply {
        by_packets.execute_meter((bit<32>)hdr.metered.packets_cell, hdr.metered.packets_color);
        by_bytes.execute_meter((bit<32>)hdr.metered.bytes_cell, hdr.metered.bytes_color);
        users.apply();
        hdr.metered.user_color = meta.user_color;
        standard.egress_spec = standard.ingress_port;
        // Two red colors drop the packet.
        if (hdr.metered.packets_color == V1MODEL_METER_COLOR_RED && hdr.metered.bytes_color == V1MODEL_METER_COLOR_RED) {
            mark_to_drop(standard);
        }
    }
}

V1Switch(MetersParser(), PlainVerify(), MetersIngress(), PlainEgress(), PlainCompute(), PlainDeparser()) main;
