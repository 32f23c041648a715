//! What verifies: processors, and GPUs.

use std::env;
use std::fmt;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use clap::ValueEnum;
use linewarden_signatures::calibration::Samples;
use linewarden_signatures::gpu::{Gpu, NoGpu, Options};
use linewarden_signatures::key::PublicKey;
use linewarden_signatures::lane::{Eight, Graphics, KeyMemory, OneByOne, Places};
use linewarden_signatures::receive::{Checked, Receiver};
use linewarden_signatures::scheduler::engine::Lane;
use linewarden_signatures::scheduler::model::{Line, crossover};
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

/// Lanes with what they take for the signers' messages, and what to say of it. A GPU that fails at it is left out, unless it must be
/// there.
pub fn calibrated(
    lanes: Vec<OneLane>,
    samples: &Samples,
    when: UseGpu,
) -> Result<(Vec<OneLane>, Vec<Calibration>), Failure> {
    let mut measured: Vec<OneLane> = Vec::new();
    for (spec, mut lane) in lanes {
        // Processors are all alike.
        let alike = measured.iter().find(|(other, _)| other.kind == LaneKind::Cpu);
        let spec = match (spec.kind, alike) {
            (LaneKind::Cpu, Some((other, _))) => LaneSpec {
                name: spec.name,
                ..other.clone()
            },
            (kind, _) => match samples.measure(spec, &mut *lane) {
                Ok(spec) => spec,
                Err(error) if kind == LaneKind::Accelerator && when == UseGpu::Auto => {
                    tell(format_args!("a GPU is not used: {error}"));
                    continue;
                }
                Err(error) => return Err(Failure::failed(error)),
            },
        };
        measured.push((spec, lane));
    }
    let said = Calibration::all(&measured, samples);
    Ok((measured, said))
}

/// What a lane does for one class.
pub struct Calibration {
    lane: String,
    class: Class,
    line: Line,
    /// Of an accelerator: the batch from which on it is done sooner than all processors.
    tau: Option<f64>,
}

impl Calibration {
    fn all(lanes: &[OneLane], samples: &Samples) -> Vec<Self> {
        let mut all = Vec::new();
        for class in samples.classes() {
            let lines = lanes
                .iter()
                .filter_map(|(spec, _)| Some((spec, (*spec.lines.of(class))?)));
            let rates = lines.clone().filter(|(spec, _)| spec.kind == LaneKind::Cpu);
            let cpu_rate: f64 = rates.map(|(_, line)| line.rate()).sum();
            all.extend(lines.map(|(spec, line)| {
                Self {
                    lane: spec.name.clone(),
                    class,
                    line,
                    tau: (spec.kind == LaneKind::Accelerator)
                        .then(|| crossover(cpu_rate, line))
                        .flatten(),
                }
            }));
        }
        all
    }

    /// For machines.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "lane": self.lane,
            "class": self.class.name(),
            "per_s": self.line.rate().round(),
            "batch_us": (self.line.overhead_s * 1e6).round(),
            "tau": self.tau.map(f64::ceil),
        })
    }
}

/// For people: a line for each lane and class.
impl fmt::Display for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let class = self.class.name().unwrap_or_default();
        write!(f, "{}: {class} {:.0}/s", self.lane, self.line.rate())?;
        match self.tau {
            Some(tau) => write!(
                f,
                ", sooner than the processors from {:.0} messages on",
                tau.ceil()
            ),
            None => Ok(()),
        }
    }
}

/// A processor, with what it does a second until it is measured, or where there is nothing to measure it with: the engine corrects it
/// as it goes.
fn processor(number: usize) -> OneLane {
    let rates = [
        (Class::RA_VERIFY, 10_000.0),
        (Class::RA3072_VERIFY, 5_000.0),
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

/// The GPUs that are to be used, as lanes, and which signers have places on them.
pub fn gpus(when: UseGpu, receiver: &Receiver) -> Result<(Vec<OneLane>, Option<Arc<Places>>), Failure> {
    let lane = |gpu: Graphics| -> OneLane { (gpu.spec(), Box::new(gpu)) };
    let (gpus, places) = graphics(when, receiver.signers(), Options::default())?;
    Ok((gpus.into_iter().map(lane).collect(), places))
}

/// The GPUs that are to be used, and which of these signers have places on them: the same on all, by the least memory of one. The first
/// time their kernels are compiled, which takes some seconds.
pub fn graphics<'a>(
    when: UseGpu,
    signers: impl IntoIterator<Item = &'a Arc<PublicKey>>,
    options: Options,
) -> Result<(Vec<Graphics>, Option<Arc<Places>>), Failure> {
    let none = (Vec::new(), None);
    let options = Options {
        cache: cache(),
        ..options
    };
    let found = match when {
        UseGpu::Off => return Ok(none),
        UseGpu::Auto | UseGpu::Require => Gpu::discover(),
    };
    let opened = found.and_then(|devices| {
        let memory = devices.iter().map(KeyMemory::of).reduce(KeyMemory::least);
        let places = memory.map(|memory| Arc::new(Places::new(signers, memory)));
        let gpus = devices.iter().zip(places.iter().cycle());
        let gpus = gpus.map(|(device, places)| Graphics::open(device, &options, Arc::clone(places)));
        Ok((gpus.collect::<Result<Vec<_>, _>>()?, places))
    });
    match (opened, when) {
        (Ok(gpus), _) => Ok(gpus),
        (Err(error), UseGpu::Require) => Err(Failure::failed(format!("--gpu require: {error}"))),
        (Err(NoGpu::Driver | NoGpu::NoDevice), _) => Ok(none),
        (Err(error), _) => {
            tell(format_args!("GPUs are not used: {error}"));
            Ok(none)
        }
    }
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
