//! Payloads: parsed from lines, and converted to JSON.

use clap::ValueEnum;
use linewarden_cli::failure::Failure;
use linewarden_signatures::bsm::CoreData;
use linewarden_signatures::key::PublicKey;
use linewarden_signatures::message::{PAYLOAD_BYTES_MAX, PayloadKind};
use linewarden_signatures::ra::{Domain, Layout};
use serde_json::Value;

/// Kind of the payloads of a key without layout.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum KindName {
    /// Arbitrary bytes
    Opaque,
    /// SAE J2735 Basic Safety Messages, part I
    Bsm,
}

/// Format of input lines.
pub enum LineFormat {
    /// The bytes of the payload.
    Text,
    /// The bytes of the payload as hexadecimal digits.
    Hex,
    /// A basic safety message as JSON object.
    Bsm,
    /// Sub-messages of this layout as JSON array.
    Submessages(Layout),
}

impl LineFormat {
    /// Returns the line format for a key.
    ///
    /// # Errors
    /// The key's layout has another kind than `kind`, or `hex` is set for a kind whose lines are JSON.
    pub fn for_key(key: &PublicKey, kind: Option<KindName>, hex: bool) -> Result<Self, Failure> {
        let opaque_format = if hex { Self::Hex } else { Self::Text };
        let layout = key.ra().map(linewarden_signatures::ra::RaPublic::layout);
        let kind = kind.map(|kind| match kind {
            KindName::Opaque => PayloadKind::Opaque,
            KindName::Bsm => PayloadKind::Bsm,
        });
        if let (Some(layout), Some(kind)) = (layout, kind)
            && layout.kind() != kind
        {
            return Err(Failure::input(format!(
                "--kind: the signer's layout has {} payloads",
                layout.kind().name()
            )));
        }
        let kind = layout.map(Layout::kind).or(kind);
        if hex && matches!(kind, Some(PayloadKind::Bsm | PayloadKind::Submessages)) {
            return Err(Failure::input(
                "--hex: not available for basic safety messages and sub-messages, whose lines are JSON",
            ));
        }
        Ok(match kind {
            None | Some(PayloadKind::Opaque) => opaque_format,
            Some(PayloadKind::Bsm) => Self::Bsm,
            Some(PayloadKind::Submessages) => {
                layout.map_or(opaque_format, |layout| Self::Submessages(layout.clone()))
            }
        })
    }

    /// The kind of the payloads.
    pub fn kind(&self) -> PayloadKind {
        match self {
            Self::Text | Self::Hex => PayloadKind::Opaque,
            Self::Bsm => PayloadKind::Bsm,
            Self::Submessages(_) => PayloadKind::Submessages,
        }
    }

    /// Whether a line is blank, and this format has no empty payloads.
    pub fn is_blank(&self, line: &[u8]) -> bool {
        matches!(self, Self::Bsm | Self::Submessages(_)) && line.trim_ascii().is_empty()
    }

    /// Parses a line.
    ///
    /// # Errors
    /// The line is not a payload.
    pub fn parse(&self, line: &[u8]) -> Result<Vec<u8>, String> {
        let payload = match self {
            Self::Text => line.to_vec(),
            Self::Hex => hex::decode(line.trim_ascii()).map_err(|error| error.to_string())?,
            Self::Bsm => {
                let message: CoreData = serde_json::from_slice(line).map_err(|error| error.to_string())?;
                message.encode().to_vec()
            }
            Self::Submessages(layout) => encode_submessages(layout, line)?,
        };
        match payload.len() > PAYLOAD_BYTES_MAX {
            true => Err(format!(
                "payload of {} bytes is longer than {PAYLOAD_BYTES_MAX} bytes",
                payload.len()
            )),
            false => Ok(payload),
        }
    }
}

/// Encodes a JSON array of sub-messages as a payload.
fn encode_submessages(layout: &Layout, line: &[u8]) -> Result<Vec<u8>, String> {
    let parts: Vec<Value> = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    let domains = layout.payload_components();
    if parts.len() != domains.len() {
        return Err(format!(
            "{} parts, but the layout has {}",
            parts.len(),
            domains.len()
        ));
    }
    let mut payload = Vec::new();
    for (index, (part, domain)) in parts.iter().zip(domains).enumerate() {
        let mismatch = |expected: &str| format!("part {index}: {part} is not {expected}");
        match domain {
            Domain::Byte => {
                let byte = part.as_u64().and_then(|byte| u8::try_from(byte).ok());
                payload.push(byte.ok_or_else(|| mismatch("a number from 0 to 255"))?);
            }
            Domain::Submessages(texts) => {
                let text_index = texts.iter().position(|text| part.as_str() == Some(text));
                let text_index = text_index.ok_or_else(|| mismatch("a sub-message of the layout"))?;
                // A component has at most 2^16 texts. The index of a text has one byte if the component has up to 256
                // texts, otherwise two bytes.
                let encoding = (text_index as u16).to_be_bytes();
                let skipped_bytes = usize::from(texts.len() <= 256);
                payload.extend_from_slice(encoding.get(skipped_bytes..).unwrap_or_default());
            }
        }
    }
    Ok(payload)
}

/// Converts a payload to JSON: the fields of a basic safety message, the texts of sub-messages, or hexadecimal digits. If
/// an opaque payload is UTF-8, the JSON also contains the text.
pub fn to_json(key: &PublicKey, kind: PayloadKind, payload: &[u8]) -> Value {
    match kind {
        PayloadKind::Bsm => match CoreData::decode(payload) {
            Ok(message) => serde_json::json!({ "bsm": message }),
            Err(error) => serde_json::json!({ "hex": hex::encode(payload), "no_bsm": error.to_string() }),
        },
        PayloadKind::Submessages => {
            let parts = key.ra().and_then(|ra| ra.layout().parts(payload));
            serde_json::json!({ "submessages": parts })
        }
        PayloadKind::Opaque => match str::from_utf8(payload) {
            Ok(text) => serde_json::json!({ "hex": hex::encode(payload), "text": text }),
            Err(_) => serde_json::json!({ "hex": hex::encode(payload) }),
        },
    }
}
