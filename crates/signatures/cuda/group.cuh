// The threads that process one number together, and their exchanges.
//
// A group is T neighboring threads of a warp. The threads of a group hold one number together, each several neighboring
// limbs, or process one item, each with its own numbers (p256.cu). A thread's position in the group is its lane. On the
// device one context is one thread and holds one lane. On the host one context holds all T lanes of a group, one after
// another: every value that may differ between lanes is an array with HELD elements, every step is a loop over them,
// and every exchange is one of the functions here. The same source therefore runs in both environments, and no exchange
// can be missing in one of them.
#pragma once
#include "platform.cuh"

template <int T>
struct Group {
    static_assert(T == 1 || T == 2 || T == 4 || T == 8, "a group is part of a warp");
    static const int HELD = LW_DEVICE ? 1 : T;

    int first_lane;
    // Position of the group's first thread in the warp.
    int first_bit;

    LW_FN Group() {
#if LW_DEVICE
        first_lane = (int)(threadIdx.x % T);
        first_bit = (int)(threadIdx.x % 32) - first_lane;
#else
        first_lane = first_bit = 0;
#endif
    }

    LW_FN int lane(int held) const { return first_lane + held; }

    // Returns the value of lane `from` to all lanes.
    LW_FN u32 broadcast(const u32 (&value)[HELD], int from) const {
#if LW_DEVICE
        return T == 1 ? value[0] : __shfl_sync(0xffffffffu, value[0], from, T);
#else
        return value[from];
#endif
    }

    // Copies each lane's value to the lane below; the topmost lane gets 0.
    LW_FN void send_down(u32 (&out)[HELD], const u32 (&value)[HELD]) const {
#if LW_DEVICE
        u32 above = T == 1 ? 0 : __shfl_down_sync(0xffffffffu, value[0], 1, T);
        out[0] = first_lane == T - 1 ? 0 : above;
#else
        for (int h = 0; h < HELD; h++) out[h] = h + 1 < T ? value[h + 1] : 0;
#endif
    }

    // Copies each lane's value to the lane above; the lowest lane gets 0.
    LW_FN void send_up(u32 (&out)[HELD], const u32 (&value)[HELD]) const {
#if LW_DEVICE
        u32 below = T == 1 ? 0 : __shfl_up_sync(0xffffffffu, value[0], 1, T);
        out[0] = first_lane == 0 ? 0 : below;
#else
        for (int h = HELD - 1; h >= 0; h--) out[h] = h > 0 ? value[h - 1] : 0;
#endif
    }

    // Copies each lane's value to the lane whose number differs from its own in one bit, `distance`.
    LW_FN void exchange(u32 (&out)[HELD], const u32 (&value)[HELD], int distance) const {
#if LW_DEVICE
        out[0] = T == 1 ? value[0] : __shfl_xor_sync(0xffffffffu, value[0], distance, T);
#else
        for (int h = 0; h < HELD; h++) out[h] = value[h ^ distance];
#endif
    }

    // Returns one bit of each lane to all lanes, the bit of lane 0 lowest.
    LW_FN u32 gather(const u32 (&bit)[HELD]) const {
#if LW_DEVICE
        return T == 1 ? bit[0] : (__ballot_sync(0xffffffffu, bit[0] != 0) >> first_bit) & ((1u << T) - 1);
#else
        u32 bits = 0;
        for (int h = 0; h < HELD; h++) bits |= bit[h] << h;
        return bits;
#endif
    }

    // A barrier: required before a lane reads memory that another lane has written, and before that memory is
    // overwritten.
    LW_FN void sync() const {
#if LW_DEVICE
        __syncwarp();
#endif
    }
};

// Storage of an instance (a group with its item) for words that all its lanes read. It is in shared memory, interleaved
// word by word with the storage of the block's other instances, so that neighboring groups use different banks.
template <int T>
struct Stage {
    static const int INSTANCES = LW_DEVICE ? LW_THREADS / T : 1;

    u32* words;

    LW_FN explicit Stage(u32* block) {
#if LW_DEVICE
        words = block + threadIdx.x / T;
#else
        words = block;
#endif
    }
    // The part of the storage that begins at word `first`.
    LW_FN Stage from(int first) const {
        Stage part = *this;
        part.words += first * INSTANCES;
        return part;
    }
    // Storage of this thread alone, with 1 / T of the words. On the host all lanes share it, so that it is only for
    // values that are equal in all lanes.
    LW_FN Stage<1> of_thread() const {
#if LW_DEVICE
        return Stage<1>(words - threadIdx.x / T);
#else
        return Stage<1>(words);
#endif
    }
    LW_FN u32 get(int i) const { return words[i * INSTANCES]; }
    LW_FN void set(int i, u32 word) const { words[i * INSTANCES] = word; }
};
