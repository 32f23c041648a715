//! The attackers at work, on a thread of their own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use linewarden_protocol::classic::CLASSIC_PORT;
use linewarden_protocol::ids::DeviceId;
use rand::SeedableRng as _;
use rand_chacha::ChaCha20Rng;

use super::report::AttackOutcome;
use super::site::{GATEWAY_ID, Site};
use crate::address::SERVICE;
use crate::attackers::{ALL, Arena, Captured, Puppet, Station};
use crate::fleet::Member;
use crate::service::EchoService;

/// Everything that the attackers start with.
pub(super) struct Siege<'a> {
    pub(super) station: Station,
    pub(super) captured: Captured,
    pub(super) absent: Vec<DeviceId>,
    pub(super) victims: Vec<DeviceId>,
    pub(super) puppets: Vec<Puppet>,
    pub(super) clones: Vec<Member>,
    /// The service and its port, if there is a gate before it.
    pub(super) service: Option<(&'a EchoService, u16)>,
    /// Whether the data plane knows the MAC addresses of frames.
    pub(super) sees_frames: bool,
    pub(super) effort: u32,
    pub(super) seed: u64,
}

impl Siege<'_> {
    /// Tries every attack, one after the other, and tells of each when it is over. Ends early when one of `stops` is
    /// set.
    pub(super) fn run(self, site: &Site, stops: [&AtomicBool; 2], tell: &Sender<AttackOutcome>) {
        let truth = |device| site.line(device);
        let mut arena = Arena {
            station: self.station,
            truth: &truth,
            gateway: GATEWAY_ID,
            absent: self.absent,
            victims: self.victims,
            captured: self.captured,
            puppets: self.puppets,
            clones: self.clones,
            service: self
                .service
                .map(|(service, port)| (service, SERVICE.v4.into(), port)),
            classic_exchanges: Vec::new(),
            classic_port: CLASSIC_PORT,
            sees_frames: self.sees_frames,
            effort: self.effort,
            rng: ChaCha20Rng::seed_from_u64(self.seed),
        };
        for attack in ALL {
            if stops.iter().any(|stop| stop.load(Ordering::Relaxed)) {
                return;
            }
            let outcome = match attack.run(&mut arena) {
                Ok(report) => AttackOutcome::from(report),
                Err(error) => AttackOutcome::inconclusive(attack.name, &error),
            };
            // Nobody listens any more: the run has failed elsewhere.
            if tell.send(outcome).is_err() {
                return;
            }
        }
    }
}
