// Numbers modulo the prime of P-256 (FIPS 186-4, D.1.2.3), p = 2^256 - 2^224 + 2^192 + 2^96 - 1, in Montgomery form
// with R = 2^256: eight limbs of 32 bits in one thread, least significant first, always below p.
//
// p is -1 modulo 2^96, so that the quotient digit of Montgomery's reduction is the lowest limb itself, and multiplying
// p by the digit requires only additions.
#pragma once
#include "carry.cuh"

struct Fp {
    u32 limb[8];
};

LW_CONSTANT u32 P256_P[8] = {0xffffffff, 0xffffffff, 0xffffffff, 0, 0, 0, 1, 0xffffffff};
// 2^512 mod p, for conversion to Montgomery form, and 1 in Montgomery form, which is 2^256 mod p.
LW_CONSTANT u32 P256_R2[8] = {3, 0, 0xffffffff, 0xfffffffb, 0xfffffffe, 0xffffffff, 0xfffffffd, 4};
LW_CONSTANT u32 P256_ONE[8] = {1, 0, 0, 0xffffffff, 0xffffffff, 0xffffffff, 0xfffffffe, 0};

LW_FN void fp_set(Fp& out, const u32* limbs) {
#pragma unroll
    for (int i = 0; i < 8; i++) out.limb[i] = limbs[i];
}

// Loads 32 bytes, most significant first, aligned to quads.
LW_FN void load_256(u32 (&out)[8], const u8* from) {
#pragma unroll
    for (int i = 0; i < 8; i++) out[7 - i] = swap_bytes(((const Quad*)from)[i / 4].word[i % 4]);
}

// Returns 1 if a < b, otherwise 0.
LW_FN u32 less_256(const u32* a, const u32* b) {
    Carry k;
    sub_cc(a[0], b[0], k);
#pragma unroll
    for (int i = 1; i < 8; i++) subc_cc(a[i], b[i], k);
    return 0u - subc(0, 0, k);
}

LW_FN u32 is_zero_256(const u32* a) {
    u32 any = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) any |= a[i];
    return any == 0;
}

LW_FN u32 fp_is_zero(const Fp& a) { return is_zero_256(a.limb); }

LW_FN u32 fp_is_equal(const Fp& a, const Fp& b) {
    u32 any = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) any |= a.limb[i] ^ b.limb[i];
    return any == 0;
}

// out = over 2^256 + t, minus p if the result is not negative; for sums below 2 p.
LW_FN void fp_subtract_once(Fp& out, const u32* t, u32 over) {
    u32 less[8];
    Carry k;
    less[0] = sub_cc(t[0], 0xffffffffu, k);
    less[1] = subc_cc(t[1], 0xffffffffu, k);
    less[2] = subc_cc(t[2], 0xffffffffu, k);
    less[3] = subc_cc(t[3], 0, k);
    less[4] = subc_cc(t[4], 0, k);
    less[5] = subc_cc(t[5], 0, k);
    less[6] = subc_cc(t[6], 1, k);
    less[7] = subc_cc(t[7], 0xffffffffu, k);
    // -1: the sum was below p.
    u32 keep = subc(over, 0, k);
#pragma unroll
    for (int i = 0; i < 8; i++) out.limb[i] = keep ? t[i] : less[i];
}

LW_FN void fp_add(Fp& out, const Fp& a, const Fp& b) {
    u32 t[8];
    Carry k;
    t[0] = add_cc(a.limb[0], b.limb[0], k);
#pragma unroll
    for (int i = 1; i < 8; i++) t[i] = addc_cc(a.limb[i], b.limb[i], k);
    fp_subtract_once(out, t, addc(0, 0, k));
}

LW_FN void fp_sub(Fp& out, const Fp& a, const Fp& b) {
    u32 t[8];
    Carry k;
    t[0] = sub_cc(a.limb[0], b.limb[0], k);
#pragma unroll
    for (int i = 1; i < 8; i++) t[i] = subc_cc(a.limb[i], b.limb[i], k);
    // All ones if p must be added back.
    u32 mask = subc(0, 0, k);
    out.limb[0] = add_cc(t[0], mask, k);
    out.limb[1] = addc_cc(t[1], mask, k);
    out.limb[2] = addc_cc(t[2], mask, k);
    out.limb[3] = addc_cc(t[3], 0, k);
    out.limb[4] = addc_cc(t[4], 0, k);
    out.limb[5] = addc_cc(t[5], 0, k);
    out.limb[6] = addc_cc(t[6], mask & 1, k);
    out.limb[7] = addc(t[7], mask, k);
}

LW_FN void fp_negate(Fp& a) {
    Fp zero;
#pragma unroll
    for (int i = 0; i < 8; i++) zero.limb[i] = 0;
    fp_sub(a, zero, a);
}

// out = t / 2^256 mod p, for t below p 2^256.
//
// Each digit q of the quotient is the lowest remaining limb. q p is the sum of -q, which clears that limb, of q three
// limbs higher, of q six limbs higher, and of q (2^32 - 1) seven limbs higher. The high word of the last product is at
// most 2^32 - 2, so the carry of the previous digit is added to it without overflow.
LW_FN void fp_reduce(Fp& out, u32 (&t)[16]) {
    u32 over = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        Carry k;
        u32 q = t[i];
        u32 low = sub_cc(0, q, k);
        u32 high = subc(q, 0, k) + over;
        t[i + 3] = add_cc(t[i + 3], q, k);
        t[i + 4] = addc_cc(t[i + 4], 0, k);
        t[i + 5] = addc_cc(t[i + 5], 0, k);
        t[i + 6] = addc_cc(t[i + 6], q, k);
        t[i + 7] = addc_cc(t[i + 7], low, k);
        t[i + 8] = addc_cc(t[i + 8], high, k);
        over = addc(0, 0, k);
    }
    fp_subtract_once(out, t + 8, over);
}

// t = a b, with all 16 limbs. The products at even and at odd positions have separate sums, as in mont.cuh.
LW_FN void multiply_256(u32 (&t)[16], const u32 (&a)[8], const u32 (&b)[8]) {
    u32 odd[16];
    Carry k;
#pragma unroll
    for (int i = 0; i < 16; i++) t[i] = odd[i] = 0;
    // Row j adds products to limbs j to j + 8; the products at positions with j's parity are added to one sum, the
    // others to the other sum. The position above a row is still 0.
#pragma unroll
    for (int j = 0; j < 8; j++) {
        u32* same = j % 2 == 0 ? t : odd;
        u32* other = j % 2 == 0 ? odd : t;
        // `odd` is stored one limb lower: its limb i has weight i + 1.
        int s = j % 2 == 0 ? j : j - 1, o = j % 2 == 0 ? j : j + 1;
        same[s] = mad_lo_cc(a[0], b[j], same[s], k);
        same[s + 1] = madc_hi_cc(a[0], b[j], same[s + 1], k);
#pragma unroll
        for (int i = 2; i < 8; i += 2) {
            same[s + i] = madc_lo_cc(a[i], b[j], same[s + i], k);
            same[s + i + 1] = madc_hi_cc(a[i], b[j], same[s + i + 1], k);
        }
        if (s + 8 < 16) same[s + 8] = addc(same[s + 8], 0, k);
        other[o] = mad_lo_cc(a[1], b[j], other[o], k);
        other[o + 1] = madc_hi_cc(a[1], b[j], other[o + 1], k);
#pragma unroll
        for (int i = 2; i < 8; i += 2) {
            other[o + i] = madc_lo_cc(a[i + 1], b[j], other[o + i], k);
            other[o + i + 1] = madc_hi_cc(a[i + 1], b[j], other[o + i + 1], k);
        }
        if (o + 8 < 16) other[o + 8] = addc(other[o + 8], 0, k);
    }
    t[1] = add_cc(t[1], odd[0], k);
#pragma unroll
    for (int i = 2; i < 15; i++) t[i] = addc_cc(t[i], odd[i - 1], k);
    t[15] = addc(t[15], odd[14], k);
}

// t = a^2: the 28 products of different limbs, computed once and doubled, and the eight squares.
LW_FN void square_256(u32 (&t)[16], const u32 (&a)[8]) {
    u32 odd[16];
    Carry k;
#pragma unroll
    for (int i = 0; i < 16; i++) t[i] = odd[i] = 0;
#pragma unroll
    for (int j = 0; j < 7; j++) {
        // Positions 2 j + 1, 2 j + 3 and so on are odd for any j.
        odd[2 * j] = mad_lo_cc(a[j + 1], a[j], odd[2 * j], k);
        odd[2 * j + 1] = madc_hi_cc(a[j + 1], a[j], odd[2 * j + 1], k);
#pragma unroll
        for (int i = j + 3; i < 8; i += 2) {
            odd[i + j - 1] = madc_lo_cc(a[i], a[j], odd[i + j - 1], k);
            odd[i + j] = madc_hi_cc(a[i], a[j], odd[i + j], k);
        }
        // The last product of the row ended at the position below this one.
        const int end = (8 - j) % 2 == 0 ? 7 + j + 1 : 6 + j + 1;
        if (end < 16) odd[end] = addc(odd[end], 0, k);
        if (j + 2 >= 8) continue;
        t[2 * j + 2] = mad_lo_cc(a[j + 2], a[j], t[2 * j + 2], k);
        t[2 * j + 3] = madc_hi_cc(a[j + 2], a[j], t[2 * j + 3], k);
#pragma unroll
        for (int i = j + 4; i < 8; i += 2) {
            t[i + j] = madc_lo_cc(a[i], a[j], t[i + j], k);
            t[i + j + 1] = madc_hi_cc(a[i], a[j], t[i + j + 1], k);
        }
        const int end_even = (8 - j) % 2 == 0 ? 6 + j + 2 : 7 + j + 2;
        if (end_even < 16) t[end_even] = addc(t[end_even], 0, k);
    }
    t[1] = add_cc(t[1], odd[0], k);
#pragma unroll
    for (int i = 2; i < 15; i++) t[i] = addc_cc(t[i], odd[i - 1], k);
    t[15] = addc(t[15], odd[14], k);
    t[0] = add_cc(t[0], t[0], k);
#pragma unroll
    for (int i = 1; i < 16; i++) t[i] = addc_cc(t[i], t[i], k);
    t[0] = mad_lo_cc(a[0], a[0], t[0], k);
    t[1] = madc_hi_cc(a[0], a[0], t[1], k);
#pragma unroll
    for (int i = 1; i < 8; i++) {
        t[2 * i] = madc_lo_cc(a[i], a[i], t[2 * i], k);
        t[2 * i + 1] = madc_hi_cc(a[i], a[i], t[2 * i + 1], k);
    }
}

// a b
LW_CALL Fp fp_product(Fp a, Fp b) {
    u32 t[16];
    multiply_256(t, a.limb, b.limb);
    Fp out;
    fp_reduce(out, t);
    return out;
}

// a^2
LW_CALL Fp fp_square(Fp a) {
    u32 t[16];
    square_256(t, a.limb);
    Fp out;
    fp_reduce(out, t);
    return out;
}

LW_FN void fp_mul(Fp& out, const Fp& a, const Fp& b) { out = fp_product(a, b); }
LW_FN void fp_sqr(Fp& out, const Fp& a) { out = fp_square(a); }
