//! Showing the controller what the data plane runs, and doing without rows while it does not trust us.

use linewarden_controller::trust::{Scrutiny, Standing};
use linewarden_dataplane::{Measurement, Witness};
use linewarden_evidence::statement::Nonce;
use linewarden_protocol::ids::{DeviceId, Mode};

use super::Node;
use super::channel::Channel;
use super::devices::State;
use super::freshness::Freshness;
use super::status::TrustState;
use crate::audit::Happening;
use crate::exchange::{Ask, LinkError};
use crate::time::Clock;

/// What the controller wants to see.
#[derive(Default)]
pub(super) struct Showing {
    /// What was asked last.
    nonce: Option<Nonce>,
    /// What is shown for it, as in [`Ask::Evidence`], until the controller has it.
    shown: Option<Option<Box<Measurement>>>,
    channel: Channel,
    /// All devices are shut out until the controller trusts this gateway.
    is_shut: bool,
}

impl Showing {
    /// An answer that is out is of a registry that is gone.
    pub(super) fn void(&mut self) {
        self.channel.void();
    }
}

impl Node {
    /// Whether the controller gives rows: it trusts this gateway, or asks nobody for evidence.
    pub(super) fn may_have_rows(&self) -> bool {
        matches!(self.status.trust, None | Some(TrustState::Trusted))
    }

    /// Takes what the controller wants to see, and how we stand.
    pub(super) fn take_scrutiny(&mut self, scrutiny: Option<Scrutiny>) {
        let Some(Scrutiny { nonce, standing }) = scrutiny else {
            return;
        };
        self.stand(standing);
        if nonce.is_none() {
            // It has come: the answer to it was lost.
            self.showing.shown = None;
        }
        let Some(nonce) = nonce.filter(|nonce| self.showing.nonce != Some(*nonce)) else {
            return;
        };
        self.showing.nonce = Some(nonce);
        self.showing.shown = match self.plane.measure() {
            Ok(Witness::Kernel(measurement)) => Some(Some(measurement)),
            Ok(Witness::Engine) => Some(None),
            Ok(Witness::Nobody) => {
                let plane = self.plane.name();
                tracing::error!(
                    plane,
                    "the controller wants evidence, and nobody can measure this data plane"
                );
                None
            }
            Err(error) => {
                tracing::error!(%error, "the controller wants evidence, and the data plane cannot be measured");
                None
            }
        };
        if self.showing.shown.is_none() {
            self.status.unmeasured += 1;
        }
    }

    pub(super) fn ask_to_judge(&mut self, clock: Clock) -> Option<Ask> {
        let nonce = self.showing.nonce?;
        let measurement = self.showing.shown.clone()?;
        self.showing
            .channel
            .try_ask(clock)
            .then_some(Ask::Evidence { nonce, measurement })
    }

    pub(super) fn take_judged(&mut self, result: Result<Scrutiny, LinkError>, now_ns: u64) {
        let scrutiny = self.unwrap_answer(result, now_ns, |node| &mut node.showing.channel);
        if let Some(scrutiny) = scrutiny {
            self.showing.shown = None;
            self.take_scrutiny(Some(scrutiny));
        }
    }

    fn stand(&mut self, standing: Standing) {
        let next = match standing {
            Standing::Unproven => TrustState::Unproven,
            Standing::Trusted => TrustState::Trusted,
            Standing::Distrusted { why } => TrustState::Distrusted { why },
        };
        let before = self.status.trust.replace(next.clone());
        if before.as_ref() == Some(&next) {
            return;
        }
        match next {
            TrustState::Unproven => {}
            TrustState::Trusted => {
                tracing::info!("the controller trusts this gateway");
                self.trail.note(Happening::Trusted);
                // Another controller may have taken over meanwhile, to which this gateway had shown nothing.
                let was_shut = std::mem::take(&mut self.showing.is_shut);
                if was_shut && !self.stopping && !self.status.replaced {
                    self.plane.set_stopping(false);
                }
            }
            TrustState::Distrusted { why } => {
                tracing::error!(
                    why,
                    "the controller does not trust this gateway: it gives no rows, and what was here is gone"
                );
                self.trail.note(Happening::Distrusted { why });
                if !std::mem::replace(&mut self.showing.is_shut, true) {
                    self.plane.set_fresh([0; 8], 0);
                    self.plane.set_stopping(true);
                    self.lose_leases();
                }
            }
        }
    }

    /// Nothing of what is here is ours any more: all devices are shut out, and nothing is said of where they stood, for it would not
    /// be believed. What is trusted again begins as a process that has just started.
    pub(super) fn lose_leases(&mut self) {
        // Before anything else, in one write: from here on nothing is answered. The next value finds no devices.
        self.plane.set_fresh([0; 8], 0);
        self.left = None;
        self.freshness = Freshness::default();
        self.fresh = None;
        self.settlements.clear();
        self.settling.clear();
        let devices: Vec<DeviceId> = self.devices.keys().copied().collect();
        for device in devices {
            self.lose(device);
        }
        self.enter.done = false;
        self.resume.done = false;
    }

    fn lose(&mut self, device: DeviceId) {
        let Some(held) = self.devices.get_mut(&device) else {
            return;
        };
        match held.state {
            State::Waiting | State::Installed => self.dismiss(device, false),
            // A pool device is wiped already.
            State::Settling if held.mode == Mode::Key => {
                held.state = State::Leaving { settle: false };
                self.depart(device);
            }
            State::Settling => {
                self.devices.remove(&device);
            }
            // It is tried again, as soon as its line is not busy.
            State::Leaving { .. } => held.state = State::Leaving { settle: false },
            State::Revoked { .. } => {}
        }
    }
}
