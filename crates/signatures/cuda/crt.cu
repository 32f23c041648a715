// The private operation of RSA by the Chinese remainder theorem (RFC 8017, 5.1.2), for masks and tables.
//
// There are two kernels. `crt_halves` raises each input to dp modulo p and to dq modulo q; the variants for throughput
// use one or two threads for each power, those for latency use four. `crt_join`, with a thirtieth of the work, combines
// both powers (Garner) and checks the result by raising it to e: a fault in one half would reveal the factors (Boneh,
// DeMillo, Lipton 1997). A result that does not match the input is written as zeros, with status 0.
//
// Exponents are processed in windows of four bits. Each window costs the same multiplications and reads all sixteen
// powers, so that the secret exponent determines no branch and no address.
#include "kernel.cuh"
#include "public.cuh"

static const int CRT_WINDOW_BITS = 4;
static const int CRT_POWERS = 1 << CRT_WINDOW_BITS;

// The powers of one instance: word i of power `index` of a lane is next to the same word of the block's other threads.
template <int M, int T>
struct CrtPowers {
    static const int THREADS = LW_DEVICE ? LW_THREADS : T;
    typedef Mont<M, T> Field;
    u32* words;

    LW_FN explicit CrtPowers(u32* all) : words(all + (u64)block_index() * (CRT_POWERS * M * THREADS) + thread_index()) {}
    LW_FN u32& at(int held, int index, int i) const { return words[(index * M + i) * THREADS + held]; }

    LW_FN void store(int index, const typename Field::Number& number) const {
#pragma unroll
        for (int h = 0; h < Field::HELD; h++) {
#pragma unroll
            for (int i = 0; i < M; i++) at(h, index, i) = number.limb[h][i];
        }
    }
    // Writes the power that the window selects into the stage, after reading all powers.
    LW_FN void stage(const Field& mont, const Stage<T>& to, u32 window) const {
        mont.group.sync();
#pragma unroll
        for (int h = 0; h < Field::HELD; h++) {
#pragma unroll 1
            for (int i = 0; i < M; i++) {
                u32 word = 0;
#pragma unroll
                for (int index = 0; index < CRT_POWERS; index++) word |= at(h, index, i) & mask_equal(index, window);
                to.set(mont.group.lane(h) * M + i, word);
            }
        }
        mont.group.sync();
    }
    LW_FN void wipe() const {
#pragma unroll
        for (int h = 0; h < Field::HELD; h++) {
#pragma unroll 1
            for (int i = 0; i < CRT_POWERS * M; i++) at(h, 0, i) = 0;
        }
    }
};

// Half `item & 1` of input `item / 2`: the input raised to the exponent of that half, modulo its prime.
template <int M, int T>
LW_FN void crt_halves(const CrtArgs& args, u32 item, bool active, const Stage<T>& stage) {
    const int H = M * T;
    typedef Mont<M, T> Field;
    const CrtKey<H>& secret = ((const CrtKey<H>*)args.secrets)[args.key_of[item / 2]];
    const CrtHalf<H>& half = item & 1 ? secret.q : secret.p;
    const u32* input = args.inputs + (u64)(item / 2) * 2 * H;
    CrtPowers<M, T> powers(args.powers);
    Field mont(half.modulus, half.n0);
    typename Field::Number number, other;

    // The input is high R + low. high R^2 / R is congruent to high R. After low is added, another multiplication by
    // R^2 / R converts the sum to Montgomery form. The result is then raised to the exponent, starting from 1.
    mont.load(number, input + H);
    mont.stage_row(stage, half.r2);
#pragma unroll 1
    for (int step = 0; step <= CRT_POWERS; step++) {
        mont.multiply(number, number, stage);
        if (step == 0) {
            mont.load(other, input);
            mont.add_mod(number, number, other);
            continue;
        }
        if (step == 1) {
            mont.stage(stage, number);
            mont.one(number);
        }
        powers.store(step - 1, number);
    }

    mont.one(number);
#pragma unroll 1
    for (int window = 32 * H / CRT_WINDOW_BITS - 1; window >= -1; window--) {
        // Four squarings and a multiplication by a power; after the last window a multiplication by 1, which converts
        // the result from Montgomery form.
#pragma unroll 1
        for (int step = window < 0 ? CRT_WINDOW_BITS : 0; step <= CRT_WINDOW_BITS; step++) {
            if (step < CRT_WINDOW_BITS) {
                mont.stage(stage, number);
            } else if (window >= 0) {
                powers.stage(mont, stage, half.window(window));
            } else {
                mont.set_word(other, 1);
                mont.stage(stage, other);
            }
            mont.multiply(number, number, stage);
        }
    }
    mont.canonical(number);
    if (active) mont.store(args.halves + (u64)item * H, number);
    mont.set_word(number, 0);
    mont.stage(stage, number);
    powers.wipe();
}

// h = qinv (x_p - x_q) mod p, stored in the stage.
template <int M, int T>
LW_FN void crt_quotient(const CrtKey<M * T>& secret, const u32* halves, const Stage<T>& stage) {
    typedef Mont<M, T> Field;
    Field mont(secret.p.modulus, secret.p.n0);
    typename Field::Number x, y;
    mont.load(x, halves);
    mont.load(y, halves + M * T);
    // q may be above p, but is below 2 p: both primes have their topmost bit set.
    mont.canonical(y);
    mont.subtract_mod(x, x, y);
    mont.stage_row(stage, secret.qinv);
    mont.template multiply<Field::FEW_DIGITS>(x, x, stage);
    mont.canonical(x);
    mont.stage(stage, x);
}

// x = x_q + q h, checked against the input.
template <int M, int T>
LW_FN void crt_join(const CrtArgs& args, u32 item, bool active, const Stage<T>& stage) {
    const int N = M * T, H = N / 2;
    typedef Mont<M, T> Field;
    u32 index = args.key_of[item];
    const RsaKey<N>& key = ((const RsaKey<N>*)args.keys)[index];
    const CrtKey<H>& secret = ((const CrtKey<H>*)args.secrets)[index];
    u32* halves = args.halves + (u64)item * N;
    u32* out = args.out + (u64)item * N;
    crt_quotient<M / 2, T>(secret, halves, stage);

    Field mont(key.n, key.n0);
    typename Field::Number number, other, zero;
    mont.set_word(zero, 0);
    // q h is below n: the result of `multiply` modulo n is the product itself, and its sum with x_q is below n too.
    mont.load(number, secret.q_shift);
    mont.template multiply<Field::FEW_DIGITS>(number, number, stage, 0, H);
    mont.canonical(number);
    other = zero;
    mont.load_low_half(other, halves + H);
    mont.add(number, number, other);

    if (active) mont.store(out, number);
    raise_to_e<Field::FEW_DIGITS>(mont, number, stage, key.r2, [&] { mont.stage_row(stage, out); });
    mont.canonical(number);
    mont.load(other, args.inputs + (u64)item * N);
    u32 valid = mont.is_equal(number, other);
    mont.load(number, out);
    if (args.montgomery) {
        mont.stage_row(stage, key.r2);
        mont.template multiply<Field::FEW_DIGITS>(number, number, stage);
        mont.canonical(number);
    }
    if (!valid) number = zero;
    mont.stage(stage, zero);
    if (!active) return;
    mont.store(out, number);
    mont.store(halves, zero);
    if (mont.group.first_lane == 0) args.statuses[item] = (u8)valid;
}

LW_KERNEL(crt_halves_2048_t1, CrtArgs, 1, 2 * args.count, 32, crt_halves<32, 1>)
LW_KERNEL(crt_halves_2048_t4, CrtArgs, 4, 2 * args.count, 32, crt_halves<8, 4>)
LW_KERNEL(crt_halves_3072_t2, CrtArgs, 2, 2 * args.count, 48, crt_halves<24, 2>)
LW_KERNEL(crt_halves_3072_t4, CrtArgs, 4, 2 * args.count, 48, crt_halves<12, 4>)
LW_KERNEL(crt_join_2048, CrtArgs, 4, args.count, 64, crt_join<16, 4>)
LW_KERNEL(crt_join_3072, CrtArgs, 4, args.count, 96, crt_join<24, 4>)
