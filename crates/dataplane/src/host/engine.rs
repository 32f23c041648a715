//! The packet path that all threads share, and the state of one thread.
//!
//! Everything shared is atomic. All loads of a line that another thread may be rewriting are Acquire. The commit word
//! is read a second time after these loads to detect a change (a sequence lock whose counter is the commit word). On
//! x86 an Acquire load costs no more than a plain load.

use std::sync::Arc;

use linewarden_protocol::verdict::Verdict;

use super::bindings::Bindings;
use super::proof_batch::{ProofBatch, Verifier};
use super::slow_path::SlowPath;
use super::stats::Stats;
use crate::config::Config;
use crate::event::EVENT_BYTES;
use crate::layout::Line;
use crate::rate::RateWindow;
use crate::store::load_shedder::{LoadShedder, UnknownSender};
use crate::store::provers::ProverRegions;
use crate::store::{ActiveSettings, Geometry, Regions};
use crate::timestamps::Timestamps;

/// State of one thread.
#[derive(Debug)]
pub struct ThreadState {
    pub(super) stats: Arc<Stats>,
    pub(super) naks: RateWindow,
    pub(super) alarms: RateWindow,
    pub(super) shedder: LoadShedder,
    pub(super) proofs: ProofBatch,
    /// Number of RESPONSEs received.
    pub(super) responses: u64,
}

impl ThreadState {
    pub(super) fn new(stats: Arc<Stats>) -> Self {
        Self {
            stats,
            naks: RateWindow::default(),
            alarms: RateWindow::default(),
            shedder: LoadShedder::default(),
            proofs: ProofBatch::default(),
            responses: 0,
        }
    }
}

/// The packet path that all threads of a [`super::Host`] share.
#[derive(Debug)]
pub struct Engine {
    pub(super) regions: Arc<Regions>,
    /// `None`: PROOFs are not served.
    pub(super) provers: Option<Verifier>,
    pub(super) geometry: Geometry,
    pub(super) ring: u32,
    pub(super) gateway_id: u32,
    pub(super) slow_path: SlowPath,
}

impl Engine {
    pub(super) fn new(
        config: &Config,
        regions: Arc<Regions>,
        provers: Option<Arc<ProverRegions>>,
    ) -> std::io::Result<Self> {
        Ok(Self {
            regions,
            provers: provers.map(|provers| Verifier::new(config, provers)),
            geometry: config.geometry.clone(),
            ring: config.geometry.ring,
            gateway_id: config.gateway_id.0,
            slow_path: SlowPath::new()?,
        })
    }

    /// The device's line and its place.
    #[inline]
    pub(super) fn find_device(&self, id: u64) -> Option<(&Line, u32)> {
        self.regions.find(&self.geometry, id)
    }

    /// Decides whether a message of a device that is not installed takes the slow path.
    #[cold]
    pub(super) fn admit_unknown(
        &self,
        thread: &mut ThreadState,
        now: Timestamps,
        sender: &UnknownSender,
    ) -> Verdict {
        let (regions, geometry) = (&self.regions, &self.geometry);
        let miss_per_s = self.live().miss_per_s;
        if miss_per_s == 0 || !regions.may_be_enrolled(geometry, sender.id) {
            return Verdict::DropUnknownDevice;
        }
        let shedder = &mut thread.shedder;
        match shedder.admits(regions, geometry, sender, now.monotonic_ns, miss_per_s) {
            true => Verdict::SlowPath,
            false => Verdict::DropShed,
        }
    }

    /// Reports an event that user space must handle, and wakes user space.
    pub(super) fn report(&self, thread: &ThreadState, event: &[u64; EVENT_BYTES / 8]) {
        thread.stats.report(event);
        self.wake();
    }

    pub(super) fn wake(&self) {
        if let Some(control) = self.regions.control.first() {
            self.slow_path.wake(&control.listening);
        }
    }

    /// The active settings. The settings that apply to one message are read once.
    pub(super) fn live(&self) -> ActiveSettings {
        self.regions
            .control
            .first()
            .map(ActiveSettings::read)
            .unwrap_or_default()
    }

    pub(super) fn by_address(&self) -> Bindings<'_> {
        self.bindings(&self.regions.by_address)
    }

    pub(super) fn by_mac(&self) -> Bindings<'_> {
        self.bindings(&self.regions.by_mac)
    }

    fn bindings<'a>(&'a self, table: &'a [crate::layout::Bucket]) -> Bindings<'a> {
        Bindings {
            table,
            mask: self.geometry.bucket_mask(),
            seed: self.geometry.hash_seed,
            regions: &self.regions,
        }
    }
}
