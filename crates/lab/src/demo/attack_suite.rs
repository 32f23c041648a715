//! Runs all attacks, on a separate thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;

use linewarden_protocol::classic::CLASSIC_PORT;
use linewarden_protocol::ids::DeviceId;
use rand::SeedableRng as _;
use rand_chacha::ChaCha20Rng;

use super::gateway::{DemoGateway, GATEWAY_ID};
use super::report::AttackOutcome;
use crate::address::SERVICE;
use crate::attackers::{ATTACKS, AttackContext, AttackerLink, CapturedHandshakes, ControlledDevice};
use crate::fleet::Member;
use crate::service::EchoService;

/// The inputs of all attacks.
pub(super) struct AttackSuite<'a> {
    pub(super) link: AttackerLink,
    pub(super) captured_handshakes: CapturedHandshakes,
    pub(super) absent_devices: Vec<DeviceId>,
    pub(super) victims: Vec<DeviceId>,
    pub(super) controlled_devices: Vec<ControlledDevice>,
    pub(super) clones: Vec<Member>,
    /// The service and its port, if the data plane has a gate.
    pub(super) service: Option<(&'a EchoService, u16)>,
    /// Whether the data plane sees the MAC addresses of frames.
    pub(super) data_plane_sees_macs: bool,
    pub(super) messages_per_attack: u32,
    pub(super) seed: u64,
}

impl AttackSuite<'_> {
    /// Runs all attacks in sequence and sends the outcome of each to `outcomes`. Stops early when one of `stops` is
    /// set.
    pub(super) fn run(
        self,
        demo_gateway: &DemoGateway,
        stops: [&AtomicBool; 2],
        outcomes: &SyncSender<AttackOutcome>,
    ) {
        let lines = |device| demo_gateway.line(device);
        let mut context = AttackContext {
            link: self.link,
            lines: &lines,
            gateway: GATEWAY_ID,
            absent_devices: self.absent_devices,
            victims: self.victims,
            captured_handshakes: self.captured_handshakes,
            controlled_devices: self.controlled_devices,
            clones: self.clones,
            service: self
                .service
                .map(|(service, port)| (service, SERVICE.v4.into(), port)),
            classic_exchanges: Vec::new(),
            classic_port: CLASSIC_PORT,
            data_plane_sees_macs: self.data_plane_sees_macs,
            messages_per_attack: self.messages_per_attack,
            rng: ChaCha20Rng::seed_from_u64(self.seed),
        };
        for attack in ATTACKS {
            if stops.iter().any(|stop| stop.load(Ordering::Relaxed)) {
                return;
            }
            let outcome = match attack.run(&mut context) {
                Ok(report) => AttackOutcome::from(report),
                Err(error) => AttackOutcome::inconclusive(attack.name, &error),
            };
            // The receiver is closed because the run has failed elsewhere.
            if outcomes.send(outcome).is_err() {
                return;
            }
        }
    }
}
