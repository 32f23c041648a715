//! The private key: the operation by the Chinese remainder theorem, for single numbers and for eight at a time.
#![allow(clippy::indexing_slicing)] // Each array has space for the longest number.

use zeroize::Zeroizing;

use super::batch::power_equals_product;
use super::blinding::{BLINDING_BYTES, Blinding, Pair, expand};
use super::public::{LIMBS_MAX, WIDE_LIMBS_MAX};
use super::{KeyError, RsaError, RsaPublic, Size};
use crate::modulus::accumulate;
use crate::simd::group::{ModulusGroup, PreparedModulus, factors, read_long, words, zero};
use crate::simd::row::{Row, WORDS_MAX};
use crate::simd::{Backend, BackendTask, Kernels, LANES, WordVector};
use crate::stack::run_and_wipe_stack;
use crate::{Modulus, limbs};

/// Maximum limbs of a prime factor.
const HALF_MAX: usize = LIMBS_MAX / 2;
/// Bits of the exponent per window, for single numbers.
const WINDOW: usize = 5;
/// Bound of the stack usage of an operation, for single numbers or eight at a time (`tests/residue.rs` measures the
/// usage).
const STACK_BYTES: usize = 256 << 10;

/// An RSA private key of 2,048 or 3,072 bits, e = 65537.
///
/// Operations run in constant time, with constant memory addresses, and are blinded; each result is checked with e before it is returned,
/// since a wrong result reveals the key (Boneh, DeMillo and Lipton, 1997). The key is wiped when dropped, and the stack
/// and the vector registers after each operation.
pub struct RsaPrivate(
    /// In a box, since moving the key itself would leave copies of its bytes in memory.
    Box<Key>,
);

struct Key {
    public: RsaPublic,
    p: Prime,
    q: Prime,
    /// `q^-1 mod p`, in limbs.
    qinv: Zeroizing<[u64; HALF_MAX]>,
    /// `q^-1 mod p`, in rows of words.
    qinv_rows: Zeroizing<[Row; WORDS_MAX / 8]>,
    /// `R^2 mod p` in rows of words, where R is the radix of batches modulo p.
    r2_p: Zeroizing<[Row; WORDS_MAX / 8]>,
    blinding: Blinding,
}

/// A prime factor.
struct Prime {
    modulus: Modulus,
    /// Prepared with `R^5`, where R is the prime's radix. n's reduction divides by `R^2`, the prime's reduction by R;
    /// the conversion then multiplies by `R^5 / R = R^4`, so the result is in Montgomery form.
    prepared: Box<PreparedModulus>,
    /// `d mod (prime - 1)`.
    exponent: Zeroizing<[u64; HALF_MAX]>,
}

impl std::fmt::Debug for RsaPrivate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RsaPrivate({:?})", self.0.public.size())
    }
}

impl RsaPrivate {
    /// Creates a key from the prime factors p and q, each half as long as n, `d mod (p - 1)`, `d mod (q - 1)` and
    /// `q^-1 mod p`; all big-endian, none longer than a prime factor. `random` is for blinding: secret, and different
    /// for each key.
    ///
    /// # Errors
    /// Numbers of other lengths; factors that are even, or equal, or whose topmost bit is clear; inconsistent numbers.
    pub fn new(
        p: &[u8],
        q: &[u8],
        dp: &[u8],
        dq: &[u8],
        qinv: &[u8],
        random: &[u8; BLINDING_BYTES],
    ) -> Result<Self, KeyError> {
        let key = run_and_wipe_stack::<STACK_BYTES, _>(|| {
            Key::from_numbers([p, q, dp, dq, qinv], random).map(Box::new)
        })?;
        Ok(Self(key))
    }

    /// The public key.
    #[must_use]
    pub fn public(&self) -> &RsaPublic {
        &self.0.public
    }

    /// Emulates a hardware fault, for tests: flips one bit of `d mod (p - 1)`, if the bit exists.
    #[doc(hidden)]
    pub fn flip_bit_of_dp(&mut self, bit: usize) {
        if let Some(limb) = self.0.p.exponent.get_mut(bit / 64) {
            *limb ^= 1 << (bit % 64);
        }
    }

    /// p, q, `d mod (p - 1)`, `d mod (q - 1)` and `q^-1 mod p`; big-endian, each as long as a prime factor.
    #[must_use]
    pub fn numbers(&self) -> [Zeroizing<Vec<u8>>; 5] {
        let key = &*self.0;
        let half = key.p.modulus.len();
        let numbers = [
            key.p.modulus.limbs(),
            key.q.modulus.limbs(),
            &key.p.exponent[..half],
            &key.q.exponent[..half],
            &key.qinv[..half],
        ];
        numbers.map(|number| {
            let mut bytes = Zeroizing::new(vec![0; 8 * half]);
            limbs::to_be(&mut bytes, number);
            bytes
        })
    }

    /// `out = number^d mod n`, for a number of at most [`Size::wide_bytes`] bytes.
    ///
    /// # Errors
    /// A longer number, or an output whose length differs from n's; [`RsaError::CheckFailed`] if the check of the
    /// result failed, with an output of zeros.
    pub fn power(&self, out: &mut [u8], number: &[u8]) -> Result<(), RsaError> {
        let size = self.0.public.size();
        if out.len() != size.bytes() || number.len() > size.wide_bytes() {
            return Err(RsaError::Length);
        }
        run_and_wipe_stack::<STACK_BYTES, _>(|| self.0.blinded_power(out, number))
    }

    /// [`RsaPrivate::power`] for eight numbers.
    ///
    /// # Errors
    /// As for [`RsaPrivate::power`]; if one check fails, all outputs are zeros.
    pub fn power_batch(
        &self,
        backend: Backend,
        numbers: [&[u8]; 8],
        mut outputs: [&mut [u8]; 8],
    ) -> Result<(), RsaError> {
        let size = self.0.public.size();
        if outputs.iter().any(|output| output.len() != size.bytes())
            || numbers.iter().any(|number| number.len() > size.wide_bytes())
        {
            return Err(RsaError::Length);
        }
        let key = &*self.0;
        let roots = outputs.each_mut().map(|output| &mut **output);
        let all_passed = run_and_wipe_stack::<STACK_BYTES, _>(|| match size {
            Size::Bits2048 => backend.run(PowerBatch::<8, 4> { key, numbers, roots }),
            Size::Bits3072 => backend.run(PowerBatch::<12, 6> { key, numbers, roots }),
        });
        if all_passed {
            return Ok(());
        }
        for output in &mut outputs {
            output.fill(0);
        }
        Err(RsaError::CheckFailed)
    }
}

impl Key {
    fn from_numbers(
        [p, q, dp, dq, qinv]: [&[u8]; 5],
        random: &[u8; BLINDING_BYTES],
    ) -> Result<Self, KeyError> {
        let size = Size::from_bytes(2 * p.len()).ok_or(KeyError::Length)?;
        if q.len() != p.len() || [dp, dq, qinv].iter().any(|part| part.len() > p.len()) {
            return Err(KeyError::Length);
        }
        let (p, q) = (Prime::new(size, p, dp)?, Prime::new(size, q, dq)?);
        if p.modulus == q.modulus {
            return Err(KeyError::Inconsistent);
        }
        let half = p.modulus.len();
        let mut inverse = Zeroizing::new([0; HALF_MAX]);
        limbs::from_be(&mut inverse[..], qinv);
        if !p.modulus.is_above(&inverse[..half]) {
            return Err(KeyError::Inconsistent);
        }
        let mut n = [0; LIMBS_MAX + 1];
        for (index, digit) in p.modulus.limbs().iter().enumerate() {
            accumulate(&mut n[index..], q.modulus.limbs(), *digit);
        }
        let mut bytes = vec![0; size.bytes()];
        limbs::to_be(&mut bytes, &n);
        let mut key = Self {
            public: RsaPublic::new(&bytes)?,
            qinv_rows: Zeroizing::default(),
            r2_p: Zeroizing::default(),
            qinv: inverse,
            p,
            q,
            blinding: Blinding::new(Zeroizing::new([[0; LIMBS_MAX]; 2])),
        };
        Row::fill(&mut key.qinv_rows[..], &key.qinv[..]);
        // The radix modulo n is the square of the radix modulo a prime factor.
        let r2_p = Zeroizing::new(key.p.modulus.power_of_two(size.radix_bits()));
        Row::fill(&mut key.r2_p[..], &r2_p);
        key.blinding = Blinding::new(key.blinding_pair(random)?);
        // One operation shows whether the numbers are consistent: e must be the inverse of both exponents, and qinv the
        // inverse of q.
        let mut out = vec![0; size.bytes()];
        match key.blinded_power(&mut out, &[2]) {
            Ok(()) => Ok(key),
            Err(_) => Err(KeyError::Inconsistent),
        }
    }

    /// `r^e` and `r^-1` for an r derived from random bytes.
    fn blinding_pair(&self, random: &[u8; BLINDING_BYTES]) -> Result<Pair, KeyError> {
        let n = self.public.modulus();
        let length = n.len();
        let mut wide = Zeroizing::new([0; 8 * WIDE_LIMBS_MAX]);
        expand(random, &mut wide[..self.public.size().wide_bytes()]);
        let r = Zeroizing::new(self.public.reduce(&wide[..self.public.size().wide_bytes()]));
        let residue_p = self.p.power(&r[..length], &self.p.less_two()[..]);
        let residue_q = self.q.power(&r[..length], &self.q.less_two()[..]);
        let mut inverse = Zeroizing::new([0; LIMBS_MAX + 1]);
        self.combine_forms(&mut inverse, &residue_p, &residue_q);
        let mut pair: Pair = Zeroizing::new([[0; LIMBS_MAX]; 2]);
        let mut power = r.clone();
        self.public.power_limbs(&mut power);
        let [power_form, inverse_form] = &mut *pair;
        n.to_montgomery(&mut power_form[..length], &power[..length]);
        n.to_montgomery(&mut inverse_form[..length], &inverse[..length]);
        // If p or q is not prime, r may have no inverse, or the computed number may differ from the inverse.
        let mut one = Zeroizing::new([0; LIMBS_MAX]);
        n.mul(&mut one[..length], &r[..length], &inverse_form[..length]);
        match one[0] == 1 && one[1..].iter().all(|limb| *limb == 0) {
            true => Ok(pair),
            false => Err(KeyError::Inconsistent),
        }
    }

    /// [`RsaPrivate::power`] for numbers of valid lengths.
    fn blinded_power(&self, out: &mut [u8], number: &[u8]) -> Result<(), RsaError> {
        let n = self.public.modulus();
        let length = n.len();
        let number = self.public.reduce(number);
        let pair = self.blinding.next_pair(n);
        let [power_form, inverse_form] = &*pair;
        let mut blinded = Zeroizing::new([0; LIMBS_MAX]);
        n.mul(&mut blinded[..length], &number[..length], &power_form[..length]);
        let residue_p = self.p.power(&blinded[..length], &self.p.exponent[..]);
        let residue_q = self.q.power(&blinded[..length], &self.q.exponent[..]);
        let mut blinded = Zeroizing::new([0; LIMBS_MAX + 1]);
        self.combine_forms(&mut blinded, &residue_p, &residue_q);
        let mut root = Zeroizing::new([0; LIMBS_MAX]);
        n.mul(&mut root[..length], &blinded[..length], &inverse_form[..length]);
        let mut power = *root;
        self.public.power_limbs(&mut power);
        if std::hint::black_box(power) != number {
            out.fill(0);
            return Err(RsaError::CheckFailed);
        }
        limbs::to_be(out, &root[..length]);
        Ok(())
    }

    /// Writes to `out` the number modulo n with these residues modulo p and q; both residues are in Montgomery form.
    fn combine_forms(
        &self,
        out: &mut [u64; LIMBS_MAX + 1],
        form_p: &[u64; HALF_MAX],
        form_q: &[u64; HALF_MAX],
    ) {
        let half = self.p.modulus.len();
        let mut residue_q = Zeroizing::new([0; HALF_MAX]);
        self.q
            .modulus
            .from_montgomery(&mut residue_q[..half], &form_q[..half]);
        self.combine(out, form_p, &residue_q);
    }

    /// `out = q ((sp - sq) / q mod p) + sq` (Garner). sp is the residue modulo p, in Montgomery form (`form_p`); sq is
    /// the residue modulo q (`residue_q`), and may exceed p.
    fn combine(&self, out: &mut [u64; LIMBS_MAX + 1], form_p: &[u64; HALF_MAX], residue_q: &[u64; HALF_MAX]) {
        let (p, q) = (&self.p.modulus, &self.q.modulus);
        let half = p.len();
        let mut quotient = Zeroizing::new([[0; HALF_MAX]; 2]);
        let [difference, quotient] = &mut *quotient;
        let (difference, quotient) = (&mut difference[..half], &mut quotient[..half]);
        p.to_montgomery(quotient, &residue_q[..half]);
        difference.copy_from_slice(&form_p[..half]);
        p.sub(difference, quotient);
        p.mul(quotient, difference, &self.qinv[..half]);
        out.fill(0);
        out[..half].copy_from_slice(&residue_q[..half]);
        for (index, digit) in quotient.iter().enumerate() {
            accumulate(&mut out[index..], q.limbs(), *digit);
        }
    }
}

impl Prime {
    fn new(size: Size, prime: &[u8], exponent: &[u8]) -> Result<Self, KeyError> {
        let mut number = Zeroizing::new([0; HALF_MAX]);
        limbs::from_be(&mut number[..], prime);
        let modulus = Modulus::new(&number[..size.limbs() / 2])?;
        let mut exponent_limbs = Zeroizing::new([0; HALF_MAX]);
        limbs::from_be(&mut exponent_limbs[..], exponent);
        Ok(Self {
            prepared: PreparedModulus::new(&modulus, size.blocks() / 2, 5),
            modulus,
            exponent: exponent_limbs,
        })
    }

    /// The prime minus two: the exponent that computes inverses modulo the prime.
    fn less_two(&self) -> Zeroizing<[u64; HALF_MAX]> {
        let mut difference = Zeroizing::new([0; HALF_MAX]);
        let (mut subtrahend, mut borrow) = (2, false);
        for (difference, limb) in difference.iter_mut().zip(self.modulus.limbs()) {
            (*difference, borrow) = limb.borrowing_sub(subtrahend, borrow);
            subtrahend = 0;
        }
        difference
    }

    /// `number^exponent` in Montgomery form, for a number of twice the prime's length.
    fn power(&self, number: &[u64], exponent: &[u64]) -> Zeroizing<[u64; HALF_MAX]> {
        let n = &self.modulus;
        let length = n.len();
        let mut table = Zeroizing::new([[0; HALF_MAX]; 1 << WINDOW]);
        let mut base = Zeroizing::new([0; HALF_MAX]);
        let (low, high) = number.split_at(length);
        n.reduce_wide(&mut base[..length], low, high);
        table[0][..length].copy_from_slice(n.one());
        for index in 1..1 << WINDOW {
            let (computed, remaining) = table.split_at_mut(index);
            n.mul(
                &mut remaining[0][..length],
                &computed[index - 1][..length],
                &base[..length],
            );
        }
        let mut power = Zeroizing::new([0; HALF_MAX]);
        let mut scratch = Zeroizing::new([0; HALF_MAX]);
        let mut bit = (64 * length).div_ceil(WINDOW) * WINDOW;
        power[..length].copy_from_slice(n.one());
        while let Some(next) = bit.checked_sub(WINDOW) {
            bit = next;
            for _ in 0..WINDOW {
                n.square(&mut scratch[..length], &power[..length]);
                std::mem::swap(&mut power, &mut scratch);
            }
            let entry = select_constant_time(&table, limbs::digit(exponent, bit, WINDOW));
            n.mul(&mut scratch[..length], &power[..length], &entry[..length]);
            std::mem::swap(&mut power, &mut scratch);
        }
        power
    }
}

/// The table's entry at index `number`. Reads all entries, since `number` is secret.
fn select_constant_time(table: &[[u64; HALF_MAX]; 1 << WINDOW], number: u64) -> Zeroizing<[u64; HALF_MAX]> {
    let mut out = Zeroizing::new([0; HALF_MAX]);
    for (index, entry) in (0u64..).zip(table) {
        // All ones if both numbers are equal: both are small, so their XOR minus 1 is negative only for an XOR of 0.
        let mask = ((index ^ number).wrapping_sub(1).cast_signed() >> 63).cast_unsigned();
        let mask = std::hint::black_box(mask);
        for (out, limb) in out.iter_mut().zip(entry) {
            *out |= limb & mask;
        }
    }
    out
}

/// The task of [`RsaPrivate::power_batch`] for moduli of B blocks with prime factors of P blocks. One function for both
/// sizes would have a stack frame as large as both frames together.
struct PowerBatch<'a, const B: usize, const P: usize> {
    key: &'a Key,
    numbers: [&'a [u8]; 8],
    roots: [&'a mut [u8]; 8],
}

impl<const B: usize, const P: usize> BackendTask for PowerBatch<'_, B, P> {
    /// Whether all results passed the check.
    type Output = bool;

    #[inline(always)]
    fn run<W: WordVector>(self) -> bool {
        self.run_on::<W::Register>()
    }
}

impl<const B: usize, const P: usize> PowerBatch<'_, B, P> {
    #[inline(always)]
    fn run_on<W: Kernels>(mut self) -> bool {
        let key = self.key;
        let n = ModulusGroup::<W, B>::load(&[key.public.prepared(); LANES][..W::LANES]);
        let p = ModulusGroup::<W, P>::load(&[&*key.p.prepared; LANES][..W::LANES]);
        let q = ModulusGroup::<W, P>::load(&[&*key.q.prepared; LANES][..W::LANES]);
        let qinv = read_long::<W, P>(&[&key.qinv_rows[..]], true);
        let r2_p = read_long::<W, P>(&[&key.r2_p[..]], true);
        let pair = key.blinding.next_pair(key.public.modulus());
        let [power_form, inverse_form] = pair.each_ref().map(|form| {
            let mut rows = Zeroizing::new([Row::default(); WORDS_MAX / 8]);
            key.public.rows_of_form(&mut rows[..], form);
            read_long::<W, B>(&[&rows[..]], true)
        });
        let mut all_passed = true;
        for lane in (0..LANES).step_by(W::LANES) {
            let lanes = lane..lane + W::LANES;
            let mut number = [W::splat(0); WORDS_MAX];
            W::load_be(&mut number, &self.numbers[lanes.clone()]);
            let number = n.reduce(&number);
            let mut blinded = number;
            n.multiply(&mut blinded, &power_form);
            let blinded_words = words::<W, B>(&blinded);
            let mut residues = [zero::<W, P>(); 2];
            for ((residue, group), prime) in residues.iter_mut().zip([&p, &q]).zip([&key.p, &key.q]) {
                *residue = group.reduce(&blinded_words);
                group.to_montgomery(residue);
                *residue = group.power_secret(residue, &prime.exponent[..prime.modulus.len()]);
            }
            let [residue_p, residue_q] = &residues;
            let mut root = p.combine_crt::<B>(&q, residue_p, residue_q, &qinv, &r2_p);
            n.multiply(&mut root, &inverse_form);
            let root = n.canonical(&root);
            let checks = power_equals_product(&n, &factors::<W, B>(&root), &number);
            all_passed &= checks[..W::LANES].iter().all(|passed| *passed);
            W::store_be(&mut self.roots[lanes], &root);
        }
        all_passed
    }
}

#[cfg(test)]
use crate::testing;

#[cfg(test)]
#[allow(dead_code, missing_docs, reason = "shared with the integration tests")]
#[path = "../../tests/all/keys/mod.rs"]
mod keys;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_operation_has_its_own_blinding() {
        let key = keys::private(&keys::parts(Size::Bits2048)).unwrap();
        let n = key.0.public.modulus();
        let mut seen = HashSet::new();
        for _ in 0..20 {
            let pair = key.0.blinding.next_pair(n);
            let (mut inverse, mut product) = ([0; LIMBS_MAX], [0; LIMBS_MAX]);
            n.from_montgomery(&mut inverse[..n.len()], &pair[1][..n.len()]);
            key.0.public.power_limbs(&mut inverse);
            n.mul(&mut product[..n.len()], &inverse[..n.len()], &pair[0][..n.len()]);
            assert_eq!(product[0], 1, "r^e r^-e");
            assert!(product[1..].iter().all(|limb| *limb == 0));
            assert!(seen.insert(pair[0]));
        }
    }

    /// With a pair of zeros, the check of every blinded operation fails.
    #[test]
    fn all_operations_are_blinded() {
        for size in keys::SIZES {
            let mut key = keys::private(&keys::parts(size)).unwrap();
            let operations = |key: &RsaPrivate| {
                let mut out = vec![0; size.bytes()];
                let mut results = vec![key.power(&mut out, &[3])];
                for backend in Backend::available() {
                    let mut out = vec![vec![0; size.bytes()]; LANES];
                    let mut out = out.iter_mut();
                    let out = std::array::from_fn(|_| &mut out.next().unwrap()[..]);
                    results.push(key.power_batch(backend, [&[3]; LANES], out));
                }
                results
            };
            assert!(operations(&key).iter().all(Result::is_ok));
            key.0.blinding = Blinding::new(Zeroizing::new([[0; LIMBS_MAX]; 2]));
            assert!(
                operations(&key)
                    .iter()
                    .all(|result| *result == Err(RsaError::CheckFailed))
            );
        }
    }
}
