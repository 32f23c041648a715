//! Keys of all schemes: public ones, which verify, and private ones, which sign.

mod ahead;
mod private;
mod pss;
mod public;
mod text;

pub use ahead::Ahead;
pub(crate) use ahead::Room;
pub use private::{PrivateKey, PrivateKeyError};
pub use pss::{DIGEST_BYTES, pss_matches};
pub use public::{Ed25519Key, Material, P256Key, PublicKey, PublicKeyError};
pub use text::{LayoutText, PUBLIC_KEY_BYTES_MAX, PublicKeyTextError};
