// The public operation of RSA, with e = 2^16 + 1.
#pragma once
#include "mont.cuh"

// Number of multiplications: the conversion to Montgomery form, sixteen squarings, and the multiplication by the
// original number, which converts the result from Montgomery form.
static const u32 E_STEPS = 18;

// number = number^e mod n, almost reduced. The stage is overwritten. `stage_again` writes the original number into the
// stage: keeping it in registers would allow fewer warps per multiprocessor. PASS is the parameter of Mont::multiply.
template <int PASS, int M, int T, class StageAgain>
LW_FN void raise_to_e(const Mont<M, T>& mont, typename Mont<M, T>::Number& number, const Stage<T>& stage, const u32* r2,
                      const StageAgain& stage_again) {
#pragma unroll 1
    for (u32 step = 0; step < E_STEPS; step++) {
        if (step == 0) {
            mont.stage_row(stage, r2);
        } else if (step < E_STEPS - 1) {
            mont.stage(stage, number);
        } else {
            stage_again();
        }
        mont.template multiply<PASS>(number, number, stage);
    }
}
