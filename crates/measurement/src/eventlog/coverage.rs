//! The part of an event's data that its digest covers.
//!
//! The PCR binds the digest; the data are only logged with it. Where the profile requires a digest of the data,
//! firmware differs in which bytes are hashed. The known forms are listed with their source. Data in any other form
//! are unexplained: real firmware writes such entries, so they do not invalidate a log, but their data are not
//! proven, and the entry is appraised by its digest alone.

use std::ops::Range;

use super::Event;
use super::event_type::{DigestRule, EventType};
use super::text::{Variable, utf16};
use crate::byte_reader::ByteReader;
use crate::digest::Digest;

/// The part of an event's data that the digest covers.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DigestCoverage {
    /// All data: any changed bit is detected.
    All,
    /// These bytes; the other bytes are a claim.
    Part(Range<usize>),
    /// Something that is not in the log, such as a program image: the data are a claim about the digest.
    NotLogged,
    /// The type, or the form of a GRUB measurement, requires a digest of the data, but the digest matches none of the
    /// known forms. The data prove no more than with [`DigestCoverage::NotLogged`]; only the digest counts.
    Unexplained,
}

/// The part of the event's data that this digest of the event covers.
pub(super) fn digest_coverage(event: &Event, digest: &Digest) -> DigestCoverage {
    let matches_digest = |parts: &[&[u8]]| digest.algorithm().digest(parts) == *digest;
    let data = &event.data;
    if event.kind.rule() == DigestRule::NotExtended {
        return DigestCoverage::NotLogged;
    }
    if matches_digest(&[data]) {
        return DigestCoverage::All;
    }
    let mut parts = measured_parts(event.kind, data).into_iter();
    if let Some(part) = parts.find(|part| data.get(part.clone()).is_some_and(|part| matches_digest(&[part])))
    {
        return DigestCoverage::Part(part);
    }
    if event.kind == EventType::EV_IPL && matches_systemd(data, matches_digest) {
        return DigestCoverage::All;
    }
    // PFP 10.4.1, EV_SEPARATOR: the error value 1 is measured, and the data describe the error.
    let is_error_separator = event.kind == EventType::EV_SEPARATOR && matches_digest(&[&1u32.to_le_bytes()]);
    match event.kind.rule() {
        DigestRule::Data if !is_error_separator => DigestCoverage::Unexplained,
        _ if event.kind == EventType::EV_IPL && matches_grub(data) => DigestCoverage::Unexplained,
        _ => DigestCoverage::NotLogged,
    }
}

/// Whether the data have the form of a GRUB measurement, whose text the digest covers.
fn matches_grub(data: &[u8]) -> bool {
    let prefixes: [&[u8]; 5] = [
        b"grub_cmd: ",
        b"kernel_cmdline: ",
        b"module_cmdline: ",
        b"grub_cmd ",
        b"grub_kernel_cmdline ",
    ];
    prefixes.iter().any(|prefix| data.starts_with(prefix))
}

/// systemd-stub measures the name of a section as ASCII with its final NUL and logs it as UTF-16. Early versions of
/// systemd-boot measured its text in UTF-16 with the final NUL and logged it without that NUL's second byte.
fn matches_systemd(data: &[u8], matches_digest: impl Fn(&[&[u8]]) -> bool) -> bool {
    let is_name = |name: String| name.is_ascii() && matches_digest(&[name.as_bytes(), &[0]]);
    matches_digest(&[data, &[0]]) || utf16(data).is_some_and(is_name)
}

/// The parts of the data that firmware and boot loaders are known to measure for this type of event, instead of all
/// data.
fn measured_parts(kind: EventType, data: &[u8]) -> Vec<Range<usize>> {
    match kind {
        // Only the value: EDK II for boot variables; Lenovo's firmware for TPM 1.2 for configuration variables.
        EventType::EV_EFI_VARIABLE_BOOT | EventType::EV_EFI_VARIABLE_DRIVER_CONFIG => {
            variable_value(data).into_iter().collect()
        }
        // coreboot of Star Labs logs a field of 50 bytes and measures the first four.
        EventType::EV_SEPARATOR => std::iter::once(0..4).collect(),
        EventType::EV_EFI_VARIABLE_AUTHORITY => authority_parts(data),
        EventType::EV_ACTION
        | EventType::EV_EFI_ACTION
        | EventType::EV_OMIT_BOOT_DEVICE_EVENTS
        | EventType::EV_S_CRTM_VERSION => without_nul(0..data.len(), data),
        EventType::EV_IPL => boot_loader_parts(data),
        EventType::EV_EVENT_TAG => tagged_data(data).into_iter().collect(),
        _ => Vec::new(),
    }
}

/// The value of a UEFI_VARIABLE_DATA.
fn variable_value(data: &[u8]) -> Option<Range<usize>> {
    let variable = Variable::read(data)?;
    let start = data.len() - variable.value.len();
    Some(start..data.len())
}

/// The parts that are measured instead of the complete UEFI_VARIABLE_DATA (PFP 3.3.4.8): the EFI_SIGNATURE_DATA alone,
/// as firmware did before the profile was clarified; the signature without its owner's GUID; or all but the last byte,
/// which shim 15 and earlier log but do not measure (google/go-attestation issue 157).
fn authority_parts(data: &[u8]) -> Vec<Range<usize>> {
    const OWNER_BYTES: usize = 16;
    let mut parts = Vec::new();
    if let Some(value) = variable_value(data) {
        parts.push(value.clone());
        parts.push(value.start.saturating_add(OWNER_BYTES)..value.end);
    }
    parts.push(0..data.len().saturating_sub(1));
    parts
}

/// GRUB measures a command without the prefix that it logs: `grub_cmd: COMMAND` without the final NUL (upstream),
/// `grub_cmd COMMAND` with the NUL (Red Hat; tpm2-tools pull request 2303). systemd-stub logs UTF-16 text and measures
/// the text with or without the final NUL.
fn boot_loader_parts(data: &[u8]) -> Vec<Range<usize>> {
    let mut parts = without_nul(0..data.len(), data);
    for separator in [&b": "[..], b" ", b":"] {
        if let Some(position) = data.windows(separator.len()).position(|bytes| bytes == separator) {
            let command = position + separator.len()..data.len();
            parts.push(command.clone());
            parts.extend(without_nul(command, data));
        }
    }
    parts
}

/// The range without a final NUL of one or two bytes: texts are logged with the NUL and measured without the NUL.
fn without_nul(range: Range<usize>, data: &[u8]) -> Vec<Range<usize>> {
    let bytes = data.get(range.clone()).unwrap_or_default();
    [1, 2]
        .into_iter()
        .filter(|nul| bytes.len() >= *nul && bytes.iter().rev().take(*nul).all(|byte| *byte == 0))
        .map(|nul| range.start..range.end - nul)
        .collect()
}

/// The data inside a TCG_PCClientTaggedEvent.
fn tagged_data(data: &[u8]) -> Option<Range<usize>> {
    let mut fields = ByteReader::new(data);
    fields.u32_le()?;
    let inner = fields.sized_u32_le()?;
    Some(8..8 + inner.len())
}
