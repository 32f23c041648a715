//! Attestation structures signed by a TPM quote: TPMS_ATTEST of type quote (TPM 2.0 Library, Part 2, 10.12).

use linewarden_measurement::HashAlgorithm;
use linewarden_measurement::pcr::PcrSelection;
use serde::{Deserialize, Serialize};

use crate::wire::{ParseError, Reader, Writer};

/// TPM_GENERATED_VALUE: a restricted key never signs external data with this prefix.
const GENERATED: u32 = 0xff54_4347;
const ST_ATTEST_QUOTE: u16 = 0x8018;
const SELECTIONS_MAX: u32 = 16;
const SELECT_BYTES_MAX: u8 = 4;
/// Length of a name with the longest digest.
const NAME_BYTES_MAX: usize = 2 + 64;
/// Maximum of TPM2B_DATA: TPMT_HA with the longest digest.
const DATA_BYTES_MAX: usize = 2 + 64;

/// The TPM's clock and start counters (TPMS_CLOCK_INFO).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockInfo {
    /// Milliseconds for which the TPM has had power since it was last cleared.
    pub clock_ms: u64,
    /// Number of resets (machine starts) since the TPM was last cleared.
    pub reset_count: u32,
    /// Number of restarts and resumes since the last reset.
    pub restart_count: u32,
    /// Whether the TPM guarantees that it has never reported a greater clock value.
    pub safe: bool,
}

/// A selection of one bank in TPM format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BankSelection {
    /// TPM_ALG_ID of the bank; this crate may not support the algorithm.
    pub bank: u16,
    /// At most four bytes with one bit for each PCR; PCR 0 is the lowest bit of the first byte.
    pub bitmap: Vec<u8>,
}

impl BankSelection {
    /// Whether this selection consists of exactly the PCRs `selection` of `bank`. A TPM may write a bitmap with more or
    /// fewer bytes than the three bytes that 24 PCRs need.
    pub fn matches(&self, bank: HashAlgorithm, selection: PcrSelection) -> bool {
        let bitmap = selection.to_bitmap();
        let (head, tail) = self.bitmap.split_at(self.bitmap.len().min(bitmap.len()));
        let omitted = bitmap.get(head.len()..).unwrap_or_default();
        self.bank == bank.tcg_id()
            && bitmap.starts_with(head)
            && omitted.iter().chain(tail).all(|byte| *byte == 0)
    }
}

/// A parsed quote, not verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quote {
    /// Qualified name of the signing key: a hash that covers the names of the key and of all its ancestors.
    pub qualified_signer: Vec<u8>,
    /// The caller's nonce.
    pub extra_data: Vec<u8>,
    /// Clock and start counters.
    pub clock: ClockInfo,
    /// Firmware version in the format of the manufacturer.
    pub firmware_version: u64,
    /// The quoted PCRs: one selection for each bank.
    pub selections: Vec<BankSelection>,
    /// Digest of the PCR values, with the hash of the signing scheme.
    pub pcr_digest: Vec<u8>,
}

impl Quote {
    /// Parses TPMS_ATTEST.
    ///
    /// # Errors
    /// The bytes are not exactly one quote that a TPM has generated.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ParseError> {
        let mut reader = Reader::new("TPMS_ATTEST", bytes);
        match reader.u32("magic")? {
            GENERATED => {}
            value => return Err(reader.refuse("magic", 4, value)),
        }
        match reader.u16("type")? {
            ST_ATTEST_QUOTE => {}
            value => return Err(reader.refuse("type", 2, value)),
        }
        let quote = Self {
            qualified_signer: reader.sized_buffer("qualifiedSigner", NAME_BYTES_MAX)?.to_vec(),
            extra_data: reader.sized_buffer("extraData", DATA_BYTES_MAX)?.to_vec(),
            clock: clock(&mut reader)?,
            firmware_version: reader.u64("firmwareVersion")?,
            selections: selections(&mut reader)?,
            pcr_digest: reader.sized_buffer("pcrDigest", 64)?.to_vec(),
        };
        reader.finish()?;
        Ok(quote)
    }

    /// Encodes the quote as TPMS_ATTEST. A parsed quote yields exactly the parsed bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let head = Writer::new()
            .u32(GENERATED)
            .u16(ST_ATTEST_QUOTE)
            .sized_buffer(&self.qualified_signer)
            .sized_buffer(&self.extra_data)
            .u64(self.clock.clock_ms)
            .u32(self.clock.reset_count)
            .u32(self.clock.restart_count)
            .bytes(&[u8::from(self.clock.safe)])
            .u64(self.firmware_version);
        write_selections(head, &self.selections)
            .sized_buffer(&self.pcr_digest)
            .into_bytes()
    }
}

fn clock(reader: &mut Reader<'_>) -> Result<ClockInfo, ParseError> {
    Ok(ClockInfo {
        clock_ms: reader.u64("clockInfo.clock")?,
        reset_count: reader.u32("clockInfo.resetCount")?,
        restart_count: reader.u32("clockInfo.restartCount")?,
        safe: match reader.u8("clockInfo.safe")? {
            0 => false,
            1 => true,
            value => return Err(reader.refuse("clockInfo.safe", 1, value)),
        },
    })
}

fn selections(reader: &mut Reader<'_>) -> Result<Vec<BankSelection>, ParseError> {
    let count = reader.u32("pcrSelect.count")?;
    if count > SELECTIONS_MAX {
        return Err(reader.refuse("pcrSelect.count", 4, count));
    }
    (0..count).map(|_| selection(reader)).collect()
}

fn selection(reader: &mut Reader<'_>) -> Result<BankSelection, ParseError> {
    let bank = reader.u16("pcrSelect.hash")?;
    let size = reader.u8("pcrSelect.sizeofSelect")?;
    if size > SELECT_BYTES_MAX {
        return Err(reader.refuse("pcrSelect.sizeofSelect", 1, size));
    }
    let bitmap = reader.take("pcrSelect.pcrSelect", usize::from(size))?.to_vec();
    Ok(BankSelection { bank, bitmap })
}

fn write_selections(writer: Writer, selections: &[BankSelection]) -> Writer {
    let writer = writer.u32(u32::try_from(selections.len()).unwrap_or(u32::MAX));
    selections.iter().fold(writer, |writer, selection| {
        writer
            .u16(selection.bank)
            .bytes(&[u8::try_from(selection.bitmap.len()).unwrap_or(u8::MAX)])
            .bytes(&selection.bitmap)
    })
}

/// TPML_PCR_SELECTION of these PCRs of one bank, in the form that the TPM of a PC uses: three bytes for 24 PCRs.
pub(crate) fn selection_list(bank: HashAlgorithm, selection: PcrSelection) -> Vec<u8> {
    let selection = BankSelection {
        bank: bank.tcg_id(),
        bitmap: selection.to_bitmap().to_vec(),
    };
    write_selections(Writer::new(), &[selection]).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selections_match_with_any_number_of_bytes() {
        let requested: PcrSelection = "0-7".parse().unwrap();
        let matches = |bank: u16, bitmap: &[u8]| {
            let bitmap = bitmap.to_vec();
            BankSelection { bank, bitmap }.matches(HashAlgorithm::Sha256, requested)
        };
        for equal in [&[0xff][..], &[0xff, 0], &[0xff, 0, 0], &[0xff, 0, 0, 0]] {
            assert!(matches(0x000b, equal), "{equal:?}");
        }
        for different in [
            &[][..],
            &[0x7f, 0, 0],
            &[0xff, 1, 0],
            &[0xff, 0, 0x80],
            &[0xff, 0, 0, 1],
            &[0, 0xff],
        ] {
            assert!(!matches(0x000b, different), "{different:?}");
        }
        assert!(!matches(0x0004, &[0xff, 0, 0]));
        let without_third_byte = BankSelection {
            bank: 0x000b,
            bitmap: vec![0xff],
        };
        assert!(!without_third_byte.matches(HashAlgorithm::Sha256, "0-7,16".parse().unwrap()));
    }
}
