//! Whether a device may have a key for the boot that it is in: a boot that was changed must not become an accepted one by enrollment.

use std::path::{Path, PathBuf};

use linewarden_measurement::configuration::Configuration;
use linewarden_measurement::diff::Difference;
use linewarden_measurement::eventlog::{EventLog, Replayed, replays};
use linewarden_measurement::pcr::{PcrIndex, PcrSelection, PcrValues};
use linewarden_protocol::ids::DeviceId;
use linewarden_registry::{Group, Registry, RegistryError};
use linewarden_tpm::enrol::Binding;
use linewarden_tpm::evidence::Evidence;
use serde::Serialize;

use super::own::Own;
use super::{EnrollArgs, group};
use crate::cmd::attest::reference;
use crate::failure::Failure;

/// What --state takes for the boot that the device is in.
const CURRENT: &str = "current";

/// A boot that the operator accepts.
#[derive(Clone, Debug)]
pub enum StateArg {
    /// The one that the device is in.
    Current,
    /// The one that was measured into this file.
    File(PathBuf),
}

impl From<&str> for StateArg {
    fn from(text: &str) -> Self {
        match text {
            CURRENT => Self::Current,
            path => Self::File(path.into()),
        }
    }
}

/// Why a device may have a key for the boot that it is in.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "by", content = "of")]
pub enum AcceptedBy {
    /// This reference value, roll-out or file has the same PCRs.
    Reference(String),
    /// The device's present key works in this boot, and there is no reference value of PCRs.
    EarlierKey,
    /// The operator has named it by `--state current`.
    Operator,
    /// There is nothing that it could differ from.
    FirstEnrollment,
}

/// The boots in which a key is to work, the present one among them.
#[derive(Debug)]
pub struct Accepted {
    pub states: Vec<PcrValues>,
    pub by: AcceptedBy,
}

/// A boot in which the device may be.
struct Boot {
    /// "the reference value of group pumps".
    name: String,
    pcrs: PcrValues,
}

/// What the registry says of the boots of a device.
pub struct Known {
    group: String,
    /// Those of the group, in their order: its reference value, and what it is being updated to, with the PCRs of the device's own over
    /// them that an earlier enrollment has accepted. Only those with PCRs.
    boots: Vec<Boot>,
    /// The same, with all entries of the device's own over them: what the device has to prove once it is enrolled.
    expected: Vec<Boot>,
    own: Option<Own>,
    /// Of the key that is to be replaced.
    earlier: Option<Binding>,
    /// The record of the key that is to be replaced cannot be read: in which boots it works is not known.
    is_damaged: bool,
    is_quarantined: bool,
    /// Event logs that the device has sent before.
    logs: Vec<Vec<u8>>,
}

impl Known {
    /// Reads it, at this time in seconds since 1970-01-01 UTC.
    pub async fn read(
        args: &EnrollArgs,
        registry: &Registry,
        device: DeviceId,
        now_s: u64,
    ) -> Result<Self, Failure> {
        let group = group::find(registry, &args.group).await?;
        let (prover, is_damaged) = match registry.prover(device).await {
            Err(RegistryError::DamagedRecord { .. }) if args.replace => (None, true),
            found => (found?, false),
        };
        let own = Own::read(args, prover.as_ref())?;
        let accepted = own.as_ref().map(Own::accepted).transpose()?;
        let binding = prover.and_then(|prover| prover.binding);
        Ok(Self {
            boots: boots(&group, accepted.as_ref(), now_s)?,
            expected: boots(&group, own.as_ref().map(Own::entries), now_s)?,
            own,
            group: group.name.to_string(),
            // The registry authenticates it: one that cannot be read was stored by another version.
            is_damaged: is_damaged
                || binding
                    .as_deref()
                    .is_some_and(|binding| decoded(binding).is_none()),
            earlier: binding.as_deref().and_then(decoded),
            is_quarantined: registry.get(device).await?.quarantine.is_some(),
            logs: logs(registry, device).await?,
        })
    }

    /// What the device has of its own once it is enrolled.
    pub fn own(&self) -> Option<&Own> {
        self.own.as_ref()
    }

    /// Whether the device may have a key for the boot that it is in, which `log` replays to where it has sent one; `path` is the
    /// identity's file.
    ///
    /// # Errors
    /// The boot is none of those that are known, and the operator has not named it, or PCRs of the device's own are of another boot:
    /// exit code 4. A file of `--state` that is of other PCRs.
    pub fn judge(
        &self,
        states: &[StateArg],
        device: DeviceId,
        (path, now, log): (&Path, &PcrValues, Option<&Replayed>),
    ) -> Result<Accepted, Failure> {
        let named = named(states, now)?;
        let is_consented = states.iter().any(|state| matches!(state, StateArg::Current));
        let known = || self.boots.iter().chain(&named);
        let by = match known().find(|boot| boot.pcrs == *now) {
            Some(boot) => AcceptedBy::Reference(boot.name.clone()),
            None if is_consented => AcceptedBy::Operator,
            None if !self.boots.is_empty() => {
                return Err(self.refusal(known().collect(), device, path, now, log));
            }
            None => self.without_reference(device, path, now, log)?,
        };
        if let Some(own) = &self.own {
            own.check(std::iter::once(now).chain(named.iter().map(|boot| &boot.pcrs)))?;
        }
        let like = self.expected.iter().chain(&named);
        let like = like.filter(|boot| is_like(&boot.pcrs, now));
        let states = std::iter::once(now.clone()).chain(like.map(|boot| boot.pcrs.clone()));
        Ok(Accepted {
            states: states.collect(),
            by,
        })
    }

    /// No reference value says which PCRs the device should have.
    fn without_reference(
        &self,
        device: DeviceId,
        path: &Path,
        now: &PcrValues,
        log: Option<&Replayed>,
    ) -> Result<AcceptedBy, Failure> {
        let unknown = |why: &str| {
            Failure::unsafe_(format!(
                "{}: the boot of device {device} is not accepted: {why}, and group {} has no reference value of PCRs that it \
                 could be compared with; give the group one, or accept the boot that the device is in with `--state {CURRENT}`",
                path.display(),
                self.group
            ))
        };
        match &self.earlier {
            Some(earlier) if earlier.policy.accepts(now) => Ok(AcceptedBy::EarlierKey),
            Some(earlier) => {
                let boot = Boot {
                    name: "the boot in which its present key was enrolled".to_owned(),
                    pcrs: earlier.pcrs.0.clone(),
                };
                Err(self.refusal(vec![&boot], device, path, now, log))
            }
            None if self.is_damaged => Err(unknown("the record of its present key cannot be read")),
            None if self.is_quarantined => Err(unknown("the device is in quarantine")),
            None => Ok(AcceptedBy::FirstEnrollment),
        }
    }

    /// Which PCRs differ from which boots, and, of the boot that differs least, in which values and from which events on.
    fn refusal(
        &self,
        boots: Vec<&Boot>,
        device: DeviceId,
        path: &Path,
        now: &PcrValues,
        log: Option<&Replayed>,
    ) -> Failure {
        let differs: Vec<String> = boots
            .iter()
            .map(|boot| format!("{} in {}", boot.name, differing(&boot.pcrs, now)))
            .collect();
        let refused = Failure::unsafe_(format!(
            "{}: the boot of device {device} is not accepted: it differs from {}; start the device in an accepted boot, or \
             accept the boot that it is in with `--state {CURRENT}`",
            path.display(),
            differs.join(", and from ")
        ));
        let nearest = boots.into_iter().min_by_key(|boot| {
            let is_other = !is_like(&boot.pcrs, now);
            (is_other, differing_pcrs(&boot.pcrs, now).len())
        });
        let refused = match nearest {
            Some(boot) if is_like(&boot.pcrs, now) => refused.with(self.changes(boot, now, log)),
            _ => refused,
        };
        refused.with(self.own.as_ref().and_then(Own::notice).into_iter().collect())
    }

    /// A text for each PCR that differs.
    fn changes(&self, boot: &Boot, now: &PcrValues, log: Option<&Replayed>) -> Vec<String> {
        let configuration = |pcrs: &PcrValues| Configuration::new(pcrs.clone(), Default::default());
        let (Ok(old), Ok(new)) = (configuration(&boot.pcrs), configuration(now)) else {
            return Vec::new();
        };
        let difference = Difference::between(&old, &new);
        let log_before = self.logs.iter().find_map(|log| {
            let log = EventLog::parse(log).ok()?;
            replays(&log, &boot.pcrs).ok()
        });
        let (difference, unknown) = match (&log_before, log) {
            (Some(before), Some(log)) => (difference.with_events(before, log), None),
            (None, _) => (difference, Some("accepted boot")),
            (_, None) => (difference, Some("present boot")),
        };
        let changes = difference
            .pcrs
            .iter()
            .map(|change| change.to_string().trim_end().to_owned());
        let unknown = unknown
            .map(|boot| format!("no event log of the {boot} is known, so the events cannot be compared"));
        changes.chain(unknown).collect()
    }
}

fn decoded(binding: &[u8]) -> Option<Binding> {
    serde_json::from_slice(binding).ok()
}

/// The boots of a group, with the device's own entries over them. A roll-out whose time is over accepts nothing any more.
fn boots(group: &Group, own: Option<&Configuration>, now_s: u64) -> Result<Vec<Boot>, Failure> {
    let reference = group
        .reference
        .as_ref()
        .map(|reference| ("reference value", reference));
    let roll_out = group
        .roll_out
        .as_ref()
        .filter(|roll_out| now_s < roll_out.until_s);
    let roll_out = roll_out.map(|roll_out| ("roll-out", &roll_out.reference));
    let mut boots = Vec::new();
    for (role, encoding) in reference.into_iter().chain(roll_out) {
        let name = format!("the {role} of group {}", group.name);
        let unreadable = |error| Failure::failed(format!("{name} cannot be read: {error}"));
        let base = Configuration::decode(encoding).map_err(unreadable)?;
        let laid = own.map(|own| base.overlaid(own)).transpose();
        let laid = laid.map_err(|error| {
            Failure::input(format!(
                "the entries of the device's own cannot be laid over {name}: {error}; name others with --own"
            ))
        })?;
        let pcrs = laid.as_ref().unwrap_or(&base).pcrs().clone();
        if !pcrs.selection().is_empty() {
            boots.push(Boot { name, pcrs });
        }
    }
    Ok(boots)
}

/// Those that the operator has measured into files.
fn named(states: &[StateArg], now: &PcrValues) -> Result<Vec<Boot>, Failure> {
    let mut boots = Vec::new();
    for state in states {
        let StateArg::File(path) = state else { continue };
        let pcrs = reference::read(path)?.pcrs().clone();
        if !is_like(&pcrs, now) {
            return Err(Failure::input(format!(
                "{}: it is of PCRs {} of {}, and the key of PCRs {} of {}; measure with the same `pcrs` and `bank`",
                path.display(),
                pcrs.selection(),
                pcrs.bank(),
                now.selection(),
                now.bank()
            )));
        }
        let name = path.display().to_string();
        boots.push(Boot { name, pcrs });
    }
    Ok(boots)
}

fn is_like(pcrs: &PcrValues, now: &PcrValues) -> bool {
    pcrs.bank() == now.bank() && pcrs.selection() == now.selection()
}

/// The PCRs that have another value, or that only one of both has.
fn differing_pcrs(pcrs: &PcrValues, now: &PcrValues) -> PcrSelection {
    let selections = [pcrs.selection(), now.selection()];
    let differs = |pcr: &PcrIndex| pcrs.get(*pcr) != now.get(*pcr);
    selections
        .into_iter()
        .flat_map(PcrSelection::iter)
        .filter(differs)
        .collect()
}

/// "PCRs 4,7", or which PCRs each has, where these are not the same.
fn differing(pcrs: &PcrValues, now: &PcrValues) -> String {
    match is_like(pcrs, now) {
        true => format!("PCRs {}", differing_pcrs(pcrs, now)),
        false => format!(
            "that it has PCRs {} of {}, not {} of {} (`pcrs` and `bank` under [attest] of the agent)",
            now.selection(),
            now.bank(),
            pcrs.selection(),
            pcrs.bank()
        ),
    }
}

/// The event logs of the last evidence of a device, newest first. Evidence that cannot be read has none.
async fn logs(registry: &Registry, device: DeviceId) -> Result<Vec<Vec<u8>>, Failure> {
    let mut logs = Vec::new();
    for found in [
        registry.evidence(device).await,
        registry.evidence_before(device).await,
    ] {
        let document = match found {
            Err(RegistryError::DamagedRecord { .. }) => None,
            found => found?,
        };
        let evidence = document.and_then(|(_, document)| Evidence::read(&document).ok());
        logs.extend(evidence.and_then(|evidence| evidence.event_log));
    }
    Ok(logs)
}
