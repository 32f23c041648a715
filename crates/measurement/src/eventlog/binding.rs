//! What of an event's data is proven: the part that its digest is of.
//!
//! The digest is bound by the PCR, the data are only written beside it. Where the profile says that the digest is of the
//! data, firmware still differs in what it takes for the data; the forms known here are listed, each with where it was
//! seen. Data in any other form are unexplained: real firmware writes such entries, so they refuse no log, but nothing in
//! them is proven, and the entry is appraised by its digest alone.

use std::ops::Range;

use super::Event;
use super::kind::{EventType, Rule};
use super::text::{Variable, utf16};
use crate::digest::Digest;
use crate::fields::Fields;

/// The part of an event's data that its digest is of.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Binding {
    /// All of them: who changes a bit of the data is found out.
    All,
    /// These bytes; the others are a claim.
    Part(Range<usize>),
    /// Of something that the log does not carry, as a program's image: the data are a claim about the digest.
    Nothing,
    /// The type says that the digest is of the data, and it is of none of the forms that are known. The data prove no more
    /// than under [`Binding::Nothing`]; only the digest counts.
    Unexplained,
}

/// What the digest of this event, which is one of the event's, is of.
pub(super) fn binding(event: &Event, digest: &Digest) -> Binding {
    let is_of = |parts: &[&[u8]]| digest.algorithm().digest(parts) == *digest;
    let data = &event.data;
    if event.kind.rule() == Rule::NotExtended {
        return Binding::Nothing;
    }
    if is_of(&[data]) {
        return Binding::All;
    }
    let mut parts = parts(event.kind, data).into_iter();
    if let Some(part) = parts.find(|part| data.get(part.clone()).is_some_and(|part| is_of(&[part]))) {
        return Binding::Part(part);
    }
    if event.kind == EventType::EV_IPL && is_of_systemd(data, is_of) {
        return Binding::All;
    }
    // PFP 10.4.1, EV_SEPARATOR: the error value 1 is measured, and the data say what went wrong.
    let failed = event.kind == EventType::EV_SEPARATOR && is_of(&[&1u32.to_le_bytes()]);
    match event.kind.rule() {
        Rule::Data if !failed => Binding::Unexplained,
        _ if event.kind == EventType::EV_IPL && is_of_grub(data) => Binding::Unexplained,
        _ => Binding::Nothing,
    }
}

/// Whether GRUB says that it has measured this text: then the digest is of it.
fn is_of_grub(data: &[u8]) -> bool {
    let marks: [&[u8]; 5] = [
        b"grub_cmd: ",
        b"kernel_cmdline: ",
        b"module_cmdline: ",
        b"grub_cmd ",
        b"grub_kernel_cmdline ",
    ];
    marks.iter().any(|mark| data.starts_with(mark))
}

/// systemd-stub measures the name of a section as ASCII with its final NUL and logs it as UTF-16. systemd-boot, before it had
/// a stub of its own, measured its text in UTF-16 with the final NUL and logged all but that NUL's second byte.
fn is_of_systemd(data: &[u8], is_of: impl Fn(&[&[u8]]) -> bool) -> bool {
    let is_name = |name: String| name.is_ascii() && is_of(&[name.as_bytes(), &[0]]);
    is_of(&[data, &[0]]) || utf16(data).is_some_and(is_name)
}

/// The parts of the data that firmware and boot loaders of this type of event are known to measure instead of all.
fn parts(kind: EventType, data: &[u8]) -> Vec<Range<usize>> {
    match kind {
        // The value alone: EDK II for boot variables; Lenovo's firmware for TPM 1.2 for variables that configure.
        EventType::EV_EFI_VARIABLE_BOOT | EventType::EV_EFI_VARIABLE_DRIVER_CONFIG => {
            value(data).into_iter().collect()
        }
        // coreboot of Star Labs logs a field of 50 bytes, of which the first four are measured.
        EventType::EV_SEPARATOR => std::iter::once(0..4).collect(),
        EventType::EV_EFI_VARIABLE_AUTHORITY => authority(data),
        EventType::EV_ACTION
        | EventType::EV_EFI_ACTION
        | EventType::EV_OMIT_BOOT_DEVICE_EVENTS
        | EventType::EV_S_CRTM_VERSION => without_nul(0..data.len(), data),
        EventType::EV_IPL => boot_loader(data),
        EventType::EV_EVENT_TAG => tagged(data).into_iter().collect(),
        _ => Vec::new(),
    }
}

/// The value of a UEFI_VARIABLE_DATA.
fn value(data: &[u8]) -> Option<Range<usize>> {
    let variable = Variable::read(data)?;
    let start = data.len() - variable.value.len();
    Some(start..data.len())
}

/// Besides all of UEFI_VARIABLE_DATA (PFP 3.3.4.8): the EFI_SIGNATURE_DATA alone, as firmware did before the profile was
/// clear about it; the signature without its owner's GUID; and all but the last byte, which shim 15 and before log and do not
/// measure (google/go-attestation issue 157).
fn authority(data: &[u8]) -> Vec<Range<usize>> {
    const OWNER_BYTES: usize = 16;
    let mut parts = Vec::new();
    if let Some(value) = value(data) {
        parts.push(value.clone());
        parts.push(value.start.saturating_add(OWNER_BYTES)..value.end);
    }
    parts.push(0..data.len().saturating_sub(1));
    parts
}

/// GRUB measures a command without the prefix that it logs: `grub_cmd: COMMAND` without the final NUL (upstream), `grub_cmd
/// COMMAND` with it (Red Hat; tpm2-tools pull request 2303). systemd-stub logs UTF-16 and measures it with or without the
/// final NUL.
fn boot_loader(data: &[u8]) -> Vec<Range<usize>> {
    let mut parts = without_nul(0..data.len(), data);
    for mark in [&b": "[..], b" ", b":"] {
        if let Some(at) = data.windows(mark.len()).position(|bytes| bytes == mark) {
            let command = at + mark.len()..data.len();
            parts.push(command.clone());
            parts.extend(without_nul(command, data));
        }
    }
    parts
}

/// The range without a final NUL, of one byte or of two: texts are logged with it and measured without.
fn without_nul(range: Range<usize>, data: &[u8]) -> Vec<Range<usize>> {
    let bytes = data.get(range.clone()).unwrap_or_default();
    [1, 2]
        .into_iter()
        .filter(|nul| bytes.len() >= *nul && bytes.iter().rev().take(*nul).all(|byte| *byte == 0))
        .map(|nul| range.start..range.end - nul)
        .collect()
}

/// The data inside a TCG_PCClientTaggedEvent.
fn tagged(data: &[u8]) -> Option<Range<usize>> {
    let mut fields = Fields::new(data);
    fields.u32_le()?;
    let inner = fields.sized_u32_le()?;
    Some(8..8 + inner.len())
}
