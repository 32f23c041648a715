//! What kernels are handed, as `cuda/layouts.cuh` has it: sizes and places are asserted in both, and
//! `tests/gpu/host.rs` compares the two.
//!
//! Addresses are the device's (the host's in emulation), each of an array aligned to 16 bytes. Numbers in keys and
//! tables are limbs of 32 bits, least significant first. What arrays hold is said in `layouts.cuh`, once.

use std::mem::{offset_of, size_of};

/// A structure that a kernel reads as bytes: `repr(C)`, without padding and without pointers of Rust's.
///
/// # Safety
/// All bytes of a value must be initialised.
pub unsafe trait Shared {
    /// The value as the device sees it.
    fn bytes(&self) -> &[u8]
    where
        Self: Sized,
    {
        // SAFETY: the implementer vouches that every byte is initialised; the slice lives as long as the value.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }
}

/// Bytes of a key's prefix at most.
pub const PREFIX_BYTES_MAX: usize = 96;
/// Bytes that are hashed to a number at most, and what each takes in the array of them.
pub const MESSAGE_BYTES_MAX: usize = 128;
/// Bytes of the random number of a mask.
pub const SEED_BYTES: usize = 32;
/// Powers that the private operation keeps of each half.
pub const CRT_POWERS: usize = 16;
/// A table of multiples of a point of P-256: of `2^(bits place)` times the point, from 1 to as many as there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct P256Table {
    /// Places.
    pub places: u32,
    /// Doublings between places.
    pub bits: u32,
    /// Multiples of each place.
    pub multiples: u32,
}

/// The base point's, a place for each byte of a factor.
pub const P256_BASE_TABLE: P256Table = P256Table {
    places: 32,
    bits: 8,
    multiples: 255,
};
/// A key's.
pub const P256_KEY_TABLE: P256Table = P256Table {
    places: 13,
    bits: 20,
    multiples: 16,
};

impl P256Table {
    /// Bytes: two numbers a multiple.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.places as usize * self.multiples as usize * 64
    }
}

/// A public RSA key with e = 65537; N limbs.
#[repr(C)]
#[derive(Clone)]
pub struct RsaKey<const N: usize> {
    /// The modulus; its topmost bit is set.
    pub n: [u32; N],
    /// `2^(64 N) mod n`.
    pub r2: [u32; N],
    /// `2^(32 N + 128) mod n`.
    pub shift: [u32; N],
    /// `-n^-1 mod 2^32`.
    pub n0: u32,
    /// Bytes of `prefix` that count.
    pub prefix_bytes: u32,
    /// Where this key's rows begin in the table of components.
    pub first_row: u32,
    /// Zero.
    pub unused: u32,
    /// What stands before r in the hash of a mask.
    pub prefix: [u8; PREFIX_BYTES_MAX],
}

/// One prime factor and its exponent; H limbs.
#[repr(C)]
pub struct CrtHalf<const H: usize> {
    /// The prime; its topmost bit is set.
    pub modulus: [u32; H],
    /// `2^(64 H)` modulo the prime.
    pub r2: [u32; H],
    /// d modulo the prime less 1.
    pub exponent: [u32; H],
    /// `-modulus^-1 mod 2^32`.
    pub n0: u32,
    /// Zero.
    pub unused: [u32; 3],
}

/// The secret part of an RSA key; H limbs are half of the modulus's.
#[repr(C)]
pub struct CrtKey<const H: usize> {
    /// Half p.
    pub p: CrtHalf<H>,
    /// Half q.
    pub q: CrtHalf<H>,
    /// `(q^-1 mod p) 2^(32 H) mod p`.
    pub qinv: [u32; H],
    /// `q 2^(32 H) mod n`, its lower half first.
    pub q_shift: [[u32; H]; 2],
}

macro_rules! arguments {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default)]
        #[allow(missing_docs)] // each is described in layouts.cuh
        pub struct $name {
            $(pub $field: $type,)*
        }
        // SAFETY: addresses of 8 bytes come first and an even number of u32 after them, so nothing is padded, as is
        // asserted here.
        unsafe impl Shared for $name {}
        const _: () = assert!(size_of::<$name>() == 0 $(+ size_of::<$type>())*);
    )*};
}

arguments! {
    /// Of the kernels `pss_*`.
    PssArgs {
        keys: u64, key_of: u64, signatures: u64, digests: u64, verdicts: u64,
        count: u32, unused: u32,
    }
    /// Of the kernels `ra_verify_*`.
    RaVerifyArgs {
        keys: u64, key_of: u64, signatures: u64, seeds: u64, digits: u64, offsets: u64, table: u64, verdicts: u64,
        count: u32, components: u32,
    }
    /// Of the kernels `ra_sign_*`.
    RaSignArgs {
        keys: u64, key_of: u64, digits: u64, offsets: u64, table: u64, slots: u64, masks: u64, filled: u64,
        signatures: u64, statuses: u64,
        count: u32, components: u32,
    }
    /// Of the kernels `fdh_*`.
    FdhArgs {
        keys: u64, key_of: u64, messages: u64, lengths: u64, out: u64,
        count: u32, montgomery: u32,
    }
    /// Of the kernels `crt_halves_*` and `crt_join_*`.
    CrtArgs {
        secrets: u64, keys: u64, key_of: u64, inputs: u64, powers: u64, halves: u64, out: u64, statuses: u64,
        count: u32, montgomery: u32,
    }
    /// Of the kernels `p256_verify_*`.
    P256Args {
        base_table: u64, tables: u64, key_of: u64, signatures: u64, digests: u64, verdicts: u64,
        count: u32, unused: u32,
    }
    /// Of the kernel `p256_tables`.
    P256TableArgs {
        points: u64, numbers: u64, tables: u64,
        count: u32, places: u32, bits: u32, multiples: u32,
    }
    /// Of the kernel `imad_limit`.
    LimitArgs {
        cycles: u64, sink: u64,
        count: u32, rounds: u32,
    }
    /// Of the kernels `probe_*`, which only tests launch.
    ProbeArgs {
        a: u64, b: u64, moduli: u64, n0: u64, out: u64,
        count: u32, operation: u32,
    }
}

// SAFETY: arrays of u32 and of a multiple of four bytes, so nothing is padded; asserted below.
unsafe impl<const N: usize> Shared for RsaKey<N> {}
// SAFETY: as above.
unsafe impl<const H: usize> Shared for CrtKey<H> {}

const _: () = {
    assert!(size_of::<RsaKey<64>>() == 4 * (3 * 64 + 4) + PREFIX_BYTES_MAX);
    assert!(size_of::<RsaKey<96>>() == 4 * (3 * 96 + 4) + PREFIX_BYTES_MAX);
    assert!(size_of::<CrtHalf<32>>() == 4 * (3 * 32 + 4));
    assert!(size_of::<CrtKey<32>>() == 2 * size_of::<CrtHalf<32>>() + 4 * 3 * 32);
    assert!(size_of::<CrtKey<48>>() == 2 * size_of::<CrtHalf<48>>() + 4 * 3 * 48);
    // Rows are read in fours of words.
    assert!(size_of::<RsaKey<64>>().is_multiple_of(16) && size_of::<RsaKey<96>>().is_multiple_of(16));
    assert!(size_of::<CrtKey<32>>().is_multiple_of(16) && size_of::<CrtKey<48>>().is_multiple_of(16));
    assert!(
        offset_of!(CrtKey<32>, qinv).is_multiple_of(16) && offset_of!(CrtKey<48>, q_shift).is_multiple_of(16)
    );
};
