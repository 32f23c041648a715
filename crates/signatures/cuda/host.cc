// All kernels as host functions, for tests; and the layouts of structures in C++.
#include <cstddef>

#include "crt.cu"
#include "fdh.cu"
#include "limit.cu"
#include "p256.cu"
#include "probe.cu"
#include "pss.cu"
#include "ra.cu"

struct LayoutEntry {
    const char* name;
    u64 value;
};

#define SIZE(type) {#type, sizeof(type)}
#define PLACE(type, field) {#type "." #field, offsetof(type, field)}

typedef RsaKey<64> RsaKey64;
typedef RsaKey<96> RsaKey96;
typedef CrtHalf<32> CrtHalf32;
typedef CrtKey<32> CrtKey32;
typedef CrtKey<48> CrtKey48;

static const LayoutEntry LAYOUTS[] = {
    SIZE(RsaKey64), PLACE(RsaKey64, n), PLACE(RsaKey64, r2), PLACE(RsaKey64, shift), PLACE(RsaKey64, n0), PLACE(RsaKey64, prefix_bytes),
    PLACE(RsaKey64, first_row), PLACE(RsaKey64, prefix),
    SIZE(RsaKey96), PLACE(RsaKey96, shift), PLACE(RsaKey96, prefix),
    SIZE(CrtHalf32), PLACE(CrtHalf32, modulus), PLACE(CrtHalf32, r2), PLACE(CrtHalf32, exponent), PLACE(CrtHalf32, n0),
    SIZE(CrtKey32), PLACE(CrtKey32, p), PLACE(CrtKey32, q), PLACE(CrtKey32, qinv), PLACE(CrtKey32, q_shift),
    SIZE(CrtKey48), PLACE(CrtKey48, q), PLACE(CrtKey48, qinv), PLACE(CrtKey48, q_shift),
    SIZE(PssArgs), PLACE(PssArgs, keys), PLACE(PssArgs, key_of), PLACE(PssArgs, signatures), PLACE(PssArgs, digests), PLACE(PssArgs, verdicts),
    PLACE(PssArgs, count),
    SIZE(RaVerifyArgs), PLACE(RaVerifyArgs, keys), PLACE(RaVerifyArgs, key_of), PLACE(RaVerifyArgs, signatures), PLACE(RaVerifyArgs, seeds),
    PLACE(RaVerifyArgs, digits), PLACE(RaVerifyArgs, offsets), PLACE(RaVerifyArgs, table), PLACE(RaVerifyArgs, verdicts),
    PLACE(RaVerifyArgs, count), PLACE(RaVerifyArgs, components),
    SIZE(RaSignArgs), PLACE(RaSignArgs, keys), PLACE(RaSignArgs, key_of), PLACE(RaSignArgs, digits), PLACE(RaSignArgs, offsets),
    PLACE(RaSignArgs, table), PLACE(RaSignArgs, slots), PLACE(RaSignArgs, masks), PLACE(RaSignArgs, filled), PLACE(RaSignArgs, signatures),
    PLACE(RaSignArgs, statuses), PLACE(RaSignArgs, count), PLACE(RaSignArgs, components),
    SIZE(FdhArgs), PLACE(FdhArgs, keys), PLACE(FdhArgs, key_of), PLACE(FdhArgs, messages), PLACE(FdhArgs, lengths), PLACE(FdhArgs, out),
    PLACE(FdhArgs, count), PLACE(FdhArgs, montgomery),
    SIZE(CrtArgs), PLACE(CrtArgs, secrets), PLACE(CrtArgs, keys), PLACE(CrtArgs, key_of), PLACE(CrtArgs, inputs), PLACE(CrtArgs, powers),
    PLACE(CrtArgs, halves), PLACE(CrtArgs, out), PLACE(CrtArgs, statuses), PLACE(CrtArgs, count), PLACE(CrtArgs, montgomery),
    SIZE(P256Args), PLACE(P256Args, base_table), PLACE(P256Args, tables), PLACE(P256Args, key_of), PLACE(P256Args, signatures),
    PLACE(P256Args, digests), PLACE(P256Args, verdicts), PLACE(P256Args, count),
    SIZE(P256TableArgs), PLACE(P256TableArgs, points), PLACE(P256TableArgs, numbers), PLACE(P256TableArgs, tables), PLACE(P256TableArgs, count),
    PLACE(P256TableArgs, places), PLACE(P256TableArgs, bits), PLACE(P256TableArgs, multiples),
    SIZE(LimitArgs), PLACE(LimitArgs, cycles), PLACE(LimitArgs, sink), PLACE(LimitArgs, count), PLACE(LimitArgs, rounds),
    SIZE(ProbeArgs), PLACE(ProbeArgs, a), PLACE(ProbeArgs, b), PLACE(ProbeArgs, moduli), PLACE(ProbeArgs, n0), PLACE(ProbeArgs, out),
    PLACE(ProbeArgs, count), PLACE(ProbeArgs, operation),
    {"P256_BASE_TABLE.places", G_DIGITS}, {"P256_BASE_TABLE.bits", 8}, {"P256_BASE_TABLE.multiples", G_MULTIPLES},
    {"P256_KEY_TABLE.places", Q_PLACES}, {"P256_KEY_TABLE.bits", Q_BITS * Q_WINDOWS}, {"P256_KEY_TABLE.multiples", Q_MULTIPLES},
    {nullptr, 0},
};

extern "C" const LayoutEntry* linewarden_host_layouts() { return LAYOUTS; }
