//! The options of an agent, and prerequisites on its machine.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use linewarden_agent::source::{FleetSeed, SeedError};
use linewarden_agent::{AgentOptions, Keyring, RenewalOptions, interface_mac};
use linewarden_protocol::device::DeviceConfig;
use linewarden_protocol::ids::Suite;
use linewarden_puf::Puf;
use linewarden_puf::health::HealthTest;
use linewarden_puf::readout::ReadoutPuf;

use super::fields::DEFAULT_RENEWAL_ROWS;
use super::validate::{PufSource, ValidAgent};
use crate::problem::FieldError;

/// Options of one run: those of the command line, and a random seed.
#[derive(Clone, Copy, Debug)]
pub struct RunOptions {
    /// Request one renewal although none is due; in key mode, nothing else requests a new key.
    pub renew: bool,
    /// Exit after the first session and the requested renewal.
    pub once: bool,
    /// Exit if no session was opened within this time.
    pub session_timeout: Option<Duration>,
    /// Seed of the noise of a simulated PUF.
    pub noise_seed: u64,
}

impl ValidAgent {
    /// Reads helper data and keys, and opens the PUF.
    ///
    /// # Errors
    /// All fields that cannot be used on this machine.
    pub fn options(&self, run: RunOptions) -> Result<(AgentOptions, Box<dyn Puf>), Vec<FieldError>> {
        let mut errors = Vec::new();
        let mut refuse = |error| errors.push(error);
        let keyring = self.keyring().map_err(&mut refuse);
        let bound_mac = self.bound_mac().map_err(&mut refuse);
        let puf = self.open_puf(run.noise_seed).map_err(&mut refuse);
        let attest = self.attest.as_ref().map(|attest| attest.options()).transpose();
        let attest = attest.map_err(&mut refuse);
        let (Ok(keyring), Ok(bound_mac), Ok(puf), Ok(attest)) = (keyring, bound_mac, puf, attest) else {
            return Err(errors);
        };
        let options = AgentOptions {
            device: DeviceConfig {
                device: self.device,
                suite: Suite::SipHash128,
                mode: keyring.current().mode(),
                gateways: self.gateways,
                bound_mac,
            },
            keyring,
            renewal: self.renewal_options(run.renew),
            ticket_port: self.ticket_port,
            health: HealthTest::default(),
            gateway: self.gateway,
            tunnels: self.tunnels.clone(),
            peers: self.peers.clone(),
            peer_port: self.peer_port,
            attest,
            once: run.once,
            session_timeout: run.session_timeout,
        };
        Ok((options, puf))
    }

    /// Checks helper data, PUF source (no response is read; a program is not run), interface and attestation.
    pub(super) fn machine_errors(&self) -> Vec<FieldError> {
        let program = match &self.puf {
            PufSource::Command(command) => command
                .find()
                .map_err(|problem| FieldError::new(&["puf", "command", "program"], problem)),
            PufSource::Simulated(_) | PufSource::Readouts(_) => Ok(()),
        };
        let errors = [
            self.keyring().err(),
            self.bound_mac().err(),
            program.err(),
            self.open_puf(0).err(),
        ];
        let attest = self.attest.iter().flat_map(|attest| attest.machine_errors());
        errors.into_iter().flatten().chain(attest).collect()
    }

    fn keyring(&self) -> Result<Keyring, FieldError> {
        Keyring::read_from(&self.helper).map_err(|error| FieldError::new(&["device", "helper"], error))
    }

    fn bound_mac(&self) -> Result<Option<[u8; 6]>, FieldError> {
        let bound_mac = self.interface.as_deref().map(interface_mac).transpose();
        bound_mac.map_err(|error| FieldError::new(&["gateway", "interface"], error))
    }

    fn renewal_options(&self, requests_renewal: bool) -> Option<RenewalOptions> {
        let below_rows = self.renewal.map(|section| section.below_rows);
        (requests_renewal || below_rows.is_some()).then(|| RenewalOptions {
            below_rows,
            rows: self.renewal.map_or(DEFAULT_RENEWAL_ROWS, |section| section.rows),
            requests_renewal,
        })
    }

    fn open_puf(&self, noise_seed: u64) -> Result<Box<dyn Puf>, FieldError> {
        match &self.puf {
            PufSource::Simulated(simulated) => {
                let seed = FleetSeed::from_file(&simulated.seed_file).map_err(|error| FieldError {
                    is_unsafe: matches!(error, SeedError::Unsafe { .. }),
                    ..FieldError::new(&["puf", "simulated", "seed_file"], error)
                })?;
                simulated
                    .build(&seed, self.device, noise_seed)
                    .map_err(|error| FieldError::new(&["puf", "simulated"], error))
            }
            PufSource::Readouts(readouts) => {
                let puf = ReadoutPuf::open(&readouts.path, readouts.start as usize)
                    .map_err(|error| FieldError::new(&["puf", "readouts", "path"], error))?;
                warn_if_exposed(&readouts.path);
                Ok(Box::new(puf))
            }
            PufSource::Command(command) => Ok(Box::new(command.clone())),
        }
    }
}

/// Warns if other users can read stored readouts, which identify the device. Such readouts are still used, because many
/// are published.
fn warn_if_exposed(path: &Path) {
    let is_exposed = |path: &Path| path.metadata().is_ok_and(|metadata| metadata.mode() & 0o044 != 0);
    // Other users cannot open files in a directory without access, whatever the modes of the files.
    let dumps = || std::fs::read_dir(path).into_iter().flatten().flatten();
    if is_exposed(path) && (path.is_file() || dumps().any(|dump| is_exposed(&dump.path()))) {
        tracing::warn!(
            path = %path.display(),
            action = "run `chmod -R go=` on it", "other users can read the readouts and impersonate this device"
        );
    }
}
