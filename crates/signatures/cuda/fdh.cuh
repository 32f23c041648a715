// The full-domain hash: H(x) = MGF1-SHA-256(x) (RFC 8017, B.2.1) to |n| + 128 bits, as a number with its most
// significant byte first, modulo n.
//
// MGF1 hashes x followed by a 4-byte counter. Blocks that end before the counter are compressed once; the at most two
// blocks with the counter are compressed for each 32 bytes of output. The lanes of a group share this work.
#pragma once
#include "mont.cuh"
#include "sha256.cuh"

// Maximum length of x in bytes: three blocks with counter and padding.
static const int FDH_BYTES_MAX = 128;
static const int FDH_MESSAGE_WORDS = 48;

// Stage words for a hash modulo N limbs: first the output, then the padded message.
template <int N>
struct FdhStage {
    static const int OUTPUT = N + 4;
    static const int WORDS = OUTPUT + FDH_MESSAGE_WORDS;
};

// Byte `at` of the padded message: x, a zero counter, and the padding.
template <class Bytes>
LW_FN u32 fdh_padded_byte(const Bytes& x, int length, int blocks, int at) {
    if (at < length) return x.at(at);
    if (at == length + 4) return 0x80;
    int from_end = 64 * blocks - 1 - at;
    u32 bits = 8 * (length + 4);
    return from_end == 0 ? bits & 0xff : from_end == 1 ? bits >> 8 : 0;
}

// Stores H(x), unreduced, in the first N + 4 words of the stage, least significant first.
template <int M, int T, class Bytes>
LW_FN void fdh_expand(const Group<T>& group, const Stage<T>& stage, const Bytes& x, int length) {
    const int N = M * T, OUTPUT = FdhStage<N>::OUTPUT, HELD = Group<T>::HELD;
    // The counter, 0x80 and eight bytes of length follow x.
    int blocks = (length + 4 + 9 + 63) / 64;
    group.sync();
#pragma unroll
    for (int h = 0; h < HELD; h++) {
#pragma unroll 1
        for (int i = group.lane(h); i < 16 * blocks; i += T) {
            u32 word = 0;
#pragma unroll
            for (int j = 0; j < 4; j++) word = word << 8 | fdh_padded_byte(x, length, blocks, 4 * i + j);
            stage.set(OUTPUT + i, word);
        }
    }
    group.sync();
    // Counters stay below 256: only their last byte is set.
    int first = length / 64, counter_word = (length + 3) / 4 - 16 * first, counter_shift = 24 - 8 * ((length + 3) % 4);
#pragma unroll
    for (int h = 0; h < HELD; h++) {
        u32 before[8];
        sha256_begin(before);
#pragma unroll 1
        for (int counter = group.lane(h) - T, block = 0; counter < (OUTPUT + 7) / 8; counter += T) {
            // The first pass compresses the blocks that all counters share.
            bool shared = counter < 0;
            u32 state[8];
#pragma unroll
            for (int i = 0; i < 8; i++) state[i] = before[i];
#pragma unroll 1
            for (block = shared ? 0 : first; block < (shared ? first : blocks); block++) {
                u32 w[16];
#pragma unroll
                for (int i = 0; i < 16; i++) {
                    u32 here = shared ? 0 : mask_equal(16 * (block - first) + i, counter_word);
                    w[i] = stage.get(OUTPUT + 16 * block + i) | ((u32)counter << counter_shift & here);
                }
                sha256_block(state, w);
            }
#pragma unroll
            for (int i = 0; i < 8; i++) {
                if (shared) before[i] = state[i];
                int limb = OUTPUT - 1 - 8 * counter - i;
                if (!shared && limb >= 0) stage.set(limb, state[i]);
            }
        }
    }
    group.sync();
}

// Reduces the output of fdh_expand: out = the N + 4 words modulo n, almost reduced. `shift` is 2^(32 N + 128) mod n:
// the number in the topmost four words times `shift`, divided by 2^128, is the residue of that number times 2^(32 N).
template <int M, int T>
LW_FN void fdh_reduce(const Mont<M, T>& mont, typename Mont<M, T>::Number& out, const Stage<T>& stage, const u32* shift) {
    typename Mont<M, T>::Number high;
    mont.load(high, shift);
    mont.template multiply<Mont<M, T>::FEW_DIGITS>(high, high, stage, M * T, 4);
    mont.unstage(out, stage);
    mont.add_mod(out, out, high);
}
