//! Public keys and layouts as JSON, for distribution to receivers.

use linewarden_arithmetic::rsa::RsaPublic;
use serde::{Deserialize, Serialize};

use super::public::{Material, PublicKey, PublicKeyError};
use crate::message::{KeyId, PayloadKind};
use crate::ra::{Domain, Layout, LayoutError, PAD_BYTES, RaPublic};
use crate::scheme::Scheme;

/// Maximum length of a public key as JSON, bytes. A layout has at most 2^17 sub-messages of at most 512 bytes, and few
/// sub-messages are that long.
pub const PUBLIC_KEY_BYTES_MAX: usize = 16 << 20;
const FORMAT: &str = "linewarden signer 1";

/// Why a text is not a valid public key.
#[derive(Debug, thiserror::Error)]
pub enum PublicKeyTextError {
    /// Invalid JSON, or fields are missing or unknown.
    #[error("invalid public key of a signer: {0}")]
    Json(#[from] serde_json::Error),
    /// Unknown format.
    #[error("format: {0:?} is not supported; expected {FORMAT:?}")]
    Format(String),
    /// The value of a field is invalid.
    #[error("{field}: {problem}")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// The error.
        problem: String,
    },
    /// The layout is invalid.
    #[error("layout: {0}")]
    Layout(#[from] LayoutError),
    /// The key is invalid.
    #[error("key: {0}")]
    Key(#[from] PublicKeyError),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PublicKeyDocument {
    format: String,
    scheme: String,
    id: String,
    /// A modulus, or a point: uncompressed for P-256, compressed for Ed25519.
    key: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    random: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    layout: Option<LayoutDocument>,
}

/// A layout as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum LayoutDocument {
    /// A basic safety message.
    Bsm,
    /// A number of opaque bytes.
    Opaque {
        /// Number of bytes, 1 to 60.
        bytes: usize,
    },
    /// Sub-messages, and bytes between sub-messages.
    Submessages {
        /// The components in order, each `"byte"`, or `{"submessages": ["…", "…"]}`.
        components: Vec<Domain>,
    },
}

impl TryFrom<LayoutDocument> for Layout {
    type Error = LayoutError;

    fn try_from(document: LayoutDocument) -> Result<Self, LayoutError> {
        match document {
            LayoutDocument::Bsm => Self::bsm(),
            LayoutDocument::Opaque { bytes } => Self::bytes(bytes),
            LayoutDocument::Submessages { components } => Self::new(PayloadKind::Submessages, components),
        }
    }
}

impl From<&Layout> for LayoutDocument {
    fn from(layout: &Layout) -> Self {
        match layout.kind() {
            PayloadKind::Bsm => Self::Bsm,
            PayloadKind::Opaque => Self::Opaque {
                bytes: layout.payload_bytes(),
            },
            PayloadKind::Submessages => Self::Submessages {
                components: layout.payload_components().to_vec(),
            },
        }
    }
}

impl PublicKey {
    /// The key as JSON, with a line end.
    ///
    /// # Errors
    /// None is known: all fields are strings and numbers.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        let (key, ra) = match self.material() {
            Material::Ra(ra) => (ra.rsa().as_bytes().to_vec(), Some(ra)),
            Material::Pss(rsa, _) => (rsa.as_bytes().to_vec(), None),
            Material::EcdsaP256(key, _) => (key.to_sec1(), None),
            Material::Ed25519(key, _) => (key.key().as_bytes().to_vec(), None),
        };
        let document = PublicKeyDocument {
            format: FORMAT.to_owned(),
            scheme: self.scheme().name().to_owned(),
            id: self.id().to_string(),
            key: hex::encode(key),
            random: ra.map(|ra| hex::encode(ra.random())),
            layout: ra.map(|ra| ra.layout().into()),
        };
        Ok(serde_json::to_string_pretty(&document)? + "\n")
    }

    /// Reads the JSON that [`PublicKey::to_json`] writes.
    ///
    /// # Errors
    /// Invalid JSON, an invalid field, or an id that does not match the key.
    pub fn from_json(text: &str) -> Result<Self, PublicKeyTextError> {
        let document: PublicKeyDocument = serde_json::from_str(text)?;
        if document.format != FORMAT {
            return Err(PublicKeyTextError::Format(document.format));
        }
        let scheme: Scheme = document.scheme.parse().map_err(in_field("scheme"))?;
        let id: KeyId = document.id.parse().map_err(in_field("id"))?;
        let bytes = hex::decode(&document.key).map_err(in_field("key"))?;
        let key = match (scheme.is_rapid(), document.layout, document.random) {
            (true, Some(layout), Some(random)) => {
                let mut pad_random = [0; PAD_BYTES];
                hex::decode_to_slice(&random, &mut pad_random).map_err(in_field("random"))?;
                if bytes.len() != scheme.signature_bytes() {
                    return Err(PublicKeyError::Length {
                        scheme,
                        found: bytes.len(),
                        expected: scheme.signature_bytes(),
                    }
                    .into());
                }
                let rsa = RsaPublic::new(&bytes).map_err(PublicKeyError::from)?;
                Self::rapid(RaPublic::new(rsa, layout.try_into()?, pad_random))
            }
            (false, None, None) => Self::plain(scheme, &bytes)?,
            _ => return Err(PublicKeyError::Layout(scheme).into()),
        };
        match key.id() == id {
            true => Ok(key),
            false => Err(PublicKeyTextError::Field {
                field: "id",
                problem: format!(
                    "{id} does not match the key, whose id is {}; a field was changed",
                    key.id()
                ),
            }),
        }
    }
}

fn in_field<E: std::fmt::Display>(field: &'static str) -> impl Fn(E) -> PublicKeyTextError {
    move |error| PublicKeyTextError::Field {
        field,
        problem: error.to_string(),
    }
}
