//! Public keys and layouts as JSON, to be handed to receivers.

use linewarden_arithmetic::rsa::RsaPublic;
use serde::{Deserialize, Serialize};

use super::public::{Material, PublicKey, PublicKeyError};
use crate::message::{KeyId, PayloadKind};
use crate::ra::{Domain, Layout, LayoutError, PAD_BYTES, RaPublic};
use crate::scheme::Scheme;

/// No public key is longer: a layout of 2^17 sub-messages, of 512 bytes at most, seldom has so many long ones.
pub const PUBLIC_KEY_BYTES_MAX: usize = 16 << 20;
const FORMAT: &str = "linewarden signer 1";

/// Why a text is no public key.
#[derive(Debug, thiserror::Error)]
pub enum PublicKeyTextError {
    /// No JSON, or fields are missing or unknown.
    #[error("no public key of a signer: {0}")]
    Json(#[from] serde_json::Error),
    /// Another format.
    #[error("format: {0:?}; {FORMAT:?} is read here")]
    Format(String),
    /// A field's value is not what it should be.
    #[error("{field}: {problem}")]
    Field {
        /// Which field.
        field: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// The layout cannot be.
    #[error("layout: {0}")]
    Layout(#[from] LayoutError),
    /// The key is none.
    #[error("key: {0}")]
    Key(#[from] PublicKeyError),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    format: String,
    scheme: String,
    id: String,
    /// A modulus, or a point: uncompressed for P-256, compressed for Ed25519.
    key: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    random: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    layout: Option<LayoutText>,
}

/// A layout as people write it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum LayoutText {
    /// A basic safety message.
    Bsm,
    /// So many bytes.
    Opaque {
        /// 1 to 60.
        bytes: usize,
    },
    /// Sub-messages, and bytes between them.
    Submessages {
        /// `"byte"`, or `{"submessages": ["…", "…"]}`.
        components: Vec<Domain>,
    },
}

impl TryFrom<LayoutText> for Layout {
    type Error = LayoutError;

    fn try_from(text: LayoutText) -> Result<Self, LayoutError> {
        match text {
            LayoutText::Bsm => Self::bsm(),
            LayoutText::Opaque { bytes } => Self::bytes(bytes),
            LayoutText::Submessages { components } => Self::new(PayloadKind::Submessages, components),
        }
    }
}

impl From<&Layout> for LayoutText {
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
    /// As JSON, with a line's end.
    ///
    /// # Errors
    /// None that is known: all of it are strings and numbers.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        let (key, ra) = match self.material() {
            Material::Ra(ra) => (ra.rsa().as_bytes().to_vec(), Some(ra)),
            Material::Pss(rsa, _) => (rsa.as_bytes().to_vec(), None),
            Material::EcdsaP256(key, _) => (key.to_sec1(), None),
            Material::Ed25519(key, _) => (key.key().as_bytes().to_vec(), None),
        };
        let text = Text {
            format: FORMAT.to_owned(),
            scheme: self.scheme().name().to_owned(),
            id: self.id().to_string(),
            key: hex::encode(key),
            random: ra.map(|ra| hex::encode(ra.random())),
            layout: ra.map(|ra| ra.layout().into()),
        };
        Ok(serde_json::to_string_pretty(&text)? + "\n")
    }

    /// Reads what [`PublicKey::to_json`] has written.
    ///
    /// # Errors
    /// What is wrong with which field; an id that is not this key's.
    pub fn from_json(text: &str) -> Result<Self, PublicKeyTextError> {
        let text: Text = serde_json::from_str(text)?;
        if text.format != FORMAT {
            return Err(PublicKeyTextError::Format(text.format));
        }
        let scheme: Scheme = text.scheme.parse().map_err(in_field("scheme"))?;
        let id: KeyId = text.id.parse().map_err(in_field("id"))?;
        let bytes = hex::decode(&text.key).map_err(in_field("key"))?;
        let key = match (scheme.is_rapid(), text.layout, text.random) {
            (true, Some(layout), Some(random)) => {
                let mut pad_random = [0; PAD_BYTES];
                hex::decode_to_slice(&random, &mut pad_random).map_err(in_field("random"))?;
                if bytes.len() != scheme.signature_bytes() {
                    return Err(PublicKeyError::Length {
                        scheme,
                        found: bytes.len(),
                        wanted: scheme.signature_bytes(),
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
                    "{id} is not this key's, which is {}: a field has been changed",
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
