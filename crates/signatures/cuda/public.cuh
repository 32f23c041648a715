// The public operation of RSA, with e = 2^16 + 1.
#pragma once
#include "mont.cuh"

// Multiplications that it takes: into Montgomery form, sixteen squarings, times the number itself, which leaves
// Montgomery form.
static const u32 E_STEPS = 18;

// number = number^e mod n, almost reduced. The stage is overwritten. `stage_again` puts the number it began with into
// the stage: to keep it in registers all the while would leave fewer warps to a multiprocessor. PASS as of
// Mont::multiply.
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
