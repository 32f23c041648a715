//! Numbers modulo an odd modulus, in 64-bit limbs, least significant first.

#[cfg(target_arch = "x86_64")]
mod adx;
pub mod edwards;
mod eight;
mod five;
mod limbs;
mod modulus;
pub mod p256;
pub mod rsa;
#[cfg(test)]
mod testing;

pub use eight::Backend;
pub use modulus::{Modulus, ModulusError};
