// Forró (Coutinho, Passos, Grados, de Mendonça, Timteo, Borges, "Latin Dances Reloaded", Journal of Cryptology 2023).
//
// Words of the matrix are 32-bit numbers, little-endian on the wire; SWAP32 converts them. A quarter round passes a word of the
// first row to the next quarter round ("pollination"), so the four quarter rounds of a round cannot run in parallel.
#ifndef LW_FORRO_P4
#define LW_FORRO_P4

#include "words.p4"

#define FORRO_QUARTER_ROUND(a, b, c, d, e) \
    d = d + e; c = c ^ d; b = b + c; b = ROTATE32(b, 10); \
    a = a + b; e = e ^ a; d = d + e; d = ROTATE32(d, 27); \
    c = c + d; b = b ^ c; a = a + b; a = ROTATE32(a, 8);

#define FORRO_0(s) FORRO_QUARTER_ROUND(s.v0, s.v4, s.v8, s.v12, s.v3)
#define FORRO_1(s) FORRO_QUARTER_ROUND(s.v1, s.v5, s.v9, s.v13, s.v0)
#define FORRO_2(s) FORRO_QUARTER_ROUND(s.v2, s.v6, s.v10, s.v14, s.v1)
#define FORRO_3(s) FORRO_QUARTER_ROUND(s.v3, s.v7, s.v11, s.v15, s.v2)
#define FORRO_4(s) FORRO_QUARTER_ROUND(s.v0, s.v5, s.v10, s.v15, s.v3)
#define FORRO_5(s) FORRO_QUARTER_ROUND(s.v1, s.v6, s.v11, s.v12, s.v0)
#define FORRO_6(s) FORRO_QUARTER_ROUND(s.v2, s.v7, s.v8, s.v13, s.v1)
#define FORRO_7(s) FORRO_QUARTER_ROUND(s.v3, s.v4, s.v9, s.v14, s.v2)

// "voltadaasabranca", little-endian words.
const bit<32> FORRO_CONSTANT_0 = 0x746c6f76;
const bit<32> FORRO_CONSTANT_1 = 0x61616461;
const bit<32> FORRO_CONSTANT_2 = 0x72626173;
const bit<32> FORRO_CONSTANT_3 = 0x61636e61;

#endif
