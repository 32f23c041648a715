// Argument structures of kernels. src/gpu/layouts.rs has the same structures; sizes and offsets are asserted in both
// files, and a test compares them.
//
// Numbers in keys and tables are limbs of 32 bits, least significant first. Signatures and messages are bytes as they
// are sent; numbers in them have the most significant byte first. All arrays are aligned to 16 bytes. N is 64 limbs for
// moduli of 2,048 bits and 96 for 3,072, H is N / 2.
#pragma once
#include "platform.cuh"

// A public RSA key with e = 65537. The topmost bit of n is set.
template <int N>
struct RsaKey {
    u32 n[N];
    // 2^(64 N) mod n, for conversion to Montgomery form.
    u32 r2[N];
    // 2^(32 N + 128) mod n, see fdh.cuh.
    u32 shift[N];
    // -n^-1 mod 2^32.
    u32 n0;
    // For Rapid Authentication: bytes of `prefix`, and the first row of this key in the table of the batch.
    u32 prefix_bytes;
    u32 first_row;
    u32 unused;
    // The bytes that precede r in the input of a mask's hash.
    u8 prefix[96];
};

// One prime factor with its exponent.
template <int H>
struct CrtHalf {
    u32 modulus[H];
    // 2^(64 H) mod the prime.
    u32 r2[H];
    u32 exponent[H];
    u32 n0;
    u32 unused[3];

    // Four bits of the exponent; window 0 has the lowest bits.
    LW_FN u32 window(int index) const { return exponent[index / 8] >> (4 * (index % 8)) & 15; }
};

// The secret part of an RSA key.
template <int H>
struct CrtKey {
    CrtHalf<H> p, q;
    // (q^-1 mod p) 2^(32 H) mod p.
    u32 qinv[H];
    // q 2^(32 H) mod n.
    u32 q_shift[2 * H];
};

struct PssArgs {
    // RsaKey[]
    const void* keys;
    const u32* key_of;
    // 4 N bytes per item.
    const u8* signatures;
    // SHA-256, 32 bytes per item.
    const u8* digests;
    // One per item: 1 for a valid signature, otherwise 0.
    u8* verdicts;
    u32 count;
    u32 unused;
};

struct RaVerifyArgs {
    // RsaKey[]
    const void* keys;
    const u32* key_of;
    // 4 N bytes per item.
    const u8* signatures;
    // r, 32 bytes per item.
    const u8* seeds;
    // `components` entries per item.
    const u16* digits;
    // First row of each position, relative to a key's first row; an additional entry is the end of the last position.
    const u32* offsets;
    // Rows of N limbs, hashes of components in Montgomery form.
    const u32* table;
    u8* verdicts;
    u32 count;
    u32 components;
};

struct RaSignArgs {
    // RsaKey[]
    const void* keys;
    const u32* key_of;
    const u16* digits;
    const u32* offsets;
    // Rows of N limbs, signatures of components in Montgomery form.
    const u32* table;
    // The slot of each item's mask.
    const u32* slots;
    // Rows of N limbs, one per slot. Used rows are zero.
    u32* masks;
    // 1 for each slot that holds a mask.
    u32* filled;
    // 4 N bytes per item, zero where the status is 0.
    u8* signatures;
    // One per item: 0 for a digit outside its domain or a slot without a mask, otherwise 1.
    u8* statuses;
    u32 count;
    u32 components;
};

struct FdhArgs {
    // RsaKey[]
    const void* keys;
    const u32* key_of;
    // 128 bytes per item, of which `lengths` bytes are used.
    const u8* messages;
    const u32* lengths;
    // Rows of N limbs.
    u32* out;
    u32 count;
    // 1: write Montgomery forms.
    u32 montgomery;
};

struct CrtArgs {
    // CrtKey[]
    const void* secrets;
    // RsaKey[]
    const void* keys;
    const u32* key_of;
    // Rows of N limbs.
    const u32* inputs;
    // For each thread of the launch 16 powers of H limbs, interleaved within a block.
    u32* powers;
    // For each item the results modulo p and modulo q, H limbs each.
    u32* halves;
    // Rows of N limbs, zero where the status is 0.
    u32* out;
    u8* statuses;
    u32 count;
    // 1: write Montgomery forms.
    u32 montgomery;
};

struct P256Args {
    // Tables of multiples: for the base point 32 digit positions with 255 multiples each, for each key 13 with 16, see
    // p256.cu.
    const u32* base_table;
    const u32* tables;
    const u32* key_of;
    // r and s, 64 bytes per item.
    const u8* signatures;
    const u8* digests;
    u8* verdicts;
    u32 count;
    u32 unused;
};

// Tables of points: for each digit position `multiples` points of 16 limbs, x and y in Montgomery form.
struct P256TableArgs {
    // x and y of points on the curve, 64 bytes each, most significant byte first.
    const u8* points;
    // Table number of each point.
    const u32* numbers;
    u32* tables;
    // Total number of digit positions of all points.
    u32 count;
    // Digit positions per table.
    u32 places;
    // Doublings from one digit position to the next.
    u32 bits;
    u32 multiples;
};

struct LimitArgs {
    // Clock cycles of each block.
    u64* cycles;
    // One word per thread, so that the compiler does not remove the work.
    u32* sink;
    // Number of threads, a multiple of the block size.
    u32 count;
    // Number of rounds of 256 products.
    u32 rounds;
};

struct ProbeArgs {
    // Rows of N limbs.
    const u32* a;
    const u32* b;
    const u32* moduli;
    const u32* n0;
    u32* out;
    u32 count;
    u32 operation;
};

// The same assertions are in layouts.rs.
static_assert(sizeof(RsaKey<64>) == 4 * (3 * 64 + 4) + 96 && sizeof(RsaKey<64>) % 16 == 0, "no padding");
static_assert(sizeof(RsaKey<96>) == 4 * (3 * 96 + 4) + 96 && sizeof(RsaKey<96>) % 16 == 0, "no padding");
static_assert(sizeof(CrtHalf<32>) == 4 * (3 * 32 + 4), "no padding");
static_assert(sizeof(CrtKey<32>) == 2 * sizeof(CrtHalf<32>) + 4 * 3 * 32 && sizeof(CrtKey<32>) % 16 == 0, "no padding");
static_assert(sizeof(CrtKey<48>) == 2 * sizeof(CrtHalf<48>) + 4 * 3 * 48 && sizeof(CrtKey<48>) % 16 == 0, "no padding");
static_assert(sizeof(PssArgs) == 5 * 8 + 2 * 4, "no padding");
static_assert(sizeof(RaVerifyArgs) == 8 * 8 + 2 * 4, "no padding");
static_assert(sizeof(RaSignArgs) == 10 * 8 + 2 * 4, "no padding");
static_assert(sizeof(FdhArgs) == 5 * 8 + 2 * 4, "no padding");
static_assert(sizeof(CrtArgs) == 8 * 8 + 2 * 4, "no padding");
static_assert(sizeof(P256Args) == 6 * 8 + 2 * 4, "no padding");
static_assert(sizeof(P256TableArgs) == 3 * 8 + 4 * 4, "no padding");
static_assert(sizeof(LimitArgs) == 2 * 8 + 2 * 4, "no padding");
static_assert(sizeof(ProbeArgs) == 5 * 8 + 2 * 4, "no padding");
