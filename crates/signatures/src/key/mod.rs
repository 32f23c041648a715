//! Keys of all schemes: public ones, which verify, and private ones, which sign.

mod private;
mod pss;
mod public;
mod text;

pub use private::{PrivateKey, PrivateKeyError};
pub use pss::{DIGEST_BYTES, pss_matches};
pub use public::{Material, P256Key, PublicKey, PublicKeyError};
pub use text::{LayoutText, PUBLIC_KEY_BYTES_MAX, PublicKeyTextError};
