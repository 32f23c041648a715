// Entry points of a kernel: on the device a __global__ function, on the host a function that processes the items one
// after another.
#pragma once
#include "group.cuh"
#include "layouts.cuh"

// LW_KERNEL(name, Args, T, items, stage_words, function): T threads per item, `items` as an expression of `args`,
// `stage_words` of stage per item, and function(const Args&, u32 item, bool active, const Stage<T>&). Threads beyond
// the last item process the last item again, since all lanes of a warp take part in exchanges; they are not `active`
// and write no shared results.
#if LW_DEVICE
#define LW_KERNEL(name, Args, T, items, stage_words, ...)                                        \
    extern "C" __global__ void __launch_bounds__(LW_THREADS) name(const __grid_constant__ Args args) { \
        __shared__ u32 words[(stage_words) * (LW_THREADS / T)];                                  \
        u32 item = (blockIdx.x * LW_THREADS + threadIdx.x) / T, count = items;                   \
        bool active = item < count;                                                              \
        __VA_ARGS__(args, active ? item : count - 1, active, Stage<T>(words));                   \
    }
#else
#define LW_KERNEL(name, Args, T, items, stage_words, ...)                                        \
    extern "C" void linewarden_host_##name(const Args* pointer) {                                \
        const Args& args = *pointer;                                                             \
        u32 words[stage_words], count = items;                                                   \
        for (u32 item = 0; item < count; item++) __VA_ARGS__(args, item, true, Stage<T>(words)); \
    }
#endif

// The block's index, and the thread's index in the block: they determine the thread's part of memory that has a part
// for each thread.
LW_FN u32 block_index() {
#if LW_DEVICE
    return blockIdx.x;
#else
    return 0;
#endif
}
LW_FN u32 thread_index() {
#if LW_DEVICE
    return threadIdx.x;
#else
    return 0;
#endif
}
