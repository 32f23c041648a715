// ChaCha (Bernstein 2008), with the counter and nonce of RFC 8439.
#ifndef LW_CHACHA_P4
#define LW_CHACHA_P4

#include "words.p4"

#define CHACHA_QUARTER_ROUND(a, b, c, d) \
    a = a + b; d = d ^ a; d = ROTATE32(d, 16); \
    c = c + d; b = b ^ c; b = ROTATE32(b, 12); \
    a = a + b; d = d ^ a; d = ROTATE32(d, 8); \
    c = c + d; b = b ^ c; b = ROTATE32(b, 7);

#define CHACHA_0(s) CHACHA_QUARTER_ROUND(s.v0, s.v4, s.v8, s.v12)
#define CHACHA_1(s) CHACHA_QUARTER_ROUND(s.v1, s.v5, s.v9, s.v13)
#define CHACHA_2(s) CHACHA_QUARTER_ROUND(s.v2, s.v6, s.v10, s.v14)
#define CHACHA_3(s) CHACHA_QUARTER_ROUND(s.v3, s.v7, s.v11, s.v15)
#define CHACHA_4(s) CHACHA_QUARTER_ROUND(s.v0, s.v5, s.v10, s.v15)
#define CHACHA_5(s) CHACHA_QUARTER_ROUND(s.v1, s.v6, s.v11, s.v12)
#define CHACHA_6(s) CHACHA_QUARTER_ROUND(s.v2, s.v7, s.v8, s.v13)
#define CHACHA_7(s) CHACHA_QUARTER_ROUND(s.v3, s.v4, s.v9, s.v14)

// "expand 32-byte k", little-endian words.
const bit<32> CHACHA_CONSTANT_0 = 0x61707865;
const bit<32> CHACHA_CONSTANT_1 = 0x3320646e;
const bit<32> CHACHA_CONSTANT_2 = 0x79622d32;
const bit<32> CHACHA_CONSTANT_3 = 0x6b206574;

#endif
