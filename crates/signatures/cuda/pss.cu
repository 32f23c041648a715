// RSA-PSS with SHA-256, MGF1 with SHA-256 and a salt of 32 bytes (RFC 8017, 8.1.2 and 9.1.2), with one result per item.
#include "kernel.cuh"
#include "public.cuh"
#include "sha256.cuh"

// Word i, most significant first, of the encoded message, which is in the stage as a number.
template <int N, int T>
LW_FN u32 encoded_word(const Stage<T>& stage, int i) {
    return stage.get(N - 1 - i);
}

// Reads eight words that begin with the last byte of word `first`. H and the salt begin there: the length of the
// encoded message is a multiple of four, and one byte follows H.
template <int N, int T>
LW_FN void read_shifted(u32* out, const Stage<T>& stage, int first) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        out[i] = join_words(encoded_word<N>(stage, first + i), encoded_word<N>(stage, first + i + 1), 3);
    }
}

// Removes the mask from the data block, in place. The data block is bytes 0 to 4 N - 34; its last word also holds the
// first byte of H.
template <int N, int T>
LW_FN void unmask(const Group<T>& group, const Stage<T>& stage, const u32 (&h)[8]) {
    const int BLOCKS = (4 * N - 33 + 31) / 32;
#pragma unroll
    for (int held = 0; held < Group<T>::HELD; held++) {
#pragma unroll 1
        for (int counter = group.lane(held); counter < BLOCKS; counter += T) {
            u32 state[8], w[16];
            sha256_begin(state);
#pragma unroll
            for (int i = 0; i < 8; i++) w[i] = h[i], w[8 + i] = 0;
            w[8] = (u32)counter, w[9] = 0x80000000u, w[15] = 8 * 36;
            sha256_block(state, w);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                int word = 8 * counter + i;
                if (word > N - 9) continue;
                u32 mask = word == N - 9 ? state[i] & 0xffffff00u : state[i];
                stage.set(N - 1 - word, encoded_word<N>(stage, word) ^ mask);
            }
        }
    }
    group.sync();
}

// EMSA-PSS-VERIFY with emBits = 32 N - 1: returns 1 if the encoded message in the stage is consistent with this digest.
template <int N, int T>
LW_FN u32 pss_is_consistent(const Group<T>& group, const Stage<T>& stage, const u8* digest) {
    u32 h[8], salt[8];
    read_shifted<N>(h, stage, N - 9);
    // Step 4, the trailer; step 6, the bit above emBits.
    u32 wrong = (encoded_word<N>(stage, N - 1) & 0xff) ^ 0xbc;
    wrong |= encoded_word<N>(stage, 0) >> 31;
    group.sync();
    unmask<N>(group, stage, h);
    // Steps 9 and 10: after the bit above emBits is cleared, the data block has zeros, a byte with the value 1, and the
    // salt.
    wrong |= encoded_word<N>(stage, 0) & 0x7fffffffu;
#pragma unroll 1
    for (int i = 1; i < N - 17; i++) wrong |= encoded_word<N>(stage, i);
    wrong |= (encoded_word<N>(stage, N - 17) >> 8) ^ 1;
    read_shifted<N>(salt, stage, N - 17);
    // Steps 12 and 13: SHA-256 of eight zero bytes, the digest and the salt, 72 bytes.
    const Quad* quads = (const Quad*)digest;
    u32 state[8], w[16], rest[16];
    sha256_begin(state);
    w[0] = w[1] = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        w[2 + i] = swap_bytes(quads[i / 4].word[i % 4]);
        if (i < 6) w[10 + i] = salt[i];
    }
#pragma unroll
    for (int i = 0; i < 16; i++) rest[i] = 0;
    rest[0] = salt[6], rest[1] = salt[7], rest[2] = 0x80000000u, rest[15] = 8 * 72;
#pragma unroll 1
    for (int block = 0; block < 2; block++) {
        sha256_block(state, w);
#pragma unroll
        for (int i = 0; i < 16; i++) w[i] = rest[i];
    }
#pragma unroll
    for (int i = 0; i < 8; i++) wrong |= state[i] ^ h[i];
    return wrong == 0;
}

template <int M, int T>
LW_FN void pss_verify(const PssArgs& args, u32 item, bool active, const Stage<T>& stage) {
    const int N = M * T;
    typedef Mont<M, T> Field;
    const RsaKey<N>& key = ((const RsaKey<N>*)args.keys)[args.key_of[item]];
    Field mont(key.n, key.n0);
    const u8* signature = args.signatures + (u64)item * 4 * N;
    typename Field::Number number;
    mont.load_bytes(number, signature);
    u32 valid = mont.is_below(number);
    raise_to_e<Field::MANY_DIGITS>(mont, number, stage, key.r2, [&] { mont.stage_bytes(stage, signature); });
    mont.canonical(number);
    mont.stage(stage, number);
    valid &= pss_is_consistent<N>(mont.group, stage, args.digests + (u64)item * 32);
    if (active && mont.group.first_lane == 0) args.verdicts[item] = (u8)valid;
}

// Each size has a variant for throughput, with fewer threads, and one for latency.
LW_KERNEL(pss_2048_t2, PssArgs, 2, args.count, 64, pss_verify<32, 2>)
LW_KERNEL(pss_2048_t8, PssArgs, 8, args.count, 64, pss_verify<8, 8>)
LW_KERNEL(pss_3072_t4, PssArgs, 4, args.count, 96, pss_verify<24, 4>)
LW_KERNEL(pss_3072_t8, PssArgs, 8, args.count, 96, pss_verify<12, 8>)
