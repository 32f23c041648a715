// ECDSA on P-256 with a digest of 32 bytes (FIPS 186-4, 6.4), verification only, one thread each: R = u1 G + u2 Q,
// and the x of R is compared without dividing by Z^2.
#include "kernel.cuh"
#include "mont.cuh"
#include "p256_point.cuh"

// The order of the group, 2^512 modulo it, -1/order modulo 2^32, and the order less 2.
LW_CONSTANT u32 P256_N[8] = {0xfc632551, 0xf3b9cac2, 0xa7179e84, 0xbce6faad, 0xffffffff, 0xffffffff, 0, 0xffffffff};
LW_CONSTANT u32 P256_N_R2[8] = {0xbe79eea2, 0x83244c95, 0x49bd6fa6, 0x4699799c, 0x2b6bec59, 0x2845b239, 0xf3d95620, 0x66e12d94};
LW_CONSTANT u32 P256_N_N0 = 0xee00bc4f;
LW_CONSTANT u32 P256_N_LESS_2[8] = {0xfc63254f, 0xf3b9cac2, 0xa7179e84, 0xbce6faad, 0xffffffff, 0xffffffff, 0, 0xffffffff};
LW_CONSTANT u32 P256_GX[8] = {0x18a9143c, 0x79e730d4, 0x5fedb601, 0x75ba95fc, 0x77622510, 0x79fb732b, 0xa53755c6, 0x18905f76};
LW_CONSTANT u32 P256_GY[8] = {0xce95560a, 0xddf25357, 0xba19e45c, 0x8b4ab8e4, 0xdd21f325, 0xd2e88688, 0x25885d85, 0x8571ff18};

// u2 is read in 52 digits of five bits from -16 to 15: with 16 added at each place it is one number of 260 bits,
// whose digits are 16 too high.
static const int Q_DIGITS = 52, Q_BITS = 5, Q_MULTIPLES = 16, Q_BIAS = 16;
LW_CONSTANT u32 P256_BIAS[9] = {0x21084210, 0x08421084, 0x42108421, 0x10842108, 0x84210842, 0x21084210, 0x08421084, 0x42108421, 8};
// u1 is read in 32 digits of eight bits; of each place all multiples of G but 0 are in a table, x and y of each.
static const int G_DIGITS = 32, G_MULTIPLES = 255, AFFINE_WORDS = 16, POINT_WORDS = 24;

// The stage: the multiplier's digits, then powers 1 to 3 of what is inverted; afterwards u1 and, with its bias, u2.
static const int P256_STAGE = 32, P256_U1 = 0, P256_U2 = 8;

typedef Mont<8, 1> Scalars;

LW_FN void load_fp(Fp& out, const u32* from) {
#pragma unroll
    for (int i = 0; i < 8; i++) out.limb[i] = ((const Quad*)from)[i / 4].word[i % 4];
}

LW_FN void store_fp(u32* to, const Fp& number) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        Quad quad;
#pragma unroll
        for (int j = 0; j < 4; j++) quad.word[j] = number.limb[4 * i + j];
        ((Quad*)to)[i] = quad;
    }
}

LW_FN void load_point(Point& out, const u32* from) {
    load_fp(out.x, from);
    load_fp(out.y, from + 8);
    load_fp(out.z, from + 16);
}

LW_FN void store_point(u32* to, const Point& point) {
    store_fp(to, point.x);
    store_fp(to + 8, point.y);
    store_fp(to + 16, point.z);
}

// The Montgomery form of 1/s modulo the order, by Fermat: s^(order - 2), two bits at a time.
LW_FN void invert_scalar(const Scalars& scalars, Scalars::Number& out, const u32 (&s)[8], const Stage<1>& stage) {
    Scalars::Number power;
#pragma unroll
    for (int i = 0; i < 8; i++) power.limb[0][i] = s[i];
    scalars.stage_row(stage.from(8), P256_N_R2);
#pragma unroll 1
    for (int index = 1; index <= 3; index++) {
        // The first takes s into Montgomery form, the others multiply by that.
        scalars.multiply(power, power, stage.from(8));
        scalars.stage(stage.from(8 * index), power);
    }
    scalars.one(out);
#pragma unroll 1
    for (int bit = 254; bit >= 0; bit -= 2) {
        u32 window = P256_N_LESS_2[bit / 32] >> (bit % 32) & 3;
#pragma unroll 1
        for (int step = 0; step < (window == 0 ? 2 : 3); step++) {
            if (step < 2) scalars.stage(stage, out);
            scalars.multiply(out, out, stage.from(step < 2 ? 0 : 8 * window));
        }
    }
}

// Leaves u1 = digest / s and u2 = r / s modulo the order in the stage, u2 with its bias.
LW_FN void stage_scalars(const u32 (&r)[8], const u32 (&s)[8], const u32 (&digest)[8], const Stage<1>& stage) {
    Scalars scalars(P256_N, P256_N_N0);
    Scalars::Number inverse, u;
    invert_scalar(scalars, inverse, s, stage);
    scalars.stage(stage.from(16), inverse);
#pragma unroll 1
    for (int which = 0; which < 2; which++) {
#pragma unroll
        for (int i = 0; i < 8; i++) u.limb[0][i] = which == 0 ? digest[i] : r[i];
        scalars.multiply(u, u, stage.from(16));
        scalars.canonical(u);
        if (which == 0) scalars.stage(stage.from(P256_U1), u);
    }
    Carry k;
    stage.set(P256_U2, add_cc(u.limb[0][0], P256_BIAS[0], k));
#pragma unroll
    for (int i = 1; i < 8; i++) stage.set(P256_U2 + i, addc_cc(u.limb[0][i], P256_BIAS[i], k));
    stage.set(P256_U2 + 8, addc(P256_BIAS[8], 0, k));
}

LW_FN int q_digit(const Stage<1>& stage, int index) {
    int bit = Q_BITS * index, word = P256_U2 + bit / 32;
    u32 digit = shift_pair_right(stage.get(word + 1), stage.get(word), bit % 32) & ((1 << Q_BITS) - 1);
    return (int)digit - Q_BIAS;
}

LW_FN u32 g_digit(const Stage<1>& stage, int index) { return stage.get(P256_U1 + index / 4) >> (8 * (index % 4)) & 0xff; }

// point = u1 G + u2 Q for the scalars in the stage and the Q that is the first of `multiples`, with z = 1.
//
// One loop through three parts, so that each formula is compiled once: 2 Q to 16 Q, each the one before and Q; from
// the highest digit of u2 down, five doublings between additions; the digits of u1. An addition that finds the same
// point twice has the doubling do it: that happens at 2 Q, and else only where somebody looks for it.
LW_FN void multiply_points(Point& point, u32* multiples, const u32* base_table, const Stage<1>& stage) {
    const int PERIOD = Q_BITS + 1, BUILDING = Q_MULTIPLES - 1, FALLING = BUILDING + PERIOD * Q_DIGITS - Q_BITS, ALL = FALLING + G_DIGITS;
    load_point(point, multiples);
#pragma unroll 1
    for (int step = 0; step < ALL; step++) {
        const u32* affine = 0;
        u32 twice = 0;
        if (step < BUILDING) {
            affine = multiples;
        } else if (step < FALLING) {
            // The doublings before the first digit are left out.
            int place = step - BUILDING + Q_BITS;
            int digit = q_digit(stage, Q_DIGITS - 1 - place / PERIOD);
            if (place % PERIOD < Q_BITS) {
                twice = 1;
            } else if (digit != 0) {
                Point multiple;
                load_point(multiple, multiples + ((digit < 0 ? -digit : digit) - 1) * POINT_WORDS);
                if (digit < 0) fp_negate(multiple.y);
                twice = point_add(point, multiple);
            }
        } else {
            int index = step - FALLING;
            u32 digit = g_digit(stage, index);
            if (digit != 0) affine = base_table + (index * G_MULTIPLES + digit - 1) * AFFINE_WORDS;
        }
        if (affine) {
            Fp x, y;
            load_fp(x, affine);
            load_fp(y, affine + 8);
            twice = point_add_affine(point, x, y);
        }
        if (twice) point_double(point);
        if (step < BUILDING) store_point(multiples + (step + 1) * POINT_WORDS, point);
        if (step == BUILDING - 1) point_set_infinity(point);
    }
}

// 1 if the x of the point, modulo the order, is r: if x is r, or r + order where that is below p.
LW_FN u32 x_is(const Point& point, const u32 (&r)[8]) {
    Fp candidate, square, r2;
    fp_sqr(square, point.z);
    fp_set(r2, P256_R2);
    u32 found = 0, sum[8];
#pragma unroll
    for (int i = 0; i < 8; i++) sum[i] = r[i];
    u32 exists = 1;
#pragma unroll 1
    for (int which = 0; which < 2; which++) {
        fp_set(candidate, sum);
        fp_mul(candidate, candidate, r2);
        fp_mul(candidate, candidate, square);
        found |= exists & fp_is_equal(candidate, point.x);
        Carry k;
        sum[0] = add_cc(sum[0], P256_N[0], k);
#pragma unroll
        for (int i = 1; i < 8; i++) sum[i] = addc_cc(sum[i], P256_N[i], k);
        exists = (1 ^ addc(0, 0, k)) & less_256(sum, P256_P);
    }
    return found & (1 ^ fp_is_zero(point.z));
}

LW_FN void p256_verify(const P256Args& args, u32 item, bool active, const Stage<1>& stage) {
    const u8* key = args.keys + (u64)args.key_of[item] * 64;
    const u8* signature = args.signatures + (u64)item * 64;
    u32* multiples = args.multiples + ((u64)block_index() * LW_THREADS + thread_index()) * (Q_MULTIPLES * POINT_WORDS);
    u32 r[8], s[8], digest[8];
    load_256(r, signature);
    load_256(s, signature + 32);
    load_256(digest, args.digests + (u64)item * 32);
    u32 valid = (1 ^ is_zero_256(r)) & (1 ^ is_zero_256(s)) & less_256(r, P256_N) & less_256(s, P256_N);
    stage_scalars(r, s, digest, stage);

    Point point;
    Fp r2;
    fp_set(r2, P256_R2);
    load_256(point.x.limb, key);
    load_256(point.y.limb, key + 32);
    valid &= less_256(point.x.limb, P256_P) & less_256(point.y.limb, P256_P);
    fp_mul(point.x, point.x, r2);
    fp_mul(point.y, point.y, r2);
    valid &= point_is_on_curve(point.x, point.y);
    point_set_affine(point, point.x, point.y);
    store_point(multiples, point);

    multiply_points(point, multiples, args.base_table, stage);
    load_256(r, signature);
    valid &= x_is(point, r);
    if (active) args.verdicts[item] = (u8)valid;
}

// out = 1/a modulo p by Fermat, a^(p - 2).
LW_FN void fp_invert(Fp& out, const Fp& a) {
    fp_set(out, P256_ONE);
#pragma unroll 1
    for (int bit = 255; bit >= 0; bit--) {
        fp_sqr(out, out);
        // p - 2 differs from p in its lowest two bits: 11 becomes 01.
        if (bit != 1 && (P256_P[bit / 32] >> (bit % 32) & 1)) fp_mul(out, out, a);
    }
}

// One place of the table of G: 2^(8 place) times 1 to 255.
LW_FN void p256_table(const P256TableArgs& args, u32 place, bool active, const Stage<1>&) {
    Point point;
    Fp x, y, t;
    fp_set(x, P256_GX);
    fp_set(y, P256_GY);
    point_set_affine(point, x, y);
    int doublings = 8 * (int)place;
#pragma unroll 1
    for (int multiple = 1 - doublings; multiple <= G_MULTIPLES; multiple++) {
        // Below 1 the point is on its way to the place; there it becomes what is added each time.
        u32 twice = multiple < 1;
        if (multiple >= 1) {
            fp_invert(t, point.z);
            fp_mul(point.y, point.y, t);
            fp_sqr(t, t);
            fp_mul(point.x, point.x, t);
            fp_mul(point.y, point.y, t);
            point_set_affine(point, point.x, point.y);
            u32* row = args.base_table + (place * G_MULTIPLES + multiple - 1) * AFFINE_WORDS;
            if (active) store_fp(row, point.x);
            if (active) store_fp(row + 8, point.y);
            if (multiple == 1) x = point.x, y = point.y;
            twice = point_add_affine(point, x, y);
        }
        if (twice) point_double(point);
    }
}

LW_KERNEL(p256_verify_t1, P256Args, 1, args.count, P256_STAGE, p256_verify)
LW_KERNEL(p256_base_table, P256TableArgs, 1, G_DIGITS, 1, p256_table)
