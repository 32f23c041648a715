// Rapid Authentication (Yavuz 2014, with masks as in docs/protocols.md 5): online signing, and verification.
#include "fdh.cuh"
#include "kernel.cuh"
#include "public.cuh"

// The hashed bytes of a mask: the key's prefix, then r.
struct SeedBytes {
    const u8* prefix;
    const u8* seed;
    int prefix_bytes;
    LW_FN u32 at(int i) const { return i < prefix_bytes ? prefix[i] : seed[i - prefix_bytes]; }
};

static const int SEED_BYTES = 32;

// The stage of a verification: the digits for `multiply`, then the complete product. Before both are written, the hash
// uses the stage.
template <int N>
struct RaStage {
    static const int KEPT = N;
    static const int WORDS = 2 * N;
    static_assert(WORDS >= FdhStage<N>::WORDS, "the hash fits in");
};

// Returns the row of component `position` in a table if the digit is in its domain. Otherwise returns an existing row
// and sets `inside` to 0.
LW_FN u64 component_row(const u32* offsets, const u16* digits, u32 position, u32 first_row, u32& inside) {
    u32 first = offsets[position], digit = digits[position];
    if (digit >= offsets[position + 1] - first) digit = inside = 0;
    return (u64)first_row + first + digit;
}

// Checks sigma^e = H(prefix | r) h[m_1] .. h[m_a] mod n: sigma is the signature, e the public exponent, r the name of
// the mask, m_i component i of the message, and h[m_i] the hash of that component. The hash H is not in Montgomery form
// and the components' hashes are, so that no product is in Montgomery form; nor is sigma^e.
template <int M, int T>
LW_FN void ra_verify(const RaVerifyArgs& args, u32 item, bool active, const Stage<T>& stage) {
    const int N = M * T;
    typedef Mont<M, T> Field;
    const RsaKey<N>& key = ((const RsaKey<N>*)args.keys)[args.key_of[item]];
    const u8* signature = args.signatures + (u64)item * 4 * N;
    const u16* digits = args.digits + (u64)item * args.components;
    Field mont(key.n, key.n0);
    typename Field::Number number;

    SeedBytes bytes = {key.prefix, args.seeds + (u64)item * SEED_BYTES, (int)key.prefix_bytes};
    fdh_expand<M, T>(mont.group, stage, bytes, bytes.prefix_bytes + SEED_BYTES);
    fdh_reduce(mont, number, stage, key.shift);
    const Stage<T> kept = stage.from(RaStage<N>::KEPT);
    u32 valid = 1;
    // Computes the product of the components and stores it, then the power of the signature. Both are in one loop, so
    // that `multiply` is compiled once.
#pragma unroll 1
    for (u32 step = 0; step < args.components + E_STEPS; step++) {
        if (step < args.components) {
            u64 row = component_row(args.offsets, digits, step, key.first_row, valid);
            mont.stage_row(stage, args.table + row * N);
        } else if (step == args.components) {
            mont.canonical(number);
            mont.stage(kept, number);
            mont.load_bytes(number, signature);
            valid &= mont.is_below(number) & (1 ^ mont.is_zero(number));
            mont.stage_row(stage, key.r2);
        } else if (step < args.components + E_STEPS - 1) {
            mont.stage(stage, number);
        } else {
            mont.stage_bytes(stage, signature);
        }
        mont.multiply(number, number, stage);
    }
    mont.canonical(number);
    typename Field::Number product;
    mont.unstage(product, kept);
    valid &= mont.is_equal(number, product);
    if (active && mont.group.first_lane == 0) args.verdicts[item] = (u8)valid;
}

// Takes the mask of a slot, once: for another item with the same slot, the slot is empty.
LW_FN u32 take_slot(u32* filled) {
#if LW_DEVICE
    return atomicExch(filled, 0u);
#else
    u32 was = *filled;
    *filled = 0;
    return was;
#endif
}

// Computes the signature sigma = beta Gamma[m_1] .. Gamma[m_a] mod n, with the mask beta and the component signatures
// Gamma. The mask is consumed in any case.
template <int M, int T>
LW_FN void ra_sign(const RaSignArgs& args, u32 item, bool active, const Stage<T>& stage) {
    const int N = M * T;
    typedef Mont<M, T> Field;
    const RsaKey<N>& key = ((const RsaKey<N>*)args.keys)[args.key_of[item]];
    const u16* digits = args.digits + (u64)item * args.components;
    u32 slot = args.slots[item];
    u32* mask = args.masks + (u64)slot * N;
    Field mont(key.n, key.n0);
    u32 taken[Field::HELD];
#pragma unroll
    for (int h = 0; h < Field::HELD; h++) taken[h] = mont.group.lane(h) == 0 && active ? take_slot(args.filled + slot) : 0;
    u32 valid = mont.group.broadcast(taken, 0);

    typename Field::Number number, zero;
    mont.set_word(zero, 0);
    mont.load(number, mask);
    if (valid) mont.store(mask, zero);
#pragma unroll 1
    for (u32 position = 0; position < args.components; position++) {
        u64 row = component_row(args.offsets, digits, position, key.first_row, valid);
        mont.stage_row(stage, args.table + row * N);
        mont.multiply(number, number, stage);
    }
    mont.canonical(number);
    mont.stage(stage, zero);
    if (!valid) number = zero;
    if (active) mont.store_bytes(args.signatures + (u64)item * 4 * N, number);
    if (active && mont.group.first_lane == 0) args.statuses[item] = (u8)valid;
}

// Each size has a variant for throughput, with fewer threads, and one for latency.
LW_KERNEL(ra_verify_2048_t2, RaVerifyArgs, 2, args.count, RaStage<64>::WORDS, ra_verify<32, 2>)
LW_KERNEL(ra_verify_2048_t8, RaVerifyArgs, 8, args.count, RaStage<64>::WORDS, ra_verify<8, 8>)
LW_KERNEL(ra_verify_3072_t4, RaVerifyArgs, 4, args.count, RaStage<96>::WORDS, ra_verify<24, 4>)
LW_KERNEL(ra_verify_3072_t8, RaVerifyArgs, 8, args.count, RaStage<96>::WORDS, ra_verify<12, 8>)
LW_KERNEL(ra_sign_2048_t2, RaSignArgs, 2, args.count, 64, ra_sign<32, 2>)
LW_KERNEL(ra_sign_2048_t8, RaSignArgs, 8, args.count, 64, ra_sign<8, 8>)
LW_KERNEL(ra_sign_3072_t4, RaSignArgs, 4, args.count, 96, ra_sign<24, 4>)
LW_KERNEL(ra_sign_3072_t8, RaSignArgs, 8, args.count, 96, ra_sign<12, 8>)
