//! `linewarden switch run`: evidence of what runs.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use linewarden_evidence::inband::{Form, MasterKey};
use linewarden_evidence::{BootCount, SwitchId};
use linewarden_files::next_count;
use linewarden_switch::control::Attesting;
use linewarden_switch::evidence::{Carrier, EvidenceSettings, Identity, InBand};

use crate::failure::Failure;
use crate::{evidence_key, secret_file};

/// What carries evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum In {
    /// A hop-by-hop option of 104 bytes in every IPv6 packet
    Option,
    /// A frame of Ethernet type 0x5241 beside every packet
    Clone,
}

/// What it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Content {
    /// Digests with a number and a tag that only the holder of the packet key can make
    Default,
    /// Digests alone, as the published switch writes them: anybody can
    Classic,
}

/// Evidence of what the switch runs.
#[derive(Args, Debug)]
#[command(next_help_heading = "Evidence")]
pub struct AttestArgs {
    /// Measure what runs, and give evidence of it under this number
    #[arg(long, value_name = "NUMBER", requires = "boot_count")]
    switch_id: Option<u64>,
    /// Where starts are counted; made if it is not there
    #[arg(long, value_name = "FILE", requires = "switch_id")]
    boot_count: Option<PathBuf>,
    /// The key that signs statements; `linewarden evidence key` makes one
    #[arg(long, value_name = "FILE", requires = "switch_id")]
    evidence_key: Option<PathBuf>,
    /// The TPM that has this key, by its TCTI, as device:/dev/tpmrm0
    #[arg(long, value_name = "TCTI", requires = "evidence_key")]
    evidence_tpm: Option<String>,
    /// Have packets carry evidence
    #[arg(long, value_name = "HOW", requires = "switch_id")]
    evidence_in: Option<In>,
    /// The port by which frames with evidence leave
    #[arg(long, alias = "ra-port", value_name = "PORT", default_value_t = 0)]
    evidence_port: u16,
    /// What packets carry
    #[arg(long, value_name = "WHAT", default_value = "default")]
    evidence_content: Content,
    /// The secret of packets' tags, 32 hexadecimal digits; the appraiser has it too, and no other switch
    #[arg(long, value_name = "FILE", requires = "switch_id")]
    packet_key: Option<PathBuf>,
    /// A register array that tells nothing of the switch, as one that counts packets; may be repeated
    #[arg(long, value_name = "NAME", requires = "switch_id")]
    volatile: Vec<String>,
    /// How often memory is compared with what was measured; 0 is never
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    evidence_rescan: u64,
}

impl AttestArgs {
    /// Whether evidence is to be given.
    pub fn is_asked_for(&self) -> bool {
        self.switch_id.is_some()
    }

    /// How often memory is compared with what was measured.
    pub fn rescan_every(&self) -> Option<Duration> {
        let every = self.is_asked_for().then_some(self.evidence_rescan);
        every.filter(|every| *every > 0).map(Duration::from_secs)
    }

    /// Counts this start, and reads the keys.
    pub fn attesting(&self, cpu_port: Option<u16>) -> Result<Option<Attesting>, Failure> {
        let (Some(switch), Some(path)) = (self.switch_id, &self.boot_count) else {
            return Ok(None);
        };
        let signer = match &self.evidence_key {
            Some(key) => Some(evidence_key::signer(key, self.evidence_tpm.as_deref())?),
            None => None,
        };
        let master = self.master()?;
        let volatile: BTreeSet<String> = self.volatile.iter().cloned().collect();
        // After all that can be wrong: a start that fails is no start.
        let count =
            next_count(path).map_err(|error| Failure::input(format_args!("{}: {error}", path.display())))?;
        let (switch, boot_count) = (SwitchId(switch), BootCount(count));
        let in_band = self.evidence_in.map(|how| InBand {
            carrier: match how {
                In::Option => Carrier::Option,
                In::Clone => Carrier::Clone {
                    port: u32::from(self.evidence_port),
                },
            },
            form: match self.evidence_content {
                Content::Default => Form::Default,
                Content::Classic => Form::Classic,
            },
            key: master.key(switch, boot_count),
        });
        let settings = EvidenceSettings {
            identity: Identity::new(switch, boot_count),
            in_band,
            cpu_port: cpu_port.map(u32::from),
            volatile,
        };
        Ok(Some(Attesting::new(settings, env!("CARGO_PKG_VERSION"), signer)))
    }

    /// The secret of packets' tags; the classic content has none.
    fn master(&self) -> Result<MasterKey, Failure> {
        match (&self.packet_key, self.evidence_in, self.evidence_content) {
            (Some(path), ..) => secret_file::packet_key(path),
            (None, Some(_), Content::Default) => Err(Failure::input(
                "packets' evidence needs --packet-key FILE, for the tags that prove it; `openssl rand -hex 16` makes one",
            )),
            (None, ..) => Ok(MasterKey::new([0; 16])),
        }
    }
}
