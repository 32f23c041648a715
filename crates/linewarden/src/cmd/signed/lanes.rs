//! What verifies: processors, and GPUs.

use std::env;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

use clap::ValueEnum;
use linewarden_signatures::gpu::{Gpu, NoGpu, Options};
use linewarden_signatures::lane::{Eight, Graphics, KeyMemory, OneByOne};
use linewarden_signatures::receive::Checked;
use linewarden_signatures::scheduler::engine::Lane;
use linewarden_signatures::scheduler::model::Line;
use linewarden_signatures::scheduler::{Class, LaneKind, LaneSpec, Span};

use crate::failure::Failure;
use crate::output::tell;

type OneLane = (LaneSpec, Box<dyn Lane<Checked>>);

/// Whether GPUs are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum UseGpu {
    /// Those that there are
    Auto,
    /// None
    Off,
    /// At least one, or it is a failure
    Require,
}

/// Processors that work on messages: so many as asked for, or all but the one that reads or receives them.
pub fn count(asked: Option<u16>) -> usize {
    let there = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    asked.map_or((there - 1).max(1), usize::from)
}

/// So many processors, see [`count`].
pub fn processors(asked: Option<u16>) -> Vec<OneLane> {
    (0..count(asked)).map(processor).collect()
}

/// A processor, with what it does a second where nothing has been measured yet: the engine corrects it as it goes.
fn processor(number: usize) -> OneLane {
    let rates = [
        (Class::RA_VERIFY, 10_000.0),
        (Class::RSA_VERIFY, 40_000.0),
        (Class::RSA3072_VERIFY, 20_000.0),
        (Class::P256_VERIFY, 15_000.0),
        (Class::ED25519_VERIFY, 20_000.0),
    ];
    let spec = LaneSpec::new(format!("cpu {number}"), LaneKind::Cpu);
    let spec = rates.into_iter().fold(spec, |spec, (class, rate)| {
        spec.with(class, Line::new(Span::from_micros(1), rate))
    });
    match Eight::widest() {
        Some(eight) => (spec.with_grain(8), Box::new(eight)),
        None => (spec, Box::new(OneByOne::default())),
    }
}

/// The GPUs that are to be used. The first time their kernels are compiled, which takes some seconds.
pub fn gpus(when: UseGpu) -> Result<Vec<OneLane>, Failure> {
    let found = match when {
        UseGpu::Off => return Ok(Vec::new()),
        UseGpu::Auto | UseGpu::Require => Gpu::discover(),
    };
    let opened = found.and_then(|devices| devices.iter().map(open).collect::<Result<Vec<_>, _>>());
    match (opened, when) {
        (Ok(lanes), _) => Ok(lanes),
        (Err(error), UseGpu::Require) => Err(Failure::failed(format!("--gpu require: {error}"))),
        (Err(NoGpu::Driver | NoGpu::NoDevice), _) => Ok(Vec::new()),
        (Err(error), _) => {
            tell(format_args!("GPUs are not used: {error}"));
            Ok(Vec::new())
        }
    }
}

fn open(device: &linewarden_signatures::gpu::DeviceInfo) -> Result<OneLane, NoGpu> {
    let options = Options {
        cache: cache(),
        ..Options::default()
    };
    let lane = Graphics::open(device, &options, KeyMemory::of(device))?;
    Ok((lane.spec(), Box::new(lane)))
}

/// Where compiled kernels are kept: what the service manager names, or the user's own.
fn cache() -> Option<PathBuf> {
    let directory = |variable: &str| {
        env::var_os(variable)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let base = directory("CACHE_DIRECTORY")
        .or_else(|| Some(directory("XDG_CACHE_HOME")?.join("linewarden")))
        .or_else(|| Some(directory("HOME")?.join(".cache/linewarden")))?;
    let cache = base.join("kernels");
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&cache);
    made.is_ok().then_some(cache)
}
