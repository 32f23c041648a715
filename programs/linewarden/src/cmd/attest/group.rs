//! `linewarden attest group`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use linewarden_api::{Group, GroupChange, GroupQuery, PageQuery};
use linewarden_cli::failure::Failure;
use linewarden_cli::now_s;
use linewarden_cli::output::{Output, counted};
use linewarden_types::GroupName;

use super::reference;
use crate::access::{AccessArgs, ReasonArgs, check_damaged, read_all};
use crate::date::date;

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
    Set(Box<SetArgs>),
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
    Show(ShowArgs),
    /// Delete a group that has no devices
    #[command(after_help = "\
Examples:
  linewarden attest group delete pumps --config controller.toml")]
    Delete(NamedArgs),
}

/// Arguments of `linewarden attest group set`.
#[derive(Args, Debug)]
pub struct SetArgs {
    /// Group name (1 to 64 characters of a-z, 0-9, '-', '_' and '.')
    name: GroupName,
    /// Reference value: a file of `linewarden-agent measure --out` (path)
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
    reason: ReasonArgs,
    #[command(flatten)]
    access: AccessArgs,
}

/// How a device leaves quarantine, as an option value.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ReleaseModeName {
    /// By its next proof of the reference value
    Automatic,
    /// Only by `device release`
    Manual,
}

/// Arguments of `linewarden attest group list`.
#[derive(Args, Debug)]
pub struct ListArgs {
    #[command(flatten)]
    access: AccessArgs,
}

/// Arguments of `linewarden attest group show`.
#[derive(Args, Debug)]
pub struct ShowArgs {
    /// Group name
    name: GroupName,
    #[command(flatten)]
    access: AccessArgs,
}

/// Arguments of commands that change one group.
#[derive(Args, Debug)]
pub struct NamedArgs {
    /// Group name
    pub name: GroupName,
    #[command(flatten)]
    pub reason: ReasonArgs,
    #[command(flatten)]
    pub access: AccessArgs,
}

/// Runs the command.
pub fn run(command: &GroupCommand, output: Output) -> Result<(), Failure> {
    match command {
        GroupCommand::Set(args) => set(args, output),
        GroupCommand::List(args) => list(args, output),
        GroupCommand::Show(args) => show(args, output),
        GroupCommand::Delete(args) => delete(args, output),
    }
}

fn set(args: &SetArgs, output: Output) -> Result<(), Failure> {
    let reference = args.reference.as_deref().map(reference::read).transpose()?;
    let change = GroupChange {
        every_s: args.every,
        jitter_s: args.jitter,
        proof_timeout_ms: args.proof_timeout_ms,
        missed_limit: args.missed_limit,
        window_rounds: args.window_rounds,
        late_is_missed: args.late_is_missed,
        release_mode: args.release_mode.map(|mode| {
            match mode {
                ReleaseModeName::Automatic => "automatic",
                ReleaseModeName::Manual => "manual",
            }
            .to_owned()
        }),
        reference: reference.as_ref().map(reference::encode_hex),
        reason: args.reason.reason.clone(),
    };
    let changed = args
        .access
        .with(async |client| Ok(client.set_group(args.name.as_str(), &change).await?))?;
    output.object(&changed)?;
    let group = &changed.group;
    output.line(format_args!(
        "{} group {}: round every {} s, quarantine after {} in {}, {}",
        if changed.created { "created" } else { "changed" },
        group.name,
        group.every_s,
        counted(group.missed_limit.into(), "missed round"),
        counted(group.window_rounds.into(), "round"),
        match &*group.release_mode {
            "manual" => "released by command only",
            _ => "released by the next proof",
        },
    ))?;
    match (&reference, &group.reference) {
        (Some(reference), _) => output.line(format_args!(
            "reference value {}: {}",
            reference.hash(),
            reference::size_text(reference)
        )),
        (None, Some(_)) => Ok(()),
        (None, None) => output.line(format_args!(
            "no reference value: devices are not attested until `attest group set {} --reference FILE`",
            group.name
        )),
    }
}

fn show(args: &ShowArgs, output: Output) -> Result<(), Failure> {
    let now_s = now_s()?;
    let group = args
        .access
        .with(async |client| Ok(client.group(args.name.as_str()).await?))?;
    output.object(&group)?;
    let mut fields: Vec<(&str, String)> = COLUMNS.into_iter().zip(row(&group, now_s)).collect();
    fields.push(("jitter", format!("{} s", group.jitter_s)));
    // The full hash, for comparison with other hashes.
    if let (Some(reference), Some(field)) = (
        group.reference,
        fields.iter_mut().find(|(name, _)| *name == "reference"),
    ) {
        field.1 = reference;
    }
    output.fields(&fields)
}

fn list(args: &ListArgs, output: Output) -> Result<(), Failure> {
    let now_s = now_s()?;
    let groups = args.access.with(async |client| {
        let read_page = async |PageQuery { limit, after }| {
            let query = GroupQuery {
                devices: Some(true),
                limit,
                after,
            };
            client.groups(&query).await
        };
        read_all(read_page).await
    })?;
    let mut rows = Vec::with_capacity(groups.items.len());
    for group in &groups.items {
        output.object(group)?;
        rows.push(row(group, now_s).into());
    }
    output.table(&COLUMNS, &[1, 2, 3], rows)?;
    output.line(counted(groups.items.len() as u64, "group"))?;
    check_damaged(groups.damaged_records)
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

fn row(group: &Group, now_s: u64) -> [String; COLUMNS.len()] {
    let late = match group.late_is_missed {
        true => ", late counts as missed",
        false => "",
    };
    [
        group.name.clone(),
        group.devices.unwrap_or_default().to_string(),
        format!("{} s", group.every_s),
        format!("{} ms", group.proof_timeout_ms),
        format!("{} of {}{late}", group.missed_limit, group.window_rounds),
        match &*group.release_mode {
            "automatic" => "proof".to_owned(),
            other => other.to_owned(),
        },
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
fn short_hash(hash: &str) -> String {
    hash.chars().take(HASH_DIGITS).collect()
}

fn delete(args: &NamedArgs, output: Output) -> Result<(), Failure> {
    let name = args.name.as_str();
    args.access
        .with(async |client| Ok(client.delete_group(name, &args.reason.reason).await?))?;
    output.object(&serde_json::json!({ "group": name, "deleted": true }))?;
    output.line(format_args!("deleted group {name}"))
}
