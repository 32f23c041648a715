// Order of the checks of a LAP/1 message (docs/protocols.md 1.3). If the length is valid, the parser has extracted
// the body of a REQUEST or NAK, or the header of DATA.
#ifndef LW_LAP_ORDER_P4
#define LW_LAP_ORDER_P4

#include "lap.p4"
#include "lw_verdicts.p4"

control LapOrder(in lap_t lap, in lap_body_t body, in lap_data_t data, in bit<16> payload_bytes, inout lw_verdict_t verdict) {
    apply {
        bit<16> bytes = LAP_MESSAGE_BYTES;
        bit<8> flags = 0;
        if (lap.type == LAP_DATA_UP || lap.type == LAP_DATA_DOWN) {
            // DATA has at least LAP_DATA_BYTES.
            bytes = payload_bytes;
            if (bytes < LAP_DATA_BYTES) {
                bytes = LAP_DATA_BYTES;
            }
        } else if (lap.type == LAP_PROOF) {
            bytes = LAP_PROOF_BYTES;
        } else if (lap.type == LAP_RESPONSE) {
            flags = LAP_FLAG_BOUND;
        }
        if (payload_bytes < 16 || !lap.isValid()) {
            verdict = LW_DROP_LENGTH;
        } else if (lap.magic != LAP_MAGIC) {
            verdict = LW_DROP_MAGIC;
        } else if (lap.version != LAP_VERSION) {
            verdict = LW_DROP_VERSION;
        } else if (!((lap.type >= LAP_REQUEST && lap.type <= LAP_DATA_DOWN) || lap.type == LAP_ATTEST_REQUEST
                    || lap.type == LAP_PROOF)) {
            verdict = LW_DROP_TYPE;
        } else if (lap.suite != LAP_SUITE) {
            verdict = LW_DROP_SUITE;
        } else if (payload_bytes != bytes || lap.length != payload_bytes) {
            verdict = LW_DROP_LENGTH;
        } else if (lap.flags & ~flags != 0) {
            verdict = LW_DROP_FLAGS;
        } else if (lap.device_id == 0) {
            verdict = LW_DROP_DEVICE_ZERO;
        } else if (lap.type == LAP_REQUEST && body.isValid()) {
            if (body.w2 != 0 || body.w3 != 0 || body.w4 != 0 || body.w5 != 0) {
                verdict = LW_DROP_RESERVED;
            }
        } else if (lap.type == LAP_NAK && body.isValid()) {
            if (body.w0[23:0] != 0 || body.w1 != 0 || body.w2 != 0 || body.w3 != 0 || body.w4 != 0 || body.w5 != 0) {
                verdict = LW_DROP_RESERVED;
            }
        } else if (data.isValid()) {
            if (data.zero != 0) {
                verdict = LW_DROP_RESERVED;
            }
        }
    }
}

#endif
