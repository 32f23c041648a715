// Additions and multiplications of 32-bit words with carry propagation. On the device they are PTX instructions on
// the condition code register: ptxas joins mad.lo.cc and the following madc.hi.cc on the same factors into one
// IMAD.WIDE.U32(.X), whose carry is a predicate. The order of the calls is the order of the carry chain; no other
// operation may use the carry in between.
#pragma once
#include "platform.cuh"

#if LW_DEVICE

struct Carry {};

#define LW_TWO(name, instruction)                                                                \
    LW_FN u32 name(u32 a, u32 b, Carry&) {                                                       \
        u32 r;                                                                                   \
        asm volatile(instruction " %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));                     \
        return r;                                                                                \
    }
#define LW_THREE(name, instruction)                                                              \
    LW_FN u32 name(u32 a, u32 b, u32 c, Carry&) {                                                \
        u32 r;                                                                                   \
        asm volatile(instruction " %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));         \
        return r;                                                                                \
    }
LW_TWO(add_cc, "add.cc.u32")
LW_TWO(addc_cc, "addc.cc.u32")
LW_TWO(addc, "addc.u32")
LW_TWO(sub_cc, "sub.cc.u32")
LW_TWO(subc_cc, "subc.cc.u32")
LW_TWO(subc, "subc.u32")
LW_THREE(mad_lo_cc, "mad.lo.cc.u32")
LW_THREE(madc_lo_cc, "madc.lo.cc.u32")
LW_THREE(madc_hi_cc, "madc.hi.cc.u32")
#undef LW_TWO
#undef LW_THREE

#else

struct Carry {
    u32 bit;
};

LW_FN u32 carry_out(u64 sum, Carry& carry) {
    carry.bit = (u32)(sum >> 32);
    return (u32)sum;
}
LW_FN u32 borrow_out(u64 difference, Carry& carry) {
    carry.bit = (u32)(difference >> 63);
    return (u32)difference;
}
LW_FN u32 add_cc(u32 a, u32 b, Carry& k) { return carry_out((u64)a + b, k); }
LW_FN u32 addc_cc(u32 a, u32 b, Carry& k) { return carry_out((u64)a + b + k.bit, k); }
LW_FN u32 addc(u32 a, u32 b, Carry& k) { return a + b + k.bit; }
LW_FN u32 sub_cc(u32 a, u32 b, Carry& k) { return borrow_out((u64)a - b, k); }
LW_FN u32 subc_cc(u32 a, u32 b, Carry& k) { return borrow_out((u64)a - b - k.bit, k); }
LW_FN u32 subc(u32 a, u32 b, Carry& k) { return a - b - k.bit; }
LW_FN u32 mad_lo_cc(u32 a, u32 b, u32 c, Carry& k) { return carry_out((u64)(a * b) + c, k); }
LW_FN u32 madc_lo_cc(u32 a, u32 b, u32 c, Carry& k) { return carry_out((u64)(a * b) + c + k.bit, k); }
LW_FN u32 madc_hi_cc(u32 a, u32 b, u32 c, Carry& k) {
    return carry_out(((u64)a * b >> 32) + c + k.bit, k);
}

#endif
