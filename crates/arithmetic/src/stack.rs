//! Overwrites stack frames and vector registers after computations with secrets.
//!
//! The compiler spills, copies and moves values in stack frames, so wiping the variables of the source does not wipe all copies.
//! [`run_and_wipe_stack`] overwrites the memory of the frames instead.

/// Runs `work`, and then overwrites `BYTES` bytes of the stack below the caller's frame, and the vector registers.
///
/// `BYTES` is an upper bound of the stack usage of `work`; this crate's tests measure the bounds that this crate uses.
/// On a thread with less remaining stack the process ends by a stack overflow. The result of `work` is not wiped, and
/// nothing is wiped after a panic.
#[inline(never)]
pub fn run_and_wipe_stack<const BYTES: usize, T>(work: impl FnOnce() -> T) -> T {
    /// Ensures that all frames of `work` are below the frame of `run_and_wipe_stack`.
    #[inline(never)]
    fn run_below<T>(work: impl FnOnce() -> T) -> T {
        work()
    }

    let result = run_below(work);
    overwrite_stack::<BYTES>();
    clear_registers();
    result
}

/// Minimum size of a guard page, bytes.
#[cfg(target_arch = "x86_64")]
const PAGE_BYTES: i32 = 4096;

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn overwrite_stack<const BYTES: usize>() {
    // SAFETY: without `nostack`, this thread has no data below the stack pointer. The code writes to one address in
    // each page, from the stack pointer downwards, before it fills the area. Compilers probe large frames in the same
    // way: if the stack is too small, the guard page ends the process.
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
fn overwrite_stack<const BYTES: usize>() {
    let mut area = [std::mem::MaybeUninit::<u8>::uninit(); BYTES];
    for byte in &mut area {
        // SAFETY: the pointer comes from a valid reference.
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

/// Clears the vector registers 16 to 31, which AVX does not have.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
#[inline(never)]
fn clear_zmm() {
    // SAFETY: the assembly changes only the registers that it names.
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

/// Clears the vector registers 0 to 15, including their AVX-512 parts.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
#[inline(never)]
fn clear_ymm() {
    // SAFETY: the assembly changes only the registers that it names.
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
