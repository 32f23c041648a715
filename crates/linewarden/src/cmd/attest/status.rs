//! `linewarden attest status`.

use std::path::{Path, PathBuf};

use clap::Args;
use linewarden_agent::config::parse_device_id;
use linewarden_controller::attest::{Outcome, SUBMODULES_MAX};
use linewarden_protocol::gateway::Configuration;
use linewarden_protocol::ids::DeviceId;
use linewarden_registry::{GroupName, GroupPolicy, State};
use serde::Serialize;

use super::group;
use super::standing::{Fleet, Shown, Standing, Which};
use crate::cmd::device::{date, left_out};
use crate::cmd::now_s;
use crate::failure::Failure;
use crate::output::{Output, counted};
use crate::registry::RegistryArgs;
use crate::secret_file;

/// Which devices.
#[derive(Args, Debug)]
#[command(after_help = "\
ok: proves what it is to run. late: does, after its group's time. silent: proves nothing, or something else. quarantined: shut \
out. never asked: no gateway has asked it since it was enrolled. never proved: it was asked, and has shown nothing since then; \
silence does not shut it out before its first proof. STALE: no gateway has looked for two intervals, and what it \
was seen to prove before says nothing about now. Revoked devices are left out unless they are named.

--ear prints attestation results (EAR, draft-ietf-rats-ear) as signed tokens, one for each hundred devices: what is not \
proven now is not affirmed, and devices that nobody has asked are left out.

Examples:
  linewarden attest status --config gateway.toml
  linewarden attest status --group pumps --fail --config gateway.toml
  linewarden attest status --state silent --state quarantined --config gateway.toml
  linewarden attest status d1 d2 --json --config gateway.toml
  linewarden attest status --ear --signing-key results.pem --config gateway.toml")]
pub struct StatusArgs {
    /// Their ids, up to 16 hexadecimal digits; all if none is named
    #[arg(value_parser = parse_device_id)]
    devices: Vec<DeviceId>,
    /// Only devices of this group
    #[arg(long, value_name = "NAME", conflicts_with = "devices")]
    group: Option<GroupName>,
    /// Only devices in this state; may be given more than once
    #[arg(long, value_name = "STATE", conflicts_with = "ear")]
    state: Vec<Shown>,
    /// Exit code 1 unless all are ok, also those that --state leaves out
    #[arg(long)]
    fail: bool,
    /// Print signed results
    #[arg(long, requires = "signing_key")]
    ear: bool,
    /// --ear: the key's file, which `attest key` has made
    #[arg(long, value_name = "FILE", requires = "ear")]
    signing_key: Option<PathBuf>,
    #[command(flatten)]
    registry: RegistryArgs,
    /// JSON for machines, one object a line
    #[arg(long)]
    pub json: bool,
}

/// A device for machines.
#[derive(Serialize)]
pub struct Line<'a> {
    device_id: String,
    name: &'a str,
    group: &'a str,
    key: &'static str,
    state: Shown,
    since_s: Option<u64>,
    age_s: Option<u64>,
    gateway_id: Option<u32>,
    /// Since which of its gateway's rounds it stands so.
    since_round: Option<u32>,
    /// The newest round of its group there.
    last_round: Option<u32>,
    address: Option<std::net::IpAddr>,
    port: u16,
    /// Where it is asked that was not asked yet.
    home: Option<HomeLine>,
    reference: Option<&'static str>,
    /// What has to happen before it is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_for: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

#[derive(Serialize)]
struct HomeLine {
    gateway_id: u32,
    address: std::net::IpAddr,
}

impl<'a> From<&'a Standing> for Line<'a> {
    fn from(standing: &'a Standing) -> Self {
        let appraisal = standing.appraisal.as_ref();
        Self {
            device_id: standing.device.to_string(),
            name: &standing.name,
            group: standing.group.as_str(),
            key: standing.key(),
            state: standing.shown,
            since_s: standing.since_s,
            age_s: standing.age_s,
            gateway_id: appraisal.map(|appraisal| appraisal.gateway.0),
            since_round: appraisal.map(|appraisal| appraisal.since_round),
            last_round: standing.last_round,
            address: appraisal.and_then(|appraisal| appraisal.address),
            port: standing.port,
            home: standing.home.map(|home| HomeLine {
                gateway_id: home.gateway.0,
                address: home.address,
            }),
            reference: appraisal
                .filter(|_| matches!(standing.shown, Shown::Ok | Shown::Late))
                .map(|appraisal| match appraisal.configuration {
                    Configuration::Current => "base",
                    Configuration::Alternate => "roll-out",
                }),
            waits_for: standing.waits_for(),
            reason: standing.reason.as_deref(),
        }
    }
}

/// Prints how devices stand.
pub fn run(args: &StatusArgs, output: Output) -> Result<(), Failure> {
    let now_s = now_s()?;
    let fleet = args.registry.with(async |registry| {
        let which = match (&args.group, args.devices.as_slice()) {
            (Some(name), _) => {
                group::find(registry, name).await?;
                Which::Of(std::slice::from_ref(name))
            }
            (None, []) => Which::All,
            (None, devices) => Which::Named(devices),
        };
        Fleet::read(registry, which, now_s).await
    })?;
    warn(&fleet);
    match &args.signing_key {
        Some(path) if args.ear => tell_results(&fleet, path, now_s, output)?,
        _ => tell(&fleet, &args.state, output)?,
    }
    verdict(&fleet, args.fail)
}

/// What makes the rest say less than it seems to.
pub fn warn(fleet: &Fleet) {
    for record in &fleet.damaged {
        tracing::error!(record, "left out");
    }
    for round in &fleet.incomplete {
        tracing::warn!(
            gateway = round.gateway.0,
            group = %round.group,
            asked = round.asked,
            expected = round.expected,
            "its last round has not asked all whom it had asked before: some have moved, or have no address any more"
        );
    }
}

/// Shows those in these states, or all, and counts all.
fn tell(fleet: &Fleet, states: &[Shown], output: Output) -> Result<(), Failure> {
    let is_meant = |standing: &&Standing| states.is_empty() || states.contains(&standing.shown);
    let meant: Vec<&Standing> = fleet.standings.iter().filter(is_meant).collect();
    for standing in &meant {
        output.object(&Line::from(*standing))?;
    }
    table(&meant, output)?;
    let counts: Vec<String> = Shown::ALL
        .into_iter()
        .map(|shown| (shown, fleet.count(shown)))
        .filter(|(_, count)| *count > 0)
        .map(|(shown, count)| format!("{count} {}", shown.name()))
        .collect();
    let all = counted(fleet.standings.len() as u64, "device");
    output.line(match counts.is_empty() {
        true => all,
        false => format!("{all}: {}", counts.join(", ")),
    })
}

/// A table of devices.
pub fn table(standings: &[&Standing], output: Output) -> Result<(), Failure> {
    let row = |standing: &&Standing| {
        let appraisal = standing.appraisal.as_ref();
        let none = || "–".to_owned();
        vec![
            standing.device.to_string(),
            standing.name.clone(),
            standing.group.to_string(),
            standing.key().to_owned(),
            standing.text(),
            standing.since_s.map_or_else(none, date),
            appraisal.map_or_else(none, |appraisal| appraisal.gateway.to_string()),
        ]
    };
    let header = ["device", "name", "group", "key", "state", "since", "gateway"];
    output.table(&header, &[6], standings.iter().map(row).collect())
}

/// Damaged records hide devices: nothing is well with them.
fn verdict(fleet: &Fleet, all_must_be_ok: bool) -> Result<(), Failure> {
    if !fleet.damaged.is_empty() {
        return Err(left_out(fleet.damaged.len() as u64));
    }
    if !all_must_be_ok {
        return Ok(());
    }
    let (all, ok) = (fleet.standings.len() as u64, fleet.count(Shown::Ok));
    if all == 0 {
        return Err(Failure::failed("no device is attested"));
    }
    if ok < all {
        return Err(Failure::failed(format!(
            "{} of {} not ok",
            all - ok,
            counted(all, "device")
        )));
    }
    match fleet.incomplete.first() {
        None => Ok(()),
        Some(round) => Err(Failure::failed(format!(
            "gateway {} has asked {} of {} devices of group {} in its last round",
            round.gateway, round.asked, round.expected, round.group
        ))),
    }
}

fn tell_results(fleet: &Fleet, signing_key: &Path, now_s: u64, output: Output) -> Result<(), Failure> {
    let signer = secret_file::signer(signing_key)?;
    let known: Vec<(&Standing, Outcome)> = fleet
        .standings
        .iter()
        .filter_map(|standing| Some((standing, outcome(standing)?)))
        .collect();
    if known.len() < fleet.standings.len() {
        let without = fleet.standings.len() - known.len();
        tracing::warn!(
            devices = without,
            "left out of the results: nobody has asked them, or they are revoked"
        );
    }
    for part in known.chunks(SUBMODULES_MAX) {
        let good_until_s = part
            .iter()
            .filter_map(|(standing, _)| standing.good_until_s)
            .min();
        let expires_s =
            good_until_s.unwrap_or_else(|| now_s.saturating_add(GroupPolicy::default().good_for_s()));
        let outcomes: Vec<Outcome> = part.iter().map(|(_, outcome)| outcome.clone()).collect();
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

/// What is signed of a device; nothing of one that was never asked.
fn outcome(standing: &Standing) -> Option<Outcome> {
    let mut appraisal = standing.appraisal.clone()?;
    match standing.shown {
        Shown::Revoked | Shown::NeverAsked => return None,
        Shown::Quarantined => appraisal.state = State::Quarantined,
        Shown::Silent => appraisal.state = State::Silent,
        Shown::NeverProved => appraisal.state = State::Unproven,
        Shown::Ok | Shown::Late | Shown::Stale => {}
    }
    Some(Outcome {
        appraisal,
        protection: standing.protection,
        group: standing.group.to_string(),
        is_stale: standing.shown == Shown::Stale,
    })
}
