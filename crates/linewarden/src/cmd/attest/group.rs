//! `linewarden attest group`.

use std::collections::HashMap;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use linewarden_measurement::configuration::Configuration;
use linewarden_registry::{
    Group, GroupName, GroupPolicy, NewGroup, Registry, RegistryError, Reopen, RollOut,
};

use super::reference;
use super::standing::provers;
use crate::cmd::device::date;
use crate::cmd::now_s;
use crate::failure::Failure;
use crate::output::{Output, counted};
use crate::registry::RegistryArgs;

/// Digits of h that tables show.
const SHOWN_DIGITS: usize = 16;

/// What about groups.
#[derive(Subcommand, Debug)]
pub enum GroupCommand {
    /// Make a group, or change it: what is not named stays
    #[command(after_help = "\
A new group is asked every 60 s; 3 silences in 5 rounds put a device into quarantine, and the next proof lets it out. \
Jitter and time to answer are 5 s and 2000 ms, of an interval of less than 10 or 4 s half of it at most, unless they are named. \
Devices are asked once their group has a reference value.

Examples:
  linewarden attest measure --config agent.toml --out pumps.conf
  linewarden attest group set pumps --reference pumps.conf --config gateway.toml
  linewarden attest group set pumps --every 30 --silent 2 --of 4 --config gateway.toml")]
    Set(SetArgs),
    /// List groups
    #[command(after_help = "\
Examples:
  linewarden attest group list --config gateway.toml
  linewarden attest group list --config gateway.toml --json | jq -r .reference")]
    List(ListArgs),
    /// Show one group
    #[command(after_help = "\
Examples:
  linewarden attest group show pumps --config gateway.toml")]
    Show(NamedArgs),
    /// Remove a group that has no devices
    #[command(after_help = "\
Examples:
  linewarden attest group remove pumps --config gateway.toml")]
    Remove(NamedArgs),
    /// Let devices run something else beside what they run now, for a while
    #[command(after_help = "\
Begin before the first device is updated; end it with `accept` when all are, or with `withdraw`. When the time is over, the \
old reference value alone is valid again.

Examples:
  linewarden attest group roll-out pumps --reference pumps-2.conf --for 86400 --config gateway.toml
  linewarden attest status --group pumps --config gateway.toml
  linewarden attest group accept pumps --config gateway.toml")]
    RollOut(RollOutArgs),
    /// End a roll-out: what was rolled out is valid from now on, and nothing else
    #[command(after_help = "\
Examples:
  linewarden attest group accept pumps --config gateway.toml")]
    Accept(NamedArgs),
    /// End a roll-out: only what was valid before it is valid
    #[command(after_help = "\
Examples:
  linewarden attest group withdraw pumps --config gateway.toml")]
    Withdraw(NamedArgs),
}

/// What to set.
#[derive(Args, Debug)]
pub struct SetArgs {
    /// The group: 1 to 64 of a to z, 0 to 9, '-', '_' and '.'
    name: GroupName,
    /// What its devices are to run: a file that `attest measure --out` has written
    #[arg(long, value_name = "FILE")]
    reference: Option<PathBuf>,
    /// Seconds from one round to the next
    #[arg(long, value_name = "SECONDS")]
    every: Option<u32>,
    /// A round begins up to so many seconds earlier or later, at random
    #[arg(long, value_name = "SECONDS")]
    jitter: Option<u32>,
    /// A proof that takes longer is late
    #[arg(long, value_name = "MS")]
    answer: Option<u32>,
    /// So many silences ..
    #[arg(long, value_name = "ROUNDS")]
    silent: Option<u32>,
    /// .. in so many rounds put a device into quarantine
    #[arg(long, value_name = "ROUNDS")]
    of: Option<u32>,
    /// Whether a late proof counts as silence
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    late_is_silent: Option<bool>,
    /// How a device comes out of quarantine
    #[arg(long, value_name = "HOW")]
    reopen: Option<ReopenName>,
    #[command(flatten)]
    registry: RegistryArgs,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

/// How a device comes out of quarantine, by name.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ReopenName {
    /// By the next proof of what it is to run
    Automatic,
    /// By `attest reopen` alone
    Command,
}

impl From<ReopenName> for Reopen {
    fn from(name: ReopenName) -> Self {
        match name {
            ReopenName::Automatic => Self::Automatic,
            ReopenName::Command => Self::ByCommand,
        }
    }
}

/// Which groups.
#[derive(Args, Debug)]
pub struct ListArgs {
    #[command(flatten)]
    registry: RegistryArgs,
    /// JSON for machines, one object a line
    #[arg(long)]
    json: bool,
}

/// Which group.
#[derive(Args, Debug)]
pub struct NamedArgs {
    /// The group
    name: GroupName,
    #[command(flatten)]
    registry: RegistryArgs,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

/// What is rolled out.
#[derive(Args, Debug)]
pub struct RollOutArgs {
    /// The group
    name: GroupName,
    /// What its devices may run as well: a file that `attest measure --out` has written
    #[arg(long, value_name = "FILE")]
    reference: PathBuf,
    /// For so long
    #[arg(long = "for", value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    for_s: u64,
    #[command(flatten)]
    registry: RegistryArgs,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

impl GroupCommand {
    /// Whether machines read what it prints.
    pub fn wants_json(&self) -> bool {
        match self {
            Self::Set(args) => args.json,
            Self::List(args) => args.json,
            Self::RollOut(args) => args.json,
            Self::Show(args) | Self::Remove(args) | Self::Accept(args) | Self::Withdraw(args) => args.json,
        }
    }
}

/// Does it.
pub fn run(command: &GroupCommand, output: Output) -> Result<(), Failure> {
    match command {
        GroupCommand::Set(args) => set(args, output),
        GroupCommand::List(args) => list(args, output),
        GroupCommand::Show(args) => show(args, output),
        GroupCommand::Remove(args) => remove(args, output),
        GroupCommand::RollOut(args) => roll_out(args, output),
        GroupCommand::Accept(args) => accept(args, output),
        GroupCommand::Withdraw(args) => withdraw(args, output),
    }
}

/// A group that must be there.
///
/// # Errors
/// It is not, or its record is damaged.
pub async fn find(registry: &Registry, name: &GroupName) -> Result<Group, Failure> {
    let group = registry.group(name).await?;
    group.ok_or_else(|| RegistryError::UnknownGroup { group: name.clone() }.into())
}

fn as_new(group: Group) -> NewGroup {
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
    let mut set = None;
    args.registry.with(async |registry| {
        registry
            .change_group(&args.name, now_s, |known| -> Result<NewGroup, Failure> {
                let known = match known {
                    Err(error) => {
                        tracing::warn!(%error, "it is made anew");
                        None
                    }
                    Ok(known) => known,
                };
                let is_new = known.is_none();
                let group = args.changed(known, encoding);
                set = Some((group.clone(), is_new));
                Ok(group)
            })
            .await?;
        Ok(())
    })?;
    let Some((group, is_new)) = set else {
        return Ok(());
    };
    let NewGroup { name, policy, .. } = &group;
    let mut object = describe(name, policy, group.reference.as_deref(), group.roll_out.as_ref());
    if let Some(object) = object.as_object_mut() {
        object.insert("made".to_owned(), is_new.into());
    }
    output.object(&object)?;
    output.line(format_args!(
        "{} group {name}: asked every {} s, {}, {}",
        if is_new { "made" } else { "set" },
        policy.every_s,
        quarantined_after(policy),
        reopened(policy),
    ))?;
    match (&reference, &group.reference) {
        (Some(reference), _) => output.line(format_args!(
            "reference value {}: {}",
            reference.hash(),
            reference::extent(reference)
        )),
        (None, Some(_)) => Ok(()),
        (None, None) => output.line(format_args!(
            "it has no reference value: nobody is asked before `attest group set {name} --reference FILE`"
        )),
    }
}

impl SetArgs {
    /// What is named, in place of what was there; of a new group, of what is usual.
    fn changed(&self, known: Option<Group>, reference: Option<Vec<u8>>) -> NewGroup {
        let group = known.map_or_else(
            || NewGroup {
                name: self.name.clone(),
                policy: GroupPolicy::default(),
                reference: None,
                roll_out: None,
            },
            as_new,
        );
        NewGroup {
            policy: self.policy(group.policy),
            reference: reference.or(group.reference),
            ..group
        }
    }

    fn policy(&self, before: GroupPolicy) -> GroupPolicy {
        let every_s = self.every.unwrap_or(before.every_s);
        let (usual, fitting) = (usual_policy(before.every_s), usual_policy(every_s));
        // What is as usual for the interval that was, nobody has named: it follows the interval.
        let follow = |was: u32, usual: u32, fitting: u32| if was == usual { fitting } else { was };
        let jitter_s = follow(before.jitter_s, usual.jitter_s, fitting.jitter_s);
        let answer_ms = follow(before.answer_ms, usual.answer_ms, fitting.answer_ms);
        GroupPolicy {
            every_s,
            jitter_s: self.jitter.unwrap_or(jitter_s),
            answer_ms: self.answer.unwrap_or(answer_ms),
            silent: self.silent.unwrap_or(before.silent),
            of: self.of.unwrap_or(before.of),
            late_is_silent: self.late_is_silent.unwrap_or(before.late_is_silent),
            reopen: self.reopen.map_or(before.reopen, Reopen::from),
        }
    }
}

/// Of an interval, when nothing else is named.
fn usual_policy(every_s: u32) -> GroupPolicy {
    let default = GroupPolicy::default();
    GroupPolicy {
        every_s,
        jitter_s: default.jitter_s.min(every_s / 2),
        answer_ms: default.answer_ms.min(every_s.saturating_mul(500)),
        ..default
    }
}

fn quarantined_after(policy: &GroupPolicy) -> String {
    format!(
        "quarantine after {} in {}",
        counted(policy.silent.into(), "silence"),
        counted(policy.of.into(), "round")
    )
}

fn reopened(policy: &GroupPolicy) -> &'static str {
    match policy.reopen {
        Reopen::Automatic => "ended by the next proof",
        Reopen::ByCommand => "ended by command only",
    }
}

fn describe(
    name: &GroupName,
    policy: &GroupPolicy,
    reference: Option<&[u8]>,
    roll_out: Option<&RollOut>,
) -> serde_json::Value {
    serde_json::json!({
        "group": name.as_str(),
        "every_s": policy.every_s,
        "jitter_s": policy.jitter_s,
        "answer_ms": policy.answer_ms,
        "silent": policy.silent,
        "of": policy.of,
        "late_is_silent": policy.late_is_silent,
        "reopen": match policy.reopen {
            Reopen::Automatic => "automatic",
            Reopen::ByCommand => "command",
        },
        "reference": reference.map(reference::hash_of),
        "roll_out": roll_out.map(|roll_out| serde_json::json!({
            "reference": reference::hash_of(&roll_out.reference),
            "until_s": roll_out.until_s,
        })),
    })
}

async fn count_devices(registry: &Registry) -> Result<HashMap<GroupName, u64>, RegistryError> {
    let mut devices: HashMap<GroupName, u64> = HashMap::new();
    for prover in provers(registry).await?.provers {
        *devices.entry(prover.group).or_default() += 1;
    }
    Ok(devices)
}

fn with_devices(group: &Group, devices: u64) -> serde_json::Value {
    let Group { name, policy, .. } = group;
    let mut object = describe(name, policy, group.reference.as_deref(), group.roll_out.as_ref());
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
        return output.object(&with_devices(&group, devices));
    }
    let values = row(&group, devices, now_s);
    let mut fields: Vec<(&str, String)> = COLUMNS.into_iter().zip(values).collect();
    fields.push(("jitter", format!("{} s", group.policy.jitter_s)));
    // In full: it is what another is compared with.
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
        output.object(&with_devices(group, count))?;
        rows.push(row(group, count, now_s).into());
    }
    output.table(&COLUMNS, &[1, 2, 3], rows)?;
    output.line(counted(list.groups.len() as u64, "group"))?;
    match list.damaged.is_empty() {
        true => Ok(()),
        false => {
            for record in &list.damaged {
                tracing::error!(record, "left out");
            }
            Err(crate::cmd::device::left_out(list.damaged.len() as u64))
        }
    }
}

/// What tables show of a group.
const COLUMNS: [&str; 8] = [
    "group",
    "devices",
    "every",
    "answer",
    "quarantine after",
    "ended by",
    "reference",
    "roll-out",
];

fn row(group: &Group, devices: u64, now_s: u64) -> [String; COLUMNS.len()] {
    let policy = &group.policy;
    let late = if policy.late_is_silent {
        ", late is silent"
    } else {
        ""
    };
    [
        group.name.to_string(),
        devices.to_string(),
        format!("{} s", policy.every_s),
        format!("{} ms", policy.answer_ms),
        format!("{} of {}{late}", policy.silent, policy.of),
        match policy.reopen {
            Reopen::Automatic => "proof",
            Reopen::ByCommand => "command",
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
                    false => "over since",
                };
                format!("{hash} {when} {}", date(roll_out.until_s))
            },
        ),
    ]
}

/// The first digits, to be told from others by.
fn short_hash(encoding: &[u8]) -> String {
    reference::hash_of(encoding).chars().take(SHOWN_DIGITS).collect()
}

fn remove(args: &NamedArgs, output: Output) -> Result<(), Failure> {
    args.registry
        .with(async |registry| Ok(registry.remove_group(&args.name).await?))?;
    output.object(&serde_json::json!({ "group": args.name.as_str(), "removed": true }))?;
    output.line(format_args!("removed group {}", args.name))
}

fn roll_out(args: &RollOutArgs, output: Output) -> Result<(), Failure> {
    let reference = reference::read(&args.reference)?;
    let now_s = now_s()?;
    let until_s = now_s.saturating_add(args.for_s);
    let is_in_place_of = change(&args.registry, &args.name, now_s, |group| {
        if group.reference.is_none() {
            return Err(Failure::input(format!(
                "group {0} has no reference value beside which it could be valid; give it one with `attest group set {0} \
                 --reference FILE`",
                group.name
            )));
        }
        let before = group.roll_out.replace(RollOut {
            reference: reference.encode(),
            until_s,
        });
        Ok(before)
    })?;
    output.object(&serde_json::json!({
        "group": args.name.as_str(),
        "roll_out": { "reference": reference.hash(), "until_s": until_s },
    }))?;
    if let Some(before) = is_in_place_of {
        output.line(format_args!(
            "in place of the roll-out of {}",
            reference::hash_of(&before.reference)
        ))?;
    }
    output.line(format_args!(
        "group {}: {} is valid as well, until {}",
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
    output.line(format_args!("group {}: {accepted} alone is valid now", args.name))
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
        "group {}: {withdrawn} is valid no more, only {}",
        args.name,
        valid.unwrap_or_default()
    ))
}

fn end_roll_out(group: &mut NewGroup) -> Result<RollOut, Failure> {
    let name = &group.name;
    group.roll_out.take().ok_or_else(|| {
        Failure::input(format!(
            "group {name} has no roll-out; begin one with `attest group roll-out {name} --reference FILE --for SECONDS`"
        ))
    })
}

/// Changes a group that must be there.
fn change<T>(
    registry: &RegistryArgs,
    name: &GroupName,
    now_s: u64,
    change: impl FnOnce(&mut NewGroup) -> Result<T, Failure>,
) -> Result<T, Failure> {
    registry.with(async |registry| {
        let mut changed = None;
        registry
            .change_group(name, now_s, |known| -> Result<NewGroup, Failure> {
                let known = known?.ok_or_else(|| RegistryError::UnknownGroup { group: name.clone() })?;
                let mut group = as_new(known);
                changed = Some(change(&mut group)?);
                Ok(group)
            })
            .await?;
        // Whoever does not end in an error has changed it.
        changed.ok_or_else(|| RegistryError::UnknownGroup { group: name.clone() }.into())
    })
}
