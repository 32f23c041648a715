//! Montgomery multiplication with the instructions MULX, ADCX and ADOX, on blocks of eight 64-bit limbs.
//!
//! The only primitive is [`sweep`], which adds the product of a block and a long number to a sum. The reduction works
//! like the reduction of [`super::simd`]'s kernels. With `k = -n^-1 mod 2^512`, the product `k n` is -1 modulo 2^512.
//! Adding `q k n` therefore clears a sum's lowest block q, and no multiplication is needed to find q. Only for the last
//! block is the quotient `q k mod 2^512`, and a multiple of n is added. With `R = 2^(64 L)` for L limbs, the result for
//! a sum T is below `T / R + 2 n`: here below 3 n, since T is below `n R`.

use std::arch::naked_asm;

use zeroize::{Zeroize, ZeroizeOnDrop};

use super::modulus::{LIMBS_MAX, subtract};

cpufeatures::new!(has_adx, "bmi2", "adx");

/// Limbs in a block.
const BLOCK: usize = 8;

/// A modulus n that consists of whole blocks, prepared for this CPU.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub(super) struct Adx {
    n: Box<[u64]>,
    /// `k = -n^-1 mod 2^512`.
    k: [u64; BLOCK],
    /// `m = (k n + 1) / 2^512`.
    m: Box<[u64]>,
}

impl Adx {
    /// Returns `None` if this CPU has no BMI2 or ADX, or the modulus does not consist of whole blocks. `n0` is
    /// `-n^-1 mod 2^64`.
    pub(super) fn new(n: &[u64], n0: u64) -> Option<Self> {
        if !has_adx::get() || !n.len().is_multiple_of(BLOCK) {
            return None;
        }
        // Computes k limb by limb: each limb of k is chosen so that it clears the next limb of `k n + 1`.
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

    /// `out = a b / R mod n`, all with as many limbs as the modulus; at least one of a and b must be below n.
    pub(super) fn multiply(&self, out: &mut [u64], a: &[u64], b: &[u64]) {
        let mut sum = [0; 2 * LIMBS_MAX];
        let (blocks, _) = a.as_chunks::<BLOCK>();
        for (index, block) in blocks.iter().enumerate() {
            sweep_from(&mut sum, index, block, b, false);
        }
        self.reduce(out, &mut sum);
    }

    /// `out = a^2 / R mod n`; a must be below n.
    pub(super) fn square(&self, out: &mut [u64], a: &[u64]) {
        // The code below adds the products of different blocks once and doubles their sum. With few blocks, the
        // doubling takes longer than it saves.
        if a.len() < 4 * BLOCK {
            return self.multiply(out, a, a);
        }
        let mut cross_products = [0; 2 * LIMBS_MAX];
        let mut sum = [0; 2 * LIMBS_MAX];
        let (blocks, _) = a.as_chunks::<BLOCK>();
        let mut higher_limbs = a;
        for (index, block) in blocks.iter().enumerate() {
            higher_limbs = higher_limbs.get(BLOCK..).unwrap_or_default();
            sweep_from(&mut cross_products, 2 * index + 1, block, higher_limbs, false);
            sweep_from(&mut sum, 2 * index, block, block, false);
        }
        add_double(&mut sum, &cross_products, 2 * blocks.len());
        self.reduce(out, &mut sum);
    }

    /// `out = sum / R mod n`, for a sum below `n R`.
    fn reduce(&self, out: &mut [u64], sum: &mut [u64; 2 * LIMBS_MAX]) {
        let blocks = self.n.len() / BLOCK;
        let mut carry = false;
        for index in 1..blocks {
            let Some(quotient) = copy_block(sum, index - 1) else {
                return;
            };
            carry = sweep_from(sum, index, &quotient, &self.m, carry);
        }
        let Some(low) = copy_block(sum, blocks - 1) else {
            return;
        };
        let last_carry = sweep_from(sum, blocks - 1, &multiply_low(&low, &self.k), &self.n, false);
        let Some(high) = sum.get_mut(self.n.len()..2 * self.n.len()) else {
            return;
        };
        // The result is below 3 n, so two subtractions of n suffice.
        let top = subtract(out, high, &self.n, u64::from(carry) + u64::from(last_carry));
        high.copy_from_slice(out);
        subtract(out, high, &self.n, top);
    }
}

/// Copies a block of a sum; `None` if the sum has no block at the index.
fn copy_block(sum: &[u64], index: usize) -> Option<[u64; BLOCK]> {
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

/// `sum = sum + 2 number`; both numbers and the result have `blocks` blocks.
fn add_double(sum: &mut [u64], number: &[u64], blocks: usize) {
    let (mut carry, mut shifted_out) = (false, 0);
    let ((sum_blocks, _), (number_blocks, _)) = (sum.as_chunks_mut::<BLOCK>(), number.as_chunks::<BLOCK>());
    for (sum_block, number_block) in sum_blocks.iter_mut().zip(number_blocks).take(blocks) {
        for (sum, limb) in sum_block.iter_mut().zip(number_block) {
            (*sum, carry) = sum.carrying_add(limb << 1 | shifted_out, carry);
            shifted_out = limb >> 63;
        }
    }
}

/// Adds `block number + carry 2^(64 l)` to the part of the sum that begins at `first_block`, where l is the number's
/// count of limbs. The addition changes the l limbs from there on and the block above them. Returns the carry out of
/// that block.
fn sweep_from(
    sum: &mut [u64; 2 * LIMBS_MAX],
    first_block: usize,
    block: &[u64; BLOCK],
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
    unsafe { sweep(sum.as_mut_ptr(), block, number.as_ptr(), blocks, u64::from(carry)) != 0 }
}

/// One row of a tile: adds two values to the eight limbs in registers, namely one limb of the sum, and the product of
/// one limb of `block` and eight limbs of the number. The lowest limb is then complete, and its register takes the
/// ninth limb: the result fits, since `(2^512 - 1) + (2^64 - 1) (2^512 - 1) + 2^64 - 1 = 2^576 - 1`.
///
/// The carries of low halves are in CF, the carries of high halves in OF; rbp is zero. Both TEST and XOR clear these
/// flags. The macro uses TEST, because TEST must wait for the previous row: on Zen 4, rows that start as early as
/// possible compete for execution units, and the multiplication takes 20 % longer.
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

/// `sum[0..8 blocks + 8] += block[0..8] number[0..8 blocks] + carry 2^(512 blocks)`. Returns the carry, 0 or 1.
///
/// A tile is the product of 8 by 8 limbs. r8 to r15 hold the limbs that one tile passes to the next tile.
///
/// # Safety
/// The CPU has BMI2 and ADX; there is at least one block, and the sum has one block more than the number.
#[unsafe(naked)]
unsafe extern "sysv64" fn sweep(
    sum: *mut u64,
    block: &[u64; BLOCK],
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
