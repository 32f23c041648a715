// All kinds of P4Runtime entities that v1model supports, for the tests of this crate.
//
// p4c-bm2-ss --p4runtime-files everything.p4info.txtpb --p4runtime-entries-files everything.entries.txtpb \
//     -o everything.json everything.p4
#include <core.p4>
#include <v1model.p4>

typedef bit<48> mac_t;

@controller_header("packet_in")
header packet_in_t {
    bit<9> ingress_port;
    bit<7> reason;
}

@controller_header("packet_out")
header packet_out_t {
    bit<9> egress_port;
    bit<1> submit;
    bit<6> unused;
}

header ethernet_t {
    mac_t dst;
    mac_t src;
    bit<16> ether_type;
}

header ipv4_t {
    bit<8> version_ihl;
    bit<8> dscp_ecn;
    bit<16> total_len;
    bit<16> id;
    bit<16> flags_offset;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

struct headers_t {
    packet_in_t packet_in;
    packet_out_t packet_out;
    ethernet_t ethernet;
    ipv4_t ipv4;
}

struct metadata_t {
    bit<12> vrf;
    bit<2> color;
    bit<48> seen;
}

struct learned_t {
    mac_t src;
    bit<9> port;
    bool moved;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    value_set<bit<16>>(4) tunnel_types;

    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            0x0800: ipv4;
            tunnel_types: ipv4;
            default: accept;
        }
    }

    state ipv4 {
        packet.extract(hdr.ipv4);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control In(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    action_selector(HashAlgorithm.crc16, 128, 16) next_hops;
    action_profile(16) ports;
    counter(8, CounterType.packets_and_bytes) seen_by_port;
    meter(8, MeterType.bytes) rate_by_port;
    register<bit<48>>(16) last_seen;
    direct_counter(CounterType.packets_and_bytes) acl_hits;
    direct_meter<bit<2>>(MeterType.packets) acl_rate;

    action drop() {
        mark_to_drop(std);
    }

    action forward(bit<9> port) {
        std.egress_spec = port;
    }

    action route(mac_t next, bit<9> port) {
        hdr.ethernet.dst = next;
        std.egress_spec = port;
    }

    action learn() {
        digest<learned_t>(1, { hdr.ethernet.src, std.ingress_port, true });
    }

    action permit() {
        acl_hits.count();
        acl_rate.read(meta.color);
    }

    action deny() {
        acl_hits.count();
        acl_rate.read(meta.color);
        mark_to_drop(std);
    }

    action set_vrf(bit<12> vrf) {
        meta.vrf = vrf;
    }

    table mac {
        key = { hdr.ethernet.dst: exact; std.ingress_port: exact; }
        actions = { forward; drop; @defaultonly learn; }
        default_action = learn();
        size = 4;
        support_timeout = true;
    }

    table routes {
        key = {
            meta.vrf: exact;
            hdr.ipv4.dst: lpm;
            hdr.ipv4.src: selector;
            hdr.ipv4.protocol: selector;
        }
        actions = { route; drop; NoAction; }
        implementation = next_hops;
        size = 1024;
    }

    table indirect {
        key = { hdr.ethernet.src: exact; }
        actions = { forward; NoAction; }
        implementation = ports;
        size = 16;
    }

    table acl {
        key = {
            hdr.ipv4.src: ternary;
            hdr.ipv4.protocol: optional;
            hdr.ipv4.total_len: range;
            std.ingress_port: exact;
        }
        actions = { permit; @tableonly deny; NoAction; }
        counters = acl_hits;
        meters = acl_rate;
        size = 64;
    }

    table vrf_of_port {
        key = { std.ingress_port: exact; }
        actions = { set_vrf; }
        const default_action = set_vrf(0);
        const entries = {
            1: set_vrf(10);
            2: set_vrf(20);
        }
    }

    table everywhere {
        actions = { forward; drop; }
        default_action = drop();
    }

    apply {
        seen_by_port.count((bit<32>) std.ingress_port);
        rate_by_port.execute_meter((bit<32>) std.ingress_port, meta.color);
        last_seen.write((bit<32>) std.ingress_port, std.ingress_global_timestamp);
        if (vrf_of_port.apply().hit && hdr.ipv4.isValid()) {
            acl.apply();
            routes.apply();
        } else if (!mac.apply().hit) {
            indirect.apply();
            everywhere.apply();
        }
    }
}

control Out(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {}
}

control Compute(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.packet_in);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
    }
}

V1Switch(Parse(), Verify(), In(), Out(), Compute(), Deparse()) main;
