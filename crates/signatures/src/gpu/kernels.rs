//! The kernels: unit, threads per item, and resource budget.

use std::marker::PhantomData;

use super::layouts::{
    CrtArgs, FdhArgs, LimitArgs, P256Args, P256TableArgs, ProbeArgs, PssArgs, RaSignArgs, RaVerifyArgs,
};
use super::source::Unit;

/// Threads of a block, of every kernel: `LW_THREADS` of `platform.cuh`.
pub const BLOCK_THREADS: u32 = 128;

/// Resources of a multiprocessor that a kernel uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resources {
    /// Registers per thread.
    pub registers: u32,
    /// Bytes of local memory per thread, used when registers do not suffice.
    pub local_bytes: u32,
    /// Bytes of shared memory per block.
    pub shared_bytes: u32,
}

/// Static properties of a kernel.
#[derive(Debug)]
pub struct KernelInfo {
    /// Name in the unit.
    pub name: &'static str,
    /// Source file of the kernel.
    pub unit: Unit,
    /// Threads per item.
    pub threads_per_item: u32,
    /// Upper bound of the resources on any tested architecture: 168 registers allow three blocks per multiprocessor,
    /// 128 allow four.
    pub budget: Resources,
    /// The kernel compiled for this CPU.
    #[cfg(feature = "host-kernels")]
    host: unsafe extern "C" fn(*const std::ffi::c_void),
}

#[cfg(feature = "host-kernels")]
impl KernelInfo {
    /// Runs the kernel on this CPU, for all items of its arguments.
    ///
    /// # Safety
    /// The arguments have the kernel's type, and the arrays to which they point are in this process and have the
    /// lengths of `layouts.cuh`.
    pub unsafe fn run_on_host(&self, arguments: *const std::ffi::c_void) {
        // SAFETY: the caller guarantees the arguments.
        unsafe { (self.host)(arguments) };
    }
}

/// A kernel that takes arguments `A`.
#[derive(Debug)]
pub struct Kernel<A> {
    /// Static properties.
    pub info: &'static KernelInfo,
    arguments: PhantomData<fn(A)>,
}

impl<A> Clone for Kernel<A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for Kernel<A> {}

macro_rules! kernels {
    ($($(#[$doc:meta])* $constant:ident: $arguments:ty = $unit:ident $name:ident $host:ident, $threads:literal, $registers:literal $local:literal $shared:literal;)*) => {
        #[cfg(feature = "host-kernels")]
        mod host {
            unsafe extern "C" {
                $(pub(super) fn $host(arguments: *const std::ffi::c_void);)*
            }
        }
        $(
            $(#[$doc])*
            pub const $constant: Kernel<$arguments> = Kernel {
                info: &KernelInfo {
                    name: stringify!($name),
                    unit: Unit::$unit,
                    threads_per_item: $threads,
                    budget: Resources { registers: $registers, local_bytes: $local, shared_bytes: $shared },
                    #[cfg(feature = "host-kernels")]
                    host: host::$host,
                },
                arguments: PhantomData,
            };
        )*
        /// All kernels.
        pub const ALL: &[&KernelInfo] = &[$($constant.info,)*];
    };
}

// The budgets hold for compute capabilities 7.5, 8.0, 8.7, 8.9 and 9.0; shared memory includes the 1 KiB that the
// system uses from 9.0 on.
kernels! {
    /// RSA-PSS of 2,048 bits for throughput.
    PSS_2048_T2: PssArgs = Pss pss_2048_t2 linewarden_host_pss_2048_t2, 2, 168 0 17408;
    /// RSA-PSS of 2,048 bits for latency.
    PSS_2048_T8: PssArgs = Pss pss_2048_t8 linewarden_host_pss_2048_t8, 8, 64 0 5120;
    /// RSA-PSS of 3,072 bits for throughput.
    PSS_3072_T4: PssArgs = Pss pss_3072_t4 linewarden_host_pss_3072_t4, 4, 128 0 13312;
    /// RSA-PSS of 3,072 bits for latency.
    PSS_3072_T8: PssArgs = Pss pss_3072_t8 linewarden_host_pss_3072_t8, 8, 80 0 7168;
    /// Full-domain hashes modulo 2,048 bits.
    FDH_2048: FdhArgs = Fdh fdh_2048 linewarden_host_fdh_2048, 4, 112 0 15872;
    /// Full-domain hashes modulo 3,072 bits.
    FDH_3072: FdhArgs = Fdh fdh_3072 linewarden_host_fdh_3072, 4, 128 0 19968;
    /// Verification of Rapid Authentication, 2,048 bits, for throughput. Local memory is read once per multiplication.
    RA_VERIFY_2048_T2: RaVerifyArgs = Ra ra_verify_2048_t2 linewarden_host_ra_verify_2048_t2, 2, 184 48 33792;
    /// Verification of Rapid Authentication, 2,048 bits, for latency.
    RA_VERIFY_2048_T8: RaVerifyArgs = Ra ra_verify_2048_t8 linewarden_host_ra_verify_2048_t8, 8, 80 0 9216;
    /// Verification of Rapid Authentication, 3,072 bits, for throughput. Local memory is read once per multiplication.
    RA_VERIFY_3072_T4: RaVerifyArgs = Ra ra_verify_3072_t4 linewarden_host_ra_verify_3072_t4, 4, 144 32 25600;
    /// Verification of Rapid Authentication, 3,072 bits, for latency.
    RA_VERIFY_3072_T8: RaVerifyArgs = Ra ra_verify_3072_t8 linewarden_host_ra_verify_3072_t8, 8, 96 0 13312;
    /// Online signing of Rapid Authentication, 2,048 bits, for throughput.
    RA_SIGN_2048_T2: RaSignArgs = Ra ra_sign_2048_t2 linewarden_host_ra_sign_2048_t2, 2, 168 0 17408;
    /// Online signing of Rapid Authentication, 2,048 bits, for latency.
    RA_SIGN_2048_T8: RaSignArgs = Ra ra_sign_2048_t8 linewarden_host_ra_sign_2048_t8, 8, 64 0 5120;
    /// Online signing of Rapid Authentication, 3,072 bits, for throughput.
    RA_SIGN_3072_T4: RaSignArgs = Ra ra_sign_3072_t4 linewarden_host_ra_sign_3072_t4, 4, 128 0 13312;
    /// Online signing of Rapid Authentication, 3,072 bits, for latency.
    RA_SIGN_3072_T8: RaSignArgs = Ra ra_sign_3072_t8 linewarden_host_ra_sign_3072_t8, 8, 80 0 7168;
    /// Exponentiation modulo the primes of a key of 2,048 bits for throughput; two items per input.
    CRT_HALVES_2048_T1: CrtArgs = Crt crt_halves_2048_t1 linewarden_host_crt_halves_2048_t1, 1, 168 0 17408;
    /// Exponentiation modulo the primes of a key of 2,048 bits for latency; two items per input.
    CRT_HALVES_2048_T4: CrtArgs = Crt crt_halves_2048_t4 linewarden_host_crt_halves_2048_t4, 4, 64 0 5120;
    /// Exponentiation modulo the primes of a key of 3,072 bits for throughput; two items per input. Local memory is
    /// read once per window.
    CRT_HALVES_3072_T2: CrtArgs = Crt crt_halves_3072_t2 linewarden_host_crt_halves_3072_t2, 2, 128 16 13312;
    /// Exponentiation modulo the primes of a key of 3,072 bits for latency; two items per input.
    CRT_HALVES_3072_T4: CrtArgs = Crt crt_halves_3072_t4 linewarden_host_crt_halves_3072_t4, 4, 80 0 7168;
    /// Joining and checking of halves, 2,048 bits. On 8.0, local memory is read twice in total.
    CRT_JOIN_2048: CrtArgs = Crt crt_join_2048 linewarden_host_crt_join_2048, 4, 104 8 9216;
    /// Joining and checking of halves, 3,072 bits.
    CRT_JOIN_3072: CrtArgs = Crt crt_join_3072 linewarden_host_crt_join_3072, 4, 144 0 13312;
    /// ECDSA verification on P-256 for throughput. Local memory allows five blocks per multiprocessor, and is read once
    /// per addition.
    P256_VERIFY_T1: P256Args = P256 p256_verify_t1 linewarden_host_p256_verify_t1, 1, 128 104 17408;
    /// ECDSA verification on P-256 for latency.
    P256_VERIFY_T4: P256Args = P256 p256_verify_t4 linewarden_host_p256_verify_t4, 4, 168 0 17408;
    /// Tables of multiples of points of P-256; an item is one digit position of a table.
    P256_TABLES: P256TableArgs = P256 p256_tables linewarden_host_p256_tables, 1, 128 0 1024;
    /// The benchmark of the multiplier.
    IMAD_LIMIT: LimitArgs = MultiplierBench imad_limit linewarden_host_imad_limit, 1, 80 0 1024;
}

/// Kernels that only tests launch; they have no budget.
pub mod probes {
    use super::{Kernel, KernelInfo, PhantomData, ProbeArgs, Resources, Unit};

    kernels! {
        /// 32 limbs in one thread.
        PROBE_32X1: ProbeArgs = Probe probe_32x1 linewarden_host_probe_32x1, 1, 255 4096 49152;
        /// 32 limbs in each of two threads.
        PROBE_32X2: ProbeArgs = Probe probe_32x2 linewarden_host_probe_32x2, 2, 255 4096 49152;
        /// 24 limbs in each of two threads.
        PROBE_24X2: ProbeArgs = Probe probe_24x2 linewarden_host_probe_24x2, 2, 255 4096 49152;
        /// 24 limbs in each of four threads.
        PROBE_24X4: ProbeArgs = Probe probe_24x4 linewarden_host_probe_24x4, 4, 255 4096 49152;
        /// 16 limbs in each of four threads.
        PROBE_16X4: ProbeArgs = Probe probe_16x4 linewarden_host_probe_16x4, 4, 255 4096 49152;
        /// 12 limbs in each of four threads.
        PROBE_12X4: ProbeArgs = Probe probe_12x4 linewarden_host_probe_12x4, 4, 255 4096 49152;
        /// 12 limbs in each of eight threads.
        PROBE_12X8: ProbeArgs = Probe probe_12x8 linewarden_host_probe_12x8, 8, 255 4096 49152;
        /// 8 limbs in each of four threads.
        PROBE_8X4: ProbeArgs = Probe probe_8x4 linewarden_host_probe_8x4, 4, 255 4096 49152;
        /// 8 limbs in each of eight threads.
        PROBE_8X8: ProbeArgs = Probe probe_8x8 linewarden_host_probe_8x8, 8, 255 4096 49152;
        /// 8 limbs in one thread.
        PROBE_8X1: ProbeArgs = Probe probe_8x1 linewarden_host_probe_8x1, 1, 255 4096 49152;
        /// The field of P-256.
        PROBE_P256: ProbeArgs = Probe probe_p256 linewarden_host_probe_p256, 1, 255 4096 49152;
    }
}
