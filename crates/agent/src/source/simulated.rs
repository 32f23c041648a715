//! Simulated PUFs for tests: one seed file determines the chips of a fleet.

use std::fmt;
use std::path::{Path, PathBuf};

use linewarden_files::{PrivateFileError, create_private, read_private};
use linewarden_protocol::ids::DeviceId;
use linewarden_puf::model::{ArbiterPuf, InterposePuf, Simulated, SramParameters, SramPuf, XorArbiterPuf};
use linewarden_puf::{Puf, PufError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// A PUF model; the first three are strong PUFs (pool mode), SRAM is a weak one (key mode).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Model {
    /// one arbiter chain (pool mode); easy to model by machine learning, for comparison only.
    Arbiter,
    /// several arbiter chains (pool mode); the response is the XOR of their bits.
    #[default]
    XorArbiter,
    /// two XOR arbiters (pool mode): the response of the first one is an additional challenge bit of the second one.
    Interpose,
    /// power-up state of memory (key mode).
    Sram,
}

impl Model {
    /// Whether the PUF responds to challenges, so that it is enrolled in pool mode.
    #[must_use]
    pub fn is_strong(self) -> bool {
        self != Self::Sram
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Arbiter => "arbiter",
            Self::XorArbiter => "xor-arbiter",
            Self::Interpose => "interpose",
            Self::Sram => "sram",
        })
    }
}

/// Parameters of a simulated PUF. The same parameters, seed and device always give the same chip.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SimulatedPuf {
    /// Kind of the PUF.
    #[serde(default)]
    pub model: Model,
    /// Stages of a chain.
    #[serde(default = "default_stages")]
    pub stages: usize,
    /// Number of chains; of an interpose PUF, the chains of the lower layer.
    #[serde(default = "default_chains")]
    pub chains: usize,
    /// Number of chains of an interpose PUF's upper layer.
    #[serde(default = "default_upper_chains")]
    pub upper_chains: usize,
    /// Number of SRAM cells.
    #[serde(default = "default_cells")]
    pub cells: usize,
    /// Mean bit error rate against the most frequent readout.
    #[serde(default = "default_bit_error_rate")]
    pub bit_error_rate: f64,
    /// Number of the chip of this device. Enrollment refused the chips with lower numbers, as a factory discards faulty chips.
    #[serde(default, skip_serializing_if = "is_first")]
    #[schemars(example = 0)]
    pub chip: u32,
    /// File of the fleet's seed.
    #[schemars(extend("format" = "path"), example = "fleet.seed")]
    pub seed_file: PathBuf,
}

fn default_stages() -> usize {
    64
}
fn default_chains() -> usize {
    4
}
fn default_upper_chains() -> usize {
    1
}
fn default_cells() -> usize {
    32_768
}
fn default_bit_error_rate() -> f64 {
    0.05
}
fn is_first(chip: &u32) -> bool {
    *chip == 0
}

impl SimulatedPuf {
    /// Builds the chip of a device; `noise_seed` differs for each run.
    ///
    /// # Errors
    /// A parameter is out of range.
    pub fn build(
        &self,
        seed: &FleetSeed,
        device: DeviceId,
        noise_seed: u64,
    ) -> Result<Box<dyn Puf>, PufError> {
        let chip = seed.chip(device, self.chip);
        let rate = self.bit_error_rate;
        Ok(match self.model {
            Model::Arbiter => Box::new(Simulated::new(
                ArbiterPuf::with_bit_error_rate(self.stages, rate, chip)?,
                noise_seed,
            )),
            Model::XorArbiter => Box::new(Simulated::new(
                XorArbiterPuf::with_bit_error_rate(self.stages, self.chains, rate, chip)?,
                noise_seed,
            )),
            Model::Interpose => Box::new(Simulated::new(
                InterposePuf::with_bit_error_rate(self.stages, self.upper_chains, self.chains, rate, chip)?,
                noise_seed,
            )),
            Model::Sram => {
                let parameters = SramParameters {
                    cells: self.cells,
                    ones: 0.5,
                    bit_error_rate: rate,
                };
                Box::new(Simulated::new(SramPuf::new(parameters, chip)?, noise_seed))
            }
        })
    }

    /// Description for the registry.
    #[must_use]
    pub fn describe(&self) -> String {
        let rate = 100.0 * self.bit_error_rate;
        match self.model {
            Model::Arbiter => format!("simulated arbiter, {} stages, {rate} % bit errors", self.stages),
            Model::XorArbiter => format!(
                "simulated {}-xor arbiter, {} stages, {rate} % bit errors",
                self.chains, self.stages
            ),
            Model::Interpose => format!(
                "simulated ({}, {}) interpose, {} stages, {rate} % bit errors",
                self.upper_chains, self.chains, self.stages
            ),
            Model::Sram => format!("simulated SRAM, {} cells, {rate} % bit errors", self.cells),
        }
    }
}

/// 32 bytes from which the chips of a simulated fleet are derived. Secret: they reproduce every chip.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct FleetSeed([u8; 32]);

impl fmt::Debug for FleetSeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FleetSeed(..)")
    }
}

/// Why a seed file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SeedError {
    /// The file cannot be read or created.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: std::io::Error,
    },
    /// Other users can read the file, or it is not a regular file.
    #[error("{}: {problem}, and the seed reproduces every chip of the fleet; {remedy}", path.display())]
    Unsafe {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
        /// The remedy.
        remedy: String,
    },
    /// The file has other content.
    #[error("{}: not a seed file: expected 64 hexadecimal digits, not all 0", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
    },
    /// No random bytes are available.
    #[error("reading random bytes failed: {0}")]
    Entropy(getrandom::Error),
}

impl FleetSeed {
    /// A seed from its bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Reads a seed file: 64 hexadecimal digits, in a file that only its owner can read.
    ///
    /// # Errors
    /// The file cannot be read, is accessible to other users, or is not a seed file.
    pub fn from_file(path: &Path) -> Result<Self, SeedError> {
        /// Digits and surrounding white space.
        const BYTES_MAX: usize = 128;
        let text = read_private(path, BYTES_MAX).map_err(|error| match error {
            PrivateFileError::Io(source) => SeedError::Io {
                path: path.to_owned(),
                source,
            },
            PrivateFileError::Unsafe { problem, remedy } => SeedError::Unsafe {
                path: path.to_owned(),
                problem,
                remedy,
            },
        })?;
        let mut seed = Self([0; 32]);
        match hex::decode_to_slice(text.trim_ascii(), &mut seed.0) {
            Ok(()) if seed.0 != [0; 32] => Ok(seed),
            _ => Err(SeedError::Malformed {
                path: path.to_owned(),
            }),
        }
    }

    /// Creates a random seed in a new file of mode 0600.
    ///
    /// # Errors
    /// The file exists already, or an error of the operating system.
    pub fn generate_file(path: &Path) -> Result<Self, SeedError> {
        let mut seed = Self([0; 32]);
        getrandom::fill(&mut seed.0).map_err(SeedError::Entropy)?;
        let digits = Zeroizing::new(hex::encode(seed.0) + "\n");
        create_private(path, digits.as_bytes()).map_err(|source| SeedError::Io {
            path: path.to_owned(),
            source,
        })?;
        Ok(seed)
    }

    /// `SHA-256("linewarden simulated chip" | seed | device_id)[0:8]`. For each chip except the first, the hash input ends with
    /// the chip's number in four bytes.
    fn chip(&self, device: DeviceId, number: u32) -> u64 {
        let mut hash = Sha256::new();
        hash.update(b"linewarden simulated chip");
        hash.update(self.0);
        hash.update(device.0.to_be_bytes());
        if !is_first(&number) {
            hash.update(number.to_be_bytes());
        }
        let digest: [u8; 32] = hash.finalize().into();
        u64::from_be_bytes(*digest.first_chunk().unwrap_or(&[0; 8]))
    }
}

#[cfg(test)]
mod tests {
    use linewarden_puf::Challenge;

    use super::*;

    fn puf(model: Model) -> SimulatedPuf {
        toml::from_str(&format!("model = \"{model}\"\nseed_file = \"s\"")).unwrap()
    }

    #[test]
    fn a_chip_is_determined_by_seed_and_device_but_its_noise_is_not() {
        let (seed, other_seed) = (FleetSeed::from_bytes([1; 32]), FleetSeed::from_bytes([2; 32]));
        for model in [Model::Arbiter, Model::XorArbiter, Model::Interpose, Model::Sram] {
            let challenge = if model.is_strong() {
                Challenge::Pool([3; 8])
            } else {
                Challenge::PowerUp
            };
            let read = |seed: &FleetSeed, device, noise| {
                let mut puf = puf(model).build(seed, DeviceId(device), noise).unwrap();
                puf.read(challenge, 4096).unwrap()
            };
            let reference = read(&seed, 1, 1);
            let noise_bits = reference.distance(&read(&seed, 1, 2));
            assert!(
                noise_bits > 0 && noise_bits < 900,
                "{model}: {noise_bits} bits of noise"
            );
            assert!(
                reference.distance(&read(&seed, 2, 1)) > 1400,
                "{model}: another device"
            );
            assert!(
                reference.distance(&read(&other_seed, 1, 1)) > 1400,
                "{model}: another fleet"
            );
            let second = SimulatedPuf {
                chip: 1,
                ..puf(model)
            };
            let second = second
                .build(&seed, DeviceId(1), 1)
                .unwrap()
                .read(challenge, 4096)
                .unwrap();
            assert!(reference.distance(&second) > 1400, "{model}: another chip");
        }
    }

    #[test]
    fn a_seed_file_is_private_and_never_overwritten() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fleet.seed");
        let generated = FleetSeed::generate_file(&path).unwrap();
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(FleetSeed::from_file(&path).unwrap().0, generated.0);
        assert!(matches!(
            FleetSeed::generate_file(&path),
            Err(SeedError::Io { .. })
        ));
        std::fs::write(&path, "12").unwrap();
        assert!(matches!(
            FleetSeed::from_file(&path),
            Err(SeedError::Malformed { .. })
        ));
    }
}
