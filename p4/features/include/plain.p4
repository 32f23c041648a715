// Empty stages for programs in features/. Requires headers_t and metadata_t.
control PlainVerify(inout headers_t hdr, inout metadata_t meta) {
    apply {
    }
}

control PlainEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
    }
}

control PlainCompute(inout headers_t hdr, inout metadata_t meta) {
    apply {
    }
}

control PlainDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}
