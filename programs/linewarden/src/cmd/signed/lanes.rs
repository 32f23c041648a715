//! Lanes that verify or sign: processors and GPUs.

use linewarden_cli::failure::Failure;
use linewarden_cli::output::print_error;
use std::env;
use std::fmt;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use clap::ValueEnum;
use linewarden_signatures::calibration::Samples;
use linewarden_signatures::gpu::{Gpu, GpuUnavailable, Options};
use linewarden_signatures::key::PublicKey;
use linewarden_signatures::lane::{BatchLane, GpuLane, KeyMemory, KeyPlacement, SingleLane};
use linewarden_signatures::receive::{Checked, Receiver};
use linewarden_signatures::scheduler::engine::Lane;
use linewarden_signatures::scheduler::model::{CostModel, crossover};
use linewarden_signatures::scheduler::{Class, LaneKind, LaneSpec, Span};

type LaneAndSpec = (LaneSpec, Box<dyn Lane<Checked>>);

/// Whether GPUs are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum UseGpu {
    /// Use GPUs if there are any
    Auto,
    /// Use no GPU
    Off,
    /// Require at least one GPU
    Require,
}

/// Number of processors that verify or sign: as requested, or all processors except one, which reads or receives.
pub fn processor_count(requested: Option<u16>) -> usize {
    let available = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    requested.map_or((available - 1).max(1), usize::from)
}

/// Returns one lane for each processor of [`processor_count`].
pub fn processor_lanes(requested: Option<u16>) -> Vec<LaneAndSpec> {
    (0..processor_count(requested)).map(processor_lane).collect()
}

/// Measures the lanes' rates for the signers' messages; returns the lanes with their rates.
///
/// A GPU that fails is skipped, unless a GPU is required.
pub fn calibrate(
    lanes: Vec<LaneAndSpec>,
    samples: &Samples,
    use_gpu: UseGpu,
) -> Result<(Vec<LaneAndSpec>, Vec<Calibration>), Failure> {
    let mut measured_lanes: Vec<LaneAndSpec> = Vec::new();
    for (spec, mut lane) in lanes {
        // All processors have the same rate.
        let measured_cpu = measured_lanes
            .iter()
            .find(|(spec_of_cpu, _)| spec_of_cpu.kind == LaneKind::Cpu);
        let spec = match (spec.kind, measured_cpu) {
            (LaneKind::Cpu, Some((spec_of_cpu, _))) => LaneSpec {
                name: spec.name,
                ..spec_of_cpu.clone()
            },
            (kind, _) => match samples.measure(spec, &mut *lane) {
                Ok(spec) => spec,
                Err(error) if kind == LaneKind::Accelerator && use_gpu == UseGpu::Auto => {
                    print_error(format_args!("GPU skipped: {error}"));
                    continue;
                }
                Err(error) => return Err(Failure::failed(error)),
            },
        };
        measured_lanes.push((spec, lane));
    }
    let calibrations = Calibration::of_lanes(&measured_lanes, samples);
    Ok((measured_lanes, calibrations))
}

/// The measured rate of a lane for a class of messages.
pub struct Calibration {
    lane: String,
    class: Class,
    cost: CostModel,
    /// Accelerators only: the batch size (messages) from which the accelerator is faster than all processors together.
    tau: Option<f64>,
}

impl Calibration {
    fn of_lanes(lanes: &[LaneAndSpec], samples: &Samples) -> Vec<Self> {
        let mut calibrations = Vec::new();
        for class in samples.classes() {
            let costs = lanes
                .iter()
                .filter_map(|(spec, _)| Some((spec, (*spec.costs.of(class))?)));
            let rates = costs.clone().filter(|(spec, _)| spec.kind == LaneKind::Cpu);
            let cpu_rate: f64 = rates.map(|(_, cost)| cost.rate()).sum();
            calibrations.extend(costs.map(|(spec, cost)| {
                Self {
                    lane: spec.name.clone(),
                    class,
                    cost,
                    tau: (spec.kind == LaneKind::Accelerator)
                        .then(|| crossover(cpu_rate, cost))
                        .flatten(),
                }
            }));
        }
        calibrations
    }

    /// The calibration as JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "lane": self.lane,
            "class": self.class.name(),
            "per_s": self.cost.rate().round(),
            "batch_us": (self.cost.overhead_s * 1e6).round(),
            "tau": self.tau.map(f64::ceil),
        })
    }
}

/// The calibration as a line of text.
impl fmt::Display for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let class = self.class.name().unwrap_or_default();
        write!(f, "{}: {class} {:.0}/s", self.lane, self.cost.rate())?;
        match self.tau {
            Some(tau) => write!(f, ", faster than the processors from {:.0} messages", tau.ceil()),
            None => Ok(()),
        }
    }
}

/// Returns a processor lane with default rates. The default rates apply until the lane is measured; without samples, the
/// lane is not measured. The engine corrects the rates at run time.
fn processor_lane(number: usize) -> LaneAndSpec {
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
        spec.with_class(class, CostModel::new(Span::from_micros(1), rate))
    });
    match BatchLane::widest() {
        Some(lane) => (spec.with_grain(8), Box::new(lane)),
        None => (spec, Box::new(SingleLane::default())),
    }
}

/// Returns the GPU lanes for a receiver, and the signers whose keys are in GPU memory.
pub fn gpu_lanes(
    use_gpu: UseGpu,
    receiver: &Receiver,
) -> Result<(Vec<LaneAndSpec>, Option<Arc<KeyPlacement>>), Failure> {
    let lane = |gpu: GpuLane| -> LaneAndSpec { (gpu.spec(), Box::new(gpu)) };
    let (gpus, placement) = open_gpus(use_gpu, receiver.signers(), Options::default())?;
    Ok((gpus.into_iter().map(lane).collect(), placement))
}

/// Opens the GPUs, and selects the signers whose keys are in GPU memory.
///
/// All GPUs have the keys of the same signers, so the smallest GPU memory limits the number of these signers. The first
/// start compiles the kernels, which takes some seconds.
pub fn open_gpus<'a>(
    use_gpu: UseGpu,
    signers: impl IntoIterator<Item = &'a Arc<PublicKey>>,
    options: Options,
) -> Result<(Vec<GpuLane>, Option<Arc<KeyPlacement>>), Failure> {
    let no_gpus = (Vec::new(), None);
    let options = Options {
        cache: kernel_cache(),
        ..options
    };
    let devices = match use_gpu {
        UseGpu::Off => return Ok(no_gpus),
        UseGpu::Auto | UseGpu::Require => Gpu::discover(),
    };
    let opened = devices.and_then(|devices| {
        let memory = devices.iter().map(KeyMemory::of).reduce(KeyMemory::min);
        let placement = memory.map(|memory| Arc::new(KeyPlacement::new(signers, memory)));
        let gpus = devices.iter().zip(placement.iter().cycle());
        let gpus = gpus.map(|(device, placement)| GpuLane::open(device, &options, Arc::clone(placement)));
        Ok((gpus.collect::<Result<Vec<_>, _>>()?, placement))
    });
    match (opened, use_gpu) {
        (Ok(gpus), _) => Ok(gpus),
        (Err(error), UseGpu::Require) => Err(Failure::failed(format!("--gpu require: {error}"))),
        (Err(GpuUnavailable::DriverMissing | GpuUnavailable::NoDevice), _) => Ok(no_gpus),
        (Err(error), _) => {
            print_error(format_args!("GPUs not used: {error}"));
            Ok(no_gpus)
        }
    }
}

/// Creates the directory for compiled kernels, in the cache directory of the service manager or of the user. Returns
/// `None` if there is no such directory.
fn kernel_cache() -> Option<PathBuf> {
    let directory = |variable: &str| {
        env::var_os(variable)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let base = directory("CACHE_DIRECTORY")
        .or_else(|| Some(directory("XDG_CACHE_HOME")?.join("linewarden")))
        .or_else(|| Some(directory("HOME")?.join(".cache/linewarden")))?;
    let cache = base.join("kernels");
    let result = DirBuilder::new().recursive(true).mode(0o700).create(&cache);
    result.is_ok().then_some(cache)
}
