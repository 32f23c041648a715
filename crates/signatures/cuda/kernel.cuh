// The two ways into a kernel: a launch on the device, a call on the host that does the items one after another.
#pragma once
#include "group.cuh"
#include "layouts.cuh"

// LW_KERNEL(name, Args, T, count, words, function): T threads an item, `count` items as an expression of `args`,
// `words` of stage for each, and function(const Args&, u32 item, bool active, const Stage<T>&). Threads beyond the
// last item do the last item again, for all lanes of a warp take part in exchanges; as they are not `active` they
// write nothing that others read.
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

// Of memory that holds a part for each thread: where a block's parts begin, and the thread's place among them.
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
