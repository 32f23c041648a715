//! Bytes in JSON: hex for keys, digests and nonces, Base64 for structures.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize as _, Deserializer, Serializer};

fn to_array<const N: usize, E: serde::de::Error>(text: &str) -> Result<[u8; N], E> {
    let mut bytes = [0; N];
    hex::decode_to_slice(text, &mut bytes)
        .map_err(|_| E::custom(format_args!("expected {N} bytes in hex")))?;
    Ok(bytes)
}

/// `[u8; N]` as hex.
pub(crate) mod hex_array {
    use super::*;

    pub fn serialize<const N: usize, S: Serializer>(
        bytes: &[u8; N],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&zeroize::Zeroizing::new(hex::encode(bytes)))
    }

    pub fn deserialize<'de, const N: usize, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<[u8; N], D::Error> {
        let text = zeroize::Zeroizing::new(String::deserialize(deserializer)?);
        to_array(&text)
    }
}

/// Several digests as hex.
pub(crate) mod hex_list {
    use super::*;

    pub fn serialize<S: Serializer>(list: &[[u8; 32]], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(list.iter().map(hex::encode))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<[u8; 32]>, D::Error> {
        let list = Vec::<String>::deserialize(deserializer)?;
        list.iter().map(|text| to_array(text)).collect()
    }
}

fn to_bytes<E: serde::de::Error>(text: &str) -> Result<Vec<u8>, E> {
    STANDARD
        .decode(text)
        .map_err(|error| E::custom(format_args!("invalid Base64: {error}")))
}

/// Bytes as Base64.
pub(crate) mod base64_bytes {
    use super::*;

    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(bytes))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        to_bytes(&String::deserialize(deserializer)?)
    }
}

/// Several byte strings as Base64.
pub(crate) mod base64_list {
    use super::*;

    pub fn serialize<S: Serializer>(list: &[Vec<u8>], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(list.iter().map(|bytes| STANDARD.encode(bytes)))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Vec<u8>>, D::Error> {
        let list = Vec::<String>::deserialize(deserializer)?;
        list.iter().map(|text| to_bytes(text)).collect()
    }
}

/// Optional bytes as Base64.
pub(crate) mod base64_option {
    use super::*;

    pub fn serialize<S: Serializer>(bytes: &Option<Vec<u8>>, serializer: S) -> Result<S::Ok, S::Error> {
        match bytes {
            Some(bytes) => serializer.serialize_some(&STANDARD.encode(bytes)),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<u8>>, D::Error> {
        Option::<String>::deserialize(deserializer)?
            .map(|text| to_bytes(&text))
            .transpose()
    }
}
