// Checksums: verified and updated, with conditions, over payloads, by every algorithm, in fields of several widths.
#include <core.p4>
#include <v1model.p4>
#include "include/frame.p4"

header order_t {
    bit<8> op;
    bit<8> wrong;
}

header summed_t {
    bit<16> a;
    bit<4> b;
    bit<12> c;
    bit<32> d;
    bit<16> sum;
}

header digest_t {
    bit<16> csum16;
    bit<16> xor16;
    bit<16> crc16;
    bit<32> crc32;
    bit<64> identity;
    bit<16> with_payload;
    bit<32> crc_with_payload;
}

struct headers_t {
    frame_t frame;
    order_t order;
    summed_t first;
    summed_t second;
    digest_t digest;
}

struct metadata_t {
    bit<1> was_wrong;
}

#include "include/plain.p4"

parser ChecksumsParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.frame);
        packet.extract(hdr.order);
        packet.extract(hdr.first);
        transition select(hdr.order.op[0:0]) {
            1: second;
            0: accept;
        }
    }
    state second {
        packet.extract(hdr.second);
        transition accept;
    }
}

#define WORDS(header) { header.a, header.b, header.c, header.d }

control ChecksumsVerify(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.order.op[1:1] == 1, WORDS(hdr.first), hdr.first.sum, HashAlgorithm.csum16);
        verify_checksum(hdr.second.isValid() && hdr.order.op[2:2] == 1, WORDS(hdr.second), hdr.second.sum, HashAlgorithm.crc16);
    }
}

control ChecksumsIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = 1;
        hdr.order.wrong = (bit<8>)standard.checksum_error;
        if (hdr.order.op[3:3] == 1) {
            hdr.first.d = hdr.first.d + 1;
        }
        if (hdr.order.op[4:4] == 1) {
            hdr.second.setInvalid();
        }
        if (hdr.order.op[5:5] == 1) {
            hdr.digest.setValid();
        }
    }
}

control ChecksumsCompute(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.order.op[6:6] == 1, WORDS(hdr.first), hdr.first.sum, HashAlgorithm.csum16);
        update_checksum(hdr.second.isValid(), WORDS(hdr.second), hdr.second.sum, HashAlgorithm.xor16);
        // Fields of both headers; fields of an invalid header are skipped.
        update_checksum(hdr.digest.isValid(), { hdr.first.a, hdr.second.a, hdr.second.d }, hdr.digest.csum16,
            HashAlgorithm.csum16);
        update_checksum(hdr.digest.isValid(), { hdr.first.a, 16w0x8001, hdr.first.d }, hdr.digest.xor16, HashAlgorithm.xor16);
        update_checksum(hdr.digest.isValid(), { hdr.first.d, hdr.first.b, 4w5 }, hdr.digest.crc16, HashAlgorithm.crc16);
        update_checksum(hdr.digest.isValid(), { hdr.first.d, hdr.order.op, hdr.first.sum }, hdr.digest.crc32,
            HashAlgorithm.crc32);
        update_checksum(hdr.digest.isValid(), { hdr.first.d, hdr.first.a }, hdr.digest.identity, HashAlgorithm.identity);
        update_checksum_with_payload(hdr.digest.isValid(), { hdr.first.a, hdr.first.d }, hdr.digest.with_payload,
            HashAlgorithm.csum16);
        update_checksum_with_payload(hdr.digest.isValid(), { hdr.first.a }, hdr.digest.crc_with_payload, HashAlgorithm.crc32);
    }
}

V1Switch(ChecksumsParser(), ChecksumsVerify(), ChecksumsIngress(), PlainEgress(), ChecksumsCompute(), PlainDeparser()) main;
