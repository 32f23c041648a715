//! What a key does eight times at once.
#![allow(clippy::indexing_slicing)] // Lanes of arrays of eight.

use super::{Element, Fault, RsaPublic, Size};
use crate::eight::group::{Group, factors, read_long, same, words};
use crate::eight::kernel::Long;
use crate::eight::row::{Row, WORDS_MAX};
use crate::eight::{Backend, Kernels, LANES, Task, Word8};
use crate::stack::wiped;

/// Each signature to the power of 65537 modulo its key's n, into its output; true for those that were below n. The output of the others is
/// zero.
///
/// # Errors
/// Keys of different sizes; signatures or outputs of another length than n's.
pub fn power_eight(
    backend: Backend,
    keys: [&RsaPublic; 8],
    signatures: [&[u8]; 8],
    mut outputs: [&mut [u8]; 8],
) -> Result<[bool; 8], Fault> {
    let size = size_of(keys)?;
    let lengths = outputs.iter().map(|output| output.len());
    if !lengths
        .chain(signatures.map(<[u8]>::len))
        .all(|length| length == size.bytes())
    {
        return Err(Fault::Length);
    }
    let below = below(keys, signatures);
    backend.run(Power {
        keys,
        signatures,
        outputs: outputs.each_mut().map(|output| &mut **output),
    });
    for (output, below) in outputs.iter_mut().zip(below) {
        if !below {
            output.fill(0);
        }
    }
    Ok(below)
}

/// For each signature whether it is below its key's n and `signature^65537 = hash times all factors mod n`, for wide hashes.
///
/// # Errors
/// Keys of different sizes, or factors of another; a hash longer than a wide number.
pub fn check_eight(
    backend: Backend,
    keys: [&RsaPublic; 8],
    signatures: [&[u8]; 8],
    hashes: [&[u8]; 8],
    factors: [&[Element<'_>]; 8],
) -> Result<[bool; 8], Fault> {
    let size = size_of(keys)?;
    of_size(size, factors)?;
    if hashes.iter().any(|hash| hash.len() > size.wide_bytes()) {
        return Err(Fault::Length);
    }
    let below = below(keys, signatures);
    let mut inputs = signatures;
    for (signature, below) in inputs.iter_mut().zip(below) {
        if !below {
            *signature = &[];
        }
    }
    let equal = backend.run(Check {
        keys,
        signatures: inputs,
        hashes,
        factors,
    });
    Ok(std::array::from_fn(|lane| equal[lane] && below[lane]))
}

/// Bounds of the stack that eight products of 2,048 and of 3,072 bits use (`tests/residue.rs` measures them). Overwriting
/// more than the first-level cache holds takes as long as several products.
const PRODUCT_STACK_BYTES: [usize; 2] = [48 << 10, 64 << 10];

/// Of each lane its first number, below its key's n, times all its factors modulo n. The stack is wiped: a signature's factors are secrets.
///
/// # Errors
/// Keys of different sizes, or factors of another; numbers of another length than n's; a first number that is not below n.
pub fn product_eight(
    backend: Backend,
    keys: [&RsaPublic; 8],
    first: [&[u8]; 8],
    factors: [&[Element<'_>]; 8],
    outputs: [&mut [u8]; 8],
) -> Result<(), Fault> {
    let size = size_of(keys)?;
    of_size(size, factors)?;
    let lengths = outputs.iter().map(|output| output.len());
    if !lengths
        .chain(first.map(<[u8]>::len))
        .all(|length| length == size.bytes())
    {
        return Err(Fault::Length);
    }
    if below(keys, first) != [true; 8] {
        return Err(Fault::Range);
    }
    match size {
        Size::Bits2048 => wiped::<{ PRODUCT_STACK_BYTES[0] }, _>(|| {
            backend.run(Product::<8> {
                keys,
                first,
                factors,
                outputs,
            });
        }),
        Size::Bits3072 => wiped::<{ PRODUCT_STACK_BYTES[1] }, _>(|| {
            backend.run(Product::<12> {
                keys,
                first,
                factors,
                outputs,
            });
        }),
    }
    Ok(())
}

fn size_of(keys: [&RsaPublic; 8]) -> Result<Size, Fault> {
    let size = keys[0].size();
    match keys.iter().all(|key| key.size() == size) {
        true => Ok(size),
        false => Err(Fault::Mixed),
    }
}

fn of_size(size: Size, factors: [&[Element<'_>]; 8]) -> Result<(), Fault> {
    match factors.iter().copied().flatten().all(|factor| factor.is_of(size)) {
        true => Ok(()),
        false => Err(Fault::Mixed),
    }
}

/// Which numbers are of n's length and below it.
fn below(keys: [&RsaPublic; 8], numbers: [&[u8]; 8]) -> [bool; 8] {
    std::array::from_fn(|lane| {
        numbers[lane].len() == keys[lane].size().bytes() && keys[lane].exceeds(numbers[lane])
    })
}

struct Power<'a> {
    keys: [&'a RsaPublic; 8],
    signatures: [&'a [u8]; 8],
    outputs: [&'a mut [u8]; 8],
}

impl Task for Power<'_> {
    type Output = ();

    #[inline(always)]
    fn run<W: Word8>(self) {
        match self.keys[0].size() {
            Size::Bits2048 => self.sized::<W::Register, 8>(),
            Size::Bits3072 => self.sized::<W::Register, 12>(),
        }
    }
}

impl Power<'_> {
    #[inline(always)]
    fn sized<W: Kernels, const B: usize>(mut self) {
        for lane in (0..LANES).step_by(W::LANES) {
            let lanes = lane..lane + W::LANES;
            let group = group::<W, B>(&self.keys, lane);
            let signature = read_be::<W, B>(&self.signatures[lanes.clone()]);
            let power = group.power_65536(&signature, &signature);
            W::store_be(&mut self.outputs[lanes], &group.least(&power));
        }
    }
}

struct Check<'a> {
    keys: [&'a RsaPublic; 8],
    signatures: [&'a [u8]; 8],
    hashes: [&'a [u8]; 8],
    factors: [&'a [Element<'a>]; 8],
}

impl Task for Check<'_> {
    type Output = [bool; 8];

    #[inline(always)]
    fn run<W: Word8>(self) -> [bool; 8] {
        match self.keys[0].size() {
            Size::Bits2048 => self.sized::<W::Register, 8>(),
            Size::Bits3072 => self.sized::<W::Register, 12>(),
        }
    }
}

impl Check<'_> {
    #[inline(always)]
    fn sized<W: Kernels, const B: usize>(self) -> [bool; 8] {
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
            let of_lanes = agree(&group, &signature, &product);
            equal[lanes].copy_from_slice(&of_lanes[..W::LANES]);
        }
        equal
    }
}

/// Whether `signature^65537 = R product`, for any signature below R.
#[inline(always)]
pub(super) fn agree<W: Kernels, const B: usize>(
    group: &Group<W, B>,
    signature: &Long<W, B>,
    product: &Long<W, B>,
) -> [bool; 8] {
    // By the signature over R: what the product has, a hash that was reduced, is over R too.
    let last = group.reduce(&words::<W, B>(signature));
    let power = group.power_65536(signature, &last);
    same(&group.least(&power), &group.least(product))
}

/// Of moduli of B blocks. One function for both sizes has a frame as large as both.
struct Product<'a, const B: usize> {
    keys: [&'a RsaPublic; 8],
    first: [&'a [u8]; 8],
    factors: [&'a [Element<'a>]; 8],
    outputs: [&'a mut [u8]; 8],
}

impl<const B: usize> Task for Product<'_, B> {
    type Output = ();

    #[inline(always)]
    fn run<W: Word8>(self) {
        self.on::<W::Register>();
    }
}

impl<const B: usize> Product<'_, B> {
    #[inline(always)]
    fn on<W: Kernels>(mut self) {
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
            W::store_be(&mut self.outputs[lanes], &group.least(&product));
        }
    }
}

/// The product of all factors of each lane; lanes that have fewer are multiplied by one.
#[inline(always)]
fn multiply_all<W: Kernels, const B: usize>(
    group: &Group<W, B>,
    keys: &[&RsaPublic],
    product: &mut Long<W, B>,
    factors: &[&[Element<'_>]],
) {
    let most = factors
        .iter()
        .map(|factors| factors.len())
        .max()
        .unwrap_or_default();
    for index in 0..most {
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
fn group<W: Kernels, const B: usize>(keys: &[&RsaPublic; 8], lane: usize) -> Group<W, B> {
    let prepared = keys.map(RsaPublic::prepared);
    Group::load(&prepared[lane..lane + W::LANES])
}

#[inline(always)]
pub(super) fn read_be<W: Kernels, const B: usize>(numbers: &[&[u8]]) -> Long<W, B> {
    let mut words = [W::splat(0); WORDS_MAX];
    W::load_be(&mut words, numbers);
    factors::<W, B>(&words)
}
