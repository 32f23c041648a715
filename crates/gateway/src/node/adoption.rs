//! Going on with the memory that an earlier process of this gateway left in the kernel.
//!
//! Packets have flowed all the time. What lies there may be spent below the marks that the earlier process had, whatever has
//! happened since; more only if nobody else has been this gateway in between, for he would have spent from the marks
//! on. The number of the registration tells: it must be the next one.

use linewarden_dataplane::{Left, LeftDevice};
use linewarden_protocol::ids::{Mode, RowIndex};

use super::Node;
use super::devices::{Held, State, uses};
use super::freshness::Freshness;

/// What is not confirmed yet.
#[derive(Debug)]
pub(super) struct Adoption {
    /// Number of the process whose memory it was.
    owner: u64,
    /// When this process began, boot-time clock.
    pub(super) since_ns: Option<u64>,
}

impl Node {
    /// Takes up what lies in the data plane.
    pub(super) fn take_up(&mut self) {
        let Some(left) = self.plane.take_left() else {
            return;
        };
        let Left {
            owner,
            devices,
            fresh,
            fresh_at_ns,
        } = left;
        if fresh != [0; 8] {
            self.freshness = Freshness::going_on(fresh_at_ns);
            self.fresh = Some(fresh);
        }
        // A process that was replaced has told the packet path to serve nobody.
        self.plane.set_stopping(false);
        for left in devices {
            self.take_up_device(left);
        }
        // Of what it had asked for the earlier process took the answers with it.
        self.look_through();
        tracing::info!(
            devices = self.status.devices,
            "going on with what the process before left"
        );
        self.left = Some(Adoption {
            owner,
            since_ns: None,
        });
    }

    fn take_up_device(&mut self, left: LeftDevice) {
        let device = left.device;
        let mode = match left.line.commit.is_key_mode() {
            true => Mode::Key,
            false => Mode::Pool,
        };
        // Killed before it had wiped the device, or told the epoch.
        let (false, Some(epoch)) = (left.line.commit.is_revoked(), left.epoch) else {
            if mode == Mode::Key {
                self.distrust_fresh();
            }
            self.wipe_left(left);
            return;
        };
        let ticket = self.order.enter(device, uses(&left.line));
        let mark = left.mark.unwrap_or(RowIndex(u32::MAX));
        let held = Held::taken_up(mode, epoch, mark, left.end, ticket, self.settings.mark_block);
        self.devices.insert(device, held);
        self.status.devices += 1;
    }

    fn wipe_left(&mut self, left: LeftDevice) {
        let _ = self.plane.revoke(left.device);
        if self.plane.wipe(left.device).is_err() {
            // A winner is at work: like a device that leaves, it is tried again.
            self.devices
                .insert(left.device, Held::blank(State::Leaving { settle: false }));
            self.busy.push(left.device);
        }
    }

    /// Nothing of the earlier process's time is accepted: the number that a device had reached is lost with its line.
    fn distrust_fresh(&mut self) {
        self.freshness = Freshness::default();
        self.fresh = None;
    }

    /// The process is registered under that number.
    pub(super) fn confirm(&mut self, number: u64) {
        if let Some(left) = self.left.take()
            && left.owner.checked_add(1) != Some(number)
        {
            tracing::warn!(
                number,
                left_by = left.owner,
                "another process has been this gateway since: what lies here is wiped"
            );
            self.distrust_fresh();
            let devices: Vec<_> = self.devices.keys().copied().collect();
            devices.into_iter().for_each(|device| self.dismiss(device, false));
        }
        self.plane.set_owner(number);
    }
}
