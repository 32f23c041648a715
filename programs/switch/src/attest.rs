//! `linewarden-switch run`: evidence of the switch.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use linewarden_cli::evidence;
use linewarden_cli::failure::Failure;
use linewarden_evidence::inband::MasterKey;
use linewarden_evidence::{BootCount, SwitchId};
use linewarden_files::next_count;
use linewarden_switch::control::AttestationConfig;
use linewarden_switch::evidence::{Carrier, EvidenceSettings, Identity, InBand};

/// Carrier of in-packet evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CarrierName {
    /// Hop-by-hop option of 104 bytes in every IPv6 packet
    Option,
    /// A separate frame of EtherType 0x5241 for every packet
    Clone,
}

/// Options for evidence of the switch.
#[derive(Args, Debug)]
#[command(next_help_heading = "Evidence")]
pub struct AttestArgs {
    /// Measure the switch and provide evidence under this switch ID (integer)
    #[arg(long, value_name = "NUMBER", requires = "boot_count")]
    switch_id: Option<u64>,
    /// File with the number of starts of the switch; created if it does not exist (path)
    #[arg(long, value_name = "FILE", requires = "switch_id")]
    boot_count: Option<PathBuf>,
    /// Key that signs statements, created by `linewarden-switch evidence key` (path)
    #[arg(long, value_name = "FILE", requires = "switch_id")]
    evidence_key: Option<PathBuf>,
    /// TPM that holds the evidence key (TCTI, such as device:/dev/tpmrm0)
    #[arg(long, value_name = "TCTI", requires = "evidence_key")]
    evidence_tpm: Option<String>,
    /// Carry evidence in packets, with this carrier (default: no evidence in packets)
    #[arg(long, value_name = "HOW", requires = "switch_id")]
    evidence_in: Option<CarrierName>,
    /// --evidence-in clone: port to which the frames with evidence are sent (integer)
    #[arg(long, alias = "ra-port", value_name = "PORT", default_value_t = 0)]
    evidence_port: u16,
    /// File with the secret of packet tags, 32 hexadecimal digits, which the appraiser also needs; switches with
    /// the same secret need different IDs (path)
    #[arg(long, value_name = "FILE", requires = "switch_id")]
    packet_key: Option<PathBuf>,
    /// Register array to exclude from evidence, such as a packet counter; repeatable (name)
    #[arg(long, value_name = "NAME", requires = "switch_id")]
    volatile: Vec<String>,
    /// Interval at which memory is compared with the measurement; 0 disables the comparison (integer, seconds)
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    evidence_rescan: u64,
}

impl AttestArgs {
    /// Whether evidence is enabled.
    pub fn is_requested(&self) -> bool {
        self.switch_id.is_some()
    }

    /// Interval at which memory is compared with the measurement; `None` without comparisons.
    pub fn rescan_interval(&self) -> Option<Duration> {
        let interval_s = self.is_requested().then_some(self.evidence_rescan);
        interval_s
            .filter(|interval_s| *interval_s > 0)
            .map(Duration::from_secs)
    }

    /// Reads the keys, increments the boot count, and returns the settings; returns `None` if evidence is not enabled.
    pub fn build(&self, cpu_port: Option<u16>) -> Result<Option<AttestationConfig>, Failure> {
        let (Some(switch), Some(path)) = (self.switch_id, &self.boot_count) else {
            return Ok(None);
        };
        let signer = match &self.evidence_key {
            Some(key) => Some(evidence::read_signer(key, self.evidence_tpm.as_deref())?),
            None => None,
        };
        let packet_secret = self.packet_secret()?;
        let volatile_registers: BTreeSet<String> = self.volatile.iter().cloned().collect();
        // The boot count increments only after all checks, so a refused start does not count.
        let count =
            next_count(path).map_err(|error| Failure::input(format_args!("{}: {error}", path.display())))?;
        let (switch, boot_count) = (SwitchId(switch), BootCount(count));
        let in_band = self.evidence_in.map(|carrier| InBand {
            carrier: match carrier {
                CarrierName::Option => Carrier::Option,
                CarrierName::Clone => Carrier::Clone {
                    port: u32::from(self.evidence_port),
                },
            },
            key: packet_secret.key(switch, boot_count),
        });
        let settings = EvidenceSettings {
            identity: Identity::new(switch, boot_count),
            in_band,
            cpu_port: cpu_port.map(u32::from),
            volatile_registers,
        };
        Ok(Some(AttestationConfig::new(
            settings,
            env!("CARGO_PKG_VERSION"),
            signer,
        )))
    }

    /// Reads the secret of packet tags; returns zeros if the switch creates no tags and no secret is given.
    fn packet_secret(&self) -> Result<MasterKey, Failure> {
        match (&self.packet_key, self.evidence_in) {
            (Some(path), _) => evidence::packet_key(path),
            (None, Some(_)) => Err(Failure::input(
                "in-packet evidence requires --packet-key FILE: create a key with `openssl rand -hex 16`",
            )),
            (None, None) => Ok(MasterKey::new([0; 16])),
        }
    }
}
