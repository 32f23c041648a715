//! Metadata of packets between controller and switch: with P4Info ids, or as a header in front of the frame (15.1).

use thiserror::Error;

use super::Translator;
use super::key::unwritable_error;
use crate::bytes::Bits;
use crate::error::EntityError;
use crate::p4info::{ControllerHeader, Format, MetadataField};
use crate::proto::v1;

/// Error of packing or unpacking the header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PackError {
    /// The frame is shorter than the header.
    #[error("frame of {frame_bytes} bytes is too short: the header has {header_bytes} bytes")]
    FrameTooShort {
        /// Length of the frame, bytes.
        frame_bytes: usize,
        /// Length of the header, bytes.
        header_bytes: usize,
    },
    /// The header has a field that the controller cannot encode.
    #[error("header field has no bit<W> representation for the controller")]
    Unwritable,
}

impl Translator<'_> {
    /// Decodes the metadata of a packet-out: one value for each field of the program's header, in order.
    pub fn decode_packet_out(&self, metadata: &[v1::PacketMetadata]) -> Result<Vec<Bits>, EntityError> {
        decode_metadata(self.info.packet_out(), metadata)
    }

    /// Decodes the metadata of a packet-in.
    pub fn decode_packet_in(&self, metadata: &[v1::PacketMetadata]) -> Result<Vec<Bits>, EntityError> {
        decode_metadata(self.info.packet_in(), metadata)
    }

    /// Encodes the metadata of a packet-in.
    pub fn encode_packet_in(&self, values: &[Bits]) -> Vec<v1::PacketMetadata> {
        encode_metadata(self.info.packet_in(), values)
    }

    /// Encodes the metadata of a packet-out.
    pub fn encode_packet_out(&self, values: &[Bits]) -> Vec<v1::PacketMetadata> {
        encode_metadata(self.info.packet_out(), values)
    }
}

fn decode_metadata(
    header: Option<&ControllerHeader>,
    metadata: &[v1::PacketMetadata],
) -> Result<Vec<Bits>, EntityError> {
    let fields = header.map(|header| header.fields.as_slice()).unwrap_or_default();
    if let Some(extra) = metadata
        .iter()
        .find(|value| !fields.iter().any(|field| field.id.0 == value.metadata_id))
    {
        return Err(EntityError::invalid(format!(
            "unknown packet metadata: the program has none with id {}",
            extra.metadata_id
        )));
    }
    fields.iter().map(|field| decode_value(field, metadata)).collect()
}

fn decode_value(field: &MetadataField, metadata: &[v1::PacketMetadata]) -> Result<Bits, EntityError> {
    let at_field = |error: EntityError| error.at(format!("metadata \"{}\"", field.name));
    let Format::Bits(width) = field.format else {
        return Err(at_field(unwritable_error()));
    };
    let mut values = metadata
        .iter()
        .filter(|message| message.metadata_id == field.id.0);
    match (values.next(), values.next()) {
        (Some(message), None) => Bits::parse(width, &message.value).map_err(|error| at_field(error.into())),
        (Some(_), Some(_)) => Err(at_field(EntityError::invalid("value is given twice"))),
        (None, _) => Err(at_field(EntityError::invalid("value is missing"))),
    }
}

fn encode_metadata(header: Option<&ControllerHeader>, values: &[Bits]) -> Vec<v1::PacketMetadata> {
    let fields = header.map(|header| header.fields.as_slice()).unwrap_or_default();
    let encode = |(field, value): (&MetadataField, &Bits)| v1::PacketMetadata {
        metadata_id: field.id.0,
        value: value.canonical().to_vec(),
    };
    fields.iter().zip(values).map(encode).collect()
}

impl ControllerHeader {
    /// Length of the header in a frame, bytes; the last byte is padded with zero bits.
    pub fn length_bytes(&self) -> Result<usize, PackError> {
        let mut bits = 0;
        for field in &self.fields {
            bits += field.width()? as usize;
        }
        Ok(bits.div_ceil(8))
    }

    /// Packs the values as the header in front of a frame, with the widths of the P4Info. If a field has a translated
    /// type, its width in the data plane differs, and only the target can pack the header.
    pub fn pack(&self, values: &[Bits]) -> Result<Vec<u8>, PackError> {
        let mut header = vec![0; self.length_bytes()?];
        let mut offset = 0;
        for (field, value) in self.fields.iter().zip(values) {
            let width = field.width()? as usize;
            let bytes = value.as_bytes();
            let unused = (bytes.len() * 8).saturating_sub(value.width() as usize);
            for bit in 0..width.min(value.width() as usize) {
                let source = unused + bit;
                let is_set = bytes
                    .get(source / 8)
                    .is_some_and(|byte| byte & (0x80 >> (source % 8)) != 0);
                if let (true, Some(byte)) = (is_set, header.get_mut((offset + bit) / 8)) {
                    *byte |= 0x80 >> ((offset + bit) % 8);
                }
            }
            offset += width;
        }
        Ok(header)
    }

    /// Unpacks the header in front of a frame; returns the values and the payload.
    pub fn unpack<'a>(&self, frame: &'a [u8]) -> Result<(Vec<Bits>, &'a [u8]), PackError> {
        let header_bytes = self.length_bytes()?;
        let (header, payload) = frame
            .split_at_checked(header_bytes)
            .ok_or(PackError::FrameTooShort {
                frame_bytes: frame.len(),
                header_bytes,
            })?;
        let mut values = Vec::with_capacity(self.fields.len());
        let mut offset = 0;
        for field in &self.fields {
            let width = field.width()?;
            let mut bytes = vec![0; width.div_ceil(8) as usize];
            let unused = bytes.len() * 8 - width as usize;
            for bit in 0..width as usize {
                let is_set = header
                    .get((offset + bit) / 8)
                    .is_some_and(|byte| byte & (0x80 >> ((offset + bit) % 8)) != 0);
                if let (true, Some(byte)) = (is_set, bytes.get_mut((unused + bit) / 8)) {
                    *byte |= 0x80 >> ((unused + bit) % 8);
                }
            }
            values.push(Bits::parse(width, &bytes).unwrap_or_else(|_| Bits::zero(width)));
            offset += width as usize;
        }
        Ok((values, payload))
    }
}

impl MetadataField {
    fn width(&self) -> Result<u32, PackError> {
        match self.format {
            Format::Bits(width) => Ok(width),
            Format::Unwritable => Err(PackError::Unwritable),
        }
    }
}
