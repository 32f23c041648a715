// 16 words of 32 bits, and operations of add-rotate-xor ciphers.
#ifndef LW_WORDS_P4
#define LW_WORDS_P4

#define ROTATE32(x, n) (((x) << n) | ((x) >> (32 - n)))
#define SWAP32(x) ((x)[7:0] ++ (x)[15:8] ++ (x)[23:16] ++ (x)[31:24])

#define WORDS16 \
    bit<32> v0; \
    bit<32> v1; \
    bit<32> v2; \
    bit<32> v3; \
    bit<32> v4; \
    bit<32> v5; \
    bit<32> v6; \
    bit<32> v7; \
    bit<32> v8; \
    bit<32> v9; \
    bit<32> v10; \
    bit<32> v11; \
    bit<32> v12; \
    bit<32> v13; \
    bit<32> v14; \
    bit<32> v15;

// Header on the wire.
header words_t {
    WORDS16
}

// Struct in the switch.
struct matrix_t {
    WORDS16
}

// f(v0) .. f(v15).
#define EACH_WORD(f) f(v0) f(v1) f(v2) f(v3) f(v4) f(v5) f(v6) f(v7) f(v8) f(v9) f(v10) f(v11) f(v12) f(v13) f(v14) f(v15)

#endif
