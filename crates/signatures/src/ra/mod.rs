//! Rapid Authentication: messages signed with a few modular products.
//!
//! Yavuz (*An efficient real-time broadcast authentication scheme for command and control messages*, IEEE TIFS 2014): the signer
//! computes an RSA signature of each value of each component of a message in advance; the signature of a message is the product of its
//! components' signatures. A *mask* makes the signature unforgeable: one more signature, of a random number that is used once.
//!
//! With H a full-domain hash, P the key's [pad](RaPublic::pad) and `m_1 … m_a` the [components](Layout) of a message:
//!
//! | | |
//! |---|---|
//! | table, once per key | `Γ[j][v] = H(1 \| P \| j \| v)^d mod n` |
//! | mask, in advance | random `r`, `β = H(2 \| P \| r)^d mod n` |
//! | sign | `σ = β · Π Γ[j][m_j] mod n`; send `(σ, r)`, erase β |
//! | verify | `σ^e = H(2 \| P \| r) · Π H(1 \| P \| j \| m_j) mod n` |
//!
//! # Security argument
//! Each r occurs in one signature only. Consider a product of signatures that are raised to integer exponents. If one
//! `H(2 | P | r)` has exponent 1 and all other hashes of masks have exponent 0, the product is one of the signatures
//! itself. Combining signatures therefore gives no new signature. In the random oracle model a forger inverts RSA on
//! one of the hashes, with a loss of about the number of hashes. Each of the following mistakes breaks the scheme, and
//! a test demonstrates it:
//! * *no mask*: `σ(a', b) σ(a, b') / σ(a, b)` is a signature of `(a', b')`;
//! * *a mask twice*: the quotient of two signatures has unmasked components, which allow the same exchange;
//! * *one check for many messages* (the product of all σ against the product of all hashes): exchanging a component between two messages
//!   leaves the products unchanged. Here each signature is verified alone;
//! * *a hash that does not fill the domain*: small hashes have small factors, whose signatures can be combined.

pub(crate) mod hash;
mod layout;
mod mask;
mod private;
mod public;
mod table;

pub use hash::HASH_MARGIN_BYTES;
pub use hash::PAD_BYTES;
pub use layout::{
    COMPONENTS_MAX, Digits, Domain, Layout, LayoutError, Part, ROWS_MAX, RowValue, STAMP_DIGITS,
    SUBMESSAGE_BYTES_MAX,
};
pub use mask::Mask;
pub use private::RaPrivate;
pub(crate) use public::Factors;
pub use public::RaPublic;
pub use table::{Table, TableMismatch};

/// Number of signatures or hashes that are computed together.
const GROUP_SIZE: usize = 8;

#[cfg(test)]
mod tests;
