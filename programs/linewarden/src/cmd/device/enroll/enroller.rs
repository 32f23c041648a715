//! Enrollment of one device: reads its PUF, derives secrets and helper data.

use linewarden_cli::failure::Failure;
use linewarden_cli::random_u64;
use std::path::{Path, PathBuf};

use linewarden_agent::Credential;
use linewarden_agent::source::{CommandPuf, FleetSeed, SeedError, SimulatedPuf};
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, Suite};
use linewarden_protocol::keys::RowKey;
use linewarden_puf::extractor::{
    Enrolled, EnrolledPool, ExtractorError, KeyEnrollment, PoolEnrollment, enroll, enroll_pool, enroll_puf,
};
use linewarden_puf::fingerprint;
use linewarden_puf::health::HealthTest;
use linewarden_puf::readout::{Span, read_directory};
use linewarden_puf::{Puf, PufError};
use linewarden_registry::{Band, Credentials, Fingerprint, PoolRow};
use rand::SeedableRng as _;
use rand_chacha::ChaCha20Rng;

use super::{EnrollCommand, SimulatedArgs};

const SUITE: Suite = Suite::SipHash128;
/// Number of readouts of an SRAM model at enrollment.
const SRAM_READOUTS: usize = 5;

/// Enrolls devices of one PUF source.
pub struct Enroller {
    source: Source,
    count: u64,
    /// Whether the enrollment replaces the credentials of an enrolled device.
    replaces: bool,
}

enum Source {
    Simulated {
        puf: SimulatedPuf,
        seed: FleetSeed,
        rows: u32,
    },
    Readouts {
        directory: PathBuf,
        span: Span,
    },
    Command {
        puf: CommandPuf,
        mode: Mode,
        rows: u32,
        cells: usize,
        readouts: usize,
    },
}

/// An enrolled device.
pub struct EnrolledDevice {
    /// The credentials for the registry.
    pub credentials: Credentials,
    /// The fingerprint by which the registry recognizes the PUF.
    pub fingerprint: Option<Fingerprint>,
    /// The helper data for the device.
    pub helper: Credential,
    /// Description of the PUF.
    pub profile: String,
    /// The `[puf]` section of the agent's configuration.
    pub puf_section: String,
}

impl Enroller {
    /// Prepares the PUF source of a command.
    pub fn new(command: &EnrollCommand) -> Result<Self, Failure> {
        let (source, count) = match command {
            EnrollCommand::Simulated(args) => (simulated_source(args)?, args.count),
            EnrollCommand::Readouts(args) => {
                let source = Source::Readouts {
                    directory: absolute(&args.directory)?,
                    span: args.range,
                };
                (source, 1)
            }
            EnrollCommand::Command(args) => {
                let (program, arguments) = args
                    .program
                    .split_first()
                    .ok_or_else(|| Failure::input("no program"))?;
                let puf = CommandPuf {
                    program: program.into(),
                    arguments: arguments.to_vec(),
                    timeout_ms: args.timeout_ms,
                };
                let source = Source::Command {
                    puf,
                    mode: args.mode.into(),
                    rows: args.rows,
                    cells: args.cells,
                    readouts: args.readouts,
                };
                (source, 1)
            }
        };
        Ok(Self {
            source,
            count,
            replaces: command.common().replace,
        })
    }

    /// Number of devices to enroll.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Whether another chip can replace a refused chip.
    pub fn has_more_chips(&self) -> bool {
        matches!(self.source, Source::Simulated { .. })
    }

    /// Enrolls one device.
    ///
    /// In pool mode, `first_idx` is the first row of the pool. `chip` is the number of the simulated chip; other PUF
    /// sources ignore `chip`.
    pub fn enroll(
        &self,
        device: DeviceId,
        first_idx: RowIndex,
        chip: u32,
    ) -> Result<EnrolledDevice, Failure> {
        let mut seed = [0u8; 32];
        getrandom::fill(&mut seed)
            .map_err(|error| Failure::failed(format!("reading random bytes failed: {error}")))?;
        let mut rng = ChaCha20Rng::from_seed(seed);
        let failure = |error| extractor_failure(device, error);
        let pool_options = |rows| PoolEnrollment {
            first_idx: first_idx.0,
            is_reenrollment: self.replaces,
            ..PoolEnrollment::rows(rows)
        };
        match &self.source {
            Source::Simulated { puf, seed, rows } => {
                let puf = SimulatedPuf { chip, ..puf.clone() };
                let section = puf_section("simulated", &puf)?;
                let mut chip = puf.build(seed, device, random_u64()?).map_err(Failure::input)?;
                if puf.model.is_strong() {
                    let pool = enroll_pool(&mut chip, &pool_options(*rows), &mut rng).map_err(failure)?;
                    let fingerprint = strong_fingerprint(device, &mut chip)?;
                    return Ok(pool_device(device, pool, fingerprint, &puf.describe(), section));
                }
                let options = KeyEnrollment::default();
                let key =
                    enroll_puf(&mut chip, puf.cells, SRAM_READOUTS, &options, &mut rng).map_err(failure)?;
                key_device(device, key, &puf.describe(), section)
            }
            Source::Readouts { directory, span } => {
                let section_fields = ReadoutsSection {
                    path: directory,
                    start: span.start,
                };
                let section = puf_section("readouts", &section_fields)?;
                let dumps = read_directory(directory, span).map_err(Failure::input)?;
                let readouts: Vec<_> = dumps.into_iter().map(|dump| dump.bits).collect();
                let options = KeyEnrollment {
                    start: span.start,
                    ..KeyEnrollment::default()
                };
                let key = enroll(&readouts, &options, &mut rng).map_err(failure)?;
                let description = format!(
                    "readouts, {} of {} cells",
                    readouts.len(),
                    readouts.first().map_or(0, |r| r.len())
                );
                key_device(device, key, &description, section)
            }
            Source::Command {
                puf,
                mode,
                rows,
                cells,
                readouts,
            } => {
                let section = puf_section("command", puf)?;
                let mut chip: Box<dyn Puf> = Box::new(puf.clone());
                let description = format!("command {}", puf.program.display());
                match mode {
                    Mode::Pool => {
                        let pool = enroll_pool(&mut chip, &pool_options(*rows), &mut rng).map_err(failure)?;
                        let fingerprint = strong_fingerprint(device, &mut chip)?;
                        Ok(pool_device(device, pool, fingerprint, &description, section))
                    }
                    Mode::Key => {
                        let options = KeyEnrollment::default();
                        let key =
                            enroll_puf(&mut chip, *cells, *readouts, &options, &mut rng).map_err(failure)?;
                        key_device(device, key, &description, section)
                    }
                }
            }
        }
    }
}

/// Returns the section of a PUF source in the agent's configuration.
fn puf_section(table: &str, source: &impl serde::Serialize) -> Result<String, Failure> {
    let content = toml::to_string(source)
        .map_err(|error| Failure::failed(format!("writing the agent's configuration failed: {error}")))?;
    Ok(format!("[puf.{table}]\n{content}"))
}

/// The fields of the section `[puf.readouts]` in the agent's configuration.
#[derive(serde::Serialize)]
struct ReadoutsSection<'a> {
    path: &'a Path,
    #[serde(skip_serializing_if = "is_zero")]
    start: usize,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| Failure::input(format!("{}: {error}", path.display())))
}

/// Reads or creates the seed file, and returns the simulated PUF source.
fn simulated_source(args: &SimulatedArgs) -> Result<Source, Failure> {
    let seed_file = args
        .seed_file
        .clone()
        .unwrap_or_else(|| args.common.out.join("fleet.seed"));
    let seed = if seed_file.symlink_metadata().is_ok() {
        FleetSeed::from_file(&seed_file)
    } else {
        FleetSeed::generate_file(&seed_file)
    };
    let puf = SimulatedPuf {
        model: args.model.into(),
        stages: args.stages,
        chains: args.chains,
        upper_chains: 1,
        cells: args.cells,
        bit_error_rate: args.bit_error_rate,
        chip: 0,
        // A relative path suffices, because the seed file is in the directory of the agent's configuration.
        seed_file: match &args.seed_file {
            Some(file) => absolute(file)?,
            None => "fleet.seed".into(),
        },
    };
    Ok(Source::Simulated {
        puf,
        seed: seed.map_err(|error| match error {
            SeedError::Unsafe { .. } => Failure::unsafe_(error),
            other => Failure::input(other),
        })?,
        rows: args.rows,
    })
}

/// Converts an error to a failure. The failure is unsafe (exit code 4) if the readouts of the chip are not fit for keys.
fn extractor_failure(device: DeviceId, error: ExtractorError) -> Failure {
    let text = format!("device {device}: {error}");
    match error {
        ExtractorError::TooLittleEntropy { .. }
        | ExtractorError::TooFewCells { .. }
        | ExtractorError::Health(_)
        | ExtractorError::Copied { .. }
        | ExtractorError::CopiedReadout { .. }
        | ExtractorError::NotPowerUp(_)
        | ExtractorError::ChallengeIgnored { .. } => Failure::unsafe_(text),
        ExtractorError::Puf(PufError::TooFewBits { .. }) => Failure::input(text),
        ExtractorError::Puf(_) => Failure::failed(text),
        _ => Failure::input(text),
    }
}

fn strong_fingerprint(device: DeviceId, chip: &mut dyn Puf) -> Result<Option<Fingerprint>, Failure> {
    let measured = fingerprint::Fingerprint::of_strong(chip, &HealthTest::default());
    to_registry_fingerprint(
        device,
        &measured.map_err(|error| extractor_failure(device, error))?,
    )
}

const _: () = assert!(fingerprint::BANDS_MAX <= linewarden_registry::BANDS_MAX);

/// Converts a fingerprint to the registry's type; returns `None` if the memory is too small for a band.
///
/// If bands cannot be stored, the enrollment fails, because the registry could not recognize the PUF.
fn to_registry_fingerprint(
    device: DeviceId,
    measured: &fingerprint::Fingerprint,
) -> Result<Option<Fingerprint>, Failure> {
    if measured.bands().is_empty() {
        return Ok(None);
    }
    let band = |band: &fingerprint::Band| Band {
        position: band.position,
        bits: band.bits,
    };
    match Fingerprint::new(measured.bands().iter().map(band).collect()) {
        Some(stored) => Ok(Some(stored)),
        None => Err(Failure::failed(format!(
            "device {device}: the fingerprint of the PUF has too many bands for the registry ({})",
            measured.bands().len()
        ))),
    }
}

fn pool_device(
    device: DeviceId,
    pool: EnrolledPool,
    fingerprint: Option<Fingerprint>,
    description: &str,
    puf_section: String,
) -> EnrolledDevice {
    let rows = pool.rows.iter().map(|row| PoolRow {
        challenge: row.challenge,
        row_key: RowKey::for_row(row.secret.expose(), &row.digest, SUITE, device, RowIndex(row.idx)),
    });
    let credentials = Credentials::Pool {
        first_idx: RowIndex(pool.helper.first_idx()),
        rows: rows.collect(),
    };
    let profile = format!(
        "{description}; {}; {:.0} bits",
        pool.helper.profile(),
        pool.entropy.residual_bits
    );
    EnrolledDevice {
        credentials,
        fingerprint,
        helper: Credential::Pool(pool.helper),
        profile,
        puf_section,
    }
}

fn key_device(
    device: DeviceId,
    key: Enrolled,
    description: &str,
    puf_section: String,
) -> Result<EnrolledDevice, Failure> {
    let row_key = RowKey::for_device(key.secret.expose(), &key.helper.digest(), SUITE, device);
    let profile = format!(
        "{description}; {}; {:.0} bits",
        key.helper.profile(),
        key.entropy.residual_bits
    );
    let measured = key.fingerprint.as_ref();
    let fingerprint = measured
        .map(|measured| to_registry_fingerprint(device, measured))
        .transpose()?;
    Ok(EnrolledDevice {
        credentials: Credentials::Key(row_key),
        fingerprint: fingerprint.flatten(),
        helper: Credential::Key(key.helper),
        profile,
        puf_section,
    })
}
