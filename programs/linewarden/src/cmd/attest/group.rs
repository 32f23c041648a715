//! `linewarden attest group`.

use linewarden_cli::failure::Failure;
use linewarden_cli::now_s;
use linewarden_cli::output::{Output, counted};
use std::collections::HashMap;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use linewarden_measurement::configuration::Configuration;
use linewarden_registry::{AttestationError, Group, NewGroup, Registry, RegistryError, RollOut};
use linewarden_types::{GroupName, GroupPolicy, ReleaseMode};

use super::device_status::read_provers;
use super::reference;
use crate::cmd::device::date;
use crate::registry::RegistryArgs;

/// Hexadecimal digits of a hash in tables.
const HASH_DIGITS: usize = 16;

/// Subcommands of `linewarden attest group`.
#[derive(Subcommand, Debug)]
pub enum GroupCommand {
    /// Create a group, or change it; omitted options keep their values
    #[command(after_help = "\
Defaults of a new group: a round every 60 s; 3 missed rounds of 5 put a device into quarantine, and its next proof releases \
it. The default jitter is 5 s and the default timeout 2000 ms, but each at most half of the interval. Devices are attested when their \
group has a reference value.

Examples:
  linewarden-agent measure --config agent.toml --out pumps.conf
  linewarden attest group set pumps --reference pumps.conf --config controller.toml
  linewarden attest group set pumps --every 30 --missed-limit 2 --window-rounds 4 \\
    --config controller.toml")]
    Set(SetArgs),
    /// List groups
    #[command(after_help = "\
Examples:
  linewarden attest group list --config controller.toml
  linewarden attest group list --config controller.toml --output json | jq -r .reference")]
    List(ListArgs),
    /// Show a group
    #[command(after_help = "\
Examples:
  linewarden attest group show pumps --config controller.toml")]
    Show(NamedArgs),
    /// Delete a group that has no devices
    #[command(after_help = "\
Examples:
  linewarden attest group delete pumps --config controller.toml")]
    Delete(NamedArgs),
    /// Begin a roll-out: accept another reference value beside the present one, for a limited time
    #[command(after_help = "\
Begin the roll-out before the first device is updated. End the roll-out with `accept` after the last update, or with `withdraw`. If \
neither command has ended the roll-out after the duration of --for, only the old reference value stays valid.

Examples:
  linewarden attest group roll-out pumps --reference pumps-2.conf --for 86400 \\
    --config controller.toml
  linewarden attest status --group pumps --config controller.toml
  linewarden attest group accept pumps --config controller.toml")]
    RollOut(RollOutArgs),
    /// End a roll-out: its reference value replaces the old one
    #[command(after_help = "\
Examples:
  linewarden attest group accept pumps --config controller.toml")]
    Accept(NamedArgs),
    /// End a roll-out: the old reference value stays valid
    #[command(after_help = "\
Examples:
  linewarden attest group withdraw pumps --config controller.toml")]
    Withdraw(NamedArgs),
}

/// Arguments of `linewarden attest group set`.
#[derive(Args, Debug)]
pub struct SetArgs {
    /// Group name (1 to 64 characters of a-z, 0-9, '-', '_' and '.')
    name: GroupName,
    /// Reference value: a file of `attest measure --out` (path)
    #[arg(long, value_name = "FILE")]
    reference: Option<PathBuf>,
    /// Interval between attestation rounds of the group (integer, seconds, default: unchanged; 60 for a new group)
    #[arg(long, value_name = "SECONDS")]
    every: Option<u32>,
    /// Random deviation of a round's start, earlier or later (integer, seconds, default: unchanged; 5 for a new group)
    #[arg(long, value_name = "SECONDS")]
    jitter: Option<u32>,
    /// Time after which a proof is late (integer, milliseconds, default: unchanged; 2000 for a new group)
    #[arg(long, value_name = "MS")]
    proof_timeout_ms: Option<u32>,
    /// Number of missed rounds that puts a device into quarantine (integer, default: unchanged; 3 for a new group)
    #[arg(long, value_name = "ROUNDS")]
    missed_limit: Option<u32>,
    /// Number of latest rounds that --missed-limit applies to (integer, default: unchanged; 5 for a new group)
    #[arg(long, value_name = "ROUNDS")]
    window_rounds: Option<u32>,
    /// Count a late proof as missed (true or false, default: unchanged; false for a new group)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    late_is_missed: Option<bool>,
    /// How a device leaves quarantine (default: unchanged; automatic for a new group)
    #[arg(long, value_name = "HOW")]
    release_mode: Option<ReleaseModeName>,
    #[command(flatten)]
    registry: RegistryArgs,
}

/// How a device leaves quarantine, as an option value.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ReleaseModeName {
    /// By its next proof of the reference value
    Automatic,
    /// Only by `attest release` or `device release`
    Manual,
}

impl From<ReleaseModeName> for ReleaseMode {
    fn from(name: ReleaseModeName) -> Self {
        match name {
            ReleaseModeName::Automatic => Self::Automatic,
            ReleaseModeName::Manual => Self::Manual,
        }
    }
}

/// Arguments of `linewarden attest group list`.
#[derive(Args, Debug)]
pub struct ListArgs {
    #[command(flatten)]
    registry: RegistryArgs,
}

/// Arguments of commands that name one group.
#[derive(Args, Debug)]
pub struct NamedArgs {
    /// Group name
    name: GroupName,
    #[command(flatten)]
    registry: RegistryArgs,
}

/// Arguments of `linewarden attest group roll-out`.
#[derive(Args, Debug)]
pub struct RollOutArgs {
    /// Group name
    name: GroupName,
    /// Reference value that is also accepted: a file of `attest measure --out` (path)
    #[arg(long, value_name = "FILE")]
    reference: PathBuf,
    /// Duration of the roll-out (integer, seconds)
    #[arg(long = "for", value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    for_s: u64,
    #[command(flatten)]
    registry: RegistryArgs,
}

/// Runs the command.
pub fn run(command: &GroupCommand, output: Output) -> Result<(), Failure> {
    match command {
        GroupCommand::Set(args) => set(args, output),
        GroupCommand::List(args) => list(args, output),
        GroupCommand::Show(args) => show(args, output),
        GroupCommand::Delete(args) => delete(args, output),
        GroupCommand::RollOut(args) => roll_out(args, output),
        GroupCommand::Accept(args) => accept(args, output),
        GroupCommand::Withdraw(args) => withdraw(args, output),
    }
}

/// Returns the group with this name.
///
/// # Errors
/// The group does not exist, or its record is damaged.
pub async fn find(registry: &Registry, name: &GroupName) -> Result<Group, Failure> {
    let group = registry.group(name).await?;
    group.ok_or_else(|| {
        RegistryError::Attestation(AttestationError::UnknownGroup { group: name.clone() }).into()
    })
}

fn to_new_group(group: Group) -> NewGroup {
    NewGroup {
        name: group.name,
        policy: group.policy,
        reference: group.reference,
        roll_out: group.roll_out,
    }
}

fn set(args: &SetArgs, output: Output) -> Result<(), Failure> {
    let reference = args.reference.as_deref().map(reference::read).transpose()?;
    let now_s = now_s()?;
    let encoding = reference.as_ref().map(Configuration::encode);
    let mut stored_group = None;
    args.registry.with(async |registry| {
        registry
            .change_group(&args.name, now_s, |existing| -> Result<NewGroup, Failure> {
                let existing = match existing {
                    Err(error) => {
                        tracing::warn!(%error, "group record is damaged; creating the group again");
                        None
                    }
                    Ok(existing) => existing,
                };
                let is_new = existing.is_none();
                let group = args.apply(existing, encoding);
                stored_group = Some((group.clone(), is_new));
                Ok(group)
            })
            .await?;
        Ok(())
    })?;
    let Some((group, is_new)) = stored_group else {
        return Ok(());
    };
    let NewGroup { name, policy, .. } = &group;
    let mut object = group_json(name, policy, group.reference.as_deref(), group.roll_out.as_ref());
    if let Some(object) = object.as_object_mut() {
        object.insert("created".to_owned(), is_new.into());
    }
    output.object(&object)?;
    output.line(format_args!(
        "{} group {name}: round every {} s, {}, {}",
        if is_new { "created" } else { "changed" },
        policy.every_s,
        quarantined_after(policy),
        release_text(policy),
    ))?;
    match (&reference, &group.reference) {
        (Some(reference), _) => output.line(format_args!(
            "reference value {}: {}",
            reference.hash(),
            reference::size_text(reference)
        )),
        (None, Some(_)) => Ok(()),
        (None, None) => output.line(format_args!(
            "no reference value: devices are not attested until `attest group set {name} --reference FILE`"
        )),
    }
}

impl SetArgs {
    /// The group with the given options applied; a new group starts with the defaults.
    fn apply(&self, existing: Option<Group>, reference: Option<Vec<u8>>) -> NewGroup {
        let group = existing.map_or_else(
            || NewGroup {
                name: self.name.clone(),
                policy: GroupPolicy::default(),
                reference: None,
                roll_out: None,
            },
            to_new_group,
        );
        NewGroup {
            policy: self.policy(group.policy),
            reference: reference.or(group.reference),
            ..group
        }
    }

    fn policy(&self, before: GroupPolicy) -> GroupPolicy {
        let every_s = self.every.unwrap_or(before.every_s);
        let (old_default, new_default) = (default_policy(before.every_s), default_policy(every_s));
        // A value that equals the default of the previous interval counts as not set by the user, and becomes the
        // default of the new interval.
        let follow = |value: u32, old: u32, new: u32| if value == old { new } else { value };
        let jitter_s = follow(before.jitter_s, old_default.jitter_s, new_default.jitter_s);
        let proof_timeout_ms = follow(
            before.proof_timeout_ms,
            old_default.proof_timeout_ms,
            new_default.proof_timeout_ms,
        );
        GroupPolicy {
            every_s,
            jitter_s: self.jitter.unwrap_or(jitter_s),
            proof_timeout_ms: self.proof_timeout_ms.unwrap_or(proof_timeout_ms),
            missed_limit: self.missed_limit.unwrap_or(before.missed_limit),
            window_rounds: self.window_rounds.unwrap_or(before.window_rounds),
            late_is_missed: self.late_is_missed.unwrap_or(before.late_is_missed),
            release_mode: self.release_mode.map_or(before.release_mode, ReleaseMode::from),
        }
    }
}

/// The default policy for an interval.
fn default_policy(every_s: u32) -> GroupPolicy {
    let default = GroupPolicy::default();
    GroupPolicy {
        every_s,
        jitter_s: default.jitter_s.min(every_s / 2),
        proof_timeout_ms: default.proof_timeout_ms.min(every_s.saturating_mul(500)),
        ..default
    }
}

fn quarantined_after(policy: &GroupPolicy) -> String {
    format!(
        "quarantine after {} in {}",
        counted(policy.missed_limit.into(), "missed round"),
        counted(policy.window_rounds.into(), "round")
    )
}

fn release_text(policy: &GroupPolicy) -> &'static str {
    match policy.release_mode {
        ReleaseMode::Automatic => "released by the next proof",
        ReleaseMode::Manual => "released by command only",
    }
}

fn group_json(
    name: &GroupName,
    policy: &GroupPolicy,
    reference: Option<&[u8]>,
    roll_out: Option<&RollOut>,
) -> serde_json::Value {
    serde_json::json!({
        "group": name.as_str(),
        "every_s": policy.every_s,
        "jitter_s": policy.jitter_s,
        "proof_timeout_ms": policy.proof_timeout_ms,
        "missed_limit": policy.missed_limit,
        "window_rounds": policy.window_rounds,
        "late_is_missed": policy.late_is_missed,
        "release_mode": match policy.release_mode {
            ReleaseMode::Automatic => "automatic",
            ReleaseMode::Manual => "manual",
        },
        "reference": reference.map(reference::hash_of),
        "roll_out": roll_out.map(|roll_out| serde_json::json!({
            "reference": reference::hash_of(&roll_out.reference),
            "until_s": roll_out.until_s,
        })),
    })
}

/// Number of devices by group.
async fn count_devices(registry: &Registry) -> Result<HashMap<GroupName, u64>, RegistryError> {
    let mut devices: HashMap<GroupName, u64> = HashMap::new();
    for prover in read_provers(registry).await?.provers {
        *devices.entry(prover.group).or_default() += 1;
    }
    Ok(devices)
}

fn group_json_with_devices(group: &Group, devices: u64) -> serde_json::Value {
    let Group { name, policy, .. } = group;
    let mut object = group_json(name, policy, group.reference.as_deref(), group.roll_out.as_ref());
    if let Some(object) = object.as_object_mut() {
        object.insert("devices".to_owned(), devices.into());
    }
    object
}

fn show(args: &NamedArgs, output: Output) -> Result<(), Failure> {
    let now_s = now_s()?;
    let (group, devices) = args.registry.with(async |registry| {
        let group = find(registry, &args.name).await?;
        let devices = count_devices(registry).await?;
        Ok((group, devices))
    })?;
    let devices = devices.get(&args.name).copied().unwrap_or_default();
    if output.is_json() {
        return output.object(&group_json_with_devices(&group, devices));
    }
    let values = row(&group, devices, now_s);
    let mut fields: Vec<(&str, String)> = COLUMNS.into_iter().zip(values).collect();
    fields.push(("jitter", format!("{} s", group.policy.jitter_s)));
    // The full hash, for comparison with other hashes.
    if let (Some(reference), Some(field)) = (
        group.reference.as_deref(),
        fields.iter_mut().find(|(name, _)| *name == "reference"),
    ) {
        field.1 = reference::hash_of(reference);
    }
    output.fields(&fields)
}

fn list(args: &ListArgs, output: Output) -> Result<(), Failure> {
    let now_s = now_s()?;
    let (list, devices) = args.registry.with(async |registry| {
        let list = registry.groups().await?;
        let devices = count_devices(registry).await?;
        Ok((list, devices))
    })?;
    let mut rows = Vec::with_capacity(list.groups.len());
    for group in &list.groups {
        let count = devices.get(&group.name).copied().unwrap_or_default();
        output.object(&group_json_with_devices(group, count))?;
        rows.push(row(group, count, now_s).into());
    }
    output.table(&COLUMNS, &[1, 2, 3], rows)?;
    output.line(counted(list.groups.len() as u64, "group"))?;
    match list.damaged.is_empty() {
        true => Ok(()),
        false => {
            for record in &list.damaged {
                tracing::error!(
                    error = record,
                    action = "run `linewarden registry check`",
                    "registry record is damaged; skipped"
                );
            }
            Err(crate::cmd::device::damaged_records_failure(
                list.damaged.len() as u64
            ))
        }
    }
}

/// Columns of a group table.
const COLUMNS: [&str; 8] = [
    "group",
    "devices",
    "interval",
    "timeout",
    "quarantine after",
    "released by",
    "reference",
    "roll-out",
];

fn row(group: &Group, devices: u64, now_s: u64) -> [String; COLUMNS.len()] {
    let policy = &group.policy;
    let late = if policy.late_is_missed {
        ", late counts as missed"
    } else {
        ""
    };
    [
        group.name.to_string(),
        devices.to_string(),
        format!("{} s", policy.every_s),
        format!("{} ms", policy.proof_timeout_ms),
        format!("{} of {}{late}", policy.missed_limit, policy.window_rounds),
        match policy.release_mode {
            ReleaseMode::Automatic => "proof",
            ReleaseMode::Manual => "manual",
        }
        .to_owned(),
        group
            .reference
            .as_deref()
            .map_or_else(|| "none".to_owned(), short_hash),
        group.roll_out.as_ref().map_or_else(
            || "–".to_owned(),
            |roll_out| {
                let hash = short_hash(&roll_out.reference);
                let when = match now_s < roll_out.until_s {
                    true => "until",
                    false => "expired",
                };
                format!("{hash} {when} {}", date(roll_out.until_s))
            },
        ),
    ]
}

/// The first digits, sufficient to distinguish hashes.
fn short_hash(encoding: &[u8]) -> String {
    reference::hash_of(encoding).chars().take(HASH_DIGITS).collect()
}

fn delete(args: &NamedArgs, output: Output) -> Result<(), Failure> {
    args.registry
        .with(async |registry| Ok(registry.remove_group(&args.name).await?))?;
    output.object(&serde_json::json!({ "group": args.name.as_str(), "deleted": true }))?;
    output.line(format_args!("deleted group {}", args.name))
}

fn roll_out(args: &RollOutArgs, output: Output) -> Result<(), Failure> {
    let reference = reference::read(&args.reference)?;
    let now_s = now_s()?;
    let until_s = now_s.saturating_add(args.for_s);
    let previous_roll_out = change(&args.registry, &args.name, now_s, |group| {
        if group.reference.is_none() {
            return Err(Failure::input(format!(
                "group {0} has no reference value, which a roll-out needs: set one with `attest group set {0} --reference FILE`",
                group.name
            )));
        }
        let previous_roll_out = group.roll_out.replace(RollOut {
            reference: reference.encode(),
            until_s,
        });
        Ok(previous_roll_out)
    })?;
    output.object(&serde_json::json!({
        "group": args.name.as_str(),
        "roll_out": { "reference": reference.hash(), "until_s": until_s },
    }))?;
    if let Some(previous) = previous_roll_out {
        output.line(format_args!(
            "replaces the roll-out of {}",
            reference::hash_of(&previous.reference)
        ))?;
    }
    output.line(format_args!(
        "group {}: {} is also valid until {}",
        args.name,
        reference.hash(),
        date(until_s)
    ))
}

fn accept(args: &NamedArgs, output: Output) -> Result<(), Failure> {
    let accepted = change(&args.registry, &args.name, now_s()?, |group| {
        let roll_out = end_roll_out(group)?;
        group.reference = Some(roll_out.reference.clone());
        Ok(reference::hash_of(&roll_out.reference))
    })?;
    output.object(&serde_json::json!({ "group": args.name.as_str(), "reference": accepted }))?;
    output.line(format_args!(
        "group {}: {accepted} is now the only valid reference value",
        args.name
    ))
}

fn withdraw(args: &NamedArgs, output: Output) -> Result<(), Failure> {
    let (withdrawn, valid) = change(&args.registry, &args.name, now_s()?, |group| {
        let withdrawn = end_roll_out(group)?;
        let valid = group.reference.as_deref().map(reference::hash_of);
        Ok((reference::hash_of(&withdrawn.reference), valid))
    })?;
    output.object(&serde_json::json!({
        "group": args.name.as_str(), "withdrawn": withdrawn, "reference": valid,
    }))?;
    output.line(format_args!(
        "group {}: {withdrawn} is no longer valid, only {}",
        args.name,
        valid.unwrap_or_default()
    ))
}

fn end_roll_out(group: &mut NewGroup) -> Result<RollOut, Failure> {
    let name = &group.name;
    group.roll_out.take().ok_or_else(|| {
        Failure::input(format!(
            "group {name} has no roll-out: begin one with `attest group roll-out {name} --reference FILE --for SECONDS`"
        ))
    })
}

/// Changes a group that must exist.
fn change<T>(
    registry: &RegistryArgs,
    name: &GroupName,
    now_s: u64,
    change: impl FnOnce(&mut NewGroup) -> Result<T, Failure>,
) -> Result<T, Failure> {
    registry.with(async |registry| {
        let mut changed = None;
        registry
            .change_group(name, now_s, |existing| -> Result<NewGroup, Failure> {
                let existing = existing?.ok_or_else(|| {
                    RegistryError::Attestation(AttestationError::UnknownGroup { group: name.clone() })
                })?;
                let mut group = to_new_group(existing);
                changed = Some(change(&mut group)?);
                Ok(group)
            })
            .await?;
        // Without an error, `change_group` has run the closure.
        changed.ok_or_else(|| {
            RegistryError::Attestation(AttestationError::UnknownGroup { group: name.clone() }).into()
        })
    })
}
