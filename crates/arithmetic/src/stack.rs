//! What a computation with secrets leaves behind: its stack frames and the vector registers are overwritten when it is done.
//!
//! Numbers in frames are spilled, copied and moved by the compiler, so that wiping the variables of the source does not wipe all of
//! them. [`wiped`] overwrites the memory that the frames were in instead.

/// Runs `work`, and then overwrites as many bytes of the stack below the caller's frame as `BYTES` says, and the vector registers.
///
/// `BYTES` is a bound of the stack that `work` uses; the tests of this crate measure the bounds that it uses. On a thread with less
/// stack left the process ends by a stack overflow. What `work` returns is not wiped, and nothing is if it panics.
#[inline(never)]
pub fn wiped<const BYTES: usize, T>(work: impl FnOnce() -> T) -> T {
    /// So that all frames of `work` are below the frame of `wiped`.
    #[inline(never)]
    fn below<T>(work: impl FnOnce() -> T) -> T {
        work()
    }

    let result = below(work);
    overwrite::<BYTES>();
    clear_registers();
    result
}

/// A guard page has at least so many bytes.
#[cfg(target_arch = "x86_64")]
const PAGE_BYTES: i32 = 4096;

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn overwrite<const BYTES: usize>() {
    // SAFETY: without `nostack`, nothing of this thread lies below the stack pointer. Before the far end is written, each page from the
    // stack pointer down is, as compilers probe large frames: where the stack ends, the guard page ends the process.
    unsafe {
        std::arch::asm!(
            "lea rsi, [rsp + {bottom}]",
            "lea rdi, [rsp - {page}]",
            "2:",
            "cmp rdi, rsi",
            "jb 3f",
            "mov qword ptr [rdi], rax",
            "sub rdi, {page}",
            "jmp 2b",
            "3:",
            "mov rdi, rsi",
            "rep stosq",
            page = const PAGE_BYTES,
            bottom = const -((BYTES / 8 * 8) as i64),
            inout("rcx") BYTES / 8 => _,
            inout("rax") 0u64 => _,
            out("rdi") _,
            out("rdx") _,
            out("rsi") _,
            out("r8") _,
            out("r9") _,
            out("r10") _,
            out("r11") _,
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(never)]
fn overwrite<const BYTES: usize>() {
    let mut area = [std::mem::MaybeUninit::<u8>::uninit(); BYTES];
    for byte in &mut area {
        // SAFETY: a valid reference.
        unsafe { std::ptr::write_volatile(byte.as_mut_ptr(), 0) };
    }
    std::hint::black_box(&mut area);
}

#[cfg(target_arch = "x86_64")]
fn clear_registers() {
    cpufeatures::new!(has_avx, "avx");
    cpufeatures::new!(has_avx512, "avx512f");
    if has_avx512::get() {
        // SAFETY: the CPU has AVX-512F.
        unsafe { clear_zmm() };
    }
    if has_avx::get() {
        // SAFETY: the CPU has AVX.
        unsafe { clear_ymm() };
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn clear_registers() {}

/// The registers that AVX does not have.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
#[inline(never)]
fn clear_zmm() {
    // SAFETY: it changes the registers that it names.
    unsafe {
        std::arch::asm!(
            "vpxord zmm16, zmm16, zmm16", "vpxord zmm17, zmm17, zmm17", "vpxord zmm18, zmm18, zmm18",
            "vpxord zmm19, zmm19, zmm19", "vpxord zmm20, zmm20, zmm20", "vpxord zmm21, zmm21, zmm21",
            "vpxord zmm22, zmm22, zmm22", "vpxord zmm23, zmm23, zmm23", "vpxord zmm24, zmm24, zmm24",
            "vpxord zmm25, zmm25, zmm25", "vpxord zmm26, zmm26, zmm26", "vpxord zmm27, zmm27, zmm27",
            "vpxord zmm28, zmm28, zmm28", "vpxord zmm29, zmm29, zmm29", "vpxord zmm30, zmm30, zmm30",
            "vpxord zmm31, zmm31, zmm31",
            out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _, out("zmm20") _, out("zmm21") _,
            out("zmm22") _, out("zmm23") _, out("zmm24") _, out("zmm25") _, out("zmm26") _, out("zmm27") _,
            out("zmm28") _, out("zmm29") _, out("zmm30") _, out("zmm31") _,
            options(nomem, nostack),
        );
    }
}

/// Registers 0 to 15, of AVX-512 too.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
#[inline(never)]
fn clear_ymm() {
    // SAFETY: it changes the registers that it names.
    unsafe {
        std::arch::asm!(
            "vzeroall",
            out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _, out("ymm4") _, out("ymm5") _, out("ymm6") _,
            out("ymm7") _, out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _, out("ymm12") _,
            out("ymm13") _, out("ymm14") _, out("ymm15") _,
            options(nomem, nostack),
        );
    }
}
