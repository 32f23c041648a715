//! The traits of a data plane for `xdp`.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use linewarden_protocol::attest::Round;
use linewarden_protocol::gateway::DroppedTypes;
use linewarden_protocol::ids::DeviceId;
use linewarden_protocol::sources::DeviceSources;
use linewarden_protocol::wire::{AttestRequest, MESSAGE_BYTES};

use super::attach::Attachment;
use super::{Xdp, read_counters, read_handling, stamp};
use crate::config::LiveSettings;
use crate::counters::Counters;
use crate::data_plane::{self, Admission, Attestation, DataPlane, Evidence, StoreBacked, Telemetry};
use crate::error::DataPlaneError;
use crate::event::Event;
use crate::handling_time::HandlingTimes;
use crate::measurement::MeasurementSource;
use crate::miss::{self, Carrier, Miss};
use crate::provers::ProverSet;
use crate::stamp::{Stamp, StampCounts};
use crate::store::adopt::InheritedState;
use crate::store::{ClosedSession, Store};

/// The name in log messages and metrics.
const NAME: &str = "xdp";

/// "Send the frame back", in include/uapi/linux/bpf.h.
const XDP_TX: u32 = 3;

impl StoreBacked for Xdp {
    fn store(&self) -> &Store {
        &self.store
    }

    fn store_mut(&mut self) -> &mut Store {
        &mut self.store
    }
}

impl Admission for Xdp {
    fn reconfigure(&mut self, live: &LiveSettings, boot_s: u32) -> Result<(), DataPlaneError> {
        self.add_forwards(&live.forward_to)?;
        if self.senders.frames.is_none() && live.miss_per_s > 0 {
            tracing::error!(
                "xdp: no packet socket; unknown devices cannot authenticate; restart with CAP_NET_RAW"
            );
        }
        self.store.set_live(live, boot_s);
        self.sources.clone_from(&live.sources);
        self.retain_forwards(&live.forward_to);
        Ok(())
    }

    fn set_sources(&mut self, sources: &DeviceSources) -> Vec<ClosedSession> {
        self.sources.clone_from(sources);
        // A new address often belongs to a new interface.
        self.refresh_macs();
        self.store.set_sources(sources)
    }

    fn set_fresh(&mut self, fresh: [u8; 8], now_ns: u64) {
        self.store.set_fresh(fresh, now_ns);
    }

    fn set_stopping(&mut self, stopping: bool) {
        self.store.set_stopping(stopping);
    }

    fn enroll(&mut self, device: DeviceId) {
        self.store.enroll(device);
    }

    fn set_enrollment_filter(&mut self, filtering: bool) {
        self.store.set_enrollment_filter(filtering);
    }

    fn drain_misses(&mut self, sink: &mut dyn FnMut(Miss)) -> Result<(), DataPlaneError> {
        self.rings.take_misses()?.into_iter().for_each(sink);
        Ok(())
    }

    fn send_reply(&mut self, miss: &Miss, reply: &[u8; MESSAGE_BYTES]) {
        if miss::is_challenge(reply) {
            self.expect_response(miss);
        }
        let Carrier::Frame { frame, ingress } = &miss.carrier else {
            return;
        };
        if let Some(reply) = miss::reply_frame(frame, reply) {
            self.send_frame(*ingress, &reply);
        }
    }

    fn expect_response(&mut self, miss: &Miss) {
        self.store.expect_response(miss.message());
    }

    fn replay(&mut self, miss: Miss) -> Result<(), DataPlaneError> {
        let Carrier::Frame { frame, ingress } = &miss.carrier else {
            return Ok(());
        };
        let run = self.run(frame, frame.len(), *ingress, 1)?;
        if run.action == XDP_TX {
            self.send_frame(*ingress, &run.frame);
        }
        Ok(())
    }
}

impl Attestation for Xdp {
    fn provers(&mut self) -> Option<&mut dyn ProverSet> {
        self.prover_store().map(|provers| provers as &mut dyn ProverSet)
    }

    fn session_requests(
        &self,
        devices: &[DeviceId],
        round: &Round,
        now_s: u32,
    ) -> Vec<Option<(IpAddr, AttestRequest)>> {
        data_plane::session_requests(&self.store, devices, round, now_s)
    }

    fn send_attest_requests(
        &mut self,
        requests: &[(SocketAddr, AttestRequest)],
    ) -> Result<usize, DataPlaneError> {
        self.senders
            .attest
            .as_ref()
            .map_or(Ok(0), |sender| sender.send_requests(requests))
    }
}

impl Evidence for Xdp {
    fn measure(&self) -> Result<MeasurementSource, DataPlaneError> {
        Xdp::measure(self).map(|measurement| MeasurementSource::Kernel(Box::new(measurement)))
    }

    fn set_stamp(&self, stamp: Option<&Stamp>) {
        if let Some(stamping) = &self.stamping {
            stamping.publish(stamp);
        }
    }

    fn stamp_counts(&self) -> Result<Option<StampCounts>, DataPlaneError> {
        let counts = || stamp::counts(&self.skeleton.maps.stamp_counts);
        self.stamping.as_ref().map(|_| counts()).transpose()
    }
}

impl Telemetry for Xdp {
    fn drain_events(&mut self, sink: &mut dyn FnMut(Event)) -> Result<(), DataPlaneError> {
        self.settle_waiting_proofs();
        self.rings.take_events()?.into_iter().for_each(sink);
        Ok(())
    }

    fn counters(&self) -> Result<Counters, DataPlaneError> {
        self.settle_waiting_proofs();
        let mut counters = read_counters(&self.skeleton.maps.percpu)?;
        self.waiting.count(&mut counters);
        Ok(counters)
    }

    fn dropped_types(&self) -> Result<Option<DroppedTypes>, DataPlaneError> {
        self.dropped.counts(&self.skeleton.maps.dropped).map(Some)
    }

    fn handling_times(&self) -> Result<Option<HandlingTimes>, DataPlaneError> {
        read_handling(&self.skeleton.maps.percpu).map(Some)
    }
}

impl DataPlane for Xdp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn take_inherited_state(&mut self) -> Option<InheritedState> {
        std::mem::take(&mut self.has_inherited_state).then(|| self.store.inherited_state())
    }

    fn set_owner(&mut self, owner: u64) {
        self.store.set_owner(owner);
    }

    fn outlives_process(&self) -> bool {
        self.pinned_maps.is_some()
    }

    /// The ring needs no reset, because a drained ring is not readable.
    fn arm_wake(&mut self) {
        self.store.arm_wake();
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.rings.fd())
    }

    fn housekeep(&mut self) {
        self.settle_waiting_proofs();
        data_plane::housekeep(&mut self.store, self.provers.as_mut());
    }

    fn refresh_links(&mut self) {
        self.refresh_macs();
    }

    fn failure(&mut self) -> Option<String> {
        let is_detached = self.interfaces.attachments.iter().any(Attachment::is_detached);
        is_detached.then(|| "an interface to which the program was attached no longer exists".to_owned())
    }
}
