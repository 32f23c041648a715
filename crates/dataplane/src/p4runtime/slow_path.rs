//! The slow path (LAP/1 1.4.6): messages of devices that are not on the switch arrive as packet-ins. Replies, and
//! messages that are replayed through the program, are packet-outs.

use linewarden_p4runtime::entity::Update;
use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::wire::MESSAGE_BYTES;

use super::P4Runtime;
use super::error::SwitchError;
use super::slow_path_table::ExpectedKey;
use crate::miss::{self, Carrier, Miss};

/// The port of a packet-out that makes the program process the frame as if it had arrived on the packet-out's ingress port
/// (`REPLAY` in p4/include/lap_frame.p4).
const REPLAY: u16 = 0x8000;
/// Maximum number of expected RESPONSEs (`EXPECTED` in p4/include/lap_frame.p4). The oldest RESPONSE is replaced first.
const EXPECTED_MAX: u32 = 4096;
/// Maximum number of enrolled devices in one write.
const ENROLLED_PER_WRITE: usize = 4096;
/// Maximum number of enrolled devices on the switch (the size of `enrolled` in p4/include/lap_state.p4).
const ENROLLED_MAX: usize = 1_048_576;

/// Device and nonce of a message. A REQUEST and a RESPONSE have id and nonce at the same offsets (LAP/1 1.3).
fn expected_key(message: &[u8; MESSAGE_BYTES]) -> ExpectedKey {
    let word = |at: usize| {
        let bytes = message.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        u128::from(u64::from_be_bytes(bytes.unwrap_or_default()))
    };
    [word(8), word(16), word(24)]
}

impl P4Runtime {
    pub(super) fn add_enrolled(&mut self, device: DeviceId) {
        if self.slow_path.enrolled.insert(device) {
            self.slow_path.pending.push(device);
        }
    }

    /// Writes pending enrolled devices to the switch. If more devices are enrolled than the switch can hold, the
    /// messages of the remaining devices would be dropped. The filter is then disabled, and only the limits of the slow
    /// path apply.
    pub(super) fn flush_enrolled(&mut self) -> Result<(), SwitchError> {
        if self.slow_path.enrolled.len() > ENROLLED_MAX {
            let written_count = self.slow_path.enrolled.len() - self.slow_path.pending.len();
            self.slow_path.pending.clear();
            if written_count > ENROLLED_MAX {
                return Ok(());
            }
            tracing::warn!(
                "P4 data plane: more than {ENROLLED_MAX} devices are enrolled; the filter for unknown devices is disabled"
            );
            return self.write_filtering(false);
        }
        while !self.slow_path.pending.is_empty() {
            self.check_usable()?;
            let remaining = self.slow_path.pending.len().saturating_sub(ENROLLED_PER_WRITE);
            let batch = self.slow_path.pending.split_off(remaining);
            let program = &self.connection.program;
            let insert =
                |device: &DeviceId| program.insert(("enrolled", &[device.0.into()]), ("NoAction", &[]));
            let updates: Vec<Update> = batch.iter().map(insert).collect::<Result<_, _>>()?;
            self.connection.write(&updates)?;
        }
        Ok(())
    }

    /// Enables or disables the filter for unknown devices. Enrolled devices are written first, otherwise their messages would
    /// be dropped.
    pub(super) fn set_filter(&mut self, filtering: bool) -> Result<(), SwitchError> {
        self.flush_enrolled()?;
        self.write_filtering(filtering && self.slow_path.enrolled.len() <= ENROLLED_MAX)
    }

    fn write_filtering(&self, filtering: bool) -> Result<(), SwitchError> {
        self.check_usable()?;
        let update = self
            .connection
            .program
            .set_cell("filtering", 0, filtering.into())?;
        self.connection.write(&[update])
    }

    /// Accepts the RESPONSE with the device and nonce of `message`, one time.
    pub(super) fn expect_response(&mut self, message: &[u8; MESSAGE_BYTES]) -> Result<(), SwitchError> {
        let key = expected_key(message);
        self.check_usable()?;
        let program = &self.connection.program;
        let entry = self
            .slow_path
            .expected
            .iter()
            .find(|(expected, _)| *expected == key);
        if let Some((_, slot)) = entry {
            return self.connection.write(&[program.set_cell("armed", *slot, 1)?]);
        }
        let mut updates = Vec::new();
        let mut slot = u32::try_from(self.slow_path.expected.len()).unwrap_or(EXPECTED_MAX);
        if slot >= EXPECTED_MAX
            && let Some((oldest, freed_slot)) = self.slow_path.expected.pop_front()
        {
            updates.push(program.delete("expected", &oldest)?);
            slot = freed_slot;
        }
        updates.push(program.insert(("expected", &key), ("set_expected", &[slot.into()]))?);
        updates.push(program.set_cell("armed", slot, 1)?);
        self.slow_path.expected.push_back((key, slot));
        self.connection.write(&updates)
    }

    /// Passes the received messages to `sink`.
    pub(super) fn take_misses(&mut self, sink: &mut dyn FnMut(Miss)) -> Result<(), SwitchError> {
        self.flush_enrolled()?;
        for (ingress, frame) in self.connection.take_packets() {
            if let Some(miss) = Miss::of_frame(&frame, ingress.into()) {
                self.record_unverified_location(&miss, &frame, ingress);
                sink(miss);
            }
        }
        Ok(())
    }

    pub(super) fn send_reply_packet(
        &mut self,
        miss: &Miss,
        reply: &[u8; MESSAGE_BYTES],
    ) -> Result<(), SwitchError> {
        if miss::is_challenge(reply) {
            self.expect_response(miss.message())?;
        }
        let Carrier::Frame { frame, ingress } = &miss.carrier else {
            return Ok(());
        };
        let (Some(reply), Ok(port)) = (miss::reply_frame(frame, reply), u16::try_from(*ingress)) else {
            return Ok(());
        };
        self.connection.packet_out(port, 0, reply)
    }

    pub(super) fn replay_packet(&mut self, miss: Miss) -> Result<(), SwitchError> {
        let Carrier::Frame { frame, ingress } = miss.carrier else {
            return Ok(());
        };
        let Ok(ingress) = u16::try_from(ingress) else {
            return Ok(());
        };
        self.check_usable()?;
        self.connection.packet_out(REPLAY, ingress, frame)
    }
}
