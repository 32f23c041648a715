//! Argument structures of kernels, as in `cuda/layouts.cuh`: sizes and offsets are asserted in both files, and
//! `tests/all/gpu/host.rs` compares them.
//!
//! Addresses are addresses on the device (in emulation, on the host). Each is the address of an array that is aligned
//! to 16 bytes. Numbers in keys and tables are limbs of 32 bits, least significant first. `layouts.cuh` describes the
//! content of the arrays.

use std::mem::{offset_of, size_of};

/// A structure that a kernel reads as bytes: `repr(C)`, without padding and without Rust pointers.
///
/// # Safety
/// All bytes of a value must be initialized.
pub unsafe trait Shared {
    /// The bytes of the value.
    fn bytes(&self) -> &[u8]
    where
        Self: Sized,
    {
        // SAFETY: the implementer guarantees that every byte is initialized; the slice has the lifetime of the
        // value.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }
}

/// Maximum bytes of a key's prefix.
pub const PREFIX_BYTES_MAX: usize = 96;
/// Maximum bytes of a string that is hashed to a number, and the stride in the array of strings.
pub const MESSAGE_BYTES_MAX: usize = 128;
/// Bytes of a mask's random number.
pub const SEED_BYTES: usize = 32;
/// Powers stored for each half of the private operation.
pub const CRT_POWERS: usize = 16;
/// Layout of a table of multiples of a point of P-256: for each digit position, the multiples 1 to `multiples` of
/// `2^(bits position)` times the point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct P256Table {
    /// Number of digit positions.
    pub places: u32,
    /// Doublings from one digit position to the next.
    pub bits: u32,
    /// Multiples per digit position.
    pub multiples: u32,
}

/// The base point's table, with a digit position for each byte of a factor.
pub const P256_BASE_TABLE: P256Table = P256Table {
    places: 32,
    bits: 8,
    multiples: 255,
};
/// A key's table.
pub const P256_KEY_TABLE: P256Table = P256Table {
    places: 13,
    bits: 20,
    multiples: 16,
};

impl P256Table {
    /// Bytes of the table: two numbers per multiple.
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
    /// Used bytes of `prefix`.
    pub prefix_bytes: u32,
    /// First row of this key in the table of components.
    pub first_row: u32,
    /// Padding, zero.
    pub unused: u32,
    /// The bytes before r in the hash of a mask.
    pub prefix: [u8; PREFIX_BYTES_MAX],
}

/// One prime factor and its exponent; H limbs.
#[repr(C)]
pub struct CrtHalf<const H: usize> {
    /// The prime; its topmost bit is set.
    pub modulus: [u32; H],
    /// `2^(64 H)` modulo the prime.
    pub r2: [u32; H],
    /// d modulo the prime minus 1.
    pub exponent: [u32; H],
    /// `-modulus^-1 mod 2^32`.
    pub n0: u32,
    /// Padding, zero.
    pub unused: [u32; 3],
}

/// The secret part of an RSA key; H limbs are half of the modulus.
#[repr(C)]
pub struct CrtKey<const H: usize> {
    /// The half of the private operation modulo p.
    pub p: CrtHalf<H>,
    /// The half of the private operation modulo q.
    pub q: CrtHalf<H>,
    /// `(q^-1 mod p) 2^(32 H) mod p`.
    pub qinv: [u32; H],
    /// `q 2^(32 H) mod n`, lower half first.
    pub q_shift: [[u32; H]; 2],
}

macro_rules! arguments {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default)]
        #[allow(missing_docs)] // layouts.cuh describes each field
        pub struct $name {
            $(pub $field: $type,)*
        }
        // SAFETY: the 8-byte addresses come first, followed by an even number of u32, so there is no padding, as
        // the assertion checks.
        unsafe impl Shared for $name {}
        const _: () = assert!(size_of::<$name>() == 0 $(+ size_of::<$type>())*);
    )*};
}

arguments! {
    /// Arguments of the kernels `pss_*`.
    PssArgs {
        keys: u64, key_of: u64, signatures: u64, digests: u64, verdicts: u64,
        count: u32, unused: u32,
    }
    /// Arguments of the kernels `ra_verify_*`.
    RaVerifyArgs {
        keys: u64, key_of: u64, signatures: u64, seeds: u64, digits: u64, offsets: u64, table: u64, verdicts: u64,
        count: u32, components: u32,
    }
    /// Arguments of the kernels `ra_sign_*`.
    RaSignArgs {
        keys: u64, key_of: u64, digits: u64, offsets: u64, table: u64, slots: u64, masks: u64, filled: u64,
        signatures: u64, statuses: u64,
        count: u32, components: u32,
    }
    /// Arguments of the kernels `fdh_*`.
    FdhArgs {
        keys: u64, key_of: u64, messages: u64, lengths: u64, out: u64,
        count: u32, montgomery: u32,
    }
    /// Arguments of the kernels `crt_halves_*` and `crt_join_*`.
    CrtArgs {
        secrets: u64, keys: u64, key_of: u64, inputs: u64, powers: u64, halves: u64, out: u64, statuses: u64,
        count: u32, montgomery: u32,
    }
    /// Arguments of the kernels `p256_verify_*`.
    P256Args {
        base_table: u64, tables: u64, key_of: u64, signatures: u64, digests: u64, verdicts: u64,
        count: u32, unused: u32,
    }
    /// Arguments of the kernel `p256_tables`.
    P256TableArgs {
        points: u64, numbers: u64, tables: u64,
        count: u32, places: u32, bits: u32, multiples: u32,
    }
    /// Arguments of the kernel `imad_limit`.
    LimitArgs {
        cycles: u64, sink: u64,
        count: u32, rounds: u32,
    }
    /// Arguments of the kernels `probe_*`, which only tests launch.
    ProbeArgs {
        a: u64, b: u64, moduli: u64, n0: u64, out: u64,
        count: u32, operation: u32,
    }
}

// SAFETY: arrays of u32 and of a multiple of four bytes, so there is no padding, as asserted below.
unsafe impl<const N: usize> Shared for RsaKey<N> {}
// SAFETY: as above.
unsafe impl<const H: usize> Shared for CrtKey<H> {}

const _: () = {
    assert!(size_of::<RsaKey<64>>() == 4 * (3 * 64 + 4) + PREFIX_BYTES_MAX);
    assert!(size_of::<RsaKey<96>>() == 4 * (3 * 96 + 4) + PREFIX_BYTES_MAX);
    assert!(size_of::<CrtHalf<32>>() == 4 * (3 * 32 + 4));
    assert!(size_of::<CrtKey<32>>() == 2 * size_of::<CrtHalf<32>>() + 4 * 3 * 32);
    assert!(size_of::<CrtKey<48>>() == 2 * size_of::<CrtHalf<48>>() + 4 * 3 * 48);
    // Rows are read in units of four words.
    assert!(size_of::<RsaKey<64>>().is_multiple_of(16) && size_of::<RsaKey<96>>().is_multiple_of(16));
    assert!(size_of::<CrtKey<32>>().is_multiple_of(16) && size_of::<CrtKey<48>>().is_multiple_of(16));
    assert!(
        offset_of!(CrtKey<32>, qinv).is_multiple_of(16) && offset_of!(CrtKey<48>, q_shift).is_multiple_of(16)
    );
};
