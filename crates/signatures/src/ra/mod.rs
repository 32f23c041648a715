//! Rapid Authentication: messages signed with a few modular products.
//!
//! Yavuz (*An efficient real-time broadcast authentication scheme for command and control messages*, IEEE TIFS 2014): whoever signs
//! computes an RSA signature of each value that each part of a message can take, long before; the signature of a message is their
//! product. What makes it unforgeable is a *mask*, one more signature, of a random number that is used once.
//!
//! With H a full-domain hash, P the key's [pad](RaPublic::pad) and `m_1 … m_a` the [components](Layout) of a message:
//!
//! | | |
//! |---|---|
//! | table, once a key | `Γ[j][v] = H(1 \| P \| j \| v)^d mod n` |
//! | mask, ahead | random `r`, `β = H(2 \| P \| r)^d mod n` |
//! | sign | `σ = β · Π Γ[j][m_j] mod n`; send `(σ, r)`, erase β |
//! | verify | `σ^e = H(2 \| P \| r) · Π H(1 \| P \| j \| m_j) mod n` |
//!
//! # Why it holds
//! Each r stands in one signature only. A product of signatures, with integer exponents, in which some `H(2 | P | r)` has exponent 1 and
//! all others vanish, is a power of that one signature: combining signatures gives nothing new. In the random oracle model a forger
//! inverts RSA on one of the hashes, with a loss of about their number. Each of these breaks it, and a test shows how:
//! * *no mask*: `σ(a', b) σ(a, b') / σ(a, b)` is a signature of `(a', b')`;
//! * *a mask twice*: the quotient of two signatures is one of unmasked components, and the same exchange follows;
//! * *one check for many messages* (the product of all σ against the product of all hashes): exchange a component between two messages,
//!   and the products stay as they were. Each signature is verified by itself here;
//! * *a hash that does not fill the domain*: small hashes factor, and signatures of factors combine.

pub(crate) mod hash;
mod layout;
mod mask;
mod private;
mod public;
mod table;

pub use hash::HASH_MARGIN_BYTES;
pub use layout::{
    COMPONENTS_MAX, Digits, Domain, Layout, LayoutError, Part, ROWS_MAX, RowValue, STAMP_DIGITS,
    SUBMESSAGE_BYTES_MAX,
};
pub use mask::Mask;
pub use private::RaPrivate;
pub(crate) use public::Factors;
pub use public::{PAD_BYTES, RaPublic};
pub use table::{NotThisTable, Table};

/// Numbers that are computed together.
const EIGHT: usize = 8;

#[cfg(test)]
mod tests;
