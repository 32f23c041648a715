// Digests: two lists, narrow and wide fields, from packets that are sent on, dropped and cloned.
#include <core.p4>
#include <v1model.p4>
#include "include/frame.p4"

header seen_t {
    bit<8> op;
    bit<4> nibble;
    bit<12> twelve;
    bit<48> address;
    bit<128> wide;
}

struct headers_t {
    frame_t frame;
    seen_t seen;
}

struct metadata_t {
    bit<1> flag;
}

struct narrow_t {
    bit<9> port;
    bit<4> nibble;
    bit<12> twelve;
    bit<1> flag;
}

struct wide_t {
    bit<128> wide;
    bit<48> address;
}

#include "include/plain.p4"

parser DigestsParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.frame);
        packet.extract(hdr.seen);
        transition accept;
    }
}

control DigestsIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = 3;
        meta.flag = hdr.seen.op[7:7];
        if (hdr.seen.op & 1 == 1) {
            digest<narrow_t>(1, { standard.ingress_port, hdr.seen.nibble, hdr.seen.twelve, meta.flag });
        } else if (hdr.seen.op & 2 == 2) {
            digest<wide_t>(1, { hdr.seen.wide, hdr.seen.address });
        }
        // A digest contains the field values at the end of ingress.
        hdr.seen.twelve = hdr.seen.twelve + 1;
        if (hdr.seen.op & 4 == 4) {
            mark_to_drop(standard);
        }
        if (hdr.seen.op & 8 == 8) {
            clone(CloneType.I2E, 5);
        }
    }
}

V1Switch(DigestsParser(), PlainVerify(), DigestsIngress(), PlainEgress(), PlainCompute(), PlainDeparser()) main;
