//! The fleet: devices of four rows, every tenth with a key instead, as the demonstration's; named as a fleet's are.
//!
//! Ids are sparse and come in no order, as those of devices do that are enrolled as they are made.

use std::fmt::Write as _;

use hyper::body::Bytes;
use linewarden_protocol::ids::{DeviceId, Mode};
use linewarden_protocol::keys::RowKey;

use crate::fleet::device_id;

/// Rows of a device.
pub(super) const ROWS: u32 = 4;
/// Bytes of a body that are handed over at once.
const PIECE: usize = 64 << 10;

/// Devices, by their numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fleet {
    pub(super) count: u32,
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

    /// Further devices, of so many rows.
    pub(super) fn beside(&self, count: u32, rows: u32) -> Self {
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

    /// What import takes: a line for each device, in pieces.
    pub(super) fn lines(&self) -> Vec<Bytes> {
        let mut pieces = Vec::new();
        let mut text = String::with_capacity(PIECE + 8192);
        for number in 0..self.count {
            self.line(number, &mut text);
            if text.len() >= PIECE {
                pieces.push(std::mem::replace(&mut text, String::with_capacity(PIECE + 8192)).into());
            }
        }
        pieces.push(text.into());
        pieces
    }

    fn line(&self, number: u32, out: &mut String) {
        let (id, name) = (self.id(number), Self::name(number));
        // Writing into a String does not fail.
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

/// A device's key; made from its id, so that nobody has to remember a million of them.
pub(super) fn row_key(device: DeviceId, idx: u32) -> RowKey {
    let mut key = [0x5a; 16];
    for (place, byte) in key
        .iter_mut()
        .zip(device.0.to_be_bytes().into_iter().chain(idx.to_be_bytes()))
    {
        *place = byte;
    }
    RowKey::from_bytes(key)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(32), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
