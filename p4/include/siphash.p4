// SipHash-2-4 with 128-bit output (Aumasson, Bernstein 2012; 128-bit variant of the reference implementation), over 8-byte words.
//
// SipHash reads its input little-endian while P4 fields are big-endian: SWAP64 converts them. Keys, words and tags have their
// wire format.
#ifndef LW_SIPHASH_P4
#define LW_SIPHASH_P4

#define ROTATE64(x, n) (((x) << n) | ((x) >> (64 - n)))
#define SWAP64(x) ((x)[7:0] ++ (x)[15:8] ++ (x)[23:16] ++ (x)[31:24] ++ (x)[39:32] ++ (x)[47:40] ++ (x)[55:48] ++ (x)[63:56])

struct sip_t {
    bit<64> v0;
    bit<64> v1;
    bit<64> v2;
    bit<64> v3;
    bit<64> word;
}

#define SIP_ROUND(s) \
    s.v0 = s.v0 + s.v1; s.v2 = s.v2 + s.v3; \
    s.v1 = ROTATE64(s.v1, 13) ^ s.v0; s.v3 = ROTATE64(s.v3, 16) ^ s.v2; \
    s.v0 = ROTATE64(s.v0, 32) + s.v3; s.v2 = s.v2 + s.v1; \
    s.v3 = ROTATE64(s.v3, 21) ^ s.v0; s.v1 = ROTATE64(s.v1, 17) ^ s.v2; \
    s.v2 = ROTATE64(s.v2, 32);

#define SIP_BEGIN(s, key0, key1) \
    s.word = SWAP64(key0); \
    s.v0 = s.word ^ 0x736f6d6570736575; s.v2 = s.word ^ 0x6c7967656e657261; \
    s.word = SWAP64(key1); \
    s.v1 = s.word ^ 0x646f72616e646f83; s.v3 = s.word ^ 0x7465646279746573;

#define SIP_TAKE(s) s.v3 = s.v3 ^ s.word; SIP_ROUND(s) SIP_ROUND(s) s.v0 = s.v0 ^ s.word;
#define SIP_ABSORB(s, wire) s.word = SWAP64(wire); SIP_TAKE(s)

// bytes: number of absorbed bytes, 8 bits.
#define SIP_FINISH(s, bytes, out0, out1) \
    s.word = bytes ++ 56w0; SIP_TAKE(s) \
    s.v2 = s.v2 ^ 0xee; SIP_ROUND(s) SIP_ROUND(s) SIP_ROUND(s) SIP_ROUND(s) \
    s.word = s.v0 ^ s.v1 ^ s.v2 ^ s.v3; out0 = SWAP64(s.word); \
    s.v1 = s.v1 ^ 0xdd; SIP_ROUND(s) SIP_ROUND(s) SIP_ROUND(s) SIP_ROUND(s) \
    s.word = s.v0 ^ s.v1 ^ s.v2 ^ s.v3; out1 = SWAP64(s.word);

#endif
