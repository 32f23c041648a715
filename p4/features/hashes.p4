// Hashes: every algorithm of v1model except random, over narrow and wide fields, fields that are not whole bytes, and constants;
// with bases and ranges.
#include <core.p4>
#include <v1model.p4>
#include "include/frame.p4"

header input_t {
    bit<32> a;
    bit<16> b;
    bit<12> c;
    bit<4> d;
    bit<128> e;
}

header output_t {
    bit<16> crc16;
    bit<32> crc32;
    bit<16> csum16;
    bit<16> xor16;
    bit<64> identity;
    bit<16> crc16_custom;
    bit<32> crc32_custom;
    bit<16> crc16_odd;
    bit<32> crc32_wide;
    bit<8> bounded;
    bit<16> based;
    bit<32> of_little;
    bit<48> longer;
    bit<16> csum_odd;
    bit<16> xor_odd;
}

struct headers_t {
    frame_t frame;
    input_t in_;
    output_t out_;
}

struct metadata_t {
}

#include "include/plain.p4"

parser HashesParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.frame);
        packet.extract(hdr.in_);
        transition accept;
    }
}

control HashesIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = 1;
        hdr.out_.setValid();
        // No range: the full width of the algorithm.
        hash(hdr.out_.crc16, HashAlgorithm.crc16, 16w0, { hdr.in_.a, hdr.in_.b }, 32w0x10000);
        hash(hdr.out_.crc32, HashAlgorithm.crc32, 32w0, { hdr.in_.a, hdr.in_.b }, 64w0x100000000);
        hash(hdr.out_.csum16, HashAlgorithm.csum16, 16w0, { hdr.in_.a, hdr.in_.b }, 32w0x10000);
        hash(hdr.out_.xor16, HashAlgorithm.xor16, 16w0, { hdr.in_.a, hdr.in_.b }, 32w0x10000);
        hash(hdr.out_.identity, HashAlgorithm.identity, 64w0, { hdr.in_.a, hdr.in_.b }, 128w0x10000000000000000);
        hash(hdr.out_.crc16_custom, HashAlgorithm.crc16_custom, 16w0, { hdr.in_.a, hdr.in_.b }, 32w0x10000);
        hash(hdr.out_.crc32_custom, HashAlgorithm.crc32_custom, 32w0, { hdr.in_.a, hdr.in_.b }, 64w0x100000000);
        // Fields that are not whole bytes are adjacent.
        hash(hdr.out_.crc16_odd, HashAlgorithm.crc16, 16w0, { hdr.in_.c, hdr.in_.d, hdr.in_.b }, 32w0x10000);
        hash(hdr.out_.crc32_wide, HashAlgorithm.crc32, 32w0, { hdr.in_.e, hdr.in_.d, hdr.in_.c }, 64w0x100000000);
        hash(hdr.out_.bounded, HashAlgorithm.crc32, 8w0, { hdr.in_.e }, 16w13);
        hash(hdr.out_.based, HashAlgorithm.crc16, 16w1000, { hdr.in_.e, hdr.in_.a }, 16w100);
        hash(hdr.out_.of_little, HashAlgorithm.crc32, 32w5, { hdr.in_.d }, 32w0xffff);
        hash(hdr.out_.longer, HashAlgorithm.crc32, 48w0xff, { hdr.in_.a, 16w0x1234, hdr.in_.b }, 48w0x1000000000);
        hash(hdr.out_.csum_odd, HashAlgorithm.csum16, 16w0, { hdr.in_.b, 8w0xab }, 32w0x10000);
        hash(hdr.out_.xor_odd, HashAlgorithm.xor16, 16w0, { hdr.in_.e, 8w0xab }, 32w0x10000);
    }
}

V1Switch(HashesParser(), PlainVerify(), HashesIngress(), PlainEgress(), PlainCompute(), PlainDeparser()) main;
