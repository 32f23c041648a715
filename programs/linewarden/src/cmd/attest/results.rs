//! `linewarden attest list`, `check` and `export`: attestation results of devices.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use linewarden_api::{AttestationResult, PageQuery, ResultQuery};
use linewarden_cli::failure::Failure;
use linewarden_cli::output::{Output, counted};
use linewarden_client::Client;
use linewarden_config::controller::read_signing_key;
use linewarden_protocol::ids::DeviceId;
use linewarden_types::GroupName;
use serde::Serialize;

use crate::access::{AccessArgs, check_damaged, read_all};
use crate::date::date;

/// Arguments of `linewarden attest list`.
#[derive(Args, Debug)]
#[command(after_help = "\
States of a device. ok: the device proves its reference value. late: the proof arrives after the timeout of the group. missed: no valid \
proof in the last round. quarantined: the device is in quarantine. awaiting_first_round: no gateway has attested the device since its \
enrollment. unproven: no valid proof since the enrollment of the device; missed rounds put the device into quarantine only after its \
first proof. stale: no round for two intervals, so the last result is no longer valid. Revoked devices are omitted unless their \
IDs are given.

Examples:
  linewarden attest list --config controller.toml
  linewarden attest list --state missed --state quarantined --config controller.toml
  linewarden attest list d1 d2 --output json --config controller.toml")]
pub struct ListArgs {
    #[command(flatten)]
    selection: SelectionArgs,
    /// Only devices in this attestation state; repeatable
    #[arg(long, value_name = "STATE")]
    state: Vec<State>,
    #[command(flatten)]
    access: AccessArgs,
}

/// Arguments of `linewarden attest check`.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit code 1 unless all devices are ok, and the last round of each gateway included all of its devices. `linewarden attest list` \
explains the states.

Examples:
  linewarden attest check --group pumps --config controller.toml")]
pub struct CheckArgs {
    #[command(flatten)]
    selection: SelectionArgs,
    #[command(flatten)]
    access: AccessArgs,
}

/// Arguments of `linewarden attest export`.
#[derive(Args, Debug)]
#[command(after_help = "\
Prints attestation results (EAR, draft-ietf-rats-ear) as signed tokens of up to 100 devices each. A controller signs with its own key. \
Devices without a current proof are not affirmed; devices that were never attested are omitted.

Examples:
  linewarden attest export --signing-key results.pem --config controller.toml
  linewarden attest export d1 --server https://ctl.example:20560 --token-file alice.token")]
pub struct ExportArgs {
    #[command(flatten)]
    selection: SelectionArgs,
    /// Key file of `attest key`; required without --server (path)
    #[arg(long, value_name = "FILE", conflicts_with = "server")]
    signing_key: Option<PathBuf>,
    #[command(flatten)]
    access: AccessArgs,
}

/// The devices of a command.
#[derive(Args, Debug)]
struct SelectionArgs {
    /// Device IDs (1 to 16 hexadecimal digits each, default: all devices)
    devices: Vec<DeviceId>,
    /// Only devices of this group (name)
    #[arg(long, value_name = "NAME", conflicts_with = "devices")]
    group: Option<GroupName>,
}

impl SelectionArgs {
    fn query(&self) -> ResultQuery {
        let devices: Vec<String> = self.devices.iter().map(ToString::to_string).collect();
        ResultQuery {
            devices: (!devices.is_empty()).then(|| devices.join(",")),
            group: self.group.as_ref().map(ToString::to_string),
            ..ResultQuery::default()
        }
    }
}

/// The attestation state of a device, as an option value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum State {
    /// The device proves its reference value.
    Ok,
    /// The device proves its reference value, but late.
    Late,
    /// No valid proof was received in the last round.
    Missed,
    /// The device is in quarantine.
    Quarantined,
    /// No gateway has attested the device since its enrollment.
    AwaitingFirstRound,
    /// Requests were sent, but no valid proof was received since the enrollment.
    Unproven,
    /// The gateway has completed no round for too long: its last report is no longer valid.
    Stale,
    /// The device is revoked.
    Revoked,
}

impl State {
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Results of devices, sorted by id.
pub struct Results {
    /// The results.
    pub results: Vec<AttestationResult>,
    damaged_records: u64,
}

impl Results {
    /// Reads the results of devices.
    ///
    /// # Errors
    /// A named device or group does not exist, or the request fails.
    pub async fn read(client: &Client, query: &ResultQuery) -> Result<Self, Failure> {
        let read_page = async |PageQuery { limit, after }| {
            let query = ResultQuery {
                limit,
                after,
                ..query.clone()
            };
            client.results(&query).await
        };
        let list = read_all(read_page).await?;
        // A device that was enrolled again while the pages were read is in two pages.
        let results: BTreeMap<String, AttestationResult> = list
            .items
            .into_iter()
            .map(|result| (result.device.clone(), result))
            .collect();
        let results = Self {
            results: results.into_values().collect(),
            damaged_records: list.damaged_records,
        };
        if query.devices.is_none() {
            results.warn_of_incomplete_rounds();
        }
        Ok(results)
    }

    /// The last round of each gateway and group, if the round did not include all devices of the group at the gateway.
    fn incomplete_rounds(&self) -> Vec<IncompleteRound<'_>> {
        let mut expected: BTreeMap<(u32, &str), (u32, u32)> = BTreeMap::new();
        for result in &self.results {
            if let (Some(gateway), Some(requested)) = (result.gateway, result.last_round_requested) {
                let (_, count) = expected.entry((gateway, &result.group)).or_insert((requested, 0));
                *count += 1;
            }
        }
        expected
            .into_iter()
            .filter(|(_, (requested, expected))| requested < expected)
            .map(|((gateway, group), (requested, expected))| IncompleteRound {
                gateway,
                group,
                requested,
                expected,
            })
            .collect()
    }

    fn warn_of_incomplete_rounds(&self) {
        for round in self.incomplete_rounds() {
            tracing::warn!(
                gateway_id = round.gateway,
                group = %round.group,
                requested = round.requested,
                expected = round.expected,
                "attestation round was incomplete: devices have moved, or their addresses are unknown"
            );
        }
    }

    fn count(&self, state: &str) -> u64 {
        self.results.iter().filter(|result| result.state == state).count() as u64
    }
}

/// A round that did not include all devices of a group at its gateway.
struct IncompleteRound<'a> {
    gateway: u32,
    group: &'a str,
    /// Number of devices in the round.
    requested: u32,
    /// Number of devices of the group whose last round was at this gateway.
    expected: u32,
}

/// JSON output of a result.
#[derive(Serialize)]
pub struct ResultLine<'a> {
    #[serde(flatten)]
    result: &'a AttestationResult,
    /// What must happen before the device is ok.
    #[serde(skip_serializing_if = "Option::is_none")]
    pending_action: Option<String>,
}

impl<'a> From<&'a AttestationResult> for ResultLine<'a> {
    fn from(result: &'a AttestationResult) -> Self {
        Self {
            result,
            pending_action: pending_action(result),
        }
    }
}

/// Whether the device has proven its reference value after `at_s`, seconds since 1970-01-01 UTC.
pub fn has_proven_since(result: &AttestationResult, at_s: u64) -> bool {
    matches!(&*result.state, "ok" | "late") && result.last_round_ended_s.is_some_and(|ended_s| ended_s > at_s)
}

/// What must happen before the device is ok, if the device awaits its first round, is unproven, or is in quarantine. `None` in
/// all other states.
pub fn pending_action(result: &AttestationResult) -> Option<String> {
    let pending = match &*result.state {
        "awaiting_first_round" => "its first round",
        "unproven" | "quarantined" => "a proof of the reference value",
        _ => return None,
    };
    let is_quarantined = result.state == "quarantined";
    let location = result.location.as_ref();
    let last_location = result.gateway.zip(result.address);
    let device = &result.device;
    let instruction = match last_location.or(location.map(|location| (location.gateway, location.address))) {
        Some((gateway, address)) => {
            format!(
                "gateway {gateway} attests the device at {address}, UDP port {}",
                result.port
            )
        }
        None if is_quarantined => format!(
            "no gateway attests the device: no gateway knows its address, and quarantine prevents a session; set gateway and address with `attest set \
             {device} --gateway ID --address ADDRESS`"
        ),
        None => format!(
            "attestation starts with its first session, or after `attest set {device} --gateway ID --address ADDRESS`"
        ),
    };
    let command = match result.needs_release && is_quarantined {
        true => format!("; then release the device with `device release {device}`"),
        false => String::new(),
    };
    let enrolled = date(result.enrolled_at_s);
    Some(format!(
        "{pending} with the key of {enrolled}; {instruction}{command}"
    ))
}

/// The state for people, with the age of the report if the state is stale.
pub fn state_text(result: &AttestationResult) -> String {
    match (&*result.state, result.age_s) {
        ("stale", Some(age_s)) => format!("stale: last round {} ago", age_text(age_s)),
        (state, _) => state.replace('_', " "),
    }
}

/// A duration: "40 s", "12 min", "3 h", "2 d".
pub fn age_text(age_s: u64) -> String {
    match age_s {
        0..120 => format!("{age_s} s"),
        120..7_200 => format!("{} min", age_s / 60),
        7_200..172_800 => format!("{} h", age_s / 3_600),
        _ => format!("{} d", age_s / 86_400),
    }
}

/// Prints results.
pub fn list(args: &ListArgs, output: Output) -> Result<(), Failure> {
    let query = args.selection.query();
    let results = args
        .access
        .with(async |client| Results::read(client, &query).await)?;
    let states: Vec<String> = args.state.iter().map(|state| state.name()).collect();
    let is_selected =
        |result: &&AttestationResult| states.is_empty() || states.iter().any(|state| result.state == *state);
    let selected: Vec<&AttestationResult> = results.results.iter().filter(is_selected).collect();
    for result in &selected {
        output.object(&ResultLine::from(*result))?;
    }
    print_table(&selected, output)?;
    print_summary(&results, output)?;
    check_damaged(results.damaged_records)
}

fn print_summary(results: &Results, output: Output) -> Result<(), Failure> {
    let counts: Vec<String> = State::value_variants()
        .iter()
        .map(|state| (state.name(), results.count(&state.name())))
        .filter(|(_, count)| *count > 0)
        .map(|(state, count)| format!("{count} {}", state.replace('_', " ")))
        .collect();
    let total = counted(results.results.len() as u64, "device");
    output.line(match counts.is_empty() {
        true => total,
        false => format!("{total}: {}", counts.join(", ")),
    })
}

/// Prints a table of results.
pub fn print_table(results: &[&AttestationResult], output: Output) -> Result<(), Failure> {
    let row = |result: &&AttestationResult| {
        let none = || "–".to_owned();
        vec![
            result.device.clone(),
            result.name.clone(),
            result.group.clone(),
            result.protection.clone().into_owned(),
            state_text(result),
            result.since_s.map_or_else(none, date),
            result.gateway.map_or_else(none, |gateway| gateway.to_string()),
        ]
    };
    let header = ["device", "name", "group", "key", "state", "since", "gateway"];
    output.table(&header, &[6], results.iter().map(row).collect())
}

/// Fails unless all devices are ok. Damaged records hide devices, so with damaged records the command fails.
pub fn check(args: &CheckArgs, output: Output) -> Result<(), Failure> {
    let query = args.selection.query();
    let results = args
        .access
        .with(async |client| Results::read(client, &query).await)?;
    let is_not_ok = |result: &&AttestationResult| result.state != "ok";
    let failing: Vec<&AttestationResult> = results.results.iter().filter(is_not_ok).collect();
    for result in &failing {
        output.object(&ResultLine::from(*result))?;
    }
    print_table(&failing, output)?;
    print_summary(&results, output)?;
    check_damaged(results.damaged_records)?;
    let total = results.results.len() as u64;
    if total == 0 {
        return Err(Failure::failed("no device is enrolled for attestation"));
    }
    if !failing.is_empty() {
        return Err(Failure::failed(format!(
            "not ok: {} of {}",
            failing.len(),
            counted(total, "device")
        )));
    }
    match results.incomplete_rounds().first() {
        Some(round) if query.devices.is_none() => Err(Failure::failed(format!(
            "gateway {} attested only {} of {} devices of group {} in its last round",
            round.gateway, round.requested, round.expected, round.group
        ))),
        _ => Ok(()),
    }
}

/// Prints signed results.
pub fn export(args: &ExportArgs, output: Output) -> Result<(), Failure> {
    // A controller may also be selected by the environment, so `conflicts_with` of the option is not sufficient.
    if args.signing_key.is_some() && !args.access.names_registry() {
        return Err(Failure::input(
            "--signing-key requires --config or --registry: a controller signs with its own key",
        ));
    }
    if args.signing_key.is_none() && args.access.names_registry() {
        return Err(Failure::input(
            "no key signs the results: use --signing-key FILE; `attest key` creates the file",
        ));
    }
    let signer = args.signing_key.as_deref().map(read_signing_key).transpose()?;
    let query = args.selection.query();
    let (results, signed) = args.access.with_signer(signer, async |client| {
        let results = Results::read(client, &query).await?;
        let read_page = async |PageQuery { limit, after }| {
            let query = ResultQuery {
                limit,
                after,
                ..query.clone()
            };
            client.signed_results(&query).await
        };
        Ok((results, read_all(read_page).await?))
    })?;
    let signed_devices: u64 = signed.items.iter().map(|token| token.devices).sum();
    let omitted = (results.results.len() as u64).saturating_sub(signed_devices);
    if omitted > 0 {
        tracing::warn!(
            count = omitted,
            "devices omitted from the results: never attested, or revoked"
        );
    }
    for token in &signed.items {
        output.object(token)?;
        output.line(&token.token)?;
    }
    check_damaged(signed.damaged_records)
}

#[cfg(test)]
mod tests {
    use super::age_text;

    #[test]
    fn ages_have_a_suitable_unit() {
        let ages: Vec<String> = [0, 119, 120, 7_199, 7_200, 172_800].map(age_text).into();
        assert_eq!(ages, ["0 s", "119 s", "2 min", "119 min", "2 h", "2 d"]);
    }
}
