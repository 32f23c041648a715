// Single operations of the arithmetic, for tests with operands that make carries propagate. There is a kernel for each
// division of numbers among lanes that other kernels use. Only tests launch these kernels.
#include "kernel.cuh"
#include "mont.cuh"
#include "p256_field.cuh"

enum ProbeOperation {
    PROBE_MULTIPLY = 0,
    PROBE_MULTIPLY_FOUR = 1,
    PROBE_MULTIPLY_HALF = 2,
    PROBE_ADD = 3,
    PROBE_SUBTRACT = 4,
    PROBE_CANONICAL = 5,
};

template <int M, int T>
LW_FN void probe(const ProbeArgs& args, u32 item, bool active, const Stage<T>& stage) {
    const int N = M * T;
    u64 first = (u64)item * N;
    typedef Mont<M, T> Field;
    Field mont(args.moduli + first, args.n0[item]);
    typename Field::Number a, b;
    mont.load(a, args.a + first);
    mont.load(b, args.b + first);
    mont.stage(stage, b);
    if (args.operation == PROBE_MULTIPLY) mont.multiply(a, a, stage);
    if (args.operation == PROBE_MULTIPLY_FOUR) mont.template multiply<Field::FEW_DIGITS>(a, a, stage, N - 4, 4);
    if (args.operation == PROBE_MULTIPLY_HALF) mont.template multiply<Field::FEW_DIGITS>(a, a, stage, 0, N / 2);
    if (args.operation == PROBE_ADD) mont.add_mod(a, a, b);
    if (args.operation == PROBE_SUBTRACT) mont.subtract_mod(a, a, b);
    if (args.operation == PROBE_CANONICAL) mont.canonical(a);
    if (active) mont.store(args.out + first, a);
}

// The same operations modulo the prime of P-256, except those for half of the digits and for four digits. Numbers are
// below the prime. `PROBE_MULTIPLY_HALF` squares a.
LW_FN void probe_prime(const ProbeArgs& args, u32 item, bool active, const Stage<1>&) {
    Fp a, b;
    for (int i = 0; i < 8; i++) {
        a.limb[i] = args.a[8 * item + i];
        b.limb[i] = args.b[8 * item + i];
    }
    if (args.operation == PROBE_MULTIPLY) fp_mul(a, a, b);
    if (args.operation == PROBE_MULTIPLY_HALF) fp_sqr(a, a);
    if (args.operation == PROBE_ADD) fp_add(a, a, b);
    if (args.operation == PROBE_SUBTRACT) fp_sub(a, a, b);
    for (int i = 0; i < 8; i++) {
        if (active) args.out[8 * item + i] = a.limb[i];
    }
}

LW_KERNEL(probe_32x1, ProbeArgs, 1, args.count, 32, probe<32, 1>)
LW_KERNEL(probe_32x2, ProbeArgs, 2, args.count, 64, probe<32, 2>)
LW_KERNEL(probe_24x2, ProbeArgs, 2, args.count, 48, probe<24, 2>)
LW_KERNEL(probe_24x4, ProbeArgs, 4, args.count, 96, probe<24, 4>)
LW_KERNEL(probe_16x4, ProbeArgs, 4, args.count, 64, probe<16, 4>)
LW_KERNEL(probe_12x4, ProbeArgs, 4, args.count, 48, probe<12, 4>)
LW_KERNEL(probe_12x8, ProbeArgs, 8, args.count, 96, probe<12, 8>)
LW_KERNEL(probe_8x4, ProbeArgs, 4, args.count, 32, probe<8, 4>)
LW_KERNEL(probe_8x8, ProbeArgs, 8, args.count, 64, probe<8, 8>)
LW_KERNEL(probe_8x1, ProbeArgs, 1, args.count, 8, probe<8, 1>)
LW_KERNEL(probe_p256, ProbeArgs, 1, args.count, 1, probe_prime)
