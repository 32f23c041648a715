//! `linewarden attest status`.

use linewarden_cli::failure::Failure;
use linewarden_cli::now_s;
use linewarden_cli::output::{Output, counted};
use linewarden_config::controller::read_signing_key;
use std::path::{Path, PathBuf};

use clap::Args;
use linewarden_controller::attest::{DeviceResult, SUBMODULES_MAX};
use linewarden_protocol::gateway::Configuration;
use linewarden_protocol::ids::DeviceId;
use linewarden_registry::AttestationState;
use linewarden_types::{GroupName, GroupPolicy};
use serde::Serialize;

use super::device_status::{DeviceSelection, DeviceStatus, DisplayState, FleetStatus};
use super::group;
use crate::cmd::device::{damaged_records_failure, date};
use crate::registry::RegistryArgs;

/// Arguments of `linewarden attest status`.
#[derive(Args, Debug)]
#[command(after_help = "\
States of a device. ok: the device proves its reference value. late: the proof arrives after the timeout of the group. missed: no valid \
proof in the last round. quarantined: the device is in quarantine. awaiting_first_round: no gateway has attested the device since its \
enrollment. unproven: no valid proof since the enrollment of the device; missed rounds put the device into quarantine only after its \
first proof. stale: no round for two intervals, so the last result is no longer valid. Revoked devices are omitted unless their \
IDs are given.

--ear prints attestation results (EAR, draft-ietf-rats-ear) as signed tokens of up to 100 devices each. Devices without a current proof \
are not affirmed; devices that were never attested are omitted.

Examples:
  linewarden attest status --config controller.toml
  linewarden attest status --group pumps --fail --config controller.toml
  linewarden attest status --state missed --state quarantined --config controller.toml
  linewarden attest status d1 d2 --output json --config controller.toml
  linewarden attest status --ear --signing-key results.pem --config controller.toml")]
pub struct StatusArgs {
    /// Device IDs (1 to 16 hexadecimal digits each, default: all devices)
    devices: Vec<DeviceId>,
    /// Only devices of this group (name)
    #[arg(long, value_name = "NAME", conflicts_with = "devices")]
    group: Option<GroupName>,
    /// Only devices in this attestation state; repeatable
    #[arg(long, value_name = "STATE", conflicts_with = "ear")]
    state: Vec<DisplayState>,
    /// Exit with code 1 unless all devices are ok, including those that --state hides (flag)
    #[arg(long)]
    fail: bool,
    /// Print signed attestation results (flag)
    #[arg(long, requires = "signing_key")]
    ear: bool,
    /// --ear: key file of `attest key` (path)
    #[arg(long, value_name = "FILE", requires = "ear")]
    signing_key: Option<PathBuf>,
    #[command(flatten)]
    registry: RegistryArgs,
}

/// JSON output of a device.
// There are more than 15 fields because the output is a flat JSON object.
#[derive(Serialize)]
pub struct StatusLine<'a> {
    device_id: String,
    name: &'a str,
    group: &'a str,
    key: &'static str,
    state: DisplayState,
    since_s: Option<u64>,
    age_s: Option<u64>,
    gateway_id: Option<u32>,
    /// First round of the gateway with this state.
    since_round: Option<u32>,
    /// Newest round of the group at the gateway.
    last_round: Option<u32>,
    address: Option<std::net::IpAddr>,
    port: u16,
    /// Gateway and address for a device without a session.
    location: Option<LocationLine>,
    reference: Option<&'static str>,
    /// What must happen before the device is ok.
    #[serde(skip_serializing_if = "Option::is_none")]
    pending_action: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

#[derive(Serialize)]
struct LocationLine {
    gateway_id: u32,
    address: std::net::IpAddr,
}

impl<'a> From<&'a DeviceStatus> for StatusLine<'a> {
    fn from(device: &'a DeviceStatus) -> Self {
        let appraisal = device.appraisal.as_ref();
        Self {
            device_id: device.device.to_string(),
            name: &device.name,
            group: device.group.as_str(),
            key: device.protection_name(),
            state: device.state,
            since_s: device.since_s,
            age_s: device.age_s,
            gateway_id: appraisal.map(|appraisal| appraisal.gateway.0),
            since_round: appraisal.map(|appraisal| appraisal.since_round),
            last_round: device.last_round,
            address: appraisal.and_then(|appraisal| appraisal.address),
            port: device.port,
            location: device.location.map(|location| LocationLine {
                gateway_id: location.gateway.0,
                address: location.address,
            }),
            reference: appraisal
                .filter(|_| matches!(device.state, DisplayState::Ok | DisplayState::Late))
                .map(|appraisal| match appraisal.configuration {
                    Configuration::Current => "base",
                    Configuration::Alternate => "roll-out",
                }),
            pending_action: device.pending_action(),
            reason: device.reason.as_deref(),
        }
    }
}

/// Prints attestation states.
pub fn run(args: &StatusArgs, output: Output) -> Result<(), Failure> {
    let now_s = now_s()?;
    let fleet = args.registry.with(async |registry| {
        let selection = match (&args.group, args.devices.as_slice()) {
            (Some(name), _) => {
                group::find(registry, name).await?;
                DeviceSelection::Groups(std::slice::from_ref(name))
            }
            (None, []) => DeviceSelection::All,
            (None, devices) => DeviceSelection::Named(devices),
        };
        FleetStatus::read(registry, selection, now_s).await
    })?;
    log_warnings(&fleet);
    match &args.signing_key {
        Some(path) if args.ear => print_results(&fleet, path, now_s, output)?,
        _ => print_devices(&fleet, &args.state, output)?,
    }
    exit_result(&fleet, args.fail)
}

/// Logs damaged records and incomplete rounds.
pub fn log_warnings(fleet: &FleetStatus) {
    for record in &fleet.damaged {
        tracing::error!(
            error = record,
            action = "run `linewarden registry check`",
            "registry record is damaged; skipped"
        );
    }
    for round in &fleet.incomplete_rounds {
        tracing::warn!(
            gateway_id = round.gateway.0,
            group = %round.group,
            requested = round.requested,
            expected = round.expected,
            "attestation round was incomplete: devices have moved, or their addresses are unknown"
        );
    }
}

/// Prints the devices in these states, or all devices if `states` is empty, and a summary of all devices.
fn print_devices(fleet: &FleetStatus, states: &[DisplayState], output: Output) -> Result<(), Failure> {
    let is_selected = |device: &&DeviceStatus| states.is_empty() || states.contains(&device.state);
    let selected: Vec<&DeviceStatus> = fleet.devices.iter().filter(is_selected).collect();
    for device in &selected {
        output.object(&StatusLine::from(*device))?;
    }
    print_table(&selected, output)?;
    let counts: Vec<String> = DisplayState::ALL
        .into_iter()
        .map(|state| (state, fleet.count(state)))
        .filter(|(_, count)| *count > 0)
        .map(|(state, count)| format!("{count} {}", state.name()))
        .collect();
    let total = counted(fleet.devices.len() as u64, "device");
    output.line(match counts.is_empty() {
        true => total,
        false => format!("{total}: {}", counts.join(", ")),
    })
}

/// Prints a table of devices.
pub fn print_table(devices: &[&DeviceStatus], output: Output) -> Result<(), Failure> {
    let row = |device: &&DeviceStatus| {
        let appraisal = device.appraisal.as_ref();
        let none = || "–".to_owned();
        vec![
            device.device.to_string(),
            device.name.clone(),
            device.group.to_string(),
            device.protection_name().to_owned(),
            device.text(),
            device.since_s.map_or_else(none, date),
            appraisal.map_or_else(none, |appraisal| appraisal.gateway.to_string()),
        ]
    };
    let header = ["device", "name", "group", "key", "state", "since", "gateway"];
    output.table(&header, &[6], devices.iter().map(row).collect())
}

/// Returns the result of the command. Damaged records hide devices, so with damaged records the result is a failure.
fn exit_result(fleet: &FleetStatus, all_must_be_ok: bool) -> Result<(), Failure> {
    if !fleet.damaged.is_empty() {
        return Err(damaged_records_failure(fleet.damaged.len() as u64));
    }
    if !all_must_be_ok {
        return Ok(());
    }
    let (total, ok) = (fleet.devices.len() as u64, fleet.count(DisplayState::Ok));
    if total == 0 {
        return Err(Failure::failed("no device is enrolled for attestation"));
    }
    if ok < total {
        return Err(Failure::failed(format!(
            "not ok: {} of {}",
            total - ok,
            counted(total, "device")
        )));
    }
    match fleet.incomplete_rounds.first() {
        None => Ok(()),
        Some(round) => Err(Failure::failed(format!(
            "gateway {} attested only {} of {} devices of group {} in its last round",
            round.gateway, round.requested, round.expected, round.group
        ))),
    }
}

fn print_results(fleet: &FleetStatus, signing_key: &Path, now_s: u64, output: Output) -> Result<(), Failure> {
    let signer = read_signing_key(signing_key)?;
    let results: Vec<(&DeviceStatus, DeviceResult)> = fleet
        .devices
        .iter()
        .filter_map(|device| Some((device, outcome(device)?)))
        .collect();
    if results.len() < fleet.devices.len() {
        let omitted = fleet.devices.len() - results.len();
        tracing::warn!(
            count = omitted,
            "devices omitted from the results: never attested, or revoked"
        );
    }
    for batch in results.chunks(SUBMODULES_MAX) {
        let valid_until_s = batch.iter().filter_map(|(device, _)| device.valid_until_s).min();
        let expires_s =
            valid_until_s.unwrap_or_else(|| now_s.saturating_add(GroupPolicy::default().validity_s()));
        let outcomes: Vec<DeviceResult> = batch.iter().map(|(_, outcome)| outcome.clone()).collect();
        let token = signer
            .sign(&outcomes, now_s, expires_s)
            .map_err(Failure::failed)?;
        output.object(
            &serde_json::json!({ "token": token, "devices": outcomes.len(), "expires_s": expires_s }),
        )?;
        output.line(token)?;
    }
    Ok(())
}

/// The result of a device for signing; `None` if the device was never attested or is revoked.
fn outcome(device: &DeviceStatus) -> Option<DeviceResult> {
    let mut appraisal = device.appraisal.clone()?;
    match device.state {
        DisplayState::Revoked | DisplayState::AwaitingFirstRound => return None,
        DisplayState::Quarantined => appraisal.state = AttestationState::Quarantined,
        DisplayState::Missed => appraisal.state = AttestationState::Missed,
        DisplayState::Unproven => appraisal.state = AttestationState::Unproven,
        DisplayState::Ok | DisplayState::Late | DisplayState::Stale => {}
    }
    Some(DeviceResult {
        appraisal,
        protection: device.protection,
        group: device.group.to_string(),
        is_stale: device.state == DisplayState::Stale,
    })
}
