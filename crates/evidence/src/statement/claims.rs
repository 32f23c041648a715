//! The claims of a statement, as CBOR.

use coset::cbor::Value;

use super::error::StatementError;
use super::format::{DataPlaneKind, NONCE_BYTES, Nonce, PROFILE};
use crate::encoding::{Class, Object};
use crate::ids::{BootCount, Sequence, SwitchId};
use crate::lthash::Digest;
use crate::state::{Digests, ObjectDigest, Snapshot};

/// RFC 9711 (EAT), claims in CWT.
const EAT_NONCE: u64 = 10;
const UEID: u64 = 256;
const EAT_PROFILE: u64 = 265;
const BOOT_COUNT: u64 = 267;
const SOFTWARE_NAME: u64 = 270;
const SOFTWARE_VERSION: u64 = 271;
const MEASUREMENTS: u64 = 273;
/// UEID type for ids derived by a hash function.
const UEID_RAND: u8 = 1;

/// An experimental CoAP content format number: it has a meaning only within the profile.
const CONTENT_FORMAT: u64 = 65_000;
const SOFTWARE: &str = "linewarden";

/// Keys of the map of measurements.
const KIND: u64 = 1;
const SWITCH: u64 = 2;
const SEQUENCE: u64 = 3;
const PROGRAM: u64 = 4;
const TABLES: u64 = 5;
const REGISTERS: u64 = 6;
const OBJECTS: u64 = 7;
const EXCLUSIONS: u64 = 8;

/// All claims of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claims {
    pub nonce: Nonce,
    pub ueid: [u8; 33],
    pub software_version: String,
    pub kind: DataPlaneKind,
    pub snapshot: Snapshot,
    pub objects: Vec<ObjectDigest>,
    pub exclusions: Vec<String>,
}

/// The UEID of the key holder.
pub(super) fn ueid(fingerprint: [u8; 32]) -> [u8; 33] {
    let mut ueid = [UEID_RAND; 33];
    let (_, rest) = ueid.split_at_mut(1);
    rest.copy_from_slice(&fingerprint);
    ueid
}

impl Claims {
    pub fn encode(&self) -> Result<Vec<u8>, StatementError> {
        let Snapshot {
            switch,
            boot_count,
            sequence,
            digests,
        } = &self.snapshot;
        let digest = |digest: &Digest| Value::Bytes(digest.0.to_vec());
        let measured = map([
            (KIND, self.kind.name().into()),
            (SWITCH, switch.0.into()),
            (SEQUENCE, sequence.0.into()),
            (PROGRAM, digest(&digests.program)),
            (TABLES, digest(&digests.tables)),
            (REGISTERS, digest(&digests.registers)),
            (
                OBJECTS,
                Value::Array(self.objects.iter().map(object_value).collect()),
            ),
            (
                EXCLUSIONS,
                Value::Array(self.exclusions.iter().map(|text| text.clone().into()).collect()),
            ),
        ]);
        let measurement = Value::Array(vec![CONTENT_FORMAT.into(), Value::Bytes(write(&measured)?)]);
        let version = Value::Array(vec![self.software_version.clone().into()]);
        // Keys are in increasing order, as deterministic encoding requires (RFC 8949, 4.2.1).
        write(&map([
            (EAT_NONCE, Value::Bytes(self.nonce.0.to_vec())),
            (UEID, Value::Bytes(self.ueid.to_vec())),
            (EAT_PROFILE, PROFILE.into()),
            (BOOT_COUNT, boot_count.0.into()),
            (SOFTWARE_NAME, SOFTWARE.into()),
            (SOFTWARE_VERSION, version),
            (MEASUREMENTS, Value::Array(vec![measurement])),
        ]))
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, StatementError> {
        let mut outer = Fields::read("the claims", bytes)?;
        if outer.text(EAT_PROFILE)? != PROFILE {
            return Err(outer.refuse(EAT_PROFILE, "unsupported profile"));
        }
        if outer.text(SOFTWARE_NAME)? != SOFTWARE {
            return Err(outer.refuse(SOFTWARE_NAME, "of another program"));
        }
        let version = match outer.array(SOFTWARE_VERSION)?.as_slice() {
            [Value::Text(version)] => version.clone(),
            _ => return Err(outer.refuse(SOFTWARE_VERSION, "not exactly one text")),
        };
        let nonce = Nonce(outer.fixed::<NONCE_BYTES>(EAT_NONCE)?);
        let ueid = outer.fixed(UEID)?;
        let boot_count = BootCount(outer.number(BOOT_COUNT)?);
        let measurements = outer.array(MEASUREMENTS)?;
        let measured = match measurements.as_slice() {
            [Value::Array(measurement)] => match measurement.as_slice() {
                [format, Value::Bytes(measured)] if *format == Value::from(CONTENT_FORMAT) => measured,
                _ => return Err(outer.refuse(MEASUREMENTS, "unsupported format")),
            },
            _ => return Err(outer.refuse(MEASUREMENTS, "not exactly one")),
        };
        outer.finish()?;
        let mut inner = Fields::read("the measurements", measured)?;
        let kind = DataPlaneKind::from_name(&inner.text(KIND)?);
        let kind = kind.ok_or_else(|| inner.refuse(KIND, "unknown type of data plane"))?;
        let claims = Self {
            nonce,
            ueid,
            software_version: version,
            kind,
            snapshot: Snapshot {
                switch: SwitchId(inner.number(SWITCH)?),
                boot_count,
                sequence: Sequence(inner.number(SEQUENCE)?),
                digests: Digests {
                    program: Digest(inner.fixed(PROGRAM)?),
                    tables: Digest(inner.fixed(TABLES)?),
                    registers: Digest(inner.fixed(REGISTERS)?),
                },
            },
            objects: inner.objects()?,
            exclusions: inner.texts(EXCLUSIONS)?,
        };
        inner.finish()?;
        Ok(claims)
    }
}

fn map<const N: usize>(fields: [(u64, Value); N]) -> Value {
    Value::Map(
        fields
            .into_iter()
            .map(|(key, value)| (key.into(), value))
            .collect(),
    )
}

fn write(value: &Value) -> Result<Vec<u8>, StatementError> {
    let mut bytes = Vec::new();
    coset::cbor::into_writer(value, &mut bytes)
        .map_err(|error| StatementError::EncodingFailed(error.to_string()))?;
    Ok(bytes)
}

/// `[class, name, digest, entries, volatile]`.
fn object_value(object: &ObjectDigest) -> Value {
    let class = Class::ALL.iter().position(|&class| class == object.object.class);
    Value::Array(vec![
        u64::try_from(class.unwrap_or(usize::MAX))
            .unwrap_or(u64::MAX)
            .into(),
        object.object.name.clone().into(),
        Value::Bytes(object.digest.0.to_vec()),
        object.entries.into(),
        object.is_volatile.into(),
    ])
}

fn object_of(value: Value) -> Option<ObjectDigest> {
    let Value::Array(fields) = value else {
        return None;
    };
    let [
        class,
        Value::Text(name),
        Value::Bytes(digest),
        entries,
        Value::Bool(is_volatile),
    ] = fields.as_slice()
    else {
        return None;
    };
    let number = |value: &Value| value.as_integer().and_then(|number| u64::try_from(number).ok());
    let class = usize::try_from(number(class)?).ok()?;
    Some(ObjectDigest {
        object: Object {
            class: *Class::ALL.get(class)?,
            name: name.clone(),
        },
        digest: Digest(digest.as_slice().try_into().ok()?),
        entries: number(entries)?,
        is_volatile: *is_volatile,
    })
}

/// The fields of a map with integer keys. A field is removed when it is read; [`Self::finish`] rejects remaining fields.
struct Fields {
    map_name: &'static str,
    fields: Vec<(Value, Value)>,
}

impl Fields {
    fn read(map_name: &'static str, bytes: &[u8]) -> Result<Self, StatementError> {
        let refuse = |reason: String| StatementError::InvalidClaims(map_name, reason);
        let mut rest = bytes;
        let value: Value = coset::cbor::from_reader(&mut rest).map_err(|error| refuse(error.to_string()))?;
        match value {
            Value::Map(fields) if rest.is_empty() => Ok(Self { map_name, fields }),
            Value::Map(_) => Err(refuse("trailing bytes".to_owned())),
            _ => Err(refuse("not a map".to_owned())),
        }
    }

    fn refuse(&self, key: u64, reason: &str) -> StatementError {
        StatementError::InvalidClaims(self.map_name, format!("claim {key}: {reason}"))
    }

    fn take(&mut self, key: u64) -> Result<Value, StatementError> {
        let position = self
            .fields
            .iter()
            .position(|(field_key, _)| *field_key == Value::from(key));
        match position {
            Some(position) => Ok(self.fields.swap_remove(position).1),
            None => Err(self.refuse(key, "missing")),
        }
    }

    fn text(&mut self, key: u64) -> Result<String, StatementError> {
        let value = self.take(key)?;
        value.into_text().map_err(|_| self.refuse(key, "not a text"))
    }

    fn number(&mut self, key: u64) -> Result<u64, StatementError> {
        let value = self.take(key)?;
        let number = value.as_integer().and_then(|number| u64::try_from(number).ok());
        number.ok_or_else(|| self.refuse(key, "not an unsigned number"))
    }

    fn fixed<const N: usize>(&mut self, key: u64) -> Result<[u8; N], StatementError> {
        let value = self.take(key)?;
        let bytes = value.into_bytes().ok().and_then(|bytes| bytes.try_into().ok());
        bytes.ok_or_else(|| self.refuse(key, &format!("not {N} bytes")))
    }

    fn array(&mut self, key: u64) -> Result<Vec<Value>, StatementError> {
        let value = self.take(key)?;
        value.into_array().map_err(|_| self.refuse(key, "not a list"))
    }

    fn texts(&mut self, key: u64) -> Result<Vec<String>, StatementError> {
        let texts: Result<Vec<_>, _> = self.array(key)?.into_iter().map(Value::into_text).collect();
        texts.map_err(|_| self.refuse(key, "not a list of texts"))
    }

    /// Reads the objects, which are in increasing order, without duplicates.
    fn objects(&mut self) -> Result<Vec<ObjectDigest>, StatementError> {
        let objects: Option<Vec<_>> = self.array(OBJECTS)?.into_iter().map(object_of).collect();
        objects
            .filter(|objects| objects.is_sorted_by(|a, b| a.object < b.object))
            .ok_or_else(|| self.refuse(OBJECTS, "not a list of objects in increasing order"))
    }

    fn finish(self) -> Result<(), StatementError> {
        match self.fields.as_slice() {
            [] => Ok(()),
            _ => Err(StatementError::InvalidClaims(
                self.map_name,
                "an unknown or duplicate claim".to_owned(),
            )),
        }
    }
}
