// Measures the limit of the other kernels: how many products of 32 by 32 bits, added with carry to 64 bits, a
// multiprocessor computes in a clock cycle.
#include "kernel.cuh"
#include "mont.cuh"

static const int LIMIT_LIMBS = 16, LIMIT_STEPS = 16;

// Rows of a multiplication without other instructions: two independent chains of eight products each.
LW_FN void imad(const LimitArgs& args, u32 thread, bool, const Stage<1>&) {
    u32 even[LIMIT_LIMBS], odd[LIMIT_LIMBS], n[LIMIT_LIMBS], top = 0;
#pragma unroll
    for (int i = 0; i < LIMIT_LIMBS; i++) {
        n[i] = thread * 0x9e3779b9u + i;
        even[i] = odd[i] = i;
    }
#if LW_DEVICE
    __syncthreads();
    u64 begin = clock64();
#endif
#pragma unroll 1
    for (u32 round = 0; round < args.rounds; round++) {
#pragma unroll
        for (int step = 0; step < LIMIT_STEPS; step++) add_quotient(even, odd, top, n, round + step);
    }
#if LW_DEVICE
    __syncthreads();
    if (thread_index() == 0) args.cycles[block_index()] = clock64() - begin;
#endif
    u32 all = top;
#pragma unroll
    for (int i = 0; i < LIMIT_LIMBS; i++) all ^= even[i] ^ odd[i];
    args.sink[thread] = all;
}

LW_KERNEL(imad_limit, LimitArgs, 1, args.count, 1, imad)
