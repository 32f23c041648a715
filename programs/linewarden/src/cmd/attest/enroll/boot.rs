//! Decides whether a device may have a key for its present boot.
//!
//! An enrollment must not turn a modified boot into an accepted boot.

use linewarden_cli::failure::Failure;
use std::path::{Path, PathBuf};

use linewarden_measurement::configuration::Configuration;
use linewarden_measurement::diff::Difference;
use linewarden_measurement::eventlog::{EventLog, ReplayedLog, verify_replay};
use linewarden_measurement::pcr::{PcrIndex, PcrSelection, PcrValues};
use linewarden_protocol::ids::DeviceId;
use linewarden_registry::{DeviceError, Group, Registry, RegistryError};
use linewarden_tpm::enroll::Binding;
use linewarden_tpm::evidence::Evidence;
use serde::Serialize;

use super::EnrollArgs;
use super::overlay::Overlay;
use crate::cmd::attest::record::find_group;
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

/// The boots in which the new key works, including the present boot.
#[derive(Debug)]
pub struct AcceptedBoot {
    /// PCR values of each boot in which the key works; the present boot comes first.
    pub states: Vec<PcrValues>,
    /// Why the present boot is accepted.
    pub accepted_by: AcceptedBy,
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
    /// The boots of the group's reference value and roll-out, overlaid by the device's PCRs that an earlier
    /// enrollment accepted. Only boots with PCRs are included.
    accepted_boots: Vec<Boot>,
    /// The boots of the group's reference value and roll-out, overlaid by all entries of the device's overlay.
    /// After the enrollment, the device must prove one of these boots.
    expected_boots: Vec<Boot>,
    overlay: Option<Overlay>,
    /// Binding of the key that the enrollment replaces.
    present_binding: Option<Binding>,
    /// Whether the record of the replaced key is unreadable. The boots in which the replaced key works are then unknown.
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
        let group = find_group(registry, &args.group).await?;
        let (prover, is_damaged) = match registry.prover(device).await {
            Err(RegistryError::Device(DeviceError::DamagedRecord { .. })) if args.replace => (None, true),
            prover => (prover?, false),
        };
        let overlay = Overlay::read(args, prover.as_ref())?;
        let accepted_entries = overlay.as_ref().map(Overlay::accepted_entries).transpose()?;
        let binding = prover.and_then(|prover| prover.binding);
        Ok(Self {
            accepted_boots: group_boots(&group, accepted_entries.as_ref(), now_s)?,
            expected_boots: group_boots(&group, overlay.as_ref().map(Overlay::entries), now_s)?,
            overlay,
            group: group.name.to_string(),
            // The registry authenticates the record, so an unreadable record was stored by another version of this program.
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

    /// Checks whether the device may have a key for its present boot.
    ///
    /// `path` is the identity file, and `present` contains the PCRs of the present boot. `log` is the replayed TCG event
    /// log, if the device sent a log.
    ///
    /// # Errors
    /// The boot is unknown and not accepted by `--state`, or PCRs of the overlay are of another boot (exit code 4). A file
    /// of `--state` has another selection of PCRs or another bank (exit code 2).
    pub fn check_boot(
        &self,
        states: &[StateArg],
        device: DeviceId,
        (path, present, log): (&Path, &PcrValues, Option<&ReplayedLog>),
    ) -> Result<AcceptedBoot, Failure> {
        let boots_from_state = boots_from_files(states, present)?;
        let is_accepted_by_operator = states.iter().any(|state| matches!(state, StateArg::Current));
        let known_boots = || self.accepted_boots.iter().chain(&boots_from_state);
        let accepted_by = match known_boots().find(|boot| boot.pcrs == *present) {
            Some(boot) => AcceptedBy::Reference(boot.name.clone()),
            None if is_accepted_by_operator => AcceptedBy::Operator,
            None if !self.accepted_boots.is_empty() => {
                return Err(self.refusal(known_boots().collect(), device, path, present, log));
            }
            None => self.without_reference(device, path, present, log)?,
        };
        if let Some(overlay) = &self.overlay {
            overlay.check(std::iter::once(present).chain(boots_from_state.iter().map(|boot| &boot.pcrs)))?;
        }
        let key_boots = self.expected_boots.iter().chain(&boots_from_state);
        let key_boots = key_boots.filter(|boot| has_same_selection(&boot.pcrs, present));
        let states = std::iter::once(present.clone()).chain(key_boots.map(|boot| boot.pcrs.clone()));
        Ok(AcceptedBoot {
            states: states.collect(),
            accepted_by,
        })
    }

    /// Decides whether the boot is accepted if the group has no reference value of PCRs; returns the reason.
    fn without_reference(
        &self,
        device: DeviceId,
        path: &Path,
        present: &PcrValues,
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
            Some(earlier) if earlier.policy.accepts(present) => Ok(AcceptedBy::EarlierKey),
            Some(earlier) => {
                let boot = Boot {
                    name: "the boot of its present key".to_owned(),
                    pcrs: earlier.pcrs.0.clone(),
                };
                Err(self.refusal(vec![&boot], device, path, present, log))
            }
            None if self.is_damaged => Err(unknown("the record of its present key is unreadable")),
            None if self.is_quarantined => Err(unknown("the device is in quarantine")),
            None => Ok(AcceptedBy::FirstEnrollment),
        }
    }

    /// Returns the failure for a boot that is not accepted.
    ///
    /// The failure names the PCRs that differ from each of `boots`. For the most similar boot, the failure also describes
    /// the changed values and the first different events.
    fn refusal(
        &self,
        boots: Vec<&Boot>,
        device: DeviceId,
        path: &Path,
        present: &PcrValues,
        log: Option<&ReplayedLog>,
    ) -> Failure {
        let differences: Vec<String> = boots
            .iter()
            .map(|boot| format!("{} in {}", boot.name, difference_text(&boot.pcrs, present)))
            .collect();
        let failure = Failure::unsafe_(format!(
            "{}: boot of device {device} not accepted: the boot differs from {}; start the device in an accepted boot, or accept the present \
             boot with `--state {CURRENT}`",
            path.display(),
            differences.join(", and from ")
        ));
        let most_similar = boots.into_iter().min_by_key(|boot| {
            let is_other_selection = !has_same_selection(&boot.pcrs, present);
            (is_other_selection, differing_pcrs(&boot.pcrs, present).len())
        });
        let failure = match most_similar {
            Some(boot) if has_same_selection(&boot.pcrs, present) => {
                failure.with_further_messages(self.changes(boot, present, log))
            }
            _ => failure,
        };
        failure.with_further_messages(
            self.overlay
                .as_ref()
                .and_then(Overlay::notice)
                .into_iter()
                .collect(),
        )
    }

    /// Returns a text for each PCR that differs from `boot`, and a note if events cannot be compared.
    fn changes(&self, boot: &Boot, present: &PcrValues, log: Option<&ReplayedLog>) -> Vec<String> {
        let configuration = |pcrs: &PcrValues| Configuration::new(pcrs.clone(), Default::default());
        let (Ok(old), Ok(new)) = (configuration(&boot.pcrs), configuration(present)) else {
            return Vec::new();
        };
        let difference = Difference::between(&old, &new);
        let log_before = self.logs.iter().find_map(|log| {
            let log = EventLog::parse(log).ok()?;
            verify_replay(&log, &boot.pcrs).ok()
        });
        let (difference, boot_without_log) = match (&log_before, log) {
            (Some(before), Some(log)) => (difference.with_events(before, log), None),
            (None, _) => (difference, Some("accepted boot")),
            (_, None) => (difference, Some("present boot")),
        };
        let changes = difference
            .pcrs
            .iter()
            .map(|change| change.to_string().trim_end().to_owned());
        let note =
            boot_without_log.map(|boot| format!("events not compared: no TCG event log of the {boot}"));
        changes.chain(note).collect()
    }
}

fn decode_binding(binding: &[u8]) -> Option<Binding> {
    serde_json::from_slice(binding).ok()
}

/// The boots of the group's reference value and roll-out, overlaid by `overlay`. An expired roll-out and configurations
/// without PCRs are omitted.
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

/// Reads the boots from the files of `--state`.
fn boots_from_files(states: &[StateArg], present: &PcrValues) -> Result<Vec<Boot>, Failure> {
    let mut boots = Vec::new();
    for state in states {
        let StateArg::File(path) = state else { continue };
        let pcrs = reference::read(path)?.pcrs().clone();
        if !has_same_selection(&pcrs, present) {
            return Err(Failure::input(format!(
                "{}: has PCRs {} of bank {}, but the key has PCRs {} of bank {}: measure with the same `pcrs` and `bank`",
                path.display(),
                pcrs.selection(),
                pcrs.bank(),
                present.selection(),
                present.bank()
            )));
        }
        let name = path.display().to_string();
        boots.push(Boot { name, pcrs });
    }
    Ok(boots)
}

/// Whether both sets have the same bank and contain the same PCRs.
fn has_same_selection(pcrs: &PcrValues, present: &PcrValues) -> bool {
    pcrs.bank() == present.bank() && pcrs.selection() == present.selection()
}

/// The PCRs that have different values, or that only one of the two sets contains.
fn differing_pcrs(pcrs: &PcrValues, present: &PcrValues) -> PcrSelection {
    let selections = [pcrs.selection(), present.selection()];
    let differs = |pcr: &PcrIndex| pcrs.get(*pcr) != present.get(*pcr);
    selections
        .into_iter()
        .flat_map(PcrSelection::iter)
        .filter(differs)
        .collect()
}

/// Describes the difference: "PCRs 4,7", or both selections and banks if the selections or banks differ.
fn difference_text(pcrs: &PcrValues, present: &PcrValues) -> String {
    match has_same_selection(pcrs, present) {
        true => format!("PCRs {}", differing_pcrs(pcrs, present)),
        false => format!(
            "its selection: PCRs {} of bank {}, not {} of bank {} (`pcrs` and `bank` under [attest] of the agent)",
            present.selection(),
            present.bank(),
            pcrs.selection(),
            pcrs.bank()
        ),
    }
}

/// The TCG event logs of the two latest evidence documents of a device, newest first. Unreadable evidence is skipped.
async fn event_logs(registry: &Registry, device: DeviceId) -> Result<Vec<Vec<u8>>, Failure> {
    let mut logs = Vec::new();
    for result in [
        registry.evidence(device).await,
        registry.previous_evidence(device).await,
    ] {
        let document = match result {
            Err(RegistryError::Device(DeviceError::DamagedRecord { .. })) => None,
            result => result?,
        };
        let evidence = document.and_then(|(_, document)| Evidence::read(&document).ok());
        logs.extend(evidence.and_then(|evidence| evidence.event_log));
    }
    Ok(logs)
}
