//! Decides whether a device may have a key for its present boot: enrollment must not turn a modified boot into an accepted one.

use linewarden_cli::failure::Failure;
use std::path::{Path, PathBuf};

use linewarden_measurement::configuration::Configuration;
use linewarden_measurement::diff::Difference;
use linewarden_measurement::eventlog::{EventLog, ReplayedLog, verify_replay};
use linewarden_measurement::pcr::{PcrIndex, PcrSelection, PcrValues};
use linewarden_protocol::ids::DeviceId;
use linewarden_registry::{Group, Registry, RegistryError};
use linewarden_tpm::enroll::Binding;
use linewarden_tpm::evidence::Evidence;
use serde::Serialize;

use super::overlay::Overlay;
use super::{EnrollArgs, group};
use crate::cmd::attest::reference;

/// Value of --state that names the present boot.
const CURRENT: &str = "current";

/// A boot that the operator accepts.
#[derive(Clone, Debug)]
pub enum StateArg {
    /// The present boot of the device.
    Current,
    /// The boot whose measurement is in this file.
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

/// The reason why the present boot of a device is accepted.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "by", content = "of")]
pub enum AcceptedBy {
    /// The named reference value, roll-out or file has the PCRs of the present boot.
    Reference(String),
    /// The device's present key works in this boot, and there is no reference value of PCRs.
    EarlierKey,
    /// The operator accepted the boot with `--state current`.
    Operator,
    /// There is no reference value and no earlier key to compare with.
    FirstEnrollment,
}

/// The boots in which a key is to work, including the present one.
#[derive(Debug)]
pub struct AcceptedBoot {
    pub states: Vec<PcrValues>,
    pub by: AcceptedBy,
}

/// A known boot.
struct Boot {
    /// Description, such as "the reference value of group pumps".
    name: String,
    pcrs: PcrValues,
}

/// The registry's knowledge of the boots of a device.
pub struct KnownBoots {
    group: String,
    /// The boots of the group: its reference value and its roll-out, overlaid by the device's PCRs that an earlier
    /// enrollment accepted. Only boots with PCRs are included.
    boots: Vec<Boot>,
    /// The boots of the group, overlaid by all entries of the device's overlay: after the enrollment, the device must prove one of these.
    expected: Vec<Boot>,
    overlay: Option<Overlay>,
    /// Binding of the key that is to be replaced.
    present_binding: Option<Binding>,
    /// Whether the record of the key that is to be replaced is unreadable, so that its boots are unknown.
    is_damaged: bool,
    is_quarantined: bool,
    /// TCG event logs that the device has sent before.
    logs: Vec<Vec<u8>>,
}

impl KnownBoots {
    /// Reads the records; `now_s` is the present time in seconds since 1970-01-01 UTC.
    pub async fn read(
        args: &EnrollArgs,
        registry: &Registry,
        device: DeviceId,
        now_s: u64,
    ) -> Result<Self, Failure> {
        let group = group::find(registry, &args.group).await?;
        let (prover, is_damaged) = match registry.prover(device).await {
            Err(RegistryError::DamagedRecord { .. }) if args.replace => (None, true),
            prover => (prover?, false),
        };
        let overlay = Overlay::read(args, prover.as_ref())?;
        let accepted = overlay.as_ref().map(Overlay::accepted).transpose()?;
        let binding = prover.and_then(|prover| prover.binding);
        Ok(Self {
            boots: group_boots(&group, accepted.as_ref(), now_s)?,
            expected: group_boots(&group, overlay.as_ref().map(Overlay::entries), now_s)?,
            overlay,
            group: group.name.to_string(),
            // The registry authenticates the record: an unreadable record was stored by another version.
            is_damaged: is_damaged
                || binding
                    .as_deref()
                    .is_some_and(|binding| decode_binding(binding).is_none()),
            present_binding: binding.as_deref().and_then(decode_binding),
            is_quarantined: registry.get(device).await?.quarantine.is_some(),
            logs: event_logs(registry, device).await?,
        })
    }

    /// The device's overlay after the enrollment.
    pub fn overlay(&self) -> Option<&Overlay> {
        self.overlay.as_ref()
    }

    /// Checks whether the device may have a key for its present boot. `path` is the identity file, `now` are the PCRs of the present boot, and
    /// `log` is the replayed TCG event log, if the device sent one.
    ///
    /// # Errors
    /// The boot is unknown and not accepted by --state, or PCRs of the overlay are of another boot (exit code 4). A file of `--state` has
    /// another selection of PCRs or another bank (exit code 2).
    pub fn check_boot(
        &self,
        states: &[StateArg],
        device: DeviceId,
        (path, now, log): (&Path, &PcrValues, Option<&ReplayedLog>),
    ) -> Result<AcceptedBoot, Failure> {
        let boots_from_state = boots_from_files(states, now)?;
        let is_accepted_by_operator = states.iter().any(|state| matches!(state, StateArg::Current));
        let known = || self.boots.iter().chain(&boots_from_state);
        let by = match known().find(|boot| boot.pcrs == *now) {
            Some(boot) => AcceptedBy::Reference(boot.name.clone()),
            None if is_accepted_by_operator => AcceptedBy::Operator,
            None if !self.boots.is_empty() => {
                return Err(self.refusal(known().collect(), device, path, now, log));
            }
            None => self.without_reference(device, path, now, log)?,
        };
        if let Some(overlay) = &self.overlay {
            overlay.check(std::iter::once(now).chain(boots_from_state.iter().map(|boot| &boot.pcrs)))?;
        }
        let accepted = self.expected.iter().chain(&boots_from_state);
        let accepted = accepted.filter(|boot| has_same_selection(&boot.pcrs, now));
        let states = std::iter::once(now.clone()).chain(accepted.map(|boot| boot.pcrs.clone()));
        Ok(AcceptedBoot {
            states: states.collect(),
            by,
        })
    }

    /// Returns the reason why the boot is accepted if the group has no reference value of PCRs.
    fn without_reference(
        &self,
        device: DeviceId,
        path: &Path,
        now: &PcrValues,
        log: Option<&ReplayedLog>,
    ) -> Result<AcceptedBy, Failure> {
        let unknown = |cause: &str| {
            Failure::unsafe_(format!(
                "{}: boot of device {device} not accepted: {cause}, and group {} has no reference value of PCRs to compare with; set a reference \
                 value, or accept the present boot with `--state {CURRENT}`",
                path.display(),
                self.group
            ))
        };
        match &self.present_binding {
            Some(earlier) if earlier.policy.accepts(now) => Ok(AcceptedBy::EarlierKey),
            Some(earlier) => {
                let boot = Boot {
                    name: "the boot of its present key".to_owned(),
                    pcrs: earlier.pcrs.0.clone(),
                };
                Err(self.refusal(vec![&boot], device, path, now, log))
            }
            None if self.is_damaged => Err(unknown("the record of its present key is unreadable")),
            None if self.is_quarantined => Err(unknown("the device is in quarantine")),
            None => Ok(AcceptedBy::FirstEnrollment),
        }
    }

    /// Returns the failure: the PCRs that differ from each boot; for the most similar boot, also the values and the first different events.
    fn refusal(
        &self,
        boots: Vec<&Boot>,
        device: DeviceId,
        path: &Path,
        now: &PcrValues,
        log: Option<&ReplayedLog>,
    ) -> Failure {
        let differs: Vec<String> = boots
            .iter()
            .map(|boot| format!("{} in {}", boot.name, differing(&boot.pcrs, now)))
            .collect();
        let failure = Failure::unsafe_(format!(
            "{}: boot of device {device} not accepted: the boot differs from {}; start the device in an accepted boot, or accept the present \
             boot with `--state {CURRENT}`",
            path.display(),
            differs.join(", and from ")
        ));
        let nearest = boots.into_iter().min_by_key(|boot| {
            let is_other_selection = !has_same_selection(&boot.pcrs, now);
            (is_other_selection, differing_pcrs(&boot.pcrs, now).len())
        });
        let failure = match nearest {
            Some(boot) if has_same_selection(&boot.pcrs, now) => {
                failure.with_more(self.changes(boot, now, log))
            }
            _ => failure,
        };
        failure.with_more(
            self.overlay
                .as_ref()
                .and_then(Overlay::notice)
                .into_iter()
                .collect(),
        )
    }

    /// Returns a text for each PCR that differs from `boot`.
    fn changes(&self, boot: &Boot, now: &PcrValues, log: Option<&ReplayedLog>) -> Vec<String> {
        let configuration = |pcrs: &PcrValues| Configuration::new(pcrs.clone(), Default::default());
        let (Ok(old), Ok(new)) = (configuration(&boot.pcrs), configuration(now)) else {
            return Vec::new();
        };
        let difference = Difference::between(&old, &new);
        let log_before = self.logs.iter().find_map(|log| {
            let log = EventLog::parse(log).ok()?;
            verify_replay(&log, &boot.pcrs).ok()
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
        let unknown = unknown.map(|boot| format!("events not compared: no TCG event log of the {boot}"));
        changes.chain(unknown).collect()
    }
}

fn decode_binding(binding: &[u8]) -> Option<Binding> {
    serde_json::from_slice(binding).ok()
}

/// The boots of a group, overlaid by the device's entries. An expired roll-out accepts nothing.
fn group_boots(group: &Group, overlay: Option<&Configuration>, now_s: u64) -> Result<Vec<Boot>, Failure> {
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
        let unreadable = |error| {
            Failure::failed(format!(
                "{name} is unreadable: {error}; set the group again with `attest group set`"
            ))
        };
        let base = Configuration::decode(encoding).map_err(unreadable)?;
        let overlaid = overlay.map(|overlay| base.with_overlay(overlay)).transpose();
        let overlaid = overlaid.map_err(|error| {
            Failure::input(format!(
                "the overlay of the device does not fit {name}: {error}; use another overlay with --overlay FILE"
            ))
        })?;
        let pcrs = overlaid.as_ref().unwrap_or(&base).pcrs().clone();
        if !pcrs.selection().is_empty() {
            boots.push(Boot { name, pcrs });
        }
    }
    Ok(boots)
}

/// The boots that the operator names by files.
fn boots_from_files(states: &[StateArg], now: &PcrValues) -> Result<Vec<Boot>, Failure> {
    let mut boots = Vec::new();
    for state in states {
        let StateArg::File(path) = state else { continue };
        let pcrs = reference::read(path)?.pcrs().clone();
        if !has_same_selection(&pcrs, now) {
            return Err(Failure::input(format!(
                "{}: has PCRs {} of bank {}, but the key has PCRs {} of bank {}: measure with the same `pcrs` and `bank`",
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

fn has_same_selection(pcrs: &PcrValues, now: &PcrValues) -> bool {
    pcrs.bank() == now.bank() && pcrs.selection() == now.selection()
}

/// The PCRs that have different values, or that only one of the two sets contains.
fn differing_pcrs(pcrs: &PcrValues, now: &PcrValues) -> PcrSelection {
    let selections = [pcrs.selection(), now.selection()];
    let differs = |pcr: &PcrIndex| pcrs.get(*pcr) != now.get(*pcr);
    selections
        .into_iter()
        .flat_map(PcrSelection::iter)
        .filter(differs)
        .collect()
}

/// "PCRs 4,7"; or the selections and banks, if they differ.
fn differing(pcrs: &PcrValues, now: &PcrValues) -> String {
    match has_same_selection(pcrs, now) {
        true => format!("PCRs {}", differing_pcrs(pcrs, now)),
        false => format!(
            "its selection: PCRs {} of bank {}, not {} of bank {} (`pcrs` and `bank` under [attest] of the agent)",
            now.selection(),
            now.bank(),
            pcrs.selection(),
            pcrs.bank()
        ),
    }
}

/// The TCG event logs of the last evidence documents of a device, newest first. Unreadable evidence is skipped.
async fn event_logs(registry: &Registry, device: DeviceId) -> Result<Vec<Vec<u8>>, Failure> {
    let mut logs = Vec::new();
    for result in [
        registry.evidence(device).await,
        registry.previous_evidence(device).await,
    ] {
        let document = match result {
            Err(RegistryError::DamagedRecord { .. }) => None,
            result => result?,
        };
        let evidence = document.and_then(|(_, document)| Evidence::read(&document).ok());
        logs.extend(evidence.and_then(|evidence| evidence.event_log));
    }
    Ok(logs)
}
