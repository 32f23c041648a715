//! Words in 256-bit registers, multiplied by the double-precision units of AVX2 and FMA.
//!
//! A product of two words has up to 104 bits, and a double has 53 bits: two fused multiplications give both halves
//! exactly (Emmart and others, *Faster modular exponentiation using double precision floating point arithmetic on the
//! GPU*, ARITH 2018, here for rounding to nearest). With `a b = r 2^52 + l`, `|l| <= 2^51`:
//!
//! * `high = fma(a, b, 2^104) = 2^104 + r 2^52`: between 2^104 and 2^105 doubles are 2^52 apart. Its bit pattern, read as an integer, is that
//!   of 2^104 plus r.
//! * `anchor = (2^104 - 1.5 2^52) - high = -(2 r + 3) 2^51` is exact: `r <= 2^52 - 2` for the greatest product, `(2^52 - 1)^2`, so that
//!   `2 r + 3 < 2^53`.
//! * `low = fma(a, b, anchor) = l - 1.5 2^52` is exact: between -2^53 and -2^52 doubles are 1 apart. Its bit pattern is that of -1.5 2^52 minus
//!   l.
//!
//! A sum of halves is therefore a sum of bit patterns minus constants. The initial value of an accumulator contains
//! these constants, so a product costs only two fused multiplications, a subtraction and two integer additions. If the
//! low half is negative, the high half is one too high.
//!
//! Sums are modulo 2^64, and the code reads the final sums as signed numbers: more than 2^10 halves fit, since |l| and
//! r are at most 2^52. The rounding mode is Rust's default.

use core::arch::x86_64::{
    __m256d, __m256i, _mm_cvtsi32_si128, _mm256_add_epi64, _mm256_add_pd, _mm256_and_pd, _mm256_and_si256,
    _mm256_castpd_si256, _mm256_castsi256_pd, _mm256_cmpeq_epi64, _mm256_fmadd_pd, _mm256_or_pd,
    _mm256_or_si256, _mm256_permute2x128_si256, _mm256_set1_epi64x, _mm256_set1_pd, _mm256_sll_epi64,
    _mm256_srl_epi64, _mm256_sub_epi64, _mm256_sub_pd, _mm256_unpackhi_epi64, _mm256_unpacklo_epi64,
    _mm256_xor_si256,
};
use core::mem::transmute;

use super::{LANES, Register, WORD_BITS, WordVector};

/// 2^52.
const WORD: f64 = (1u64 << WORD_BITS) as f64;
/// 2^104: see above.
const HIGH: f64 = WORD * WORD;
/// 1.5 2^52: see above.
const LOW: f64 = 1.5 * WORD;

/// Four words in one register. Only code that runs on a CPU with AVX2 and FMA uses this type.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Half(__m256i);

/// Eight words. Only code that runs on a CPU with AVX2 and FMA uses this type.
#[derive(Clone, Copy)]
pub(crate) struct Fma([Half; 2]);

// SAFETY of each block marked "see above": code uses these types only if the CPU has the instructions.
impl Half {
    #[inline(always)]
    fn load(words: [u64; 4]) -> Self {
        // SAFETY: both types have 32 bytes, and any bit pattern is valid.
        Self(unsafe { transmute::<[u64; 4], __m256i>(words) })
    }
    #[inline(always)]
    fn store(self) -> [u64; 4] {
        // SAFETY: both types have 32 bytes, and any bit pattern is valid.
        unsafe { transmute::<__m256i, [u64; 4]>(self.0) }
    }
    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_xor_si256(self.0, other.0) })
    }
    #[inline(always)]
    fn shl<const BITS: u32>(self) -> Self {
        // A constant count becomes an immediate operand.
        self.shl_by(BITS)
    }
    #[inline(always)]
    fn shr<const BITS: u32>(self) -> Self {
        self.shr_by(BITS)
    }
    #[inline(always)]
    fn equal(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_cmpeq_epi64(self.0, other.0) })
    }
    /// `high` and `low` from the module documentation, as bit patterns.
    #[inline(always)]
    fn halves(a: __m256d, b: __m256d) -> (Self, Self) {
        // SAFETY: see above.
        unsafe {
            let high = _mm256_fmadd_pd(a, b, _mm256_set1_pd(HIGH));
            let anchor = _mm256_sub_pd(_mm256_set1_pd(HIGH - LOW), high);
            let low = _mm256_fmadd_pd(a, b, anchor);
            (Self(_mm256_castpd_si256(high)), Self(_mm256_castpd_si256(low)))
        }
    }
    #[inline(always)]
    fn mul_low(a: __m256d, b: __m256d) -> Self {
        let (_, low) = Self::halves(a, b);
        Self::splat(Self::START_LOW).sub(low).low()
    }
}

impl Register for Half {
    const LANES: usize = 4;
    type Factor = __m256d;
    const START_LOW: u64 = (-LOW).to_bits();
    const START_HIGH: u64 = HIGH.to_bits().wrapping_neg();
    const TILES: bool = false;

    #[inline(always)]
    fn splat(word: u64) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_set1_epi64x(word.cast_signed()) })
    }
    #[inline(always)]
    fn columns(rows: &[&[u64; LANES]]) -> [Self; LANES] {
        let mut squares = [[Self::splat(0); 4]; 2];
        for (square, first) in squares.iter_mut().zip([0, 4]) {
            for (half, row) in square.iter_mut().zip(rows) {
                let words = row.get(first..).and_then(<[u64]>::first_chunk);
                *half = Self::load(words.copied().unwrap_or_default());
            }
            // SAFETY: see above.
            *square = unsafe { transpose(*square) };
        }
        let [[a, b, c, d], [e, f, g, h]] = squares;
        [a, b, c, d, e, f, g, h]
    }
    #[inline(always)]
    fn rows(columns: &[Self; LANES]) -> [[u64; LANES]; LANES] {
        let [a, b, c, d, e, f, g, h] = *columns;
        // SAFETY: see above.
        let (left, right) = unsafe { (transpose([a, b, c, d]), transpose([e, f, g, h])) };
        let mut rows = [[0; LANES]; LANES];
        for ((row, left), right) in rows.iter_mut().zip(left).zip(right) {
            let ([a, b, c, d], [e, f, g, h]) = (left.store(), right.store());
            *row = [a, b, c, d, e, f, g, h];
        }
        rows
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_add_epi64(self.0, other.0) })
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_sub_epi64(self.0, other.0) })
    }
    #[inline(always)]
    fn and(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_and_si256(self.0, other.0) })
    }
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_or_si256(self.0, other.0) })
    }
    #[inline(always)]
    fn shl_by(self, bits: u32) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_sll_epi64(self.0, _mm_cvtsi32_si128(bits.cast_signed())) })
    }
    #[inline(always)]
    fn shr_by(self, bits: u32) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_srl_epi64(self.0, _mm_cvtsi32_si128(bits.cast_signed())) })
    }
    #[inline(always)]
    fn carry(self) -> Self {
        // AVX2 has no signed right shift of 64-bit words. The code therefore makes the value positive, shifts, and
        // corrects the result.
        let bias = Self::splat(1 << 63);
        self.xor(bias).shr::<WORD_BITS>().sub(bias.shr::<WORD_BITS>())
    }

    #[inline(always)]
    fn factor(self) -> __m256d {
        // SAFETY: see above. Below 2^52 a word is the fraction of a double from 2^52 to 2^53.
        unsafe {
            let anchor = _mm256_set1_pd(WORD);
            let anchored = _mm256_or_si256(self.0, _mm256_castpd_si256(anchor));
            _mm256_sub_pd(_mm256_castsi256_pd(anchored), anchor)
        }
    }
    #[inline(always)]
    fn word(factor: __m256d) -> Self {
        // SAFETY: see above. The inverse of `factor`.
        unsafe {
            let anchor = _mm256_set1_pd(WORD);
            let anchored = _mm256_castpd_si256(_mm256_add_pd(factor, anchor));
            Self(_mm256_xor_si256(anchored, _mm256_castpd_si256(anchor)))
        }
    }
    #[inline(always)]
    fn merge(a: __m256d, b: __m256d, mask: Self) -> __m256d {
        // SAFETY: see above.
        unsafe { _mm256_or_pd(a, _mm256_and_pd(b, _mm256_castsi256_pd(mask.0))) }
    }
    #[inline(always)]
    fn madd(low: &mut Self, high: &mut Self, a: __m256d, b: __m256d) {
        let (high_half, low_half) = Self::halves(a, b);
        *low = low.sub(low_half);
        *high = high.add(high_half);
    }
    #[inline(always)]
    fn column(low: &mut Self, block: &[__m256d; 5], digits: &[__m256d; 5]) -> Self {
        // SAFETY: see above.
        unsafe { column(low, block, digits) }
    }
}

/// Transposes 4 rows of 4 words.
///
/// # Safety
/// The CPU has AVX2. (Not enforced by `target_feature`, which does not guarantee inlining.)
#[inline(always)]
unsafe fn transpose(rows: [Half; 4]) -> [Half; 4] {
    // The first halves of both operands, or the second halves.
    const FIRST: i32 = 0x20;
    const SECOND: i32 = 0x31;
    let [Half(a), Half(b), Half(c), Half(d)] = rows;
    // SAFETY: guaranteed by the caller.
    unsafe {
        let (ab02, ab13) = (_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
        let (cd02, cd13) = (_mm256_unpacklo_epi64(c, d), _mm256_unpackhi_epi64(c, d));
        [
            Half(_mm256_permute2x128_si256::<FIRST>(ab02, cd02)),
            Half(_mm256_permute2x128_si256::<FIRST>(ab13, cd13)),
            Half(_mm256_permute2x128_si256::<SECOND>(ab02, cd02)),
            Half(_mm256_permute2x128_si256::<SECOND>(ab13, cd13)),
        ]
    }
}

/// [`Register::column`] in assembly.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn column(low: &mut Half, block: &[__m256d; 5], digits: &[__m256d; 5]) -> Half {
    let high: __m256i;
    // SAFETY: the assembly reads only the two arrays and the constants, and writes only registers.
    unsafe {
        std::arch::asm!(
            "vmovapd {h}, [{d} + 128]",
            "vfmadd213pd {h}, {r0}, {c}",
            "vsubpd {x}, {a}, {h}",
            "vfmadd231pd {x}, {r0}, [{d} + 128]",
            "vpsubq {l}, {l}, {x}",
            "vmovapd {y}, [{d} + 96]",
            "vfmadd213pd {y}, {r1}, {c}",
            "vsubpd {x}, {a}, {y}",
            "vfmadd231pd {x}, {r1}, [{d} + 96]",
            "vpaddq {h}, {h}, {y}",
            "vpsubq {l}, {l}, {x}",
            "vmovapd {y}, [{d} + 64]",
            "vfmadd213pd {y}, {r2}, {c}",
            "vsubpd {x}, {a}, {y}",
            "vfmadd231pd {x}, {r2}, [{d} + 64]",
            "vpaddq {h}, {h}, {y}",
            "vpsubq {l}, {l}, {x}",
            "vmovapd {y}, [{d} + 32]",
            "vfmadd213pd {y}, {r3}, {c}",
            "vsubpd {x}, {a}, {y}",
            "vfmadd231pd {x}, {r3}, [{d} + 32]",
            "vpaddq {h}, {h}, {y}",
            "vpsubq {l}, {l}, {x}",
            "vmovapd {y}, [{d}]",
            "vfmadd213pd {y}, {r4}, {c}",
            "vsubpd {x}, {a}, {y}",
            "vfmadd231pd {x}, {r4}, [{d}]",
            "vpaddq {h}, {h}, {y}",
            "vpsubq {l}, {l}, {x}",
            d = in(reg) digits.as_ptr(),
            c = in(ymm_reg) _mm256_set1_pd(HIGH),
            a = in(ymm_reg) _mm256_set1_pd(HIGH - LOW),
            r0 = in(ymm_reg) block[0],
            r1 = in(ymm_reg) block[1],
            r2 = in(ymm_reg) block[2],
            r3 = in(ymm_reg) block[3],
            r4 = in(ymm_reg) block[4],
            l = inout(ymm_reg) low.0,
            h = out(ymm_reg) high,
            x = out(ymm_reg) _,
            y = out(ymm_reg) _,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    Half(high)
}

impl Fma {
    #[inline(always)]
    fn map(self, f: impl Fn(Half) -> Half) -> Self {
        let [a, b] = self.0;
        Self([f(a), f(b)])
    }
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(Half, Half) -> Half) -> Self {
        let ([a, b], [c, d]) = (self.0, other.0);
        Self([f(a, c), f(b, d)])
    }
}

impl WordVector for Fma {
    type Factor = [__m256d; 2];
    type Register = Half;
    const START_LOW: u64 = Half::START_LOW;
    const START_HIGH: u64 = Half::START_HIGH;

    #[inline(always)]
    fn splat(word: u64) -> Self {
        Self([Half::splat(word); 2])
    }
    #[inline(always)]
    fn load([a, b, c, d, e, f, g, h]: [u64; LANES]) -> Self {
        Self([Half::load([a, b, c, d]), Half::load([e, f, g, h])])
    }
    #[inline(always)]
    fn store(self) -> [u64; LANES] {
        let ([a, b, c, d], [e, f, g, h]) = (self.0[0].store(), self.0[1].store());
        [a, b, c, d, e, f, g, h]
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, Half::add)
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, Half::sub)
    }
    #[inline(always)]
    fn and(self, other: Self) -> Self {
        self.zip(other, Half::and)
    }
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        self.zip(other, Half::or)
    }
    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        self.zip(other, Half::xor)
    }
    #[inline(always)]
    fn shl<const BITS: u32>(self) -> Self {
        self.map(Half::shl::<BITS>)
    }
    #[inline(always)]
    fn shr<const BITS: u32>(self) -> Self {
        self.map(Half::shr::<BITS>)
    }
    #[inline(always)]
    fn shl_by(self, bits: u32) -> Self {
        let [a, b] = self.0;
        Self([a.shl_by(bits), b.shl_by(bits)])
    }
    #[inline(always)]
    fn shr_by(self, bits: u32) -> Self {
        let [a, b] = self.0;
        Self([a.shr_by(bits), b.shr_by(bits)])
    }
    #[inline(always)]
    fn equal(self, other: Self) -> Self {
        self.zip(other, Half::equal)
    }
    #[inline(always)]
    fn carry(self) -> Self {
        self.map(Half::carry)
    }

    #[inline(always)]
    fn factor(self) -> Self::Factor {
        [self.0[0].factor(), self.0[1].factor()]
    }
    #[inline(always)]
    fn word(factor: Self::Factor) -> Self {
        Self([Half::word(factor[0]), Half::word(factor[1])])
    }
    #[inline(always)]
    fn merge(a: Self::Factor, b: Self::Factor, mask: Self) -> Self::Factor {
        let ([a_0, a_1], [b_0, b_1], [mask_0, mask_1]) = (a, b, mask.0);
        [Half::merge(a_0, b_0, mask_0), Half::merge(a_1, b_1, mask_1)]
    }
    #[inline(always)]
    fn madd(low: &mut Self, high: &mut Self, a: Self::Factor, b: Self::Factor) {
        let ([low_0, low_1], [high_0, high_1]) = (&mut low.0, &mut high.0);
        let ([a_0, a_1], [b_0, b_1]) = (a, b);
        Half::madd(low_0, high_0, a_0, b_0);
        Half::madd(low_1, high_1, a_1, b_1);
    }
    #[inline(always)]
    fn mul_low(a: Self::Factor, b: Self::Factor) -> Self {
        let ([a_0, a_1], [b_0, b_1]) = (a, b);
        Self([Half::mul_low(a_0, b_0), Half::mul_low(a_1, b_1)])
    }
    #[inline(always)]
    fn columns(rows: [&[u64; LANES]; LANES]) -> [Self; LANES] {
        let [a, b, c, d, e, f, g, h] = rows;
        let (left, right) = (Half::columns(&[a, b, c, d]), Half::columns(&[e, f, g, h]));
        let mut columns = [<Self as WordVector>::splat(0); LANES];
        for ((column, left), right) in columns.iter_mut().zip(left).zip(right) {
            *column = Self([left, right]);
        }
        columns
    }
    #[inline(always)]
    fn rows(columns: [Self; LANES]) -> [[u64; LANES]; LANES] {
        let mut halves = [[Half::splat(0); LANES]; 2];
        let [left, right] = &mut halves;
        for ((left, right), column) in left.iter_mut().zip(right).zip(columns) {
            [*left, *right] = column.0;
        }
        let [[a, b, c, d, ..], [e, f, g, h, ..]] = [Half::rows(&halves[0]), Half::rows(&halves[1])];
        [a, b, c, d, e, f, g, h]
    }
}
