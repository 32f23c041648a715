//! Operations on eight numbers at once.
#![allow(clippy::indexing_slicing)] // Lanes of arrays of eight.

use super::{Element, RsaError, RsaPublic, Size};
use crate::simd::group::{ModulusGroup, factors, lanes_equal, read_long, words};
use crate::simd::kernel::Long;
use crate::simd::row::{Row, WORDS_MAX};
use crate::simd::{Backend, BackendTask, Kernels, LANES, WordVector};
use crate::stack::run_and_wipe_stack;

/// Raises each signature to the power of 65537 modulo its key's n, into its output. Returns true for each signature
/// below n; the outputs of all other signatures are zeros.
///
/// # Errors
/// Keys of different sizes; signatures or outputs whose length differs from n's.
pub fn power_batch(
    backend: Backend,
    keys: [&RsaPublic; 8],
    signatures: [&[u8]; 8],
    mut outputs: [&mut [u8]; 8],
) -> Result<[bool; 8], RsaError> {
    let size = common_size(keys)?;
    let lengths = outputs.iter().map(|output| output.len());
    if !lengths
        .chain(signatures.map(<[u8]>::len))
        .all(|length| length == size.bytes())
    {
        return Err(RsaError::Length);
    }
    let below_n = are_below_n(keys, signatures);
    backend.run(PowerTask {
        keys,
        signatures,
        outputs: outputs.each_mut().map(|output| &mut **output),
    });
    for (output, is_below_n) in outputs.iter_mut().zip(below_n) {
        if !is_below_n {
            output.fill(0);
        }
    }
    Ok(below_n)
}

/// Returns for each signature whether the signature is below its key's n and
/// `signature^65537 = hash times all factors mod n`. Hashes may be wide (see the parent module).
///
/// # Errors
/// Keys or factors of different sizes; a hash of more than [`Size::wide_bytes`] bytes.
pub fn check_batch(
    backend: Backend,
    keys: [&RsaPublic; 8],
    signatures: [&[u8]; 8],
    hashes: [&[u8]; 8],
    factors: [&[Element<'_>]; 8],
) -> Result<[bool; 8], RsaError> {
    let size = common_size(keys)?;
    check_factor_size(size, factors)?;
    if hashes.iter().any(|hash| hash.len() > size.wide_bytes()) {
        return Err(RsaError::Length);
    }
    let below_n = are_below_n(keys, signatures);
    let mut inputs = signatures;
    for (signature, is_below_n) in inputs.iter_mut().zip(below_n) {
        if !is_below_n {
            *signature = &[];
        }
    }
    let equal = backend.run(CheckTask {
        keys,
        signatures: inputs,
        hashes,
        factors,
    });
    Ok(std::array::from_fn(|lane| equal[lane] && below_n[lane]))
}

/// Bounds of the stack usage of eight products of 2,048 and of 3,072 bits (`tests/residue.rs` measures the usage).
/// The bounds are tight, because overwriting more than the first-level cache takes as long as several products.
const PRODUCT_STACK_BYTES: [usize; 2] = [48 << 10, 64 << 10];

/// For each lane, computes `first times all factors mod n`, where the number in `first` is below n. Wipes the stack: a
/// signature's factors are secret.
///
/// # Errors
/// Keys or factors of different sizes; numbers whose length differs from n's; a first number that is not below n.
pub fn product_batch(
    backend: Backend,
    keys: [&RsaPublic; 8],
    first: [&[u8]; 8],
    factors: [&[Element<'_>]; 8],
    outputs: [&mut [u8]; 8],
) -> Result<(), RsaError> {
    let size = common_size(keys)?;
    check_factor_size(size, factors)?;
    let lengths = outputs.iter().map(|output| output.len());
    if !lengths
        .chain(first.map(<[u8]>::len))
        .all(|length| length == size.bytes())
    {
        return Err(RsaError::Length);
    }
    if are_below_n(keys, first) != [true; 8] {
        return Err(RsaError::OutOfRange);
    }
    match size {
        Size::Bits2048 => run_and_wipe_stack::<{ PRODUCT_STACK_BYTES[0] }, _>(|| {
            backend.run(ProductTask::<8> {
                keys,
                first,
                factors,
                outputs,
            });
        }),
        Size::Bits3072 => run_and_wipe_stack::<{ PRODUCT_STACK_BYTES[1] }, _>(|| {
            backend.run(ProductTask::<12> {
                keys,
                first,
                factors,
                outputs,
            });
        }),
    }
    Ok(())
}

fn common_size(keys: [&RsaPublic; 8]) -> Result<Size, RsaError> {
    let size = keys[0].size();
    match keys.iter().all(|key| key.size() == size) {
        true => Ok(size),
        false => Err(RsaError::MixedSizes),
    }
}

fn check_factor_size(size: Size, factors: [&[Element<'_>]; 8]) -> Result<(), RsaError> {
    match factors
        .iter()
        .copied()
        .flatten()
        .all(|factor| factor.is_of_size(size))
    {
        true => Ok(()),
        false => Err(RsaError::MixedSizes),
    }
}

/// For each lane, whether the number has n's length and is below n.
fn are_below_n(keys: [&RsaPublic; 8], numbers: [&[u8]; 8]) -> [bool; 8] {
    std::array::from_fn(|lane| {
        numbers[lane].len() == keys[lane].size().bytes() && keys[lane].is_above(numbers[lane])
    })
}

struct PowerTask<'a> {
    keys: [&'a RsaPublic; 8],
    signatures: [&'a [u8]; 8],
    outputs: [&'a mut [u8]; 8],
}

impl BackendTask for PowerTask<'_> {
    type Output = ();

    #[inline(always)]
    fn run<W: WordVector>(self) {
        match self.keys[0].size() {
            Size::Bits2048 => self.run_sized::<W::Register, 8>(),
            Size::Bits3072 => self.run_sized::<W::Register, 12>(),
        }
    }
}

impl PowerTask<'_> {
    #[inline(always)]
    fn run_sized<W: Kernels, const B: usize>(mut self) {
        for lane in (0..LANES).step_by(W::LANES) {
            let lanes = lane..lane + W::LANES;
            let group = group::<W, B>(&self.keys, lane);
            let signature = read_be::<W, B>(&self.signatures[lanes.clone()]);
            let power = group.power_65536(&signature, &signature);
            W::store_be(&mut self.outputs[lanes], &group.canonical(&power));
        }
    }
}

struct CheckTask<'a> {
    keys: [&'a RsaPublic; 8],
    signatures: [&'a [u8]; 8],
    hashes: [&'a [u8]; 8],
    factors: [&'a [Element<'a>]; 8],
}

impl BackendTask for CheckTask<'_> {
    type Output = [bool; 8];

    #[inline(always)]
    fn run<W: WordVector>(self) -> [bool; 8] {
        match self.keys[0].size() {
            Size::Bits2048 => self.run_sized::<W::Register, 8>(),
            Size::Bits3072 => self.run_sized::<W::Register, 12>(),
        }
    }
}

impl CheckTask<'_> {
    #[inline(always)]
    fn run_sized<W: Kernels, const B: usize>(self) -> [bool; 8] {
        let mut equal = [false; 8];
        for lane in (0..LANES).step_by(W::LANES) {
            let lanes = lane..lane + W::LANES;
            let group = group::<W, B>(&self.keys, lane);
            let signature = read_be::<W, B>(&self.signatures[lanes.clone()]);
            let mut hash = [W::splat(0); WORDS_MAX];
            W::load_be(&mut hash, &self.hashes[lanes.clone()]);
            let mut product = group.reduce(&hash);
            multiply_all(
                &group,
                &self.keys[lanes.clone()],
                &mut product,
                &self.factors[lanes.clone()],
            );
            let group_equal = power_equals_product(&group, &signature, &product);
            equal[lanes].copy_from_slice(&group_equal[..W::LANES]);
        }
        equal
    }
}

/// Whether `signature^65537 = R product mod n` in each lane, for signatures below R.
#[inline(always)]
pub(super) fn power_equals_product<W: Kernels, const B: usize>(
    group: &ModulusGroup<W, B>,
    signature: &Long<W, B>,
    product: &Long<W, B>,
) -> [bool; 8] {
    // The product contains a hash that [`ModulusGroup::reduce`] divided by R. Therefore the last factor of the power is
    // also divided by R.
    let last_factor = group.reduce(&words::<W, B>(signature));
    let power = group.power_65536(signature, &last_factor);
    lanes_equal(&group.canonical(&power), &group.canonical(product))
}

/// The task of [`product_batch`] for moduli of B blocks. One function for both sizes would have a stack frame as large
/// as both frames together.
struct ProductTask<'a, const B: usize> {
    keys: [&'a RsaPublic; 8],
    first: [&'a [u8]; 8],
    factors: [&'a [Element<'a>]; 8],
    outputs: [&'a mut [u8]; 8],
}

impl<const B: usize> BackendTask for ProductTask<'_, B> {
    type Output = ();

    #[inline(always)]
    fn run<W: WordVector>(self) {
        self.run_on::<W::Register>();
    }
}

impl<const B: usize> ProductTask<'_, B> {
    #[inline(always)]
    fn run_on<W: Kernels>(mut self) {
        for lane in (0..LANES).step_by(W::LANES) {
            let lanes = lane..lane + W::LANES;
            let group = group::<W, B>(&self.keys, lane);
            let mut product = read_be::<W, B>(&self.first[lanes.clone()]);
            multiply_all(
                &group,
                &self.keys[lanes.clone()],
                &mut product,
                &self.factors[lanes.clone()],
            );
            W::store_be(&mut self.outputs[lanes], &group.canonical(&product));
        }
    }
}

/// Multiplies each lane's product by all its factors; lanes with fewer factors are multiplied by one.
#[inline(always)]
fn multiply_all<W: Kernels, const B: usize>(
    group: &ModulusGroup<W, B>,
    keys: &[&RsaPublic],
    product: &mut Long<W, B>,
    factors: &[&[Element<'_>]],
) {
    let factors_max = factors
        .iter()
        .map(|factors| factors.len())
        .max()
        .unwrap_or_default();
    for index in 0..factors_max {
        let mut rows: [&[Row]; LANES] = [&[]; LANES];
        for ((rows, factors), key) in rows.iter_mut().zip(factors).zip(keys) {
            *rows = match factors.get(index) {
                Some(factor) => factor.rows(),
                None => key.prepared().one(),
            };
            if let Some(next) = factors.get(index + 1) {
                next.rows().iter().for_each(Row::prefetch);
            }
        }
        group.multiply(product, &read_long::<W, B>(&rows[..W::LANES], false));
    }
}

#[inline(always)]
fn group<W: Kernels, const B: usize>(keys: &[&RsaPublic; 8], lane: usize) -> ModulusGroup<W, B> {
    let prepared = keys.map(RsaPublic::prepared);
    ModulusGroup::load(&prepared[lane..lane + W::LANES])
}

#[inline(always)]
pub(super) fn read_be<W: Kernels, const B: usize>(numbers: &[&[u8]]) -> Long<W, B> {
    let mut words = [W::splat(0); WORDS_MAX];
    W::load_be(&mut words, numbers);
    factors::<W, B>(&words)
}
