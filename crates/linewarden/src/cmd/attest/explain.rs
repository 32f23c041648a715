//! `linewarden attest explain`.

use clap::Args;
use linewarden_agent::config::parse_device_id;
use linewarden_controller::attest::examine;
use linewarden_measurement::configuration::Configuration;
use linewarden_measurement::diff::Difference;
use linewarden_measurement::eventlog::{EventLog, Replayed, replays};
use linewarden_protocol::attest::PeriodStart;
use linewarden_protocol::ids::{DeviceId, Period};
use linewarden_registry::{Group, Protection, ProverRecord, Registry, RegistryError};
use linewarden_tpm::evidence::{Evidence, Examined};
use serde_json::{Value, json};

use super::standing::{Fleet, Shown, Standing, Which, ago};
use super::{reference, status};
use crate::cmd::device::date;
use crate::cmd::now_s;
use crate::failure::Failure;
use crate::output::Output;
use crate::registry::RegistryArgs;

/// Which device.
#[derive(Args, Debug)]
#[command(after_help = "\
A device proves that it runs what it should or nothing; what it runs instead is its own word, sent when it changes \
(`send_log` in its agent's configuration) and with each quote of its TPM, which alone speaks for the PCRs.

Examples:
  linewarden attest explain d1 --config gateway.toml
  linewarden attest explain d1 --json --config gateway.toml | jq .difference")]
pub struct ExplainArgs {
    /// Its id, up to 16 hexadecimal digits
    #[arg(value_parser = parse_device_id)]
    device: DeviceId,
    #[command(flatten)]
    registry: RegistryArgs,
    /// JSON for machines
    #[arg(long)]
    pub json: bool,
}

/// All that is known of a device.
struct Known {
    standing: Standing,
    protection: Protection,
    /// What its group runs, with its own entries over it.
    base: Expected,
    /// Likewise of what is rolled out, and until when.
    roll_out: Option<(Expected, u64)>,
    own: Option<Expected>,
    told: Option<Told>,
    /// The period that runs.
    running: Option<u64>,
    now_s: u64,
    /// The log that came before, if it replays to what the device should run.
    log_before: Option<Replayed>,
}

/// A configuration, or why there is none.
type Expected = Result<Configuration, String>;

/// What the device says.
struct Told {
    at_s: u64,
    period: Option<u64>,
    examined: Result<Examined, String>,
}

/// Shows all that is known.
pub fn run(args: &ExplainArgs, output: Output) -> Result<(), Failure> {
    let now_s = now_s()?;
    let known = args
        .registry
        .with(async |registry| read(registry, args.device, now_s).await)?;
    match output.is_json() {
        true => output.object(&as_json(&known)),
        false => tell(&known, output),
    }
}

async fn read(registry: &Registry, device: DeviceId, now_s: u64) -> Result<Known, Failure> {
    let fleet = Fleet::read(registry, Which::Named(&[device]), now_s).await?;
    status::warn(&fleet);
    let not_attested = || RegistryError::NotAProver { device };
    let standing = fleet.standings.into_iter().next().ok_or_else(not_attested)?;
    let prover = registry.prover(device).await?.ok_or_else(not_attested)?;
    let group = super::group::find(registry, &prover.group).await?;
    let own = prover.overlay.as_deref().map(decode);
    let base = match &group.reference {
        None => Err(format!(
            "nobody has said: group {} has no reference value",
            group.name
        )),
        Some(encoding) => overlaid(encoding, own.as_ref()),
    };
    let told = match registry.evidence(device).await? {
        None => None,
        Some((at_s, document)) => Some(told(registry, &prover, at_s, &document).await?),
    };
    let running = registry.newest_begun_period().await?;
    let before = registry.evidence_before(device).await?;
    let log_before = before
        .zip(base.as_ref().ok())
        .and_then(|((_, document), base)| log_that_replays(&document, base));
    Ok(Known {
        protection: prover.protection,
        roll_out: roll_out(&group, own.as_ref()),
        standing,
        base,
        own,
        told,
        running: running.map(|period| period.number.0),
        now_s,
        log_before,
    })
}

fn decode(encoding: &[u8]) -> Expected {
    Configuration::decode(encoding).map_err(|error| error.to_string())
}

fn overlaid(encoding: &[u8], own: Option<&Expected>) -> Expected {
    let base = decode(encoding)?;
    match own {
        None => Ok(base),
        Some(own) => base
            .overlaid(own.as_ref().map_err(Clone::clone)?)
            .map_err(|error| error.to_string()),
    }
}

fn roll_out(group: &Group, own: Option<&Expected>) -> Option<(Expected, u64)> {
    let roll_out = group.roll_out.as_ref()?;
    Some((overlaid(&roll_out.reference, own), roll_out.until_s))
}

/// Looks at a document once more, as it was looked at when it came.
async fn told(
    registry: &Registry,
    prover: &ProverRecord,
    at_s: u64,
    document: &[u8],
) -> Result<Told, Failure> {
    let evidence = match Evidence::read(document) {
        Ok(evidence) => evidence,
        Err(error) => {
            return Ok(Told {
                at_s,
                period: None,
                examined: Err(error.to_string()),
            });
        }
    };
    let examined = match registry.period(Period(evidence.period)).await? {
        None => Err(format!("its period {} is not kept any more", evidence.period)),
        Some(period) => {
            let start = PeriodStart {
                period: period.number,
                salt: period.salt,
            };
            examine(prover, &evidence, &start).map_err(|error| error.to_string())
        }
    };
    Ok(Told {
        at_s,
        period: Some(evidence.period),
        examined,
    })
}

/// The log of an older document, if it is of the boot that is expected.
fn log_that_replays(document: &[u8], base: &Configuration) -> Option<Replayed> {
    let log = Evidence::read(document).ok()?.event_log?;
    replays(&EventLog::parse(&log).ok()?, base.pcrs()).ok()
}

impl Known {
    /// What differs from what it should run; nothing where one of both is not known.
    fn difference(&self) -> Option<Difference> {
        let examined = self.told.as_ref()?.examined.as_ref().ok()?;
        let difference = Difference::between(self.base.as_ref().ok()?, &examined.configuration);
        Some(match (&self.log_before, &examined.replayed) {
            (Some(before), Some(now)) => difference.with_events(before, now),
            _ => difference,
        })
    }

    /// Whether the device has proven what it should since it has said that it runs something else.
    fn is_old(&self) -> bool {
        let told = self.told.as_ref();
        told.is_some_and(|told| self.standing.has_proven_since(told.at_s))
    }

    /// Why what the device has said may be of another start of it than the one that is asked now.
    fn outdated(&self) -> Option<String> {
        let told = self.told.as_ref()?;
        let standing = &self.standing;
        if told.at_s < standing.enrolled_at_s {
            let enrolled = date(standing.enrolled_at_s);
            return Some(format!("it is older than the enrolment of {enrolled}"));
        }
        let is_silent = matches!(standing.shown, Shown::Silent | Shown::Quarantined);
        let since_s = standing
            .since_s
            .filter(|since_s| is_silent && told.at_s <= *since_s)?;
        Some(format!(
            "{} since {}: the device may have been started anew since, and run something else",
            standing.text(),
            date(since_s)
        ))
    }

    fn is_rolled_out(&self) -> bool {
        let said = self.told.as_ref().and_then(|told| told.examined.as_ref().ok());
        let roll_out = self
            .roll_out
            .as_ref()
            .and_then(|(expected, _)| expected.as_ref().ok());
        said.zip(roll_out)
            .is_some_and(|(said, roll_out)| said.configuration == *roll_out)
    }

    /// Who has signed what it says.
    fn signed_by(&self, examined: &Examined) -> String {
        match (&examined.quoted, self.protection) {
            (Some(quote), _) => format!(
                "its TPM has signed the PCRs (quote verified; {} starts, firmware {:#x}); files are the device's word",
                quote.clock.reset_count, quote.firmware_version
            ),
            (None, Protection::Tpm) => "nobody: the device's word, no quote came with it".to_owned(),
            (None, Protection::Software) => "nobody: the device's word, it has no TPM".to_owned(),
        }
    }
}

fn hash(expected: &Expected) -> Value {
    match expected {
        Ok(configuration) => json!(configuration.hash()),
        Err(_) => Value::Null,
    }
}

fn as_json(known: &Known) -> Value {
    let told = known.told.as_ref().map(|told| match &told.examined {
        Ok(examined) => json!({
            "at_s": told.at_s,
            "age_s": known.now_s.saturating_sub(told.at_s),
            "period": told.period,
            "hash": examined.configuration.hash(),
            "configuration": examined.configuration,
            "quote": examined.quoted,
            "unexplained": examined.replayed.as_ref().map(|log| log.unexplained().collect::<Vec<_>>()),
            "notices": examined.notices(),
        }),
        Err(why) => json!({
            "at_s": told.at_s, "age_s": known.now_s.saturating_sub(told.at_s), "period": told.period, "unbelieved": why,
        }),
    });
    let expected = |expected: &Expected| match expected {
        Ok(configuration) => json!({ "hash": configuration.hash(), "configuration": configuration }),
        Err(why) => json!({ "hash": null, "unknown": why }),
    };
    json!({
        "device": status::Line::from(&known.standing),
        "should_run": expected(&known.base),
        "roll_out": known.roll_out.as_ref().map(|(expected, until_s)| json!({
            "hash": hash(expected), "until_s": until_s,
        })),
        "own": known.own.as_ref().map(expected),
        "says": told,
        "difference": known.difference(),
        "is_old": known.is_old(),
        "outdated": known.outdated(),
        "running_period": known.running,
        "is_rolled_out": known.is_rolled_out(),
    })
}

fn tell(known: &Known, output: Output) -> Result<(), Failure> {
    let standing = &known.standing;
    let shown = |expected: &Expected| match expected {
        Ok(configuration) => format!("{} ({})", configuration.hash(), reference::extent(configuration)),
        Err(why) => why.clone(),
    };
    let mut fields = vec![
        ("device", standing.device.to_string()),
        ("name", standing.name.clone()),
        ("group", standing.group.to_string()),
        ("key", standing.key().to_owned()),
        ("state", state(standing)),
    ];
    fields.extend(standing.reason.clone().map(|reason| ("why", reason)));
    fields.extend(standing.waits_for().map(|waits_for| ("waits for", waits_for)));
    if let Some(appraisal) = &standing.appraisal {
        let address = appraisal
            .address
            .map_or_else(String::new, |address| format!(", at {address}"));
        fields.push(("asked by", format!("gateway {}{address}", appraisal.gateway)));
    }
    fields.push((
        "enrolled at",
        match standing.home {
            Some(home) => format!(
                "UDP port {}, without a session by gateway {} at {}",
                standing.port, home.gateway, home.address
            ),
            None => format!("UDP port {}, by nobody before its first session", standing.port),
        },
    ));
    fields.push(("should run", shown(&known.base)));
    fields.extend(known.own.as_ref().map(|own| ("of its own", shown(own))));
    fields.extend(known.roll_out.as_ref().map(|(expected, until_s)| {
        let when = if known.now_s < *until_s {
            "until"
        } else {
            "over since"
        };
        (
            "or, rolled out",
            format!("{}, {when} {}", shown(expected), date(*until_s)),
        )
    }));
    match &known.told {
        None => fields.push(("says it runs", "nothing yet".to_owned())),
        Some(told) => fields.extend(said(known, told)),
    }
    output.fields(&fields)?;
    conclusion(known, output)
}

fn state(standing: &Standing) -> String {
    match standing.since_s {
        Some(since_s) => format!("{}, since {}", standing.text(), date(since_s)),
        None => standing.text(),
    }
}

fn said(known: &Known, told: &Told) -> Vec<(&'static str, String)> {
    let period = match (told.period, known.running) {
        (Some(period), Some(running)) if period != running => {
            format!(", of period {period} (period {running} runs)")
        }
        (Some(period), _) => format!(", of period {period}"),
        (None, _) => String::new(),
    };
    let age = ago(known.now_s.saturating_sub(told.at_s));
    let came = format!("{}, {age} ago{period}", date(told.at_s));
    let mut fields = match &told.examined {
        Ok(examined) => {
            let runs = format!(
                "{} ({})",
                examined.configuration.hash(),
                reference::extent(&examined.configuration)
            );
            let mut fields = vec![
                ("says it runs", runs),
                ("said on", came),
                ("signed by", known.signed_by(examined)),
            ];
            let notices = examined.notices().into_iter();
            fields.extend(notices.map(|notice| ("notice", notice.to_string())));
            fields
        }
        Err(why) => vec![
            ("says it runs", format!("what cannot be believed: {why}")),
            ("said on", came),
        ],
    };
    fields.extend(known.outdated().map(|why| ("outdated", why)));
    fields
}

fn conclusion(known: &Known, output: Output) -> Result<(), Failure> {
    let Some(told) = &known.told else {
        return output.line(
            "It has sent no evidence. With `send_log = true` under [attest] its agent sends some when what it runs changes, as soon \
             as it has a session.",
        );
    };
    if told.examined.is_err() {
        return Ok(());
    }
    let is_outdated = known.outdated().is_some();
    let now = match is_outdated {
        true => " Outdated: what it runs now is not known.",
        false => "",
    };
    if known.is_rolled_out() {
        return output.line(format_args!("It says it runs what is being rolled out.{now}"));
    }
    match known.difference() {
        None => Ok(()),
        Some(difference) if difference.is_empty() => {
            output.line(format_args!("It says it runs what it should.{now}"))
        }
        Some(_) if known.is_old() => output.line(
            "It has proven since that it runs what it should: what it said before is over, and not shown (--json has it).",
        ),
        Some(difference) => {
            output.line(match is_outdated {
                true => "What differed from what it should run when it was last heard:",
                false => "What differs from what it should run:",
            })?;
            for line in difference.to_string().lines() {
                output.line(format_args!("  {line}"))?;
            }
            match difference.pcrs.is_empty() || known.log_before.is_some() {
                true => Ok(()),
                false => output.line(
                    "No event log of the boot that is expected has come from it, so the events cannot be compared.",
                ),
            }
        }
    }
}
