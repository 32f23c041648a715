// Full-domain hashes of byte strings: the factors of components, and the numbers that masks and tables sign.
#include "fdh.cuh"
#include "kernel.cuh"

struct MessageBytes {
    const u8* bytes;
    LW_FN u32 at(int i) const { return bytes[i]; }
};

template <int M, int T>
LW_FN void fdh(const FdhArgs& args, u32 item, bool active, const Stage<T>& stage) {
    const int N = M * T;
    typedef Mont<M, T> Field;
    const RsaKey<N>& key = ((const RsaKey<N>*)args.keys)[args.key_of[item]];
    Field mont(key.n, key.n0);
    typename Field::Number hash;
    fdh_expand<M, T>(mont.group, stage, MessageBytes{args.messages + (u64)item * FDH_BYTES_MAX}, (int)args.lengths[item]);
    fdh_reduce(mont, hash, stage, key.shift);
    if (args.montgomery) {
        mont.stage_row(stage, key.r2);
        mont.multiply(hash, hash, stage);
    }
    mont.canonical(hash);
    if (active) mont.store(args.out + (u64)item * N, hash);
}

LW_KERNEL(fdh_2048, FdhArgs, 4, args.count, FdhStage<64>::WORDS, fdh<16, 4>)
LW_KERNEL(fdh_3072, FdhArgs, 4, args.count, FdhStage<96>::WORDS, fdh<24, 4>)
