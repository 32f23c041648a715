//! Files: sealed private keys, tables and masks, readable by their owner only; public keys and revocation lists,
//! readable by everyone.

mod machine;
mod mask_file;
mod revocation;
mod sealed;
mod signer;

pub use machine::{MachineError, MachineId};
pub use mask_file::{BLOCK_MASKS, MaskFile, MaskFileError};
pub use revocation::{RevocationError, RevocationListFault, Revocations};
pub use sealed::{SealedFileError, SealedKind, SealingKey, create_sealed, open_sealed};
pub use signer::{SignerDirectory, SignerFileError, read_public};
