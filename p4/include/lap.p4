// LAP/1 on the wire (docs/protocols.md 1.3).
#ifndef LW_LAP_P4
#define LW_LAP_P4

const bit<16> LAP_PORT = 20550;
const bit<16> LAP_MAGIC = 0x4c57;
const bit<8> LAP_VERSION = 1;
const bit<8> LAP_SUITE = 1;
const bit<8> LAP_FLAG_BOUND = 1;
const bit<16> LAP_MESSAGE_BYTES = 64;
const bit<16> LAP_DATA_BYTES = 56;
const bit<16> LAP_PROOF_BYTES = 96;

const bit<8> LAP_REQUEST = 1;
const bit<8> LAP_CHALLENGE = 2;
const bit<8> LAP_RESPONSE = 3;
const bit<8> LAP_ACK = 4;
const bit<8> LAP_NAK = 5;
const bit<8> LAP_DATA_UP = 6;
const bit<8> LAP_DATA_DOWN = 7;
const bit<8> LAP_ATTEST_REQUEST = 16;
const bit<8> LAP_PROOF = 17;

header lap_t {
    bit<16> magic;
    bit<8> version;
    bit<8> type;
    bit<8> suite;
    bit<8> flags;
    bit<16> length;
    bit<64> device_id;
}

// The 48 bytes after the header of every message except DATA and PROOF, as words; their meaning depends on the type.
header lap_body_t {
    bit<64> w0;
    bit<64> w1;
    bit<64> w2;
    bit<64> w3;
    bit<64> w4;
    bit<64> w5;
}

header lap_data_t {
    bit<64> session_id;
    bit<64> seq;
    bit<16> port;
    bit<48> zero;
    bit<64> tag0;
    bit<64> tag1;
}

header lap_proof_t {
    bit<32> gateway_id;
    bit<32> round;
    bit<64> nonce;
}

#endif
