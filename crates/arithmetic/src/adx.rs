//! Montgomery multiplication by MULX, ADCX and ADOX, blocks of eight limbs at a time.
//!
//! The only primitive is [`sweep`], which adds the product of a block and a long number to a sum. The reduction is that of
//! [`super::simd`]'s kernels: with `k = -n^-1 mod 2^512` the multiple `k n` is -1 modulo 2^512, so a sum's lowest block is itself the
//! quotient that clears it; only the last block is cleared by a multiple of n. The result for a sum T is below `T / R + 2 n`, here below 3
//! n.

use std::arch::naked_asm;

use zeroize::{Zeroize, ZeroizeOnDrop};

use super::modulus::{LIMBS_MAX, subtract};

cpufeatures::new!(has_adx, "bmi2", "adx");

/// Limbs in a block.
const BLOCK: usize = 8;

/// A modulus n of whole blocks, prepared for this CPU.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub(super) struct Adx {
    n: Box<[u64]>,
    /// `k = -n^-1 mod 2^512`.
    k: [u64; BLOCK],
    /// `m = (k n + 1) / 2^512`.
    m: Box<[u64]>,
}

impl Adx {
    /// Returns `None` if this CPU has no ADX, or the modulus does not consist of whole blocks. `n0 = -n^-1 mod 2^64`.
    pub(super) fn new(n: &[u64], n0: u64) -> Option<Self> {
        if !has_adx::get() || !n.len().is_multiple_of(BLOCK) {
            return None;
        }
        // Computes k limb by limb: each limb of k clears the next limb of k n + 1.
        let mut sum = vec![0u64; n.len() + BLOCK];
        *sum.first_mut()? = 1;
        let mut k = [0; BLOCK];
        for (index, digit) in k.iter_mut().enumerate() {
            let sum = sum.get_mut(index..)?;
            *digit = sum.first()?.wrapping_mul(n0);
            super::modulus::accumulate(sum, n, *digit);
        }
        let m = sum.get(BLOCK..)?.into();
        sum.zeroize();
        Some(Self { n: n.into(), k, m })
    }

    /// `out = a b / R mod n`, all with the length of the modulus; a or b is below n.
    pub(super) fn multiply(&self, out: &mut [u64], a: &[u64], b: &[u64]) {
        let mut sum = [0; 2 * LIMBS_MAX];
        let (rows, _) = a.as_chunks::<BLOCK>();
        for (index, rows) in rows.iter().enumerate() {
            sweep_from(&mut sum, index, rows, b, false);
        }
        self.reduce(out, &mut sum);
    }

    /// `out = a^2 / R mod n`, a below n.
    pub(super) fn square(&self, out: &mut [u64], a: &[u64]) {
        // With few blocks the second sum costs more than it saves.
        if a.len() < 4 * BLOCK {
            return self.multiply(out, a, a);
        }
        let mut mixed = [0; 2 * LIMBS_MAX];
        let mut sum = [0; 2 * LIMBS_MAX];
        let (rows, _) = a.as_chunks::<BLOCK>();
        let mut higher = a;
        for (index, rows) in rows.iter().enumerate() {
            higher = higher.get(BLOCK..).unwrap_or_default();
            sweep_from(&mut mixed, 2 * index + 1, rows, higher, false);
            sweep_from(&mut sum, 2 * index, rows, rows, false);
        }
        add_double(&mut sum, &mixed, 2 * rows.len());
        self.reduce(out, &mut sum);
    }

    /// `out = sum / R mod n`, for a sum below `n R`.
    fn reduce(&self, out: &mut [u64], sum: &mut [u64; 2 * LIMBS_MAX]) {
        let blocks = self.n.len() / BLOCK;
        let mut carry = false;
        for index in 1..blocks {
            let Some(quotient) = block(sum, index - 1) else {
                return;
            };
            carry = sweep_from(sum, index, &quotient, &self.m, carry);
        }
        let Some(low) = block(sum, blocks - 1) else {
            return;
        };
        let last = sweep_from(sum, blocks - 1, &multiply_low(&low, &self.k), &self.n, false);
        let Some(high) = sum.get_mut(self.n.len()..2 * self.n.len()) else {
            return;
        };
        // The result is below 3 n, so two subtractions of n suffice.
        let top = subtract(out, high, &self.n, u64::from(carry) + u64::from(last));
        high.copy_from_slice(out);
        subtract(out, high, &self.n, top);
    }
}

/// A copy of a sum's block.
fn block(sum: &[u64], index: usize) -> Option<[u64; BLOCK]> {
    sum.as_chunks().0.get(index).copied()
}

/// `a b mod 2^512`.
fn multiply_low(a: &[u64; BLOCK], b: &[u64; BLOCK]) -> [u64; BLOCK] {
    let mut product = [0u64; BLOCK];
    for (index, digit) in a.iter().enumerate() {
        let mut carry = 0;
        for (out, limb) in product.iter_mut().skip(index).zip(b) {
            (*out, carry) = limb.carrying_mul_add(*digit, *out, carry);
        }
    }
    product
}

/// `sum = sum + 2 mixed`, both with `blocks` blocks, like the result.
fn add_double(sum: &mut [u64], mixed: &[u64], blocks: usize) {
    let (mut carry, mut shifted) = (false, 0);
    let ((sums, _), (mixed, _)) = (sum.as_chunks_mut::<BLOCK>(), mixed.as_chunks::<BLOCK>());
    for (sums, mixed) in sums.iter_mut().zip(mixed).take(blocks) {
        for (sum, mixed) in sums.iter_mut().zip(mixed) {
            (*sum, carry) = sum.carrying_add(mixed << 1 | shifted, carry);
            shifted = mixed >> 63;
        }
    }
}

/// Adds `rows number + carry 2^(64 l)` to the sum from a block on, for a number of l limbs. Returns the carry out of
/// the l limbs and the block above them.
fn sweep_from(
    sum: &mut [u64; 2 * LIMBS_MAX],
    first_block: usize,
    rows: &[u64; BLOCK],
    number: &[u64],
    carry: bool,
) -> bool {
    let Some(sum) = sum.get_mut(first_block * BLOCK..) else {
        return false;
    };
    let blocks = number.len() / BLOCK;
    if blocks == 0 || sum.len() < number.len() + BLOCK {
        return false;
    }
    // SAFETY: an `Adx` exists only if the CPU has the instructions; the sum is long enough.
    unsafe { sweep(sum.as_mut_ptr(), rows, number.as_ptr(), blocks, u64::from(carry)) != 0 }
}

/// One row of a tile: adds the product of one limb of `rows` and eight limbs of the number, and one limb of the sum, to
/// the eight limbs in registers. The lowest limb is then complete, and its register takes the ninth limb: the result
/// fits, since `(2^512 - 1) + (2^64 - 1) (2^512 - 1) + 2^64 - 1 = 2^576 - 1`.
///
/// The carries of low halves use CF, those of high halves OF; rbp is zero. TEST clears both flags, like XOR, but waits for the previous
/// row: on Zen 4, rows that start as early as possible compete for execution units and take a fifth longer.
macro_rules! row {
    ($offset:literal, $a0:literal $a1:literal $a2:literal $a3:literal $a4:literal $a5:literal $a6:literal $a7:literal) => {
        concat!(
            "mov rdx, [rsi + ",
            $offset,
            "]\n",
            "test eax, eax\n",
            "adox ",
            $a0,
            ", [rdi + ",
            $offset,
            "]\n",
            "mulx rbx, rax, [rcx]\n",
            "adcx ",
            $a0,
            ", rax\n",
            "adox ",
            $a1,
            ", rbx\n",
            "mov [rdi + ",
            $offset,
            "], ",
            $a0,
            "\n",
            "mulx rbx, rax, [rcx + 8]\n",
            "adcx ",
            $a1,
            ", rax\n",
            "adox ",
            $a2,
            ", rbx\n",
            "mulx rbx, rax, [rcx + 16]\n",
            "adcx ",
            $a2,
            ", rax\n",
            "adox ",
            $a3,
            ", rbx\n",
            "mulx rbx, rax, [rcx + 24]\n",
            "adcx ",
            $a3,
            ", rax\n",
            "adox ",
            $a4,
            ", rbx\n",
            "mulx rbx, rax, [rcx + 32]\n",
            "adcx ",
            $a4,
            ", rax\n",
            "adox ",
            $a5,
            ", rbx\n",
            "mulx rbx, rax, [rcx + 40]\n",
            "adcx ",
            $a5,
            ", rax\n",
            "adox ",
            $a6,
            ", rbx\n",
            "mulx rbx, rax, [rcx + 48]\n",
            "adcx ",
            $a6,
            ", rax\n",
            "adox ",
            $a7,
            ", rbx\n",
            "mulx ",
            $a0,
            ", rax, [rcx + 56]\n",
            "adcx ",
            $a7,
            ", rax\n",
            "adcx ",
            $a0,
            ", rbp\n",
            "adox ",
            $a0,
            ", rbp\n",
        )
    };
}

/// `sum[0..8 blocks + 8] += rows[0..8] number[0..8 blocks] + carry 2^(512 blocks)`, and returns the carry.
///
/// A tile is 8 by 8 limbs. r8 to r15 hold the limbs that it adds to the next tile.
///
/// # Safety
/// The CPU has BMI2 and ADX; there is at least one block, and the sum has one block more than the number.
#[unsafe(naked)]
unsafe extern "sysv64" fn sweep(
    sum: *mut u64,
    rows: &[u64; BLOCK],
    number: *const u64,
    blocks: usize,
    carry: u64,
) -> u64 {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "push r8",
        "push rcx",
        "mov rcx, rdx",
        "xor ebp, ebp",
        "xor r8d, r8d",
        "xor r9d, r9d",
        "xor r10d, r10d",
        "xor r11d, r11d",
        "xor r12d, r12d",
        "xor r13d, r13d",
        "xor r14d, r14d",
        "xor r15d, r15d",
        ".p2align 5",
        "2:",
        row!("0", "r8" "r9" "r10" "r11" "r12" "r13" "r14" "r15"),
        row!("8", "r9" "r10" "r11" "r12" "r13" "r14" "r15" "r8"),
        row!("16", "r10" "r11" "r12" "r13" "r14" "r15" "r8" "r9"),
        row!("24", "r11" "r12" "r13" "r14" "r15" "r8" "r9" "r10"),
        row!("32", "r12" "r13" "r14" "r15" "r8" "r9" "r10" "r11"),
        row!("40", "r13" "r14" "r15" "r8" "r9" "r10" "r11" "r12"),
        row!("48", "r14" "r15" "r8" "r9" "r10" "r11" "r12" "r13"),
        row!("56", "r15" "r8" "r9" "r10" "r11" "r12" "r13" "r14"),
        "add rdi, 64",
        "add rcx, 64",
        "dec qword ptr [rsp]",
        "jnz 2b",
        "pop rcx",
        "pop rax",
        "neg rax",
        "adc r8, [rdi]",
        "mov [rdi], r8",
        "adc r9, [rdi + 8]",
        "mov [rdi + 8], r9",
        "adc r10, [rdi + 16]",
        "mov [rdi + 16], r10",
        "adc r11, [rdi + 24]",
        "mov [rdi + 24], r11",
        "adc r12, [rdi + 32]",
        "mov [rdi + 32], r12",
        "adc r13, [rdi + 40]",
        "mov [rdi + 40], r13",
        "adc r14, [rdi + 48]",
        "mov [rdi + 48], r14",
        "adc r15, [rdi + 56]",
        "mov [rdi + 56], r15",
        "mov eax, 0",
        "adc eax, 0",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}
