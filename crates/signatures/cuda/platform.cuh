// Differences between the two compilers of these files. NVRTC compiles them to device code; a C++ compiler compiles the
// same source to functions that tests run without a GPU.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// LW_CALL is for functions that a kernel uses in dozens of places. A function call that is not inlined keeps the code
// short, so that ptxas, whose time grows faster than the kernel's length, needs about a second per unit. Arguments are
// passed in registers.
#ifdef __CUDACC__
#define LW_DEVICE 1
#define LW_FN __device__ __forceinline__
#ifndef LW_CALL
#define LW_CALL __device__ __noinline__
#endif
#define LW_CONSTANT alignas(16) static __constant__ const
#else
#define LW_DEVICE 0
#define LW_FN inline
#define LW_CALL inline
#define LW_CONSTANT alignas(16) static const
#endif

// Threads per block of every kernel that does not state another number.
#define LW_THREADS 128

// Words that are read and written together; rows of tables and numbers in memory are multiples of this unit and aligned
// to it.
struct alignas(16) Quad {
    u32 word[4];
};

LW_FN u32 swap_bytes(u32 x) {
#if LW_DEVICE
    return __byte_perm(x, 0, 0x0123);
#else
    return x << 24 | (x & 0xff00u) << 8 | (x >> 8 & 0xff00u) | x >> 24;
#endif
}

LW_FN u32 rotate_right(u32 x, int bits) {
#if LW_DEVICE
    return __funnelshift_r(x, x, bits);
#else
    return x >> bits | x << (32 - bits);
#endif
}

// Shifts two words right as one number and returns the low word, 0 <= bits < 32.
LW_FN u32 shift_pair_right(u32 high, u32 low, int bits) {
#if LW_DEVICE
    return __funnelshift_r(low, high, bits);
#else
    return (u32)(((u64)high << 32 | low) >> bits);
#endif
}

// Reads two words as eight bytes, most significant first, and returns the four bytes from byte `bytes` on, 0 < bytes <
// 4.
LW_FN u32 join_words(u32 high, u32 low, int bytes) { return high << (8 * bytes) | low >> (32 - 8 * bytes); }

// Returns all ones if the bit is 1, zero if it is 0.
LW_FN u32 mask_of(u32 bit) { return 0u - bit; }

// Returns all ones if a equals b, otherwise zero, without a branch.
LW_FN u32 mask_equal(u32 a, u32 b) {
    u32 difference = a ^ b;
    return ((difference | (0u - difference)) >> 31) - 1u;
}
