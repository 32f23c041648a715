//! The profiles in eBPF: `bpf/bench_papers.bpf.c`.

use std::mem::MaybeUninit;

use libbpf_rs::skel::{OpenSkel as _, Skel as _, SkelBuilder as _};
use libbpf_rs::{MapCore as _, MapFlags, OpenObject, ProgramInput, ProgramMut};
use linewarden_protocol::frame::Mac;

use super::layout::ClassicCrp;
use super::p4dra::{P4dra, P4draControl, P4draRegions};
use super::{Classic, ClassicProfile, crc_tables, rng_state, store_crps};
use crate::config::Config;
use crate::counters::Counters;
use crate::error::DataPlaneError;
use crate::ethtool;
use crate::links::{self, LOOPBACK};
use crate::store::{Region, Regions};
use crate::xdp::attach::Attachment;
use crate::xdp::skeleton::bench_papers::types::lw_papers;
use crate::xdp::skeleton::bench_papers::{BenchPapersSkel, BenchPapersSkelBuilder};
use crate::xdp::test_run::test_context;
use crate::xdp::{TestRun, check_privileges, config, libbpf_log, read_counters};

/// The profile that the programs serve.
#[derive(Clone, Copy, Debug)]
pub enum Profile<'a> {
    /// `classic-iot` or `classic-uav`.
    Classic(&'a Classic),
    /// `p4dra-classic`.
    P4dra(&'a P4dra),
}

/// The programs of one profile, loaded.
pub struct ClassicXdp {
    pub(super) skeleton: BenchPapersSkel<'static>,
    regions: Regions,
    p4dra: Option<P4draControl>,
    attachments: Vec<Attachment>,
}

impl ClassicXdp {
    /// Loads the programs. The gateway's addresses and the hash seed come from `config`.
    ///
    /// # Errors
    /// As [`crate::xdp::Xdp::load`]; the settings of the profile are invalid.
    pub fn load(config: &Config, profile: Profile<'_>) -> Result<Self, DataPlaneError> {
        Self::load_with_cases(config, profile, 1)
    }

    /// As [`Self::load`], with space for the prepared frames of a bench.
    pub(super) fn load_with_cases(
        config: &Config,
        profile: Profile<'_>,
        cases: u32,
    ) -> Result<Self, DataPlaneError> {
        config.check()?;
        let table = match profile {
            Profile::Classic(classic) => {
                classic.check()?;
                vec![None]
            }
            Profile::P4dra(p4dra) => p4dra.check(config.geometry.hash_seed)?,
        };
        check_privileges()?;
        libbpf_log::redirect();
        // libbpf requires the object's storage to outlive the skeleton; a few dozen bytes leak per load.
        let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let error = |error| DataPlaneError::kernel("loading the programs of the classic profiles", error);
        let mut open = BenchPapersSkelBuilder::default().open(storage).map_err(error)?;
        config::configure(open.open_object_mut(), config, false)?;
        if let Some(constants) = open.maps.rodata_papers_data.as_deref_mut() {
            write_constants(&mut constants.papers, profile, table.len());
        }
        if let Profile::Classic(classic) = profile {
            let crps = entries(classic.crps.len() * classic.rows());
            open.maps.classic_crps.set_max_entries(crps).map_err(error)?;
            let identifiers = entries(classic.crps.len());
            open.maps
                .classic_states
                .set_max_entries(identifiers)
                .map_err(error)?;
        }
        open.maps
            .p4dra_provers
            .set_max_entries(entries(table.len()))
            .map_err(error)?;
        open.maps.cases.set_max_entries(cases).map_err(error)?;
        let skeleton = open.load().map_err(error)?;
        let regions = config::regions(skeleton.object(), config)?;
        regions.initialize_settings(&config.live_settings());
        let p4dra = match profile {
            Profile::Classic(classic) => {
                let crps: Region<ClassicCrp> = config::region(
                    skeleton.object(),
                    "classic_crps",
                    entries(classic.crps.len() * classic.rows()),
                )?;
                store_crps(&crps, classic);
                seed_rng(&skeleton, classic.seed)?;
                None
            }
            Profile::P4dra(p4dra) => {
                let regions = P4draRegions {
                    provers: config::region(skeleton.object(), "p4dra_provers", entries(table.len()))?,
                    rounds: config::region(skeleton.object(), "p4dra_rounds", 1)?,
                };
                Some(P4draControl::new(
                    p4dra,
                    config.geometry.hash_seed,
                    &table,
                    regions,
                ))
            }
        };
        Ok(Self {
            skeleton,
            regions,
            p4dra,
            attachments: Vec::new(),
        })
    }

    /// Attaches the program to an interface of the calling thread's network namespace until this value is dropped. The
    /// program serves frames that are addressed to the interface.
    ///
    /// # Errors
    /// Errors of the kernel, for example if another XDP program is attached.
    pub fn attach(&mut self, ifindex: u32) -> Result<(), DataPlaneError> {
        let name = ethtool::display_name(ifindex);
        let operation = format!("reading the MAC addresses of interface {name}");
        let links = links::links().map_err(|error| DataPlaneError::kernel(operation, error))?;
        self.set_own_macs(ifindex, &links::macs_of(&links, ifindex));
        let attachment = Attachment::for_process_lifetime(self.program(), ifindex)?;
        self.attachments.push(attachment);
        Ok(())
    }

    /// Sets the gateway's MAC addresses for frames that arrive on this interface. Returns `false` if the table of
    /// interfaces is full.
    pub fn set_own_macs(&self, ifindex: u32, macs: &[Mac]) -> bool {
        self.regions.set_port(ifindex, macs)
    }

    /// The rounds of `p4dra-classic`; `None`: another profile is served.
    pub fn p4dra(&mut self) -> Option<&mut P4draControl> {
        self.p4dra.as_mut()
    }

    /// Verdicts so far.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn counters(&self) -> Result<Counters, DataPlaneError> {
        read_counters(&self.skeleton.maps.percpu)
    }

    /// Runs the program once on a frame (`BPF_PROG_TEST_RUN`), as if it had arrived on the loopback interface.
    ///
    /// # Errors
    /// Errors of the kernel: a frame below 14 B or above a page is refused.
    pub fn test_run(&self, frame: &[u8]) -> Result<TestRun, DataPlaneError> {
        // A reply of p4dra-classic is longer than the frame.
        let mut out = vec![0u8; frame.len() + 128];
        let mut context = test_context(frame.len(), LOOPBACK);
        let input = ProgramInput {
            data_in: Some(frame),
            data_out: Some(&mut out),
            context_in: Some(&mut context),
            ..Default::default()
        };
        let output = self
            .program()
            .test_run(input)
            .map_err(|error| DataPlaneError::kernel("BPF_PROG_TEST_RUN", error))?;
        let action = output.return_value;
        let length = output.data.as_ref().map_or(0, |data| data.len());
        out.truncate(length);
        Ok(TestRun { action, frame: out })
    }

    fn program(&self) -> &ProgramMut<'static> {
        match self.p4dra {
            None => &self.skeleton.progs.papers_classic,
            Some(_) => &self.skeleton.progs.papers_p4dra,
        }
    }
}

/// The number of elements of a map.
fn entries(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Writes the constants of the profile. `places`: of the table of provers.
fn write_constants(constants: &mut lw_papers, profile: Profile<'_>, places: usize) {
    match profile {
        Profile::Classic(classic) => {
            constants.classic_identifiers = entries(classic.crps.len());
            constants.classic_rows = entries(classic.rows());
            constants.classic_port = classic.port.to_be();
            constants.classic_words = u8::try_from(classic.response_bytes / 8).unwrap_or(0);
            constants.classic_uav = u8::from(classic.profile == ClassicProfile::Uav);
            for (cell, value) in constants.crc.iter_mut().zip(crc_tables().as_flattened()) {
                *cell = *value;
            }
        }
        Profile::P4dra(p4dra) => {
            constants.p4dra_mask = entries(places) - 1;
            constants.p4dra_type = p4dra.ether_type.to_be();
            let [a, b, c, d, e, f] = p4dra.controller;
            constants.p4dra_controller = [[a, b], [c, d], [e, f]].map(u16::from_ne_bytes);
        }
    }
}

/// Seeds the generator of every CPU.
fn seed_rng(skeleton: &BenchPapersSkel<'_>, seed: u64) -> Result<(), DataPlaneError> {
    let states: Vec<Vec<u8>> = (0..u64::from(config::possible_cpus()?))
        .map(|cpu| rng_state(seed, cpu).to_ne_bytes().to_vec())
        .collect();
    skeleton
        .maps
        .classic_rng
        .update_percpu(&0u32.to_ne_bytes(), &states, MapFlags::ANY)
        .map_err(|error| DataPlaneError::kernel("seeding the generators of the classic profile", error))
}
