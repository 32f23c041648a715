//! Signed statements of a data plane about its state, created on request.
//!
//! A statement is a tagged COSE_Sign1 (RFC 9052) with EdDSA or ES256, content type `application/eat+cwt`, and the first 8 bytes
//! of the key's SHA-256 as its kid. Its payload is the claims of an EAT (RFC 9711) in CBOR:
//!
//! | claim | value |
//! |---|---|
//! | 10 nonce | 32 bytes that the appraiser drew |
//! | 256 UEID | `01`, then SHA-256 of the public key's bytes |
//! | 265 profile | [`PROFILE`] |
//! | 267 boot count | unsigned |
//! | 270, 271 software | `"linewarden"`, `[version]` |
//! | 273 measurements | one: `[65000, bytes]`; the bytes encode the map below |
//!
//! | key | value |
//! |---|---|
//! | 1 | type of data plane: `"p4"`, `"xdp"` |
//! | 2, 3 | switch id, sequence number of the state |
//! | 4, 5, 6 | digests of program, tables, registers, 32 bytes each |
//! | 7 | list of `[class, name, digest, entries, volatile]` by increasing class and name: the digest of each object; classes are numbered as in `Class::ALL` |
//! | 8 | list of texts: the exclusions of the digests |
//!
//! [`verify`] accepts exactly this format. The entries themselves may accompany the statement, unsigned, in an
//! [`Inventory`]: the signed digests prove the entries.

mod claims;
mod error;
mod format;
mod inventory;

use coset::{CoseSign1, CoseSign1Builder, HeaderBuilder, TaggedCborSerializable as _, iana};

use claims::Claims;
pub use error::StatementError;
pub use format::{DataPlaneKind, NONCE_BYTES, Nonce, PROFILE, STATEMENT_BYTES_MAX};
pub(crate) use inventory::hash;
pub use inventory::{INVENTORY_BYTES_MAX, Inventory, InventoryError, ProvenEntries};

use crate::keys::{PublicKey, Signer};
use crate::state::{ObjectDigest, Snapshot};

const CONTENT_TYPE: &str = "application/eat+cwt";
const KID_BYTES: usize = 8;

/// The content of a statement before it is signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The type of the data plane.
    pub kind: DataPlaneKind,
    /// The state.
    pub snapshot: Snapshot,
    /// The digests of the objects, from [`crate::state::MeasuredState::objects`] at the same moment.
    pub objects: Vec<ObjectDigest>,
    /// What the digests exclude, for display.
    pub exclusions: Vec<String>,
    /// The software version.
    pub software_version: String,
}

impl Statement {
    /// What the digests of the P4 switch exclude.
    pub const EXCLUSIONS_P4: [&'static str; 5] = [
        "packets in processing, in recirculation or in queues",
        "counts of counters and bucket levels of meters",
        "digests and idle notifications pending for the control plane",
        "values of volatile register arrays, except for their own digests",
        "port-to-interface mapping, settings of packet evidence, and the P4Info for controllers",
    ];

    /// Signs the statement in response to a nonce.
    ///
    /// # Errors
    /// Signing failed, or the content is too long.
    pub fn sign(self, nonce: Nonce, signer: &mut dyn Signer) -> Result<Vec<u8>, StatementError> {
        let key = signer.public_key();
        let mut objects = self.objects;
        objects.sort_by(|a, b| a.object.cmp(&b.object));
        let claims = Claims {
            nonce,
            ueid: claims::ueid(key.fingerprint()),
            software_version: self.software_version,
            kind: self.kind,
            snapshot: self.snapshot,
            objects,
            exclusions: self.exclusions,
        };
        let protected = HeaderBuilder::new()
            .algorithm(algorithm(&key))
            .content_type(CONTENT_TYPE.to_owned())
            .build();
        let kid = key
            .fingerprint()
            .first_chunk::<KID_BYTES>()
            .map(|kid| kid.to_vec());
        let unprotected = HeaderBuilder::new().key_id(kid.unwrap_or_default()).build();
        let signed = CoseSign1Builder::new()
            .protected(protected)
            .unprotected(unprotected)
            .payload(claims.encode()?)
            .try_create_signature(&[], |message| signer.sign(message).map(Vec::from))?
            .build();
        let bytes = signed
            .to_tagged_vec()
            .map_err(|error| StatementError::EncodingFailed(error.to_string()))?;
        match bytes.len() > STATEMENT_BYTES_MAX {
            true => Err(StatementError::TooLong(bytes.len())),
            false => Ok(bytes),
        }
    }
}

const fn algorithm(key: &PublicKey) -> iana::Algorithm {
    match key {
        PublicKey::Ed25519(_) => iana::Algorithm::EdDSA,
        PublicKey::EcdsaP256(_) => iana::Algorithm::ES256,
    }
}

/// A statement with a verified signature, created only by [`verify`], which also verifies the nonce, and by
/// [`verify_recorded`], which does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedStatement {
    claims: Claims,
}

impl VerifiedStatement {
    /// The type of the data plane.
    #[must_use]
    pub const fn kind(&self) -> DataPlaneKind {
        self.claims.kind
    }

    /// The state.
    #[must_use]
    pub const fn snapshot(&self) -> &Snapshot {
        &self.claims.snapshot
    }

    /// The digests of the data plane's objects, sorted by class and name.
    #[must_use]
    pub fn objects(&self) -> &[ObjectDigest] {
        &self.claims.objects
    }

    /// What the digests exclude, according to the data plane.
    #[must_use]
    pub fn exclusions(&self) -> &[String] {
        &self.claims.exclusions
    }

    /// The software version, according to the data plane.
    #[must_use]
    pub fn software_version(&self) -> &str {
        &self.claims.software_version
    }

    /// The nonce.
    #[must_use]
    pub const fn nonce(&self) -> Nonce {
        self.claims.nonce
    }
}

/// Verifies that the data plane with this key signed the statement in response to this nonce.
///
/// # Errors
/// The statement is malformed, or its signature, UEID or nonce is wrong.
pub fn verify(statement: &[u8], key: &PublicKey, nonce: Nonce) -> Result<VerifiedStatement, StatementError> {
    let evidence = verify_recorded(statement, key)?;
    match evidence.claims.nonce == nonce {
        true => Ok(evidence),
        false => Err(StatementError::NonceMismatch),
    }
}

/// As [`verify`], but accepts any nonce: the data plane with this key signed the statement at an unknown time. Use this
/// function only for recorded statements.
///
/// # Errors
/// As [`verify`], except a wrong nonce.
pub fn verify_recorded(statement: &[u8], key: &PublicKey) -> Result<VerifiedStatement, StatementError> {
    if statement.len() > STATEMENT_BYTES_MAX {
        return Err(StatementError::TooLong(statement.len()));
    }
    let signed = CoseSign1::from_tagged_slice(statement)
        .map_err(|error| StatementError::InvalidCose(error.to_string()))?;
    let expected = coset::RegisteredLabelWithPrivate::Assigned(algorithm(key));
    if signed.protected.header.alg != Some(expected) {
        return Err(StatementError::AlgorithmMismatch);
    }
    if !signed.protected.header.crit.is_empty() {
        return Err(StatementError::InvalidCose(
            "an unknown critical header".to_owned(),
        ));
    }
    signed.verify_signature(&[], |signature, message| match key.verifies(message, signature) {
        true => Ok(()),
        false => Err(StatementError::InvalidSignature),
    })?;
    let payload = signed.payload.as_deref();
    let claims = Claims::decode(payload.ok_or(StatementError::InvalidCose("it has no payload".to_owned()))?)?;
    if claims.ueid != claims::ueid(key.fingerprint()) {
        return Err(StatementError::UeidMismatch);
    }
    Ok(VerifiedStatement { claims })
}
