//! One-line descriptions of events. Data that cannot be parsed are displayed as hex or by their hash, never omitted.

use super::text::{Guid, Variable, any_text, describe_bytes, escaped, utf16};
use super::{Event, EventType};
use crate::byte_reader::ByteReader;

impl Event {
    /// The event data in one line. Data that do not match their type are displayed as bytes.
    pub fn describe(&self) -> String {
        let data = &self.data;
        let description = match self.kind {
            kind if kind.is_variable() => describe_variable(kind, data),
            EventType::EV_SEPARATOR => Some(describe_separator(data)),
            EventType::EV_EFI_BOOT_SERVICES_APPLICATION
            | EventType::EV_EFI_BOOT_SERVICES_DRIVER
            | EventType::EV_EFI_RUNTIME_SERVICES_DRIVER => describe_image(data),
            EventType::EV_EFI_PLATFORM_FIRMWARE_BLOB => describe_blob(data),
            EventType::EV_EFI_PLATFORM_FIRMWARE_BLOB2 | EventType::EV_POST_CODE2 => describe_named_blob(data),
            EventType::EV_EFI_HANDOFF_TABLES2 => describe_named_tables(data),
            EventType::EV_EFI_GPT_EVENT | EventType::EV_EFI_GPT_EVENT2 => describe_partitions(data),
            EventType::EV_S_CRTM_VERSION => Some(describe_version(data)),
            EventType::EV_EVENT_TAG => describe_tagged(data),
            EventType::EV_NO_ACTION => describe_no_action(data),
            _ => any_text(data),
        };
        description.unwrap_or_else(|| describe_bytes(data))
    }
}

fn describe_variable(kind: EventType, data: &[u8]) -> Option<String> {
    let variable = Variable::read(data)?;
    let name = escaped(&variable.name);
    let value = match (kind, variable.value) {
        (EventType::EV_EFI_VARIABLE_BOOT | EventType::EV_EFI_VARIABLE_BOOT2, value)
            if is_boot_option(&name) =>
        {
            describe_boot_option(value).unwrap_or_else(|| describe_bytes(value))
        }
        (_, value) => any_text(value)
            .filter(|_| value.len() > 4)
            .unwrap_or_else(|| describe_bytes(value)),
    };
    Some(format!("{name} ({}): {value}", variable.namespace))
}

/// Whether the name is that of a boot option, such as `Boot0001`; `BootOrder` is none.
fn is_boot_option(name: &str) -> bool {
    name.strip_prefix("Boot")
        .is_some_and(|number| number.len() == 4 && number.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// EFI_LOAD_OPTION (UEFI 2.10, 3.1.3): attributes, length of the paths, a name, a path.
fn describe_boot_option(value: &[u8]) -> Option<String> {
    let mut fields = ByteReader::new(value);
    fields.u32_le()?;
    let path_bytes = usize::from(fields.u16_le()?);
    let (units, _) = fields.rest().as_chunks::<2>();
    let name_bytes = 2 * units.iter().position(|unit| *unit == [0, 0])? + 2;
    let name = utf16(fields.take(name_bytes)?)?;
    let path = fields.take(path_bytes)?;
    Some(format!("{}, {}", escaped(&name), describe_device_path(path)))
}

/// UEFI_IMAGE_LOAD_EVENT (PFP 10.2.3).
fn describe_image(data: &[u8]) -> Option<String> {
    let mut fields = ByteReader::new(data);
    let _address = fields.u64_le()?;
    let bytes = fields.u64_le()?;
    let _link_address = fields.u64_le()?;
    let path_bytes = usize::try_from(fields.u64_le()?).ok()?;
    Some(format!(
        "{}, {bytes} bytes",
        describe_device_path(fields.take(path_bytes)?)
    ))
}

/// EFI_DEVICE_PATH_PROTOCOL (UEFI 2.10, 10.3): files, partitions and firmware volumes by name, other nodes by their
/// numbers.
fn describe_device_path(path: &[u8]) -> String {
    let mut nodes = Vec::new();
    let mut fields = ByteReader::new(path);
    while let Some(node) = next_node(&mut fields) {
        nodes.push(node);
    }
    match nodes.is_empty() {
        true if path.is_empty() => "no path".to_owned(),
        true => format!("path {}", describe_bytes(path)),
        false => nodes.join("/"),
    }
}

fn next_node(fields: &mut ByteReader<'_>) -> Option<String> {
    const END: u8 = 0x7f;
    let (kind, subtype) = (fields.u8()?, fields.u8()?);
    let bytes = usize::from(fields.u16_le()?).checked_sub(4)?;
    let data = fields.take(bytes)?;
    let guid = || data.first_chunk().map(|guid| Guid(*guid));
    let description = match (kind, subtype) {
        (END, _) => return None,
        (4, 1) => ByteReader::new(data.get(20..)?)
            .array()
            .map(|id| format!("partition {}", Guid(id))),
        (4, 3) => guid().map(|guid| format!("media {guid}")),
        (4, 4) => utf16(data).map(|file| escaped(&file)),
        (4, 6) => guid().map(|guid| format!("firmware file {guid}")),
        (4, 7) => guid().map(|guid| format!("firmware volume {guid}")),
        (1, 1) => match data {
            [function, device] => Some(format!("PCI {device:02x}.{function:x}")),
            _ => None,
        },
        (2, 1) => Some("ACPI".to_owned()),
        _ => None,
    };
    Some(description.unwrap_or_else(|| format!("node {kind}.{subtype}")))
}

fn describe_separator(data: &[u8]) -> String {
    match data {
        [0xff, 0xff, 0xff, 0xff] => "end of the phase".to_owned(),
        [1, 0, 0, 0] => "error: the measurement is incomplete".to_owned(),
        // The data are four zero bytes; coreboot logs a field of 50.
        zeros if zeros.len() >= 4 && zeros.iter().all(|byte| *byte == 0) => "end of the phase".to_owned(),
        data => any_text(data).unwrap_or_else(|| describe_bytes(data)),
    }
}

/// UEFI_PLATFORM_FIRMWARE_BLOB (PFP 10.2.5).
fn describe_blob(data: &[u8]) -> Option<String> {
    let mut fields = ByteReader::new(data);
    let (base, bytes) = (fields.u64_le()?, fields.u64_le()?);
    fields
        .rest()
        .is_empty()
        .then(|| format!("{bytes} bytes at {base:#x}"))
}

/// UEFI_PLATFORM_FIRMWARE_BLOB2 (PFP 10.2.5).
fn describe_named_blob(data: &[u8]) -> Option<String> {
    let mut fields = ByteReader::new(data);
    let name_bytes = usize::from(fields.u8()?);
    let name = any_text(fields.take(name_bytes)?)?;
    Some(format!("{name}, {}", describe_blob(fields.rest())?))
}

/// UEFI_HANDOFF_TABLE_POINTERS2 (PFP 10.2): the name of the tables.
fn describe_named_tables(data: &[u8]) -> Option<String> {
    let mut fields = ByteReader::new(data);
    let name_bytes = usize::from(fields.u8()?);
    any_text(fields.take(name_bytes)?)
}

/// UEFI_GPT_DATA (PFP 10.2.6): the disk's GUID and its partitions' names.
fn describe_partitions(data: &[u8]) -> Option<String> {
    const HEADER_TO_GUID: usize = 56;
    const HEADER_BYTES: usize = 92;
    const NAME_OFFSET: usize = 56;
    const NAMES_MAX: u64 = 16;
    let mut fields = ByteReader::new(data);
    let mut header = ByteReader::new(fields.take(HEADER_BYTES)?);
    header.take(HEADER_TO_GUID)?;
    let disk = Guid(header.array()?);
    let count = fields.u64_le()?;
    let mut names = Vec::new();
    for _ in 0..count.min(NAMES_MAX) {
        let name = utf16(fields.take(128)?.get(NAME_OFFSET..)?)?;
        names.push(if name.is_empty() {
            "(no name)".to_owned()
        } else {
            escaped(&name)
        });
    }
    let suffix = if count > NAMES_MAX { " and more" } else { "" };
    Some(format!(
        "disk {disk} with {count} partitions: {}{suffix}",
        names.join(", ")
    ))
}

fn describe_version(data: &[u8]) -> String {
    match (data, <[u8; 16]>::try_from(data)) {
        ([0, 0], _) => "no version".to_owned(),
        (_, Ok(guid)) if any_text(data).is_none() => Guid(guid).to_string(),
        _ => any_text(data).unwrap_or_else(|| describe_bytes(data)),
    }
}

/// TCG_PCClientTaggedEvent (PFP 10.4.1). The known tags are those of Linux' EFI stub.
fn describe_tagged(data: &[u8]) -> Option<String> {
    let mut fields = ByteReader::new(data);
    let tag = fields.u32_le()?;
    let inner = fields.sized_u32_le()?;
    let name = match tag {
        0x8f3b_22ec => "Linux initrd".to_owned(),
        0x8f3b_22ed => "Linux load options".to_owned(),
        tag => format!("tag {tag:#010x}"),
    };
    Some(format!(
        "{name}: {}",
        any_text(inner).unwrap_or_else(|| describe_bytes(inner))
    ))
}

/// The signature at the start of an EV_NO_ACTION event.
fn describe_no_action(data: &[u8]) -> Option<String> {
    let signature = data.split(|byte| *byte == 0).next()?;
    let rest = data.get(signature.len() + 1..).unwrap_or_default();
    Some(format!("{}: {}", any_text(signature)?, describe_bytes(rest)))
}
