// Program for tests of packets between controllers and the switch, digests, clones, multicast copies, and registers of
// more than 64 bits.
//
// p4c-bm2-ss --arch v1model --p4runtime-files packets.p4info.txtpb -o packets.json packets.p4
// The source locations (source_info) are removed from packets.json.
#include <core.p4>
#include <v1model.p4>

const bit<9> CPU = 510;

@controller_header("packet_in")
header packet_in_t {
    bit<9> ingress_port;
    bit<7> reason;
}

@controller_header("packet_out")
header packet_out_t {
    bit<9> egress_port;
    bit<7> unused;
}

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> ether_type;
}

struct headers_t {
    packet_in_t  packet_in;
    packet_out_t packet_out;
    ethernet_t   ethernet;
}

struct metadata_t {
    bit<7>  reason;
    bit<2>  color;
    bit<96> word;
}

struct seen_t {
    bit<48> src;
    bit<9>  port;
    bool    broadcast;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        transition select(std.ingress_port) {
            CPU: from_controller;
            default: ethernet;
        }
    }
    state from_controller {
        packet.extract(hdr.packet_out);
        transition ethernet;
    }
    state ethernet {
        packet.extract(hdr.ethernet);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control In(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    counter(8, CounterType.packets_and_bytes) received;
    direct_counter(CounterType.packets_and_bytes) flow_hits;
    register<bit<96>>(8) words;
    meter(8, MeterType.packets) rates;

    action drop() {
        mark_to_drop(std);
    }
    action to_port(bit<9> port) {
        std.egress_spec = port;
    }
    action to_group(bit<16> group) {
        std.mcast_grp = group;
    }
    action to_controller(bit<7> reason) {
        std.egress_spec = CPU;
        meta.reason = reason;
    }
    action copy(bit<9> port, bit<32> session) {
        std.egress_spec = port;
        clone(CloneType.I2E, session);
    }
    action learn(bit<9> port) {
        std.egress_spec = port;
        digest<seen_t>(1, { hdr.ethernet.src, std.ingress_port, hdr.ethernet.dst == 0xffffffffffff });
    }
    action add_word(bit<96> addend, bit<32> place) {
        words.read(meta.word, place);
        words.write(place, meta.word + addend);
        std.egress_spec = std.ingress_port;
    }
    action police(bit<9> port) {
        rates.execute_meter((bit<32>) std.ingress_port, meta.color);
        std.egress_spec = port;
    }

    table flows {
        key = { hdr.ethernet.dst: exact @name("dst"); }
        actions = { drop; to_port; to_group; to_controller; copy; learn; add_word; police; }
        default_action = drop();
        support_timeout = true;
        counters = flow_hits;
        size = 1024;
    }

    apply {
        if (hdr.packet_out.isValid()) {
            std.egress_spec = hdr.packet_out.egress_port;
            hdr.packet_out.setInvalid();
        } else {
            received.count((bit<32>) std.ingress_port);
            flows.apply();
            if (meta.color == 2) {
                mark_to_drop(std);
            }
        }
    }
}

control Out(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        if (std.egress_port == CPU) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = std.ingress_port;
            hdr.packet_in.reason = meta.reason;
        }
    }
}

control Update(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.packet_in);
        packet.emit(hdr.ethernet);
    }
}

V1Switch(Parse(), Verify(), In(), Out(), Update(), Deparse()) main;
