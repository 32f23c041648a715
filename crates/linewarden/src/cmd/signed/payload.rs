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
    Text,
    Hex,
    Bsm,
    Submessages(Layout),
}

impl LineFormat {
    /// The line format of a key.
    ///
    /// # Errors
    /// The key's layout has another kind.
    pub fn of(key: &PublicKey, kind: Option<KindName>, hex: bool) -> Result<Self, Failure> {
        let bytes = if hex { Self::Hex } else { Self::Text };
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
            None | Some(PayloadKind::Opaque) => bytes,
            Some(PayloadKind::Bsm) => Self::Bsm,
            Some(PayloadKind::Submessages) => {
                layout.map_or(bytes, |layout| Self::Submessages(layout.clone()))
            }
        })
    }

    /// The kind of payload.
    pub fn kind(&self) -> PayloadKind {
        match self {
            Self::Text | Self::Hex => PayloadKind::Opaque,
            Self::Bsm => PayloadKind::Bsm,
            Self::Submessages(_) => PayloadKind::Submessages,
        }
    }

    /// Whether a line is blank, in a format without empty payloads.
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
            Self::Submessages(layout) => submessages(layout, line)?,
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

fn submessages(layout: &Layout, line: &[u8]) -> Result<Vec<u8>, String> {
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
                let number = texts.iter().position(|text| part.as_str() == Some(text));
                let number = number.ok_or_else(|| mismatch("a sub-message of the layout"))?;
                // A component with up to 256 texts encodes the index of a text in one byte, otherwise in two; it has at most 2^16 texts.
                let number = (number as u16).to_be_bytes();
                payload.extend_from_slice(number.get(usize::from(texts.len() <= 256)..).unwrap_or_default());
            }
        }
    }
    Ok(payload)
}

/// Converts a payload to JSON: the fields of a basic safety message, the texts of sub-messages, or hexadecimal digits and, if the payload is
/// UTF-8, its text.
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
