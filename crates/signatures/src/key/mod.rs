//! Keys of all schemes: public keys, which verify, and private keys, which sign.

mod precomputed;
mod private;
mod pss;
mod public;
mod text;

pub(crate) use precomputed::MemoryBudget;
pub use precomputed::Precomputed;
pub use private::{PrivateKey, PrivateKeyError};
pub use pss::{DIGEST_BYTES, pss_matches};
pub use public::{Ed25519Key, Material, P256Key, PublicKey, PublicKeyError};
pub use text::{LayoutDocument, PUBLIC_KEY_BYTES_MAX, PublicKeyTextError};
