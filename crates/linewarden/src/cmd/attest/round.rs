//! `linewarden attest round`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::ProgressBar;
use linewarden_registry::{Group, GroupName, Registry, RoundRecord};
use serde::Serialize;

use super::group;
use super::standing::{Fleet, Shown, Standing, Which, provers};
use super::status;
use crate::cmd::now_s;
use crate::failure::Failure;
use crate::output::{Output, counted};
use crate::registry::RegistryArgs;

/// Rounds looked at, the newest of all gateways.
const ROUNDS: u32 = 4_096;
const LOOK: Duration = Duration::from_millis(100);

/// Which groups.
#[derive(Args, Debug)]
#[command(after_help = "\
Every running gateway that attests ([attest] in its configuration) begins a round of these groups as soon as it learns of \
the order, beside those that are due. Exit code 1 if one of them has run none in the time given.

Examples:
  linewarden attest round --config gateway.toml
  linewarden attest round pumps valves --wait 60 --config gateway.toml
  linewarden attest round pumps --json --config gateway.toml \\
    | jq -r 'select(.event == \"device\") | .device_id'")]
pub struct RoundArgs {
    /// The groups; all if none is named
    groups: Vec<GroupName>,
    /// Seconds to wait for the gateways
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    wait: u64,
    #[command(flatten)]
    registry: RegistryArgs,
    /// JSON for machines, one object a line
    #[arg(long)]
    pub json: bool,
}

/// A line for machines.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Told<'a> {
    /// A gateway's round.
    Round(Line<'a>),
    /// A device that has not proven in time.
    Device(status::Line<'a>),
}

#[derive(Serialize)]
struct Line<'a> {
    gateway_id: u32,
    round: u32,
    group: &'a str,
    period: u64,
    started_at_s: u64,
    ended_at_s: u64,
    asked: u32,
    ok: u32,
    late: u32,
    silent: u32,
    last_proof_ms: Option<u32>,
}

/// A group and a gateway.
type Place = (GroupName, u32);

/// A round that was ordered, of some groups.
struct Order {
    groups: Vec<Group>,
    at_s: u64,
    /// The newest number of each gateway before.
    newest: HashMap<u32, u32>,
    /// Who has asked whom until now.
    expected: BTreeSet<Place>,
    found: BTreeMap<Place, RoundRecord>,
}

/// Orders rounds and waits for them.
pub fn run(args: &RoundArgs, output: Output) -> Result<(), Failure> {
    let (order, fleet) = args.registry.with(async |registry| {
        let Wanted { groups, left_out } = wanted(registry, &args.groups).await?;
        let mut order = Order::place(registry, groups).await?;
        let bar = output.spinner();
        let waited = order.wait(registry, Duration::from_secs(args.wait), &bar).await;
        bar.finish_and_clear();
        waited?;
        let asked = order.groups.iter().map(|group| group.name.clone());
        let names: Vec<GroupName> = asked.chain(left_out).collect();
        let fleet = Fleet::read(registry, Which::Of(&names), now_s()?).await?;
        Ok((order, fleet))
    })?;
    order.tell(output)?;
    if !order.found.is_empty() {
        tell_others(&fleet, output)?;
    }
    order.verdict(args.wait)
}

/// What is asked, and what should be and cannot.
struct Wanted {
    groups: Vec<Group>,
    /// With devices that nobody can ask.
    left_out: Vec<GroupName>,
}

/// The groups that can be asked.
async fn wanted(registry: &Registry, names: &[GroupName]) -> Result<Wanted, Failure> {
    let mut groups = Vec::new();
    if names.is_empty() {
        let list = registry.groups().await?;
        for record in &list.damaged {
            tracing::error!(record, "left out");
        }
        groups = list.groups;
        if groups.is_empty() {
            return Err(Failure::input(
                "there is no group; make one with `attest group set NAME --reference FILE`",
            ));
        }
    } else {
        for name in names.iter().collect::<BTreeSet<_>>() {
            groups.push(group::find(registry, name).await?);
        }
    }
    let with_devices: BTreeSet<GroupName> = provers(registry)
        .await?
        .provers
        .into_iter()
        .map(|prover| prover.group)
        .collect();
    let why_not = |group: &Group| match (&group.reference, with_devices.contains(&group.name)) {
        (Some(_), true) => None,
        (None, _) => Some(format!(
            "group {0} has no reference value, so nobody in it can be asked: `attest group set {0} --reference FILE`",
            group.name
        )),
        (Some(_), false) => Some(format!(
            "group {0} has no devices: `attest enroll DEVICE --group {0}`",
            group.name
        )),
    };
    let problems: Vec<(&GroupName, String)> = groups
        .iter()
        .filter_map(|group| Some((&group.name, why_not(group)?)))
        .collect();
    if let Some((_, problem)) = problems.first()
        && (!names.is_empty() || problems.len() == groups.len())
    {
        return Err(Failure::input(problem));
    }
    let mut left_out = Vec::new();
    // Where there is nobody, nobody is missed.
    for (name, problem) in problems.iter().filter(|(name, _)| with_devices.contains(*name)) {
        tracing::warn!("{problem}");
        left_out.push((*name).clone());
    }
    groups.retain(|group| why_not(group).is_none());
    Ok(Wanted { groups, left_out })
}

impl Order {
    async fn place(registry: &Registry, groups: Vec<Group>) -> Result<Self, Failure> {
        let at_s = now_s()?;
        let mut newest: HashMap<u32, u32> = HashMap::new();
        let mut expected = BTreeSet::new();
        for round in registry.rounds(None, ROUNDS).await? {
            let number = newest.entry(round.gateway.0).or_default();
            *number = round.number.max(*number);
            let of_group = groups.iter().find(|group| group.name == round.group);
            let is_alive =
                of_group.is_some_and(|group| at_s.abs_diff(round.ended_at_s) <= group.policy.good_for_s());
            if is_alive {
                expected.insert((round.group, round.gateway.0));
            }
        }
        for group in &groups {
            registry.want_round(&group.name).await?;
        }
        Ok(Self {
            groups,
            at_s,
            newest,
            expected,
            found: BTreeMap::new(),
        })
    }

    async fn wait(&mut self, registry: &Registry, wait: Duration, bar: &ProgressBar) -> Result<(), Failure> {
        let until = Instant::now() + wait;
        loop {
            for round in registry.rounds(None, ROUNDS).await? {
                self.take(round);
            }
            let missing = self.missing();
            if missing.is_empty() || Instant::now() >= until {
                return Ok(());
            }
            bar.set_message(format!(
                "{} of {} done, waiting for {}",
                counted(self.found.len() as u64, "round"),
                self.found.len() + missing.len(),
                missing.join(", ")
            ));
            tokio::time::sleep(LOOK).await;
        }
    }

    /// One that was under way when this was ordered is not what was ordered. Its times are whole seconds.
    fn take(&mut self, round: RoundRecord) {
        let gateway = round.gateway.0;
        let is_wanted = self.groups.iter().any(|group| group.name == round.group);
        let is_new = self
            .newest
            .get(&gateway)
            .is_none_or(|newest| round.number > *newest);
        if is_wanted && is_new && round.started_at_s.saturating_add(1) >= self.at_s {
            self.found.entry((round.group.clone(), gateway)).or_insert(round);
        }
    }

    /// Who has run no round yet, in words.
    fn missing(&self) -> Vec<String> {
        let of_gateway = |(group, gateway): &Place| format!("gateway {gateway} with group {group}");
        let expected = self
            .expected
            .iter()
            .filter(|place| !self.found.contains_key(*place))
            .map(of_gateway);
        let of_nobody = self.groups.iter().filter(|group| {
            let is_of = |place: &Place| place.0 == group.name;
            !self.found.keys().any(is_of) && !self.expected.iter().any(is_of)
        });
        expected
            .chain(of_nobody.map(|group| format!("any gateway with group {}", group.name)))
            .collect()
    }

    fn tell(&self, output: Output) -> Result<(), Failure> {
        let mut rows = Vec::with_capacity(self.found.len());
        for round in self.found.values() {
            let line = Line {
                gateway_id: round.gateway.0,
                round: round.number,
                group: round.group.as_str(),
                period: round.period.0,
                started_at_s: round.started_at_s,
                ended_at_s: round.ended_at_s,
                asked: round.asked,
                ok: round.ok,
                late: round.late,
                silent: round.silent,
                last_proof_ms: (round.ok > 0 || round.late > 0).then_some(round.last_verdict_ms),
            };
            output.object(&Told::Round(Line { ..line }))?;
            let last = line
                .last_proof_ms
                .map_or_else(|| "–".to_owned(), |ms| format!("{} ms", ms.max(1)));
            rows.push(vec![
                line.gateway_id.to_string(),
                line.round.to_string(),
                line.group.to_owned(),
                line.asked.to_string(),
                line.ok.to_string(),
                line.late.to_string(),
                line.silent.to_string(),
                last,
            ]);
        }
        let header = [
            "gateway",
            "round",
            "group",
            "asked",
            "ok",
            "late",
            "silent",
            "last proof",
        ];
        output.table(&header, &[0, 1, 3, 4, 5, 6, 7], rows)
    }

    fn verdict(&self, wait_s: u64) -> Result<(), Failure> {
        let missing = self.missing();
        if missing.is_empty() {
            return Ok(());
        }
        let within = counted(wait_s, "second");
        Err(match self.found.is_empty() {
            true => Failure::failed(format!(
                "no gateway has run a round within {within}: is one running with [attest]?"
            )),
            false => Failure::failed(format!("no round within {within}: {}", missing.join(", "))),
        })
    }
}

/// Names all that have not proven in time.
fn tell_others(fleet: &Fleet, output: Output) -> Result<(), Failure> {
    status::warn(fleet);
    let is_well = |standing: &&Standing| standing.shown == Shown::Ok;
    let (well, others): (Vec<_>, Vec<_>) = fleet.standings.iter().partition(is_well);
    for standing in &others {
        output.object(&Told::Device(status::Line::from(*standing)))?;
    }
    status::table(&others, output)?;
    output.line(match others.len() {
        0 => format!("all is well: {}", counted(well.len() as u64, "device")),
        count => format!(
            "{} well, {count} not; `attest explain DEVICE` shows what one says it runs",
            counted(well.len() as u64, "device")
        ),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may")]
mod tests {
    use linewarden_protocol::ids::{GatewayId, Period};
    use linewarden_registry::GroupPolicy;

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
            asked: 1,
            ok: 1,
            late: 0,
            silent: 0,
            last_verdict_ms: 3,
        }
    }

    /// Of two groups; gateway 5 has asked the first one lately.
    fn order() -> Order {
        let group = |group: &str| Group {
            name: name(group),
            policy: GroupPolicy::default(),
            reference: None,
            roll_out: None,
            rounds_wanted: 1,
            revision: 1,
        };
        Order {
            groups: vec![group("pumps"), group("valves")],
            at_s: NOW_S,
            newest: HashMap::from([(5, 9)]),
            expected: BTreeSet::from([(name("pumps"), 5)]),
            found: BTreeMap::new(),
        }
    }

    #[test]
    fn rounds_of_before_the_order_and_of_others_are_none_of_it() {
        let mut order = order();
        for other in [
            round(5, "pumps", 9, NOW_S),
            round(5, "pumps", 10, NOW_S - 2),
            round(5, "doors", 11, NOW_S),
        ] {
            order.take(other);
        }
        assert!(order.found.is_empty());
        order.take(round(5, "pumps", 12, NOW_S));
        assert_eq!(order.missing(), ["any gateway with group valves"]);
        assert!(order.verdict(30).is_err());
        // A gateway that nobody knew of.
        order.take(round(6, "valves", 1, NOW_S + 1));
        assert!(order.missing().is_empty() && order.verdict(30).is_ok());
    }

    #[test]
    fn a_gateway_that_has_asked_lately_is_waited_for() {
        let mut order = order();
        order.take(round(6, "pumps", 1, NOW_S));
        order.take(round(6, "valves", 2, NOW_S));
        assert_eq!(order.missing(), ["gateway 5 with group pumps"]);
        assert_eq!(
            order.verdict(30).unwrap_err().to_string(),
            "no round within 30 seconds: gateway 5 with group pumps"
        );
    }
}
