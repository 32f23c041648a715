//! Test logs. They are encoded from the structures of the TCG profile, without the encoder of the tested crate.

use linewarden_measurement::HashAlgorithm;
use linewarden_measurement::eventlog::{EventLog, EventType};
use linewarden_measurement::pcr::{PcrIndex, PcrSelection, PcrValues};

pub const BANKS: [HashAlgorithm; 2] = [HashAlgorithm::Sha1, HashAlgorithm::Sha256];

/// A log in the agile format with banks of SHA-1 and SHA-256.
#[derive(Clone)]
pub struct Log {
    pub bytes: Vec<u8>,
    /// The offset of each entry in `bytes`.
    pub entry_offsets: Vec<usize>,
}

impl Log {
    pub fn new() -> Self {
        let mut log = Self {
            bytes: Vec::new(),
            entry_offsets: Vec::new(),
        };
        log.legacy(
            0,
            EventType::EV_NO_ACTION,
            &[0; 20],
            &spec_id(&[(4, 20), (11, 32)]),
        );
        log
    }

    pub fn empty() -> Self {
        Self {
            bytes: Vec::new(),
            entry_offsets: Vec::new(),
        }
    }

    /// Appends a TCG_PCR_EVENT.
    pub fn legacy(&mut self, pcr: u32, kind: EventType, digest: &[u8], data: &[u8]) -> &mut Self {
        self.entry_offsets.push(self.bytes.len());
        self.u32(pcr).u32(kind.0).bytes.extend(digest);
        self.data(data)
    }

    /// Appends a TCG_PCR_EVENT2 with these digests.
    pub fn agile(&mut self, pcr: u32, kind: EventType, digests: &[(u16, Vec<u8>)], data: &[u8]) -> &mut Self {
        self.entry_offsets.push(self.bytes.len());
        self.u32(pcr).u32(kind.0).u32(digests.len() as u32);
        for (id, digest) in digests {
            self.bytes.extend(id.to_le_bytes());
            self.bytes.extend(digest);
        }
        self.data(data)
    }

    /// Appends an event with the digests of `measured` in both banks, and with the event data `data`.
    pub fn event(&mut self, pcr: u32, kind: EventType, measured: &[u8], data: &[u8]) -> &mut Self {
        self.agile(pcr, kind, &digests(measured), data)
    }

    /// Appends an EV_NO_ACTION entry, which extends no PCR.
    pub fn no_action(&mut self, pcr: u32, data: &[u8]) -> &mut Self {
        let zeros = BANKS.map(|bank| (bank.tcg_id(), vec![0; bank.digest_bytes()]));
        self.agile(pcr, EventType::EV_NO_ACTION, &zeros, data)
    }

    pub fn parse(&self) -> EventLog {
        EventLog::parse(&self.bytes).unwrap()
    }

    fn u32(&mut self, number: u32) -> &mut Self {
        self.bytes.extend(number.to_le_bytes());
        self
    }

    fn data(&mut self, data: &[u8]) -> &mut Self {
        self.u32(data.len() as u32).bytes.extend(data);
        self
    }
}

pub fn digests(measured: &[u8]) -> Vec<(u16, Vec<u8>)> {
    BANKS
        .map(|bank| (bank.tcg_id(), bank.digest(&[measured]).as_bytes().to_vec()))
        .to_vec()
}

/// TCG_EfiSpecIDEvent with algorithm identifiers and the sizes of their digests in bytes.
pub fn spec_id(algorithms: &[(u16, u16)]) -> Vec<u8> {
    let mut data = b"Spec ID Event03\0\0\0\0\0\0\x02\0\x02".to_vec();
    data.extend((algorithms.len() as u32).to_le_bytes());
    for (id, size) in algorithms {
        data.extend(id.to_le_bytes());
        data.extend(size.to_le_bytes());
    }
    data.push(0);
    data
}

/// UEFI_VARIABLE_DATA of a variable in the EFI global variable namespace.
pub fn variable(name: &str, value: &[u8]) -> Vec<u8> {
    let name: Vec<u16> = name.encode_utf16().collect();
    let mut data = vec![
        0x61, 0xdf, 0xe4, 0x8b, 0xca, 0x93, 0xd2, 0x11, 0xaa, 0x0d, 0x00, 0xe0, 0x98, 0x03, 0x2b, 0x8c,
    ];
    data.extend((name.len() as u64).to_le_bytes());
    data.extend((value.len() as u64).to_le_bytes());
    data.extend(name.iter().flat_map(|unit| unit.to_le_bytes()));
    data.extend(value);
    data
}

pub fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

pub fn pcr(index: u32) -> PcrIndex {
    PcrIndex::try_from(index).unwrap()
}

/// Returns the values that these PCRs have after a replay of the log.
pub fn values_of(log: &EventLog, bank: HashAlgorithm, selection: &str) -> PcrValues {
    let selection: PcrSelection = selection.parse().unwrap();
    let replayed = log.replay(bank).unwrap();
    let mut values = PcrValues::new(bank);
    for index in selection.iter() {
        let value = replayed.get(index).copied().unwrap_or(index.start_value(bank));
        values.set(index, value).unwrap();
    }
    values
}
