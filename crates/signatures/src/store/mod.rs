//! Files: private keys, tables and masks, sealed and for their owner only; public keys and revocations, for everybody.

mod machine;
mod mask_file;
mod revocation;
mod sealed;
mod signer;

pub use machine::{MachineError, MachineId};
pub use mask_file::{BLOCK_MASKS, MaskFile, MaskFileError};
pub use revocation::{NotAList, RevocationError, Revocations};
pub use sealed::{SealedFileError, SealedKind, SealingKey, create_sealed, open_sealed};
pub use signer::{SignerDirectory, SignerFileError, read_public};
