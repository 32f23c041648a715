//! `linewarden attest round`.

use linewarden_cli::failure::Failure;
use linewarden_cli::now_s;
use linewarden_cli::output::{Output, counted};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::ProgressBar;
use linewarden_registry::{Group, Registry, RoundRecord};
use linewarden_types::GroupName;
use serde::Serialize;

use super::device_status::{DeviceSelection, DeviceStatus, DisplayState, FleetStatus, read_provers};
use super::group;
use super::status;
use crate::registry::RegistryArgs;

/// Maximum number of rounds that are read, newest first, of all gateways together.
const ROUNDS_READ_MAX: u32 = 4_096;
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Arguments of `linewarden attest round`.
#[derive(Args, Debug)]
#[command(after_help = "\
Every running gateway with [attest] in its configuration starts a round of each requested group as soon as the gateway reads the request, in \
addition to scheduled rounds. Exit code 1 if a gateway that is expected to attest a group completes no round within --wait.

Examples:
  linewarden attest round --config controller.toml
  linewarden attest round pumps valves --wait 60 --config controller.toml
  linewarden attest round pumps --output json --config controller.toml \\
    | jq -r 'select(.event == \"device\") | .device_id'")]
pub struct RoundArgs {
    /// Group names (default: all groups)
    groups: Vec<GroupName>,
    /// Time to wait for the gateways (integer, seconds)
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    wait: u64,
    #[command(flatten)]
    registry: RegistryArgs,
}

/// JSON output.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum RoundOutput<'a> {
    /// A gateway's round.
    Round(RoundLine<'a>),
    /// A device without a proof in time.
    Device(status::StatusLine<'a>),
}

#[derive(Serialize)]
struct RoundLine<'a> {
    gateway_id: u32,
    round: u32,
    group: &'a str,
    period: u64,
    started_at_s: u64,
    ended_at_s: u64,
    requested: u32,
    ok: u32,
    late: u32,
    missed: u32,
    last_proof_ms: Option<u32>,
}

/// A group and a gateway ID.
type GroupAtGateway = (GroupName, u32);

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
    completed: BTreeMap<GroupAtGateway, RoundRecord>,
}

/// Requests rounds and waits for them.
pub fn run(args: &RoundArgs, output: Output) -> Result<(), Failure> {
    let (request, fleet) = args.registry.with(async |registry| {
        let RoundTargets { groups, skipped } = select_groups(registry, &args.groups).await?;
        let mut request = RoundRequest::submit(registry, groups).await?;
        let bar = output.spinner();
        let result = request.wait(registry, Duration::from_secs(args.wait), &bar).await;
        bar.finish_and_clear();
        result?;
        let requested = request.groups.iter().map(|group| group.name.clone());
        let names: Vec<GroupName> = requested.chain(skipped).collect();
        let fleet = FleetStatus::read(registry, DeviceSelection::Groups(&names), now_s()?).await?;
        Ok((request, fleet))
    })?;
    request.print_rounds(output)?;
    if !request.completed.is_empty() {
        print_failing_devices(&fleet, output)?;
    }
    request.result(args.wait)
}

/// The groups to attest, and the groups that cannot be attested.
struct RoundTargets {
    groups: Vec<Group>,
    /// Groups with devices that cannot be attested.
    skipped: Vec<GroupName>,
}

/// Selects the groups that can be attested.
async fn select_groups(registry: &Registry, names: &[GroupName]) -> Result<RoundTargets, Failure> {
    let mut groups = Vec::new();
    if names.is_empty() {
        let list = registry.groups().await?;
        for record in &list.damaged {
            tracing::error!(
                error = record,
                action = "run `linewarden registry check`",
                "registry record is damaged; skipped"
            );
        }
        groups = list.groups;
        if groups.is_empty() {
            return Err(Failure::input(
                "no groups exist: create one with `attest group set NAME --reference FILE`",
            ));
        }
    } else {
        for name in names.iter().collect::<BTreeSet<_>>() {
            groups.push(group::find(registry, name).await?);
        }
    }
    let groups_with_devices: BTreeSet<GroupName> = read_provers(registry)
        .await?
        .provers
        .into_iter()
        .map(|prover| prover.group)
        .collect();
    let problem_of = |group: &Group| match (&group.reference, groups_with_devices.contains(&group.name)) {
        (Some(_), true) => None,
        (None, _) => Some(format!(
            "group {0} has no reference value, so its devices are not attested: set one with `attest group set {0} --reference FILE`",
            group.name
        )),
        (Some(_), false) => Some(format!(
            "group {0} has no devices: enroll one with `attest enroll DEVICE --group {0}`",
            group.name
        )),
    };
    let problems: Vec<(&GroupName, String)> = groups
        .iter()
        .filter_map(|group| Some((&group.name, problem_of(group)?)))
        .collect();
    if let Some((_, problem)) = problems.first()
        && (!names.is_empty() || problems.len() == groups.len())
    {
        return Err(Failure::input(problem));
    }
    let mut skipped = Vec::new();
    // A group without devices is not reported.
    for (name, problem) in problems
        .iter()
        .filter(|(name, _)| groups_with_devices.contains(*name))
    {
        tracing::warn!("{problem}");
        skipped.push((*name).clone());
    }
    groups.retain(|group| problem_of(group).is_none());
    Ok(RoundTargets { groups, skipped })
}

impl RoundRequest {
    async fn submit(registry: &Registry, groups: Vec<Group>) -> Result<Self, Failure> {
        let at_s = now_s()?;
        let mut newest: HashMap<u32, u32> = HashMap::new();
        let mut expected = BTreeSet::new();
        for round in registry.rounds(None, ROUNDS_READ_MAX).await? {
            let number = newest.entry(round.gateway.0).or_default();
            *number = round.number.max(*number);
            let requested_group = groups.iter().find(|group| group.name == round.group);
            let is_attesting = requested_group
                .is_some_and(|group| at_s.abs_diff(round.ended_at_s) <= group.policy.validity_s());
            if is_attesting {
                expected.insert((round.group, round.gateway.0));
            }
        }
        for group in &groups {
            registry.request_round(&group.name).await?;
        }
        Ok(Self {
            groups,
            at_s,
            newest,
            expected,
            completed: BTreeMap::new(),
        })
    }

    async fn wait(&mut self, registry: &Registry, wait: Duration, bar: &ProgressBar) -> Result<(), Failure> {
        let deadline = Instant::now() + wait;
        loop {
            for round in registry.rounds(None, ROUNDS_READ_MAX).await? {
                self.record(round);
            }
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
    fn record(&mut self, round: RoundRecord) {
        let gateway = round.gateway.0;
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
            let line = RoundLine {
                gateway_id: round.gateway.0,
                round: round.number,
                group: round.group.as_str(),
                period: round.period.0,
                started_at_s: round.started_at_s,
                ended_at_s: round.ended_at_s,
                requested: round.requested,
                ok: round.ok,
                late: round.late,
                missed: round.missed,
                last_proof_ms: (round.ok > 0 || round.late > 0).then_some(round.last_proof_ms),
            };
            output.object(&RoundOutput::Round(RoundLine { ..line }))?;
            let last = line
                .last_proof_ms
                .map_or_else(|| "–".to_owned(), |ms| format!("{} ms", ms.max(1)));
            rows.push(vec![
                line.gateway_id.to_string(),
                line.round.to_string(),
                line.group.to_owned(),
                line.requested.to_string(),
                line.ok.to_string(),
                line.late.to_string(),
                line.missed.to_string(),
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
fn print_failing_devices(fleet: &FleetStatus, output: Output) -> Result<(), Failure> {
    status::log_warnings(fleet);
    let is_ok = |device: &&DeviceStatus| device.state == DisplayState::Ok;
    let (ok_devices, failing): (Vec<_>, Vec<_>) = fleet.devices.iter().partition(is_ok);
    for device in &failing {
        output.object(&RoundOutput::Device(status::StatusLine::from(*device)))?;
    }
    status::print_table(&failing, output)?;
    output.line(match failing.len() {
        0 => format!(
            "all devices are ok: {}",
            counted(ok_devices.len() as u64, "device")
        ),
        count => format!(
            "{} ok, {count} not ok; `attest explain DEVICE` shows details",
            counted(ok_devices.len() as u64, "device")
        ),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "test code")]
mod tests {
    use linewarden_protocol::ids::{GatewayId, Period};
    use linewarden_types::GroupPolicy;

    use super::*;

    const NOW_S: u64 = 1_800_000_000;

    fn name(name: &str) -> GroupName {
        GroupName::new(name).unwrap()
    }

    fn round(gateway: u32, group: &str, number: u32, started_at_s: u64) -> RoundRecord {
        RoundRecord {
            gateway: GatewayId(gateway),
            number,
            group: name(group),
            period: Period(1),
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
        let group = |group: &str| Group {
            name: name(group),
            policy: GroupPolicy::default(),
            reference: None,
            roll_out: None,
            rounds_requested: 1,
            revision: 1,
        };
        RoundRequest {
            groups: vec![group("pumps"), group("valves")],
            at_s: NOW_S,
            newest: HashMap::from([(5, 9)]),
            expected: BTreeSet::from([(name("pumps"), 5)]),
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
