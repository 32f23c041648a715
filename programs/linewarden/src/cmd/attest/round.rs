//! `linewarden attest round`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use indicatif::ProgressBar;
use linewarden_api::{AttestationResult, Group, GroupQuery, PageQuery, ResultQuery, Round, RoundQuery};
use linewarden_cli::failure::Failure;
use linewarden_cli::now_s;
use linewarden_cli::output::{Output, counted};
use linewarden_client::Client;
use linewarden_types::{GroupName, GroupPolicy};
use serde::Serialize;

use super::results::{ResultLine, Results, print_table};
use crate::access::{AccessArgs, ReasonArgs, for_each_item, read_all};
use crate::date::date;

/// Maximum number of rounds that are read, newest first, of all gateways together.
const ROUNDS_READ_MAX: u64 = 4_096;
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Subcommands of `linewarden attest round`.
#[derive(Subcommand, Debug)]
pub enum RoundCommand {
    /// Run a round now and show its results
    Run(RunArgs),
    /// List the newest completed rounds
    #[command(after_help = "\
Examples:
  linewarden attest round list --group pumps --limit 10 --config controller.toml")]
    List(ListArgs),
}

/// Arguments of `linewarden attest round run`.
#[derive(Args, Debug)]
#[command(after_help = "\
Every running gateway with [attest] in its configuration starts a round of each requested group as soon as the gateway reads the request, in \
addition to scheduled rounds. Exit code 1 if a gateway that is expected to attest a group completes no round within --wait.

Examples:
  linewarden attest round run --config controller.toml
  linewarden attest round run pumps valves --wait 60 --config controller.toml
  linewarden attest round run pumps --output json --config controller.toml \\
    | jq -r 'select(.event == \"device\") | .device'")]
pub struct RunArgs {
    /// Group names (default: all groups)
    groups: Vec<GroupName>,
    /// Time to wait for the gateways; 0 only requests the rounds (integer, seconds)
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(0..=3_600))]
    wait: u64,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    access: AccessArgs,
}

/// Arguments of `linewarden attest round list`.
#[derive(Args, Debug)]
pub struct ListArgs {
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
    access: AccessArgs,
}

/// JSON output.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum RoundOutput<'a> {
    /// A gateway's round.
    Round(&'a Round),
    /// A device without a proof in time.
    Device(ResultLine<'a>),
}

/// A group and a gateway ID.
type GroupAtGateway = (String, u32);

/// A request for a round of groups.
struct RoundRequest {
    groups: Vec<Group>,
    /// Time of the request, seconds since 1970-01-01 UTC.
    at_s: u64,
    /// The newest round number of each gateway before the request.
    newest: HashMap<u32, u32>,
    /// Groups and gateways that are expected to run a round.
    expected: BTreeSet<GroupAtGateway>,
    /// The first round of each group and gateway that was completed after the request.
    completed: BTreeMap<GroupAtGateway, Round>,
}

/// Runs the command.
pub fn run(command: &RoundCommand, output: Output) -> Result<(), Failure> {
    match command {
        RoundCommand::Run(args) => run_rounds(args, output),
        RoundCommand::List(args) => list(args, output),
    }
}

/// Requests rounds and waits for them.
fn run_rounds(args: &RunArgs, output: Output) -> Result<(), Failure> {
    if args.wait == 0 {
        return request_rounds(args, output);
    }
    let (request, results) = args.access.with(async |client| {
        let RoundTargets { groups, skipped } = select_groups(client, &args.groups).await?;
        let mut request = RoundRequest::submit(client, groups, &args.reason.reason).await?;
        let bar = output.spinner();
        let result = request.wait(client, Duration::from_secs(args.wait), &bar).await;
        bar.finish_and_clear();
        result?;
        let requested = request.groups.iter().map(|group| group.name.clone());
        let names: BTreeSet<String> = requested.chain(skipped).collect();
        let mut results = Results::read(client, &ResultQuery::default()).await?.results;
        results.retain(|result| names.contains(&result.group));
        Ok((request, results))
    })?;
    request.print_rounds(output)?;
    if !request.completed.is_empty() {
        print_failing_devices(&results, output)?;
    }
    request.result(args.wait)
}

/// Requests rounds without waiting for them.
fn request_rounds(args: &RunArgs, output: Output) -> Result<(), Failure> {
    args.access.with(async |client| {
        let names: Vec<String> = match args.groups.is_empty() {
            true => read_groups(client)
                .await?
                .into_iter()
                .map(|group| group.name)
                .collect(),
            false => args.groups.iter().map(ToString::to_string).collect(),
        };
        for name in names {
            let group = client.start_round(&name, &args.reason.reason).await?;
            output.object(&group)?;
            output.line(format_args!("requested a round of group {name}"))?;
        }
        Ok(())
    })
}

fn list(args: &ListArgs, output: Output) -> Result<(), Failure> {
    let query = RoundQuery {
        gateway: args.gateway.map(|gateway| gateway.to_string()),
        group: args.group.as_ref().map(ToString::to_string),
        ..RoundQuery::default()
    };
    let mut rows = Vec::new();
    args.access.with(async |client| {
        for_each_round(client, &query, args.limit.into(), |round| {
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

/// Calls `on_round` for the newest rounds, newest first.
async fn for_each_round(
    client: &Client,
    query: &RoundQuery,
    limit: u64,
    on_round: impl FnMut(Round) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let read_page = async |PageQuery { limit, after }| {
        let query = RoundQuery {
            limit,
            after,
            ..query.clone()
        };
        client.rounds(&query).await
    };
    for_each_item(Some(limit), Output::default(), read_page, on_round)
        .await
        .map(drop)
}

/// The groups to attest, and the groups that cannot be attested.
struct RoundTargets {
    groups: Vec<Group>,
    /// Groups with devices that cannot be attested.
    skipped: Vec<String>,
}

/// All groups, with the numbers of their devices.
async fn read_groups(client: &Client) -> Result<Vec<Group>, Failure> {
    let read_page = async |PageQuery { limit, after }| {
        let query = GroupQuery {
            devices: Some(true),
            limit,
            after,
        };
        client.groups(&query).await
    };
    Ok(read_all(read_page).await?.items)
}

/// Why a group cannot be attested; `None` if it can.
fn problem_of(group: &Group) -> Option<String> {
    match (&group.reference, group.devices) {
        (None, _) => Some(format!(
            "group {0} has no reference value, so its devices are not attested: set one with `attest group set {0} --reference FILE`",
            group.name
        )),
        (Some(_), Some(0)) => Some(format!(
            "group {0} has no devices: enroll one with `attest enroll DEVICE --group {0}`",
            group.name
        )),
        (Some(_), _) => None,
    }
}

/// Selects the groups that can be attested.
async fn select_groups(client: &Client, names: &[GroupName]) -> Result<RoundTargets, Failure> {
    let mut groups = Vec::new();
    if names.is_empty() {
        groups = read_groups(client).await?;
        if groups.is_empty() {
            return Err(Failure::input(
                "no groups exist: create one with `attest group set NAME --reference FILE`",
            ));
        }
    }
    for name in names.iter().collect::<BTreeSet<_>>() {
        groups.push(client.group(name.as_str()).await?);
    }
    let problems: Vec<(&Group, String)> = groups
        .iter()
        .filter_map(|group| Some((group, problem_of(group)?)))
        .collect();
    if let Some((_, problem)) = problems.first()
        && (!names.is_empty() || problems.len() == groups.len())
    {
        return Err(Failure::input(problem));
    }
    let mut skipped = Vec::new();
    // A group without devices is not reported.
    for (group, problem) in problems.iter().filter(|(group, _)| group.devices != Some(0)) {
        tracing::warn!("{problem}");
        skipped.push(group.name.clone());
    }
    groups.retain(|group| problem_of(group).is_none());
    Ok(RoundTargets { groups, skipped })
}

/// Time for which the results of a round of the group are valid, seconds.
fn validity_s(group: &Group) -> u64 {
    let policy = GroupPolicy {
        every_s: group.every_s,
        jitter_s: group.jitter_s,
        proof_timeout_ms: group.proof_timeout_ms,
        ..GroupPolicy::default()
    };
    policy.validity_s()
}

impl RoundRequest {
    async fn submit(client: &Client, groups: Vec<Group>, reason: &str) -> Result<Self, Failure> {
        let at_s = now_s()?;
        let mut newest: HashMap<u32, u32> = HashMap::new();
        let mut expected = BTreeSet::new();
        for_each_round(client, &RoundQuery::default(), ROUNDS_READ_MAX, |round| {
            let number = newest.entry(round.gateway).or_default();
            *number = round.number.max(*number);
            let requested_group = groups.iter().find(|group| group.name == round.group);
            let is_attesting =
                requested_group.is_some_and(|group| at_s.abs_diff(round.ended_at_s) <= validity_s(group));
            if is_attesting {
                expected.insert((round.group, round.gateway));
            }
            Ok(())
        })
        .await?;
        for group in &groups {
            client.start_round(&group.name, reason).await?;
        }
        Ok(Self {
            groups,
            at_s,
            newest,
            expected,
            completed: BTreeMap::new(),
        })
    }

    async fn wait(&mut self, client: &Client, wait: Duration, bar: &ProgressBar) -> Result<(), Failure> {
        let deadline = Instant::now() + wait;
        // Rounds of all gateways and groups; `record` selects the rounds of the request.
        let query = RoundQuery::default();
        loop {
            for_each_round(client, &query, ROUNDS_READ_MAX, |round| {
                self.record(round);
                Ok(())
            })
            .await?;
            let missing = self.missing();
            if missing.is_empty() || Instant::now() >= deadline {
                return Ok(());
            }
            bar.set_message(format!(
                "{} of {} done, waiting for {}",
                counted(self.completed.len() as u64, "round"),
                self.completed.len() + missing.len(),
                missing.join(", ")
            ));
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Records a round of a requested group, if the round is new and did not start before the request. Start times are whole
    /// seconds, so a start up to one second before the request is accepted.
    fn record(&mut self, round: Round) {
        let gateway = round.gateway;
        let is_requested = self.groups.iter().any(|group| group.name == round.group);
        let is_new = self
            .newest
            .get(&gateway)
            .is_none_or(|newest| round.number > *newest);
        if is_requested && is_new && round.started_at_s.saturating_add(1) >= self.at_s {
            self.completed
                .entry((round.group.clone(), gateway))
                .or_insert(round);
        }
    }

    /// Describes the rounds that are not completed yet.
    fn missing(&self) -> Vec<String> {
        let describe = |(group, gateway): &GroupAtGateway| format!("gateway {gateway} with group {group}");
        let expected = self
            .expected
            .iter()
            .filter(|group_at_gateway| !self.completed.contains_key(*group_at_gateway))
            .map(describe);
        let unassigned = self.groups.iter().filter(|group| {
            let is_of_group = |group_at_gateway: &GroupAtGateway| group_at_gateway.0 == group.name;
            !self.completed.keys().any(is_of_group) && !self.expected.iter().any(is_of_group)
        });
        expected
            .chain(unassigned.map(|group| format!("any gateway with group {}", group.name)))
            .collect()
    }

    fn print_rounds(&self, output: Output) -> Result<(), Failure> {
        let mut rows = Vec::with_capacity(self.completed.len());
        for round in self.completed.values() {
            output.object(&RoundOutput::Round(round))?;
            let last = match round.ok + round.late {
                0 => "–".to_owned(),
                _ => format!("{} ms", round.last_proof_ms.max(1)),
            };
            rows.push(vec![
                round.gateway.to_string(),
                round.number.to_string(),
                round.group.clone(),
                round.requested.to_string(),
                round.ok.to_string(),
                round.late.to_string(),
                round.missed.to_string(),
                last,
            ]);
        }
        let header = [
            "gateway",
            "round",
            "group",
            "devices",
            "ok",
            "late",
            "missed",
            "last proof",
        ];
        output.table(&header, &[0, 1, 3, 4, 5, 6, 7], rows)
    }

    fn result(&self, wait_s: u64) -> Result<(), Failure> {
        let missing = self.missing();
        if missing.is_empty() {
            return Ok(());
        }
        let within = counted(wait_s, "second");
        Err(match self.completed.is_empty() {
            true => Failure::failed(format!(
                "no gateway completed a round within {within}: check that a gateway runs with [attest]"
            )),
            false => Failure::failed(format!(
                "rounds not completed within {within}: {}",
                missing.join(", ")
            )),
        })
    }
}

/// Prints all devices without a proof in time.
fn print_failing_devices(results: &[AttestationResult], output: Output) -> Result<(), Failure> {
    let (ok_devices, failing): (Vec<_>, Vec<_>) = results.iter().partition(|result| result.state == "ok");
    for result in &failing {
        output.object(&RoundOutput::Device(ResultLine::from(*result)))?;
    }
    print_table(&failing, output)?;
    output.line(match failing.len() {
        0 => format!(
            "all devices are ok: {}",
            counted(ok_devices.len() as u64, "device")
        ),
        count => format!(
            "{} ok, {count} not ok; `attest show DEVICE` shows details",
            counted(ok_devices.len() as u64, "device")
        ),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "test code")]
mod tests {
    use super::*;

    const NOW_S: u64 = 1_800_000_000;

    fn round(gateway: u32, group: &str, number: u32, started_at_s: u64) -> Round {
        Round {
            gateway,
            number,
            group: group.to_owned(),
            period: 1,
            started_at_s,
            ended_at_s: started_at_s + 1,
            requested: 1,
            ok: 1,
            late: 0,
            missed: 0,
            last_proof_ms: 3,
        }
    }

    /// Returns a request for two groups; gateway 5 has recently attested the first group.
    fn request() -> RoundRequest {
        let group = |name: &str| Group {
            name: name.to_owned(),
            every_s: 60,
            jitter_s: 5,
            proof_timeout_ms: 2_000,
            missed_limit: 3,
            window_rounds: 5,
            late_is_missed: false,
            release_mode: "automatic".into(),
            reference: None,
            roll_out: None,
            rounds_requested: 1,
            devices: Some(1),
        };
        RoundRequest {
            groups: vec![group("pumps"), group("valves")],
            at_s: NOW_S,
            newest: HashMap::from([(5, 9)]),
            expected: BTreeSet::from([("pumps".to_owned(), 5)]),
            completed: BTreeMap::new(),
        }
    }

    #[test]
    fn earlier_rounds_and_rounds_of_other_groups_are_ignored() {
        let mut request = request();
        for ignored in [
            round(5, "pumps", 9, NOW_S),
            round(5, "pumps", 10, NOW_S - 2),
            round(5, "doors", 11, NOW_S),
        ] {
            request.record(ignored);
        }
        assert!(request.completed.is_empty());
        request.record(round(5, "pumps", 12, NOW_S));
        assert_eq!(request.missing(), ["any gateway with group valves"]);
        assert!(request.result(30).is_err());
        // A gateway without earlier rounds.
        request.record(round(6, "valves", 1, NOW_S + 1));
        assert!(request.missing().is_empty() && request.result(30).is_ok());
    }

    #[test]
    fn a_round_waits_for_gateways_with_recent_rounds() {
        let mut request = request();
        request.record(round(6, "pumps", 1, NOW_S));
        request.record(round(6, "valves", 2, NOW_S));
        assert_eq!(request.missing(), ["gateway 5 with group pumps"]);
        assert_eq!(
            request.result(30).unwrap_err().to_string(),
            "rounds not completed within 30 seconds: gateway 5 with group pumps"
        );
    }
}
