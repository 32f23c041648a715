//! `linewarden policy`: manages attestation policies of groups, and shows their results.

use clap::{Args, Subcommand, ValueEnum};
use linewarden_api::{Policy, PolicyChange, RoundQuery};
use linewarden_cli::failure::Failure;
use linewarden_cli::output::{Output, counted};
use linewarden_types::GroupName;

use crate::cmd::device::{damaged_records_failure, date};
use crate::registry_access::{ReasonArgs, RegistryAccessArgs, for_each_item};

/// Subcommands of `linewarden policy`.
#[derive(Subcommand, Debug)]
pub enum PolicyCommand {
    /// List groups and their attestation policies
    #[command(after_help = "\
Examples:
  linewarden policy list --server https://ctl.example:20560 --token-file alice.token")]
    List(ListArgs),
    /// Create a group, or change its policy; omitted options keep their values
    #[command(after_help = "\
This command cannot set the reference value. Set it with direct access to the registry: `linewarden attest group set --reference`.

Examples:
  linewarden policy set pumps --every 30 --reason \"faster\" --config controller.toml")]
    Set(SetArgs),
    /// Request a round of a group, without waiting for its result
    #[command(after_help = "\
Examples:
  linewarden policy round pumps --reason \"after the storm\" --config controller.toml")]
    Round(RoundArgs),
    /// List the newest completed rounds
    #[command(after_help = "\
Examples:
  linewarden policy rounds --group pumps --limit 10 --config controller.toml")]
    Rounds(RoundsArgs),
    /// List attestation states of devices, as gateways reported them
    #[command(after_help = "\
`linewarden attest status` also detects stale states; it needs direct access to the registry.

Examples:
  linewarden policy results --state missed --config controller.toml")]
    Results(ResultsArgs),
}

/// Arguments of `linewarden policy list`.
#[derive(Args, Debug)]
pub struct ListArgs {
    #[command(flatten)]
    access: RegistryAccessArgs,
}

/// Arguments of `linewarden policy set`.
#[derive(Args, Debug)]
pub struct SetArgs {
    /// Group name (1 to 64 characters of a-z, 0-9, '-', '_' and '.')
    name: GroupName,
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
    access: RegistryAccessArgs,
}

/// How a device leaves quarantine.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ReleaseModeName {
    /// By its next proof of the reference value
    Automatic,
    /// Only by `attest release` or `device release`
    Manual,
}

/// Arguments of `linewarden policy round`.
#[derive(Args, Debug)]
pub struct RoundArgs {
    /// Group name
    name: GroupName,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    access: RegistryAccessArgs,
}

/// Arguments of `linewarden policy rounds`.
#[derive(Args, Debug)]
pub struct RoundsArgs {
    /// Only rounds of this group (name)
    #[arg(long, value_name = "NAME")]
    group: Option<GroupName>,
    /// Only rounds of the gateway with this ID (integer)
    #[arg(long, value_name = "NUMBER")]
    gateway: Option<u32>,
    /// Maximum number of rounds to print (integer)
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    #[command(flatten)]
    access: RegistryAccessArgs,
}

/// Arguments of `linewarden policy results`.
#[derive(Args, Debug)]
pub struct ResultsArgs {
    /// Only devices in this attestation state (name)
    #[arg(long, value_name = "STATE", value_parser = ["ok", "late", "missed", "quarantined", "unproven"])]
    state: Option<String>,
    /// Maximum number of devices to print (integer, default: unlimited)
    #[arg(long, value_name = "COUNT")]
    limit: Option<u64>,
    #[command(flatten)]
    access: RegistryAccessArgs,
}

/// Runs the command.
pub fn run(command: &PolicyCommand, output: Output) -> Result<(), Failure> {
    match command {
        PolicyCommand::List(args) => list(args, output),
        PolicyCommand::Set(args) => set(args, output),
        PolicyCommand::Round(args) => {
            let policy = args
                .access
                .with(async |access| access.request_round(&args.name, &args.reason.reason).await)?;
            output.object(&policy)?;
            output.line(format_args!("requested a round of group {}", policy.name))
        }
        PolicyCommand::Rounds(args) => rounds(args, output),
        PolicyCommand::Results(args) => results(args, output),
    }
}

fn list(args: &ListArgs, output: Output) -> Result<(), Failure> {
    let policies = args.access.with(async |access| access.policies().await)?;
    let mut rows = Vec::with_capacity(policies.items.len());
    for policy in &policies.items {
        output.object(policy)?;
        rows.push(row(policy));
    }
    let header = [
        "group",
        "interval (s)",
        "jitter (s)",
        "timeout (ms)",
        "quarantine after",
        "released by",
        "reference",
    ];
    output.table(&header, &[1, 2, 3], rows)?;
    output.line(counted(policies.items.len() as u64, "group"))?;
    match policies.damaged_records {
        0 => Ok(()),
        damaged_records => Err(damaged_records_failure(damaged_records)),
    }
}

fn row(policy: &Policy) -> Vec<String> {
    vec![
        policy.name.clone(),
        policy.every_s.to_string(),
        policy.jitter_s.to_string(),
        policy.proof_timeout_ms.to_string(),
        format!("{} of {}", policy.missed_limit, policy.window_rounds),
        match &*policy.release_mode {
            "automatic" => "next proof".to_owned(),
            other => other.to_owned(),
        },
        if policy.has_reference {
            "yes"
        } else {
            "none: not attested"
        }
        .to_owned(),
    ]
}

fn set(args: &SetArgs, output: Output) -> Result<(), Failure> {
    let change = PolicyChange {
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
        reason: args.reason.reason.clone(),
    };
    let policy = args
        .access
        .with(async |access| access.set_policy(&args.name, &change).await)?;
    output.object(&policy)?;
    output.line(format_args!(
        "group {}: round every {} s, quarantine after {} missed of {} rounds",
        policy.name, policy.every_s, policy.missed_limit, policy.window_rounds
    ))
}

fn rounds(args: &RoundsArgs, output: Output) -> Result<(), Failure> {
    let query = RoundQuery {
        gateway: args.gateway.map(|gateway| gateway.to_string()),
        group: args.group.as_ref().map(|group| group.as_str().to_owned()),
        ..RoundQuery::default()
    };
    let mut rows = Vec::new();
    args.access.with(async |access| {
        let read_page = async |limit, after| access.rounds(&query, limit, after).await;
        for_each_item(Some(args.limit.into()), output, read_page, |round| {
            output.object(&round)?;
            rows.push(vec![
                round.gateway.to_string(),
                round.number.to_string(),
                round.group,
                date(round.ended_at_s),
                round.requested.to_string(),
                round.ok.to_string(),
                round.late.to_string(),
                round.missed.to_string(),
            ]);
            Ok(())
        })
        .await
    })?;
    let header = [
        "gateway", "round", "group", "ended", "devices", "ok", "late", "missed",
    ];
    let count = rows.len() as u64;
    output.table(&header, &[0, 1, 4, 5, 6, 7], rows)?;
    output.line(counted(count, "round"))
}

fn results(args: &ResultsArgs, output: Output) -> Result<(), Failure> {
    let mut rows = Vec::new();
    let state = args.state.as_deref();
    let damaged_records = args.access.with(async |access| {
        let read_page = async |limit, after| access.results(state, limit, after).await;
        for_each_item(args.limit, output, read_page, |result| {
            output.object(&result)?;
            rows.push(vec![
                result.device,
                result.state.into_owned(),
                date(result.since_s),
                result.gateway.to_string(),
                result.since_round.to_string(),
            ]);
            Ok(())
        })
        .await
    })?;
    let count = rows.len() as u64;
    output.table(
        &["device", "state", "since", "gateway", "since round"],
        &[3, 4],
        rows,
    )?;
    output.line(counted(count, "device"))?;
    match damaged_records {
        0 => Ok(()),
        damaged_records => Err(damaged_records_failure(damaged_records)),
    }
}
