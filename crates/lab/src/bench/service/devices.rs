//! The fleet: devices with four rows each; every tenth device has a key instead, as in the demonstration. Names are
//! like the names in an industrial plant.
//!
//! Ids are sparse and unordered, like the ids of devices that are enrolled during production.

use std::fmt::Write as _;

use hyper::body::Bytes;
use linewarden_protocol::ids::{DeviceId, Mode};
use linewarden_protocol::keys::RowKey;

use crate::fleet::device_id;

/// Rows of a device.
pub(super) const ROWS: u32 = 4;
/// Bytes of one chunk of a request body.
const CHUNK_BYTES: usize = 64 << 10;

/// A set of devices, addressed by number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fleet {
    pub(super) count: u32,
    /// Index of the first device.
    first: u32,
    rows: u32,
}

impl Fleet {
    pub(super) fn new(count: u32) -> Self {
        Self {
            count,
            first: 0,
            rows: ROWS,
        }
    }

    /// A fleet of `count` further devices with `rows` rows each; their indices follow the indices of this fleet.
    pub(super) fn additional(&self, count: u32, rows: u32) -> Self {
        Self {
            count,
            first: self.first + self.count,
            rows,
        }
    }

    pub(super) fn id(&self, number: u32) -> DeviceId {
        device_id(self.first + number)
    }

    pub(super) fn mode(number: u32) -> Mode {
        match number % 10 {
            0 => Mode::Key,
            _ => Mode::Pool,
        }
    }

    pub(super) fn name(number: u32) -> String {
        const KINDS: [&str; 4] = ["pump", "valve", "meter", "camera"];
        let kind = KINDS.get(number as usize % KINDS.len()).unwrap_or(&"");
        format!("plant-{:02}/{kind}-{number:07}", number % 61)
    }

    /// The body of an import, one line per device, in chunks.
    pub(super) fn import_chunks(&self) -> Vec<Bytes> {
        let mut chunks = Vec::new();
        let mut text = String::with_capacity(CHUNK_BYTES + 8192);
        for number in 0..self.count {
            self.write_import_line(number, &mut text);
            if text.len() >= CHUNK_BYTES {
                chunks.push(std::mem::replace(&mut text, String::with_capacity(CHUNK_BYTES + 8192)).into());
            }
        }
        chunks.push(text.into());
        chunks
    }

    fn write_import_line(&self, number: u32, out: &mut String) {
        let (id, name) = (self.id(number), Self::name(number));
        // Writing to a String cannot fail.
        let _ = write!(
            out,
            "{{\"id\":\"{id}\",\"name\":\"{name}\",\"puf_profile\":\"bench\",\"credentials\":"
        );
        let key = |idx| hex(row_key(id, idx).as_bytes());
        if Self::mode(number) == Mode::Key {
            let _ = writeln!(out, "{{\"key\":\"{}\"}}}}", key(0));
            return;
        }
        out.push_str("{\"rows\":[");
        for idx in 0..self.rows {
            let comma = if idx == 0 { "" } else { "," };
            let challenge = u64::from(idx) + 1;
            let _ = write!(out, "{comma}[\"{challenge:016x}\",\"{}\"]", key(idx));
        }
        out.push_str("]}}\n");
    }
}

/// The key of a device's row, computed from id and row index, so that a million keys need not be stored.
pub(super) fn row_key(device: DeviceId, idx: u32) -> RowKey {
    let mut key = [0x5a; 16];
    for (key_byte, byte) in key
        .iter_mut()
        .zip(device.0.to_be_bytes().into_iter().chain(idx.to_be_bytes()))
    {
        *key_byte = byte;
    }
    RowKey::from_bytes(key)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(32), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
