//! The slow path (LAP/1 1.4.6): messages of devices that are not at the switch come as packet-ins; answers, and messages that are
//! to go through the program once more, are packet-outs.

use std::collections::{HashSet, VecDeque};

use linewarden_p4runtime::entity::Update;
use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::wire::MESSAGE_BYTES;

use super::{P4Runtime, SwitchError};
use crate::miss::{self, Carrier, Miss};

/// Goes through the program as if it had come in by the port that is named with it (`REPLAY` in p4/include/lap_frame.p4).
const REPLAY: u16 = 0x8000;
/// RESPONSEs that are expected (`EXPECTED` in p4/include/lap_frame.p4); the oldest goes first.
const EXPECTED_MAX: u32 = 4096;
/// Devices that are told to the switch at once.
const TOLD_AT_ONCE: usize = 4096;
/// Devices that it has room for (the size of `enrolled` in p4/include/lap_state.p4).
const ENROLLED_MAX: usize = 1_048_576;

/// Device and nonce, as words.
type Name = [u128; 3];

/// What the switch lets through.
#[derive(Debug, Default)]
pub(super) struct SlowPath {
    /// Devices whose messages may come, also those in `untold`.
    enrolled: HashSet<DeviceId>,
    /// Those that the switch has not been told of.
    untold: Vec<DeviceId>,
    /// RESPONSEs that may come whatever the load, the oldest first, and their slots.
    expected: VecDeque<(Name, u32)>,
}

/// A REQUEST and a RESPONSE have id and nonce at the same places (LAP/1 1.3).
fn name(message: &[u8; MESSAGE_BYTES]) -> Name {
    let word = |at: usize| {
        let bytes = message.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        u128::from(u64::from_be_bytes(bytes.unwrap_or_default()))
    };
    [word(8), word(16), word(24)]
}

impl P4Runtime {
    pub(super) fn note_enrolled(&mut self, device: DeviceId) {
        if self.slow.enrolled.insert(device) {
            self.slow.untold.push(device);
        }
    }

    /// Tells the switch of devices that it does not know of. More than it has room for would be dropped as strangers: then it
    /// lets all of them through, and the limits of the slow path have to do.
    pub(super) fn tell_enrolled(&mut self) -> Result<(), SwitchError> {
        if self.slow.enrolled.len() > ENROLLED_MAX {
            let before = self.slow.enrolled.len() - self.slow.untold.len();
            self.slow.untold.clear();
            if before > ENROLLED_MAX {
                return Ok(());
            }
            tracing::warn!(
                "more than {ENROLLED_MAX} devices are enrolled: the switch does not tell them from strangers"
            );
            return self.write_filtering(false);
        }
        while !self.slow.untold.is_empty() {
            self.check()?;
            let rest = self.slow.untold.len().saturating_sub(TOLD_AT_ONCE);
            let some = self.slow.untold.split_off(rest);
            let program = &self.link.program;
            let insert =
                |device: &DeviceId| program.insert(("enrolled", &[device.0.into()]), ("NoAction", &[]));
            let updates: Vec<Update> = some.iter().map(insert).collect::<Result<_, _>>()?;
            self.link.write(&updates)?;
        }
        Ok(())
    }

    /// Whoever is enrolled is told first, or would be dropped.
    pub(super) fn filter(&mut self, filtering: bool) -> Result<(), SwitchError> {
        self.tell_enrolled()?;
        self.write_filtering(filtering && self.slow.enrolled.len() <= ENROLLED_MAX)
    }

    fn write_filtering(&self, filtering: bool) -> Result<(), SwitchError> {
        self.check()?;
        let update = self.link.program.cell("filtering", 0, filtering.into())?;
        self.link.write(&[update])
    }

    /// Lets the RESPONSE of that device and nonce through, once.
    pub(super) fn expect_response(&mut self, message: &[u8; MESSAGE_BYTES]) -> Result<(), SwitchError> {
        let name = name(message);
        self.check()?;
        let program = &self.link.program;
        let known = self.slow.expected.iter().find(|(known, _)| *known == name);
        if let Some((_, slot)) = known {
            return self.link.write(&[program.cell("armed", *slot, 1)?]);
        }
        let mut updates = Vec::new();
        let mut slot = u32::try_from(self.slow.expected.len()).unwrap_or(EXPECTED_MAX);
        if slot >= EXPECTED_MAX
            && let Some((oldest, its_slot)) = self.slow.expected.pop_front()
        {
            updates.push(program.delete("expected", &oldest)?);
            slot = its_slot;
        }
        updates.push(program.insert(("expected", &name), ("set_expected", &[slot.into()]))?);
        updates.push(program.cell("armed", slot, 1)?);
        self.slow.expected.push_back((name, slot));
        self.link.write(&updates)
    }

    /// Takes the messages that have come.
    pub(super) fn take_misses(&mut self, sink: &mut dyn FnMut(Miss)) -> Result<(), SwitchError> {
        self.tell_enrolled()?;
        for (ingress, frame) in self.link.take_packets() {
            if let Some(miss) = Miss::of_frame(&frame, ingress.into()) {
                self.note_knock(&miss, &frame, ingress);
                sink(miss);
            }
        }
        Ok(())
    }

    pub(super) fn answer(&mut self, miss: &Miss, reply: &[u8; MESSAGE_BYTES]) -> Result<(), SwitchError> {
        if miss::is_challenge(reply) {
            self.expect_response(miss.message())?;
        }
        let Carrier::Frame { frame, ingress } = &miss.carrier else {
            return Ok(());
        };
        let (Some(reply), Ok(port)) = (miss::reply_to(frame, reply), u16::try_from(*ingress)) else {
            return Ok(());
        };
        self.link.packet_out(port, 0, reply)
    }

    pub(super) fn send_through(&mut self, miss: Miss) -> Result<(), SwitchError> {
        let Carrier::Frame { frame, ingress } = miss.carrier else {
            return Ok(());
        };
        let Ok(ingress) = u16::try_from(ingress) else {
            return Ok(());
        };
        self.check()?;
        self.link.packet_out(REPLAY, ingress, frame)
    }
}
