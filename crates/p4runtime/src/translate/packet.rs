//! Packets between controller and switch: metadata by P4Info's numbers, or as the header in front (15.1).

use thiserror::Error;

use super::Translator;
use super::key::unwritable;
use crate::bytes::Bits;
use crate::error::EntityError;
use crate::p4info::{ControllerHeader, Format, MetadataField};
use crate::proto::v1;

/// Why a packet's header cannot be made or taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PackError {
    /// The frame ends within it.
    #[error("the frame has {frame_bytes} bytes, its header alone {header_bytes}")]
    Short {
        /// What is there.
        frame_bytes: usize,
        /// What is needed.
        header_bytes: usize,
    },
    /// The program's header has a field that the controller cannot write.
    #[error("the header has a field that has no bit<W> for the controller")]
    Unwritable,
}

impl Translator<'_> {
    /// The values of a packet-out's metadata, one for each field of the program's header, in its order.
    pub fn decode_packet_out(&self, metadata: &[v1::PacketMetadata]) -> Result<Vec<Bits>, EntityError> {
        decode_metadata(self.info.packet_out(), metadata)
    }

    /// The values of a packet-in's metadata likewise.
    pub fn decode_packet_in(&self, metadata: &[v1::PacketMetadata]) -> Result<Vec<Bits>, EntityError> {
        decode_metadata(self.info.packet_in(), metadata)
    }

    /// The metadata of a packet-in as messages.
    pub fn encode_packet_in(&self, values: &[Bits]) -> Vec<v1::PacketMetadata> {
        encode_metadata(self.info.packet_in(), values)
    }

    /// The metadata of a packet-out as messages.
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
        .find(|given| !fields.iter().any(|field| field.id.0 == given.metadata_id))
    {
        return Err(EntityError::invalid(format!(
            "the program has no metadata with id {}",
            extra.metadata_id
        )));
    }
    fields.iter().map(|field| decode_value(field, metadata)).collect()
}

fn decode_value(field: &MetadataField, metadata: &[v1::PacketMetadata]) -> Result<Bits, EntityError> {
    let at_field = |error: EntityError| error.at(format!("metadata \"{}\"", field.name));
    let Format::Bits(width) = field.format else {
        return Err(at_field(unwritable()));
    };
    let mut values = metadata.iter().filter(|given| given.metadata_id == field.id.0);
    match (values.next(), values.next()) {
        (Some(given), None) => Bits::parse(width, &given.value).map_err(|error| at_field(error.into())),
        (Some(_), Some(_)) => Err(at_field(EntityError::invalid("it is given twice"))),
        (None, _) => Err(at_field(EntityError::invalid("it is not given"))),
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
    /// How long the header is in a frame; the last byte is filled up with zeros where the fields leave bits.
    pub fn length_bytes(&self) -> Result<usize, PackError> {
        let mut bits = 0;
        for field in &self.fields {
            bits += field.width()? as usize;
        }
        Ok(bits.div_ceil(8))
    }

    /// The header as it stands in front of a frame. It has the widths of P4Info: where a field's type is
    /// translated, the data plane's differ, and only the target can make the header.
    pub fn pack(&self, values: &[Bits]) -> Result<Vec<u8>, PackError> {
        let mut header = vec![0; self.length_bytes()?];
        let mut place = 0;
        for (field, value) in self.fields.iter().zip(values) {
            let width = field.width()? as usize;
            let bytes = value.as_bytes();
            let unused = (bytes.len() * 8).saturating_sub(value.width() as usize);
            for bit in 0..width.min(value.width() as usize) {
                let from = unused + bit;
                let set = bytes
                    .get(from / 8)
                    .is_some_and(|byte| byte & (0x80 >> (from % 8)) != 0);
                if let (true, Some(byte)) = (set, header.get_mut((place + bit) / 8)) {
                    *byte |= 0x80 >> ((place + bit) % 8);
                }
            }
            place += width;
        }
        Ok(header)
    }

    /// The values in the header in front of a frame, and what comes behind it.
    pub fn unpack<'a>(&self, frame: &'a [u8]) -> Result<(Vec<Bits>, &'a [u8]), PackError> {
        let header_bytes = self.length_bytes()?;
        let (header, payload) = frame.split_at_checked(header_bytes).ok_or(PackError::Short {
            frame_bytes: frame.len(),
            header_bytes,
        })?;
        let mut values = Vec::with_capacity(self.fields.len());
        let mut place = 0;
        for field in &self.fields {
            let width = field.width()?;
            let mut bytes = vec![0; width.div_ceil(8) as usize];
            let unused = bytes.len() * 8 - width as usize;
            for bit in 0..width as usize {
                let set = header
                    .get((place + bit) / 8)
                    .is_some_and(|byte| byte & (0x80 >> ((place + bit) % 8)) != 0);
                if let (true, Some(byte)) = (set, bytes.get_mut((unused + bit) / 8)) {
                    *byte |= 0x80 >> ((unused + bit) % 8);
                }
            }
            values.push(Bits::parse(width, &bytes).unwrap_or_else(|_| Bits::zero(width)));
            place += width as usize;
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
