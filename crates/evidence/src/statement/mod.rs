//! What a data plane says of itself when it is asked, signed.
//!
//! A statement is a tagged COSE_Sign1 (RFC 9052) with EdDSA or ES256, content type `application/eat+cwt`, the key's first 8 bytes of
//! SHA-256 as its kid. Its payload are the claims of an EAT (RFC 9711) in CBOR:
//!
//! | claim | value |
//! |---|---|
//! | 10 nonce | 32 bytes that the appraiser drew |
//! | 256 UEID | `01`, then SHA-256 of the public key's bytes |
//! | 265 profile | [`PROFILE`] |
//! | 267 boot count | unsigned |
//! | 270, 271 software | `"linewarden"`, `[version]` |
//! | 273 measurements | one: `[65000, bytes]`, the bytes a map as below |
//!
//! | key | value |
//! |---|---|
//! | 1 | kind of data plane: `"p4"`, `"xdp"` |
//! | 2, 3 | switch id, sequence number of the state |
//! | 4, 5, 6 | digests of program, tables, registers, 32 bytes each |
//! | 7 | list of `[class, name, digest, entries, volatile]` by increasing class and name: the digest of each object; classes are counted as in `Class::ALL` |
//! | 8 | list of texts: what the digests leave out |
//!
//! [`verify`] takes exactly this. The entries themselves may come beside it, unsigned, in an [`Inventory`]: the signed digests
//! prove them.

mod claims;
mod inventory;

use coset::{CoseSign1, CoseSign1Builder, HeaderBuilder, TaggedCborSerializable as _, iana};

use claims::Claims;
pub use claims::PROFILE;
pub(crate) use inventory::hash;
pub use inventory::{INVENTORY_BYTES_MAX, Inventory, InventoryError, Proven};

use crate::keys::{KeyError, PublicKey, Signer};
use crate::state::{ObjectDigest, Snapshot};

/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 32;
/// The longest statement, bytes: some hundred thousand objects.
pub const STATEMENT_BYTES_MAX: usize = 16 << 20;
const CONTENT_TYPE: &str = "application/eat+cwt";
const KID_BYTES: usize = 8;

/// What an appraiser draws, so that no statement of before is taken for one of now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonce(pub [u8; NONCE_BYTES]);

/// Kinds of data planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The P4 switch.
    P4,
    /// The XDP gateway.
    Xdp,
}

impl Kind {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::P4 => "p4",
            Self::Xdp => "xdp",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        [Self::P4, Self::Xdp].into_iter().find(|kind| kind.name() == name)
    }
}

/// Why there is no statement, or why one is not believed.
#[derive(Debug, thiserror::Error)]
pub enum StatementError {
    /// It could not be written.
    #[error("a statement could not be written: {0}")]
    Encode(String),
    /// It could not be signed.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Longer than any is.
    #[error("a statement of {0} bytes; none is longer than {STATEMENT_BYTES_MAX}")]
    TooLong(usize),
    /// No COSE_Sign1.
    #[error("no statement (COSE_Sign1): {0}")]
    Cose(String),
    /// Of another scheme than the key's.
    #[error("the statement is signed by another scheme than the key's: is it this data plane's key?")]
    Algorithm,
    /// The data plane did not sign it.
    #[error("the signature is not that of this key: the statement is not this data plane's, or was changed")]
    Signature,
    /// Signed, but no statement of this profile.
    #[error("signed, but no statement of the profile {PROFILE}: {0}: {1}")]
    Claims(&'static str, String),
    /// It is the answer to another question.
    #[error("the statement has another nonce: it answers another request, perhaps an old one")]
    Nonce,
    /// It names another key than the one that signed it.
    #[error("the statement's UEID is that of another key")]
    Ueid,
}

/// What a data plane says, before it is signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// What it is.
    pub kind: Kind,
    /// Its state.
    pub snapshot: Snapshot,
    /// The digests of its objects, as [`crate::state::Measured::objects`] gives them at the same moment.
    pub objects: Vec<ObjectDigest>,
    /// What the digests leave out, for a person to read.
    pub left_out: Vec<String>,
    /// The version of the software.
    pub software_version: String,
}

impl Statement {
    /// What the P4 switch's digests leave out.
    pub const LEFT_OUT_P4: [&'static str; 5] = [
        "packets that are being processed, recirculated or wait in queues",
        "what counters have counted and what is in meters' buckets",
        "digests and idle notifications that the control plane has not taken",
        "the values of volatile register arrays, but for their own digests",
        "which interface is which port, how packets carry evidence, and the P4Info by which controllers are served",
    ];

    /// Signs it, as the answer to a nonce.
    ///
    /// # Errors
    /// It cannot be signed, or has more in it than a statement can have.
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
            left_out: self.left_out,
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
            .map_err(|error| StatementError::Encode(error.to_string()))?;
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

/// A statement whose signature and nonce were checked. Made by [`verify`] only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    claims: Claims,
}

impl Evidence {
    /// What the data plane is.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.claims.kind
    }

    /// Its state.
    #[must_use]
    pub const fn snapshot(&self) -> &Snapshot {
        &self.claims.snapshot
    }

    /// The digests of its objects, by class and name.
    #[must_use]
    pub fn objects(&self) -> &[ObjectDigest] {
        &self.claims.objects
    }

    /// What the digests leave out, as the data plane says.
    #[must_use]
    pub fn left_out(&self) -> &[String] {
        &self.claims.left_out
    }

    /// The version of its software, as it says.
    #[must_use]
    pub fn software_version(&self) -> &str {
        &self.claims.software_version
    }

    /// What it answers.
    #[must_use]
    pub const fn nonce(&self) -> Nonce {
        self.claims.nonce
    }
}

/// Checks a statement: the data plane with this key made it in answer to this nonce.
///
/// # Errors
/// Anything else; nothing is believed of it.
pub fn verify(statement: &[u8], key: &PublicKey, nonce: Nonce) -> Result<Evidence, StatementError> {
    let evidence = verify_recorded(statement, key)?;
    match evidence.claims.nonce == nonce {
        true => Ok(evidence),
        false => Err(StatementError::Nonce),
    }
}

/// Likewise, whatever it answers: the data plane with this key made it, nobody knows when. For statements on record only.
///
/// # Errors
/// As [`verify`].
pub fn verify_recorded(statement: &[u8], key: &PublicKey) -> Result<Evidence, StatementError> {
    if statement.len() > STATEMENT_BYTES_MAX {
        return Err(StatementError::TooLong(statement.len()));
    }
    let signed =
        CoseSign1::from_tagged_slice(statement).map_err(|error| StatementError::Cose(error.to_string()))?;
    let expected = coset::RegisteredLabelWithPrivate::Assigned(algorithm(key));
    if signed.protected.header.alg != Some(expected) {
        return Err(StatementError::Algorithm);
    }
    if !signed.protected.header.crit.is_empty() {
        return Err(StatementError::Cose(
            "a critical header, of which none is known".to_owned(),
        ));
    }
    signed.verify_signature(&[], |signature, message| match key.verifies(message, signature) {
        true => Ok(()),
        false => Err(StatementError::Signature),
    })?;
    let payload = signed.payload.as_deref();
    let claims = Claims::decode(payload.ok_or(StatementError::Cose("it has no payload".to_owned()))?)?;
    if claims.ueid != claims::ueid(key.fingerprint()) {
        return Err(StatementError::Ueid);
    }
    Ok(Evidence { claims })
}
