//! RSA keys stored on the device.

use linewarden_arithmetic::rsa::Size;
use zeroize::{Zeroize as _, Zeroizing};

use super::constants::{self, RsaSecret};
use super::engine::Gpu;
use super::error::BatchError;
use super::kernels::{self, Kernel};
use super::layouts::{CrtArgs, CrtHalf, CrtKey, FdhArgs, PssArgs, RaSignArgs, RaVerifyArgs, RsaKey, Shared};
use super::target::DeviceMemory;

/// The size of a key, from its modulus.
pub(super) fn size_of_modulus(modulus: &[u8]) -> Result<Size, BatchError> {
    Size::from_bytes(modulus.len()).ok_or(BatchError::Malformed("a modulus must have 2,048 or 3,072 bits"))
}

/// Kernels and record sizes for numbers of one size; of a pair of kernels, the first is for throughput, the
/// second for latency.
pub(super) trait OnDevice {
    fn public_bytes(self) -> usize;
    fn secret_bytes(self) -> usize;
    fn pss(self) -> (Kernel<PssArgs>, Kernel<PssArgs>);
    fn ra_verify(self) -> (Kernel<RaVerifyArgs>, Kernel<RaVerifyArgs>);
    fn ra_sign(self) -> (Kernel<RaSignArgs>, Kernel<RaSignArgs>);
    fn fdh(self) -> Kernel<FdhArgs>;
    fn crt_halves(self) -> (Kernel<CrtArgs>, Kernel<CrtArgs>);
    fn crt_join(self) -> Kernel<CrtArgs>;
    fn public_record(self, modulus: &[u8], prefix: &[u8], first_row: u32) -> Result<Vec<u8>, BatchError>;
    fn secret_record(self, modulus: &[u8], secret: &RsaSecret) -> Result<Zeroizing<Vec<u8>>, BatchError>;
}

impl OnDevice for Size {
    fn public_bytes(self) -> usize {
        match self {
            Self::Bits2048 => size_of::<RsaKey<64>>(),
            Self::Bits3072 => size_of::<RsaKey<96>>(),
        }
    }

    fn secret_bytes(self) -> usize {
        match self {
            Self::Bits2048 => size_of::<CrtKey<32>>(),
            Self::Bits3072 => size_of::<CrtKey<48>>(),
        }
    }

    fn pss(self) -> (Kernel<PssArgs>, Kernel<PssArgs>) {
        match self {
            Self::Bits2048 => (kernels::PSS_2048_T2, kernels::PSS_2048_T8),
            Self::Bits3072 => (kernels::PSS_3072_T4, kernels::PSS_3072_T8),
        }
    }

    fn ra_verify(self) -> (Kernel<RaVerifyArgs>, Kernel<RaVerifyArgs>) {
        match self {
            Self::Bits2048 => (kernels::RA_VERIFY_2048_T2, kernels::RA_VERIFY_2048_T8),
            Self::Bits3072 => (kernels::RA_VERIFY_3072_T4, kernels::RA_VERIFY_3072_T8),
        }
    }

    fn ra_sign(self) -> (Kernel<RaSignArgs>, Kernel<RaSignArgs>) {
        match self {
            Self::Bits2048 => (kernels::RA_SIGN_2048_T2, kernels::RA_SIGN_2048_T8),
            Self::Bits3072 => (kernels::RA_SIGN_3072_T4, kernels::RA_SIGN_3072_T8),
        }
    }

    fn fdh(self) -> Kernel<FdhArgs> {
        match self {
            Self::Bits2048 => kernels::FDH_2048,
            Self::Bits3072 => kernels::FDH_3072,
        }
    }

    fn crt_halves(self) -> (Kernel<CrtArgs>, Kernel<CrtArgs>) {
        match self {
            Self::Bits2048 => (kernels::CRT_HALVES_2048_T1, kernels::CRT_HALVES_2048_T4),
            Self::Bits3072 => (kernels::CRT_HALVES_3072_T2, kernels::CRT_HALVES_3072_T4),
        }
    }

    fn crt_join(self) -> Kernel<CrtArgs> {
        match self {
            Self::Bits2048 => kernels::CRT_JOIN_2048,
            Self::Bits3072 => kernels::CRT_JOIN_3072,
        }
    }

    fn public_record(self, modulus: &[u8], prefix: &[u8], first_row: u32) -> Result<Vec<u8>, BatchError> {
        Ok(match self {
            Self::Bits2048 => constants::public_key::<64>(modulus, prefix, first_row)?
                .bytes()
                .to_vec(),
            Self::Bits3072 => constants::public_key::<96>(modulus, prefix, first_row)?
                .bytes()
                .to_vec(),
        })
    }

    fn secret_record(self, modulus: &[u8], secret: &RsaSecret) -> Result<Zeroizing<Vec<u8>>, BatchError> {
        Ok(Zeroizing::new(match self {
            Self::Bits2048 => constants::secret_key::<64, 32>(modulus, secret)?.bytes().to_vec(),
            Self::Bits3072 => constants::secret_key::<96, 48>(modulus, secret)?.bytes().to_vec(),
        }))
    }
}

impl<const H: usize> Drop for CrtKey<H> {
    fn drop(&mut self) {
        for CrtHalf {
            modulus,
            r2,
            exponent,
            n0,
            ..
        } in [&mut self.p, &mut self.q]
        {
            for secret in [modulus, r2, exponent] {
                secret.zeroize();
            }
            n0.zeroize();
        }
        self.qinv.zeroize();
        self.q_shift.zeroize();
    }
}

/// Public RSA keys of one size with e = 65537. Batches refer to a key by its number. Verification with an unused number
/// always fails.
pub struct RsaKeys {
    pub(super) size: Size,
    pub(super) memory: DeviceMemory,
    pub(super) capacity: usize,
}

impl std::fmt::Debug for RsaKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RsaKeys")
            .field("size", &self.size)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

/// RSA keys with their secret parts, under the same numbers.
pub struct RsaSecrets {
    pub(super) public: RsaKeys,
    pub(super) memory: DeviceMemory,
}

impl std::fmt::Debug for RsaSecrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RsaSecrets")
            .field("public", &self.public)
            .finish_non_exhaustive()
    }
}

impl RsaSecrets {
    /// The public keys.
    #[must_use]
    pub fn public(&self) -> &RsaKeys {
        &self.public
    }
}

impl Gpu {
    /// Allocates memory for public keys on the device, some 900 or 1,300 bytes each.
    ///
    /// # Errors
    /// The device is lost or has not enough memory.
    pub fn rsa_keys(&mut self, size: Size, capacity: usize) -> Result<RsaKeys, BatchError> {
        self.guard(|gpu| {
            Ok(RsaKeys {
                size,
                memory: gpu.allocate(size.public_bytes() * capacity)?,
                capacity,
            })
        })
    }

    /// Stores a key under a number, replacing an earlier key.
    ///
    /// The modulus has exactly the size of the keys, its topmost bit is set, and its most significant byte is first.
    ///
    /// # Errors
    /// A modulus or number that does not fit, or a lost device.
    pub fn put_rsa_key(
        &mut self,
        keys: &mut RsaKeys,
        number: usize,
        modulus: &[u8],
    ) -> Result<(), BatchError> {
        self.guard(|gpu| gpu.put_public(keys, number, modulus, &[], 0))
    }

    pub(super) fn put_public(
        &mut self,
        keys: &mut RsaKeys,
        number: usize,
        modulus: &[u8],
        prefix: &[u8],
        first_row: u32,
    ) -> Result<(), BatchError> {
        if number >= keys.capacity {
            return Err(BatchError::Malformed("a key number is out of range"));
        }
        self.check_owner(&keys.memory)?;
        let record = keys.size.public_record(modulus, prefix, first_row)?;
        Ok(self.write(&keys.memory, number * record.len(), &record)?)
    }

    /// Allocates memory for keys with their secret parts on the device.
    ///
    /// # Errors
    /// The device is lost or has not enough memory.
    pub fn rsa_secrets(&mut self, size: Size, capacity: usize) -> Result<RsaSecrets, BatchError> {
        let public = self.rsa_keys(size, capacity)?;
        self.guard(|gpu| {
            Ok(RsaSecrets {
                public,
                memory: gpu.allocate(size.secret_bytes() * capacity)?,
            })
        })
    }

    /// Stores a key with its secret part under a number. `prefix`, at most 96 bytes, precedes r in the hashes of the
    /// key's masks; a key without masks has an empty prefix.
    ///
    /// # Errors
    /// Numbers that do not fit, or a lost device.
    pub fn put_rsa_secret(
        &mut self,
        secrets: &mut RsaSecrets,
        number: usize,
        modulus: &[u8],
        prefix: &[u8],
        secret: &RsaSecret,
    ) -> Result<(), BatchError> {
        self.guard(|gpu| {
            let record = secrets.public.size.secret_record(modulus, secret)?;
            gpu.put_public(&mut secrets.public, number, modulus, prefix, 0)?;
            Ok(gpu.write(&secrets.memory, number * record.len(), &record)?)
        })
    }
}
