//! `linewarden policy`: how groups of devices are asked what they run, and what came of it.

use clap::{Args, Subcommand, ValueEnum};
use linewarden_registry::GroupName;
use linewarden_service::wire::{Policy, PolicyChange, WhichRounds};

use crate::cmd::device::{date, left_out};
use crate::failure::Failure;
use crate::output::{Output, counted};
use crate::site::{ReasonArgs, SiteArgs, walk};

/// What about policies.
#[derive(Subcommand, Debug)]
pub enum PolicyCommand {
    /// List the groups and how they are asked
    #[command(after_help = "\
Examples:
  linewarden policy list --server https://ctl.example:20560 --token-file alice.token")]
    List(ListArgs),
    /// Make a group, or change how it is asked: what is not named stays
    #[command(after_help = "\
What its devices are to run is set where the registry is: `linewarden attest group set --reference`.

Examples:
  linewarden policy set pumps --every 30 --reason \"faster\" --config controller.toml")]
    Set(SetArgs),
    /// Have a group asked now, and do not wait for it
    #[command(after_help = "\
Examples:
  linewarden policy round pumps --reason \"after the storm\" --config controller.toml")]
    Round(RoundArgs),
    /// List the newest rounds that are over
    #[command(after_help = "\
Examples:
  linewarden policy rounds --group pumps --limit 10 --config controller.toml")]
    Rounds(RoundsArgs),
    /// List how devices stand, as gateways have found it
    #[command(after_help = "\
What `linewarden attest status` adds, such as that nobody has looked for too long, it sees in the registry.

Examples:
  linewarden policy results --state silent --config controller.toml")]
    Results(ResultsArgs),
}

/// Which groups.
#[derive(Args, Debug)]
pub struct ListArgs {
    #[command(flatten)]
    site: SiteArgs,
    /// JSON for machines, one object a line
    #[arg(long)]
    json: bool,
}

/// What to set.
#[derive(Args, Debug)]
pub struct SetArgs {
    /// The group: 1 to 64 of a to z, 0 to 9, '-', '_' and '.'
    name: GroupName,
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
    reason: ReasonArgs,
    #[command(flatten)]
    site: SiteArgs,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

/// How a device comes out of quarantine.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ReopenName {
    /// By the next proof of what it is to run
    Automatic,
    /// By `attest reopen` or `device release` alone
    Command,
}

/// Which group.
#[derive(Args, Debug)]
pub struct RoundArgs {
    /// The group
    name: GroupName,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    site: SiteArgs,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

/// Which rounds.
#[derive(Args, Debug)]
pub struct RoundsArgs {
    /// Only of this group
    #[arg(long, value_name = "NAME")]
    group: Option<GroupName>,
    /// Only of this gateway
    #[arg(long, value_name = "NUMBER")]
    gateway: Option<u32>,
    /// At most so many
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    #[command(flatten)]
    site: SiteArgs,
    /// JSON for machines, one object a line
    #[arg(long)]
    json: bool,
}

/// Which devices.
#[derive(Args, Debug)]
pub struct ResultsArgs {
    /// Only devices in this state
    #[arg(long, value_name = "STATE", value_parser = ["ok", "late", "silent", "quarantined", "unproven"])]
    state: Option<String>,
    /// At most so many
    #[arg(long, value_name = "COUNT")]
    limit: Option<u64>,
    #[command(flatten)]
    site: SiteArgs,
    /// JSON for machines, one object a line
    #[arg(long)]
    json: bool,
}

impl PolicyCommand {
    /// Whether machines read what it prints.
    pub fn wants_json(&self) -> bool {
        match self {
            Self::List(args) => args.json,
            Self::Set(args) => args.json,
            Self::Round(args) => args.json,
            Self::Rounds(args) => args.json,
            Self::Results(args) => args.json,
        }
    }
}

/// Does it.
pub fn run(command: &PolicyCommand) -> Result<(), Failure> {
    let output = Output::new(command.wants_json());
    match command {
        PolicyCommand::List(args) => list(args, output),
        PolicyCommand::Set(args) => set(args, output),
        PolicyCommand::Round(args) => {
            let policy = args
                .site
                .with(async |site| site.want_round(&args.name, &args.reason.reason).await)?;
            output.object(&policy)?;
            output.line(format_args!("gateways begin a round of group {}", policy.name))
        }
        PolicyCommand::Rounds(args) => rounds(args, output),
        PolicyCommand::Results(args) => results(args, output),
    }
}

fn list(args: &ListArgs, output: Output) -> Result<(), Failure> {
    let policies = args.site.with(async |site| site.policies().await)?;
    let mut rows = Vec::with_capacity(policies.items.len());
    for policy in &policies.items {
        output.object(policy)?;
        rows.push(row(policy));
    }
    let header = [
        "group",
        "every (s)",
        "jitter (s)",
        "answer (ms)",
        "quarantine after",
        "comes out by",
        "reference",
    ];
    output.table(&header, &[1, 2, 3], rows)?;
    output.line(counted(policies.items.len() as u64, "group"))?;
    match policies.damaged {
        0 => Ok(()),
        damaged => Err(left_out(damaged)),
    }
}

fn row(policy: &Policy) -> Vec<String> {
    vec![
        policy.name.clone(),
        policy.every_s.to_string(),
        policy.jitter_s.to_string(),
        policy.answer_ms.to_string(),
        format!("{} of {}", policy.silent, policy.of_rounds),
        match &*policy.reopen {
            "automatic" => "its next proof".to_owned(),
            other => other.to_owned(),
        },
        if policy.has_reference {
            "yes"
        } else {
            "none: nobody is asked"
        }
        .to_owned(),
    ]
}

fn set(args: &SetArgs, output: Output) -> Result<(), Failure> {
    let change = PolicyChange {
        every_s: args.every,
        jitter_s: args.jitter,
        answer_ms: args.answer,
        silent: args.silent,
        of_rounds: args.of,
        late_is_silent: args.late_is_silent,
        reopen: args.reopen.map(|reopen| {
            match reopen {
                ReopenName::Automatic => "automatic",
                ReopenName::Command => "command",
            }
            .to_owned()
        }),
        reason: args.reason.reason.clone(),
    };
    let policy = args
        .site
        .with(async |site| site.set_policy(&args.name, &change).await)?;
    output.object(&policy)?;
    output.line(format_args!(
        "group {}: asked every {} s, quarantine after {} silences in {} rounds",
        policy.name, policy.every_s, policy.silent, policy.of_rounds
    ))
}

fn rounds(args: &RoundsArgs, output: Output) -> Result<(), Failure> {
    let which = WhichRounds {
        gateway: args.gateway.map(|gateway| gateway.to_string()),
        group: args.group.as_ref().map(|group| group.as_str().to_owned()),
        ..WhichRounds::default()
    };
    let mut rows = Vec::new();
    args.site.with(async |site| {
        let ask = async |limit, after| site.rounds(&which, limit, after).await;
        walk(Some(args.limit.into()), output, ask, |round| {
            output.object(&round)?;
            rows.push(vec![
                round.gateway.to_string(),
                round.number.to_string(),
                round.group,
                date(round.ended_at_s),
                round.asked.to_string(),
                round.ok.to_string(),
                round.late.to_string(),
                round.silent.to_string(),
            ]);
            Ok(())
        })
        .await
    })?;
    let header = [
        "gateway", "round", "group", "ended", "asked", "ok", "late", "silent",
    ];
    let count = rows.len() as u64;
    output.table(&header, &[0, 1, 4, 5, 6, 7], rows)?;
    output.line(counted(count, "round"))
}

fn results(args: &ResultsArgs, output: Output) -> Result<(), Failure> {
    let mut rows = Vec::new();
    let state = args.state.as_deref();
    let damaged = args.site.with(async |site| {
        let ask = async |limit, after| site.results(state, limit, after).await;
        walk(args.limit, output, ask, |standing| {
            output.object(&standing)?;
            rows.push(vec![
                standing.device,
                standing.state.into_owned(),
                date(standing.since_s),
                standing.gateway.to_string(),
                standing.since_round.to_string(),
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
    match damaged {
        0 => Ok(()),
        damaged => Err(left_out(damaged)),
    }
}
