// ECDSA verification on P-256 with a digest of 32 bytes (FIPS 186-4, 6.4): R = u1 G + u2 Q, with the base point G and
// the public key Q. The x of R is compared with r of the signature without dividing by Z^2.
//
// Precomputed tables have multiples of G and of each Q, so that u1 G requires no doublings and u2 Q requires fifteen
// (the arithmetic crate uses the same comb). In the variant for latency four threads share the additions, and add their
// sums.
#include "kernel.cuh"
#include "mont.cuh"
#include "p256_point.cuh"

// The order of the group, 2^512 modulo the order, -1/order modulo 2^32, and the order minus 2.
LW_CONSTANT u32 P256_N[8] = {0xfc632551, 0xf3b9cac2, 0xa7179e84, 0xbce6faad, 0xffffffff, 0xffffffff, 0, 0xffffffff};
LW_CONSTANT u32 P256_N_R2[8] = {0xbe79eea2, 0x83244c95, 0x49bd6fa6, 0x4699799c, 0x2b6bec59, 0x2845b239, 0xf3d95620, 0x66e12d94};
LW_CONSTANT u32 P256_N_N0 = 0xee00bc4f;
LW_CONSTANT u32 P256_N_LESS_2[8] = {0xfc63254f, 0xf3b9cac2, 0xa7179e84, 0xbce6faad, 0xffffffff, 0xffffffff, 0, 0xffffffff};

// u2 has 52 signed digits of five bits, from -16 to 15. With 16 added to each digit, u2 is a number of 260 bits whose
// five-bit digits are those digits plus 16. Digit 4 i + j is multiplied by 2^(20 i) Q, for which the table has 16
// multiples, and by 2^(5 j). Here j is the window and i the position in the table (`place`).
static const int Q_BITS = 5, Q_BIAS = 16, Q_WINDOWS = 4, Q_PLACES = 13, Q_MULTIPLES = 16;
LW_CONSTANT u32 P256_BIAS[9] = {0x21084210, 0x08421084, 0x42108421, 0x10842108, 0x84210842, 0x21084210, 0x08421084, 0x42108421, 8};
// u1 has 32 digits of eight bits; for each digit position a table has all multiples of G except 0.
static const int G_DIGITS = 32, G_MULTIPLES = 255, AFFINE_WORDS = 16;

// The stage: the multiplier's digits, then powers 1 to 3 of the number to invert; afterwards u1 and, with its bias, u2.
static const int P256_STAGE = 32, P256_U1 = 0, P256_U2 = 8;

typedef Mont<8, 1> Scalars;

LW_FN void load_fp(Fp& out, const u32* from) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        Quad quad = ((const Quad*)from)[i];
#pragma unroll
        for (int j = 0; j < 4; j++) out.limb[4 * i + j] = quad.word[j];
    }
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

// The Montgomery form of 1/s modulo the order, by Fermat's theorem s^(order - 2), two bits at a time.
LW_FN void invert_scalar(const Scalars& scalars, Scalars::Number& out, const u32 (&s)[8], const Stage<1>& stage) {
    Scalars::Number power;
#pragma unroll
    for (int i = 0; i < 8; i++) power.limb[0][i] = s[i];
    scalars.stage_row(stage.from(8), P256_N_R2);
#pragma unroll 1
    for (int index = 1; index <= 3; index++) {
        // The first multiplication converts s to Montgomery form, the others multiply by that form.
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

// Stores u1 = digest / s and u2 = r / s modulo the order in the stage, u2 with its bias.
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

// The part of u1 G + u2 Q that lane `lane` of T computes, for the scalars in the stage.
//
// The lane processes Q_WINDOWS / T neighboring windows j of u2, from the highest to the lowest. After each window it
// doubles its sum as many times as the next window requires, after the last one as many times as window 0 requires.
// Then it adds its digits of u1. All this is in one loop, so that each formula is compiled once. An addition of equal
// points is replaced by a doubling; equal points occur only with deliberately chosen inputs.
template <int T>
LW_FN void add_multiples(Point& point, int lane, const u32* table, const u32* base_table, const Stage<1>& stage) {
    const int WINDOWS = Q_WINDOWS / T, DOUBLINGS = T == 1 ? Q_BITS : Q_BITS * (Q_WINDOWS - WINDOWS);
    const int PERIOD = Q_PLACES + DOUBLINGS, OF_BASE = G_DIGITS / T;
    point_set_infinity(point);
#pragma unroll 1
    for (int step = 0; step < WINDOWS * PERIOD + OF_BASE; step++) {
        const u32* affine = 0;
        u32 twice = 0, negative = 0;
        int round = step / PERIOD, place = step % PERIOD;
        if (round >= WINDOWS) {
            int index = lane * OF_BASE + step - WINDOWS * PERIOD;
            u32 digit = g_digit(stage, index);
            if (digit != 0) affine = base_table + (index * G_MULTIPLES + digit - 1) * AFFINE_WORDS;
        } else if (place < Q_PLACES) {
            int window = (lane + 1) * WINDOWS - 1 - round;
            int digit = q_digit(stage, Q_WINDOWS * place + window);
            negative = digit < 0;
            if (digit != 0) affine = table + (place * Q_MULTIPLES + (digit < 0 ? -digit : digit) - 1) * AFFINE_WORDS;
        } else {
            twice = place - Q_PLACES < (round + 1 < WINDOWS ? Q_BITS : Q_BITS * lane * WINDOWS);
        }
        if (affine) {
            Fp x, y;
            load_fp(x, affine);
            load_fp(y, affine + 8);
            if (negative) fp_negate(y);
            twice = point_add_affine(point, x, y);
        }
        if (twice) point_double(point);
    }
}

template <int T>
LW_FN void exchange_fp(const Group<T>& group, Point (&out)[Group<T>::HELD], const Point (&points)[Group<T>::HELD],
                       Fp Point::*coordinate, int distance) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        u32 word[Group<T>::HELD], theirs[Group<T>::HELD];
#pragma unroll
        for (int h = 0; h < Group<T>::HELD; h++) word[h] = (points[h].*coordinate).limb[i];
        group.exchange(theirs, word, distance);
#pragma unroll
        for (int h = 0; h < Group<T>::HELD; h++) (out[h].*coordinate).limb[i] = theirs[h];
    }
}

// Sets each lane's point to the sum of all lanes' points.
template <int T>
LW_FN void sum_points(const Group<T>& group, Point (&points)[Group<T>::HELD]) {
#pragma unroll 1
    for (int distance = 1; distance < T; distance *= 2) {
        Point others[Group<T>::HELD];
        group.sync();
        exchange_fp(group, others, points, &Point::x, distance);
        exchange_fp(group, others, points, &Point::y, distance);
        exchange_fp(group, others, points, &Point::z, distance);
#pragma unroll
        for (int h = 0; h < Group<T>::HELD; h++) {
            if (fp_is_zero(others[h].z)) continue;
            if (point_add(points[h], others[h])) point_double(points[h]);
        }
    }
}

// Returns 1 if the x of the point, modulo the order, is r: if x is r, or if x is r + order and r + order is below p.
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

template <int T>
LW_FN void p256_verify(const P256Args& args, u32 item, bool active, const Stage<T>& shared) {
    const u32* table = args.tables + (u64)args.key_of[item] * (Q_PLACES * Q_MULTIPLES * AFFINE_WORDS);
    const u8* signature = args.signatures + (u64)item * 64;
    Stage<1> stage = shared.of_thread();
    Group<T> group;
    u32 r[8], s[8], digest[8];
    load_256(r, signature);
    load_256(s, signature + 32);
    load_256(digest, args.digests + (u64)item * 32);
    u32 valid = (1 ^ is_zero_256(r)) & (1 ^ is_zero_256(s)) & less_256(r, P256_N) & less_256(s, P256_N);
    stage_scalars(r, s, digest, stage);

    Fp x, y;
    load_fp(x, table);
    load_fp(y, table + 8);
    // No point of the curve is (0, 0), which marks an unused key number.
    valid &= 1 ^ (fp_is_zero(x) & fp_is_zero(y));
    Point points[Group<T>::HELD];
#pragma unroll
    for (int h = 0; h < Group<T>::HELD; h++) add_multiples<T>(points[h], group.lane(h), table, args.base_table, stage);
    sum_points(group, points);
    load_256(r, signature);
    valid &= x_is(points[0], r);
    if (active && group.first_lane == 0) args.verdicts[item] = (u8)valid;
}

// out = 1/a modulo p, by Fermat's theorem a^(p - 2).
LW_FN void fp_invert(Fp& out, const Fp& a) {
    fp_set(out, P256_ONE);
#pragma unroll 1
    for (int bit = 255; bit >= 0; bit--) {
        fp_sqr(out, out);
        // p - 2 differs from p in its lowest two bits: 11 becomes 01.
        if (bit != 1 && (P256_P[bit / 32] >> (bit % 32) & 1)) fp_mul(out, out, a);
    }
}

// Writes one digit position, `place`, of a point's table: 2^(bits place) times the multiples of the point from 1 on.
// The point is on the curve.
LW_FN void p256_table(const P256TableArgs& args, u32 item, bool active, const Stage<1>&) {
    u32 which = item / args.places, place = item % args.places;
    const u8* from = args.points + (u64)which * 64;
    u32* rows = args.tables + ((u64)args.numbers[which] * args.places + place) * args.multiples * AFFINE_WORDS;
    Point point;
    Fp x, y, t;
    load_256(x.limb, from);
    load_256(y.limb, from + 32);
    fp_set(t, P256_R2);
    fp_mul(x, x, t);
    fp_mul(y, y, t);
    point_set_affine(point, x, y);
    int doublings = (int)(args.bits * place);
#pragma unroll 1
    for (int multiple = 1 - doublings; multiple <= (int)args.multiples; multiple++) {
        // Steps below 1 double the point, up to the digit position; the point at step 1 is the addend of all later
        // steps.
        u32 twice = multiple < 1;
        if (multiple >= 1) {
            fp_invert(t, point.z);
            fp_mul(point.y, point.y, t);
            fp_sqr(t, t);
            fp_mul(point.x, point.x, t);
            fp_mul(point.y, point.y, t);
            point_set_affine(point, point.x, point.y);
            u32* row = rows + (multiple - 1) * AFFINE_WORDS;
            if (active) store_fp(row, point.x);
            if (active) store_fp(row + 8, point.y);
            if (multiple == 1) x = point.x, y = point.y;
            twice = point_add_affine(point, x, y);
        }
        if (twice) point_double(point);
    }
}

LW_KERNEL(p256_verify_t1, P256Args, 1, args.count, P256_STAGE, p256_verify<1>)
LW_KERNEL(p256_verify_t4, P256Args, 4, args.count, 4 * P256_STAGE, p256_verify<4>)
LW_KERNEL(p256_tables, P256TableArgs, 1, args.count, 1, p256_table)
