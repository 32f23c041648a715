//! `linewarden attest show`.

use clap::Args;
use linewarden_api::{AttestationResult, ResultQuery};
use linewarden_cli::failure::Failure;
use linewarden_cli::now_s;
use linewarden_cli::output::Output;
use linewarden_client::Client;
use linewarden_controller::attest::examine;
use linewarden_measurement::configuration::Configuration;
use linewarden_measurement::diff::Difference;
use linewarden_measurement::eventlog::{EventLog, ReplayedLog, verify_replay};
use linewarden_protocol::attest::PeriodStart;
use linewarden_protocol::ids::{DeviceId, Period};
use linewarden_registry::{AttestationError, Group, Protection, ProverRecord, Registry, RegistryError};
use linewarden_service::LocalApi;
use linewarden_tpm::evidence::{CheckedEvidence, Evidence};
use serde_json::{Value, json};

use super::record::find_group;
use super::reference;
use super::results::{ResultLine, Results, age_text, has_proven_since, pending_action, state_text};
use crate::date::date;
use crate::registry::RegistryArgs;

/// Arguments of `linewarden attest show`.
#[derive(Args, Debug)]
#[command(after_help = "\
A proof shows that a device runs its reference value. The evidence of a different configuration is the device's own claim. The agent sends \
evidence when the configuration changes (`send_log` in the agent's configuration), and with each quote of the TPM; a quote authenticates \
the PCRs.

Examples:
  linewarden attest show d1 --config controller.toml
  linewarden attest show d1 --output json --config controller.toml | jq .difference")]
pub struct ShowArgs {
    /// Device ID (1 to 16 hexadecimal digits)
    device: DeviceId,
    #[command(flatten)]
    registry: RegistryArgs,
}

/// The registry's records of a device.
struct DeviceDetails {
    result: AttestationResult,
    protection: Protection,
    /// The group's reference value with the device's overlay.
    base: Expected,
    /// The reference value of the roll-out with the device's overlay, and the end of the roll-out, seconds since 1970-01-01 UTC.
    roll_out: Option<(Expected, u64)>,
    overlay: Option<Expected>,
    claim: Option<DeviceClaim>,
    /// The current period.
    current_period: Option<u64>,
    now_s: u64,
    /// The TCG event log of the previous evidence, if this log replays to the expected PCRs.
    log_before: Option<ReplayedLog>,
}

/// A configuration, or the reason why it is unknown.
type Expected = Result<Configuration, String>;

/// The configuration that the device claims in its evidence.
struct DeviceClaim {
    at_s: u64,
    period: Option<u64>,
    checked_evidence: Result<CheckedEvidence, String>,
}

/// Prints the registry's records of a device.
pub fn run(args: &ShowArgs, output: Output) -> Result<(), Failure> {
    let now_s = now_s()?;
    let details = args
        .registry
        .with(async |registry| read(registry, args.device, now_s).await)?;
    match output.is_json() {
        true => output.object(&as_json(&details)),
        false => print_details(&details, output),
    }
}

async fn read(registry: &Registry, device: DeviceId, now_s: u64) -> Result<DeviceDetails, Failure> {
    let client = Client::in_process(LocalApi::new(registry.clone(), None).await?)?;
    let query = ResultQuery {
        devices: Some(device.to_string()),
        ..ResultQuery::default()
    };
    let results = Results::read(&client, &query).await?;
    let not_attested = || RegistryError::Attestation(AttestationError::NotAProver { device });
    let result = results.results.into_iter().next().ok_or_else(not_attested)?;
    let prover = registry.prover(device).await?.ok_or_else(not_attested)?;
    let group = find_group(registry, &prover.group).await?;
    let overlay = prover.overlay.as_deref().map(decode);
    let base = match &group.reference {
        None => Err(format!("unknown: group {} has no reference value", group.name)),
        Some(encoding) => decode_with_overlay(encoding, overlay.as_ref()),
    };
    let claim = match registry.evidence(device).await? {
        None => None,
        Some((at_s, document)) => Some(read_claim(registry, &prover, at_s, &document).await?),
    };
    let current_period = registry.newest_started_period().await?;
    let previous_evidence = registry.previous_evidence(device).await?;
    let log_before = previous_evidence
        .zip(base.as_ref().ok())
        .and_then(|((_, document), base)| log_that_replays(&document, base));
    Ok(DeviceDetails {
        protection: prover.protection,
        roll_out: roll_out(&group, overlay.as_ref()),
        result,
        base,
        overlay,
        claim,
        current_period: current_period.map(|period| period.number.0),
        now_s,
        log_before,
    })
}

fn decode(encoding: &[u8]) -> Expected {
    Configuration::decode(encoding).map_err(|error| error.to_string())
}

fn decode_with_overlay(encoding: &[u8], overlay: Option<&Expected>) -> Expected {
    let base = decode(encoding)?;
    match overlay {
        None => Ok(base),
        Some(overlay) => base
            .with_overlay(overlay.as_ref().map_err(Clone::clone)?)
            .map_err(|error| error.to_string()),
    }
}

fn roll_out(group: &Group, overlay: Option<&Expected>) -> Option<(Expected, u64)> {
    let roll_out = group.roll_out.as_ref()?;
    Some((
        decode_with_overlay(&roll_out.reference, overlay),
        roll_out.until_s,
    ))
}

/// Appraises an evidence document again, in the same way as the controller that received the document.
async fn read_claim(
    registry: &Registry,
    prover: &ProverRecord,
    at_s: u64,
    document: &[u8],
) -> Result<DeviceClaim, Failure> {
    let evidence = match Evidence::read(document) {
        Ok(evidence) => evidence,
        Err(error) => {
            return Ok(DeviceClaim {
                at_s,
                period: None,
                checked_evidence: Err(error.to_string()),
            });
        }
    };
    let checked_evidence = match registry.period(Period(evidence.period)).await? {
        None => Err(format!("period {} is no longer stored", evidence.period)),
        Some(period) => {
            let start = PeriodStart {
                period: period.number,
                salt: period.salt,
            };
            examine(prover, &evidence, &start).map_err(|error| error.to_string())
        }
    };
    Ok(DeviceClaim {
        at_s,
        period: Some(evidence.period),
        checked_evidence,
    })
}

/// The TCG event log of an earlier evidence document, if this log replays to the PCRs of the expected boot.
fn log_that_replays(document: &[u8], base: &Configuration) -> Option<ReplayedLog> {
    let log = Evidence::read(document).ok()?.event_log?;
    verify_replay(&EventLog::parse(&log).ok()?, base.pcrs()).ok()
}

impl DeviceDetails {
    /// The difference between the expected and the claimed configuration; `None` if either configuration is unknown.
    fn difference(&self) -> Option<Difference> {
        let checked_evidence = self.claim.as_ref()?.checked_evidence.as_ref().ok()?;
        let difference = Difference::between(self.base.as_ref().ok()?, &checked_evidence.configuration);
        Some(match (&self.log_before, &checked_evidence.replayed) {
            (Some(before), Some(now)) => difference.with_events(before, now),
            _ => difference,
        })
    }

    /// Whether the device has proven its configuration in a round since its last claim.
    fn is_superseded(&self) -> bool {
        let claim = self.claim.as_ref();
        claim.is_some_and(|claim| has_proven_since(&self.result, claim.at_s))
    }

    /// The reason why the claim may belong to an earlier boot; `None` if there is no such reason.
    fn outdated_reason(&self) -> Option<String> {
        let claim = self.claim.as_ref()?;
        let result = &self.result;
        if claim.at_s < result.enrolled_at_s {
            let enrolled = date(result.enrolled_at_s);
            return Some(format!("evidence is older than the enrollment of {enrolled}"));
        }
        let has_no_proof = matches!(&*result.state, "missed" | "quarantined");
        let since_s = result
            .since_s
            .filter(|since_s| has_no_proof && claim.at_s <= *since_s)?;
        Some(format!(
            "{} since {}: the device may have restarted since with another configuration",
            state_text(result),
            date(since_s)
        ))
    }

    /// Whether the claimed configuration equals the reference value of the roll-out.
    fn is_rolled_out(&self) -> bool {
        let claimed = self
            .claim
            .as_ref()
            .and_then(|claim| claim.checked_evidence.as_ref().ok());
        let roll_out = self
            .roll_out
            .as_ref()
            .and_then(|(expected, _)| expected.as_ref().ok());
        claimed
            .zip(roll_out)
            .is_some_and(|(claimed, roll_out)| claimed.configuration == *roll_out)
    }

    /// Describes the signature of the claim.
    fn signature_text(&self, checked_evidence: &CheckedEvidence) -> String {
        match (&checked_evidence.verified_quote, self.protection) {
            (Some(quote), _) => format!(
                "its TPM signed the PCRs (quote verified; {} starts, firmware {:#x}); files are the device's claim",
                quote.clock.reset_count, quote.firmware_version
            ),
            (None, Protection::Tpm) => "not signed: the device's claim, without a quote".to_owned(),
            (None, Protection::Software) => "not signed: the device's claim, without a TPM".to_owned(),
        }
    }
}

fn hash(expected: &Expected) -> Value {
    match expected {
        Ok(configuration) => json!(configuration.hash()),
        Err(_) => Value::Null,
    }
}

fn as_json(details: &DeviceDetails) -> Value {
    let claim = details.claim.as_ref().map(|claim| match &claim.checked_evidence {
        Ok(checked_evidence) => json!({
            "at_s": claim.at_s,
            "age_s": details.now_s.saturating_sub(claim.at_s),
            "period": claim.period,
            "hash": checked_evidence.configuration.hash(),
            "configuration": checked_evidence.configuration,
            "quote": checked_evidence.verified_quote,
            "unexplained": checked_evidence.replayed.as_ref().map(|log| log.unexplained().collect::<Vec<_>>()),
            "notices": checked_evidence.notices(),
        }),
        Err(reason) => json!({
            "at_s": claim.at_s, "age_s": details.now_s.saturating_sub(claim.at_s), "period": claim.period, "rejected_reason": reason,
        }),
    });
    let expected = |expected: &Expected| match expected {
        Ok(configuration) => json!({ "hash": configuration.hash(), "configuration": configuration }),
        Err(reason) => json!({ "hash": null, "error": reason }),
    };
    json!({
        "device": ResultLine::from(&details.result),
        "expected": expected(&details.base),
        "roll_out": details.roll_out.as_ref().map(|(expected, until_s)| json!({
            "hash": hash(expected), "until_s": until_s,
        })),
        "overlay": details.overlay.as_ref().map(expected),
        "claimed": claim,
        "difference": details.difference(),
        "is_superseded": details.is_superseded(),
        "outdated": details.outdated_reason(),
        "running_period": details.current_period,
        "is_rolled_out": details.is_rolled_out(),
    })
}

fn print_details(details: &DeviceDetails, output: Output) -> Result<(), Failure> {
    let result = &details.result;
    let text = |expected: &Expected| match expected {
        Ok(configuration) => format!(
            "{} ({})",
            configuration.hash(),
            reference::size_text(configuration)
        ),
        Err(reason) => reason.clone(),
    };
    let mut fields = vec![
        ("device", result.device.clone()),
        ("name", result.name.clone()),
        ("group", result.group.clone()),
        ("key", result.protection.clone().into_owned()),
        ("state", state_since_text(result)),
    ];
    fields.extend(result.reason.clone().map(|reason| ("reason", reason)));
    fields.extend(pending_action(result).map(|action| ("pending", action)));
    if let Some(gateway) = result.gateway {
        let address = result
            .address
            .map_or_else(String::new, |address| format!(", at {address}"));
        fields.push(("attested by", format!("gateway {gateway}{address}")));
    }
    fields.push((
        "attested at",
        match &result.location {
            Some(location) => format!(
                "UDP port {}; while the device has no session, gateway {} attests it at {}",
                result.port, location.gateway, location.address
            ),
            None => format!("UDP port {}, not attested before its first session", result.port),
        },
    ));
    fields.push(("expected", text(&details.base)));
    fields.extend(details.overlay.as_ref().map(|overlay| ("overlay", text(overlay))));
    fields.extend(details.roll_out.as_ref().map(|(expected, until_s)| {
        let when = if details.now_s < *until_s {
            "until"
        } else {
            "expired"
        };
        (
            "roll-out",
            format!("{}, {when} {}", text(expected), date(*until_s)),
        )
    }));
    match &details.claim {
        None => fields.push(("claimed", "no evidence yet".to_owned())),
        Some(claim) => fields.extend(claim_fields(details, claim)),
    }
    output.fields(&fields)?;
    print_conclusion(details, output)
}

fn state_since_text(result: &AttestationResult) -> String {
    match result.since_s {
        Some(since_s) => format!("{}, since {}", state_text(result), date(since_s)),
        None => state_text(result),
    }
}

fn claim_fields(details: &DeviceDetails, claim: &DeviceClaim) -> Vec<(&'static str, String)> {
    let period = match (claim.period, details.current_period) {
        (Some(period), Some(running)) if period != running => {
            format!(", of period {period} (current period {running})")
        }
        (Some(period), _) => format!(", of period {period}"),
        (None, _) => String::new(),
    };
    let age = age_text(details.now_s.saturating_sub(claim.at_s));
    let received_at = format!("{}, {age} ago{period}", date(claim.at_s));
    let mut fields = match &claim.checked_evidence {
        Ok(checked_evidence) => {
            let hash_text = format!(
                "{} ({})",
                checked_evidence.configuration.hash(),
                reference::size_text(&checked_evidence.configuration)
            );
            let mut fields = vec![
                ("claimed", hash_text),
                ("received", received_at),
                ("signed by", details.signature_text(checked_evidence)),
            ];
            let notices = checked_evidence.notices().into_iter();
            fields.extend(notices.map(|notice| ("notice", notice.to_string())));
            fields
        }
        Err(reason) => vec![
            ("claimed", format!("rejected: {reason}")),
            ("received", received_at),
        ],
    };
    fields.extend(details.outdated_reason().map(|reason| ("outdated", reason)));
    fields
}

fn print_conclusion(details: &DeviceDetails, output: Output) -> Result<(), Failure> {
    let Some(claim) = &details.claim else {
        return output.line(
            "No evidence. With `send_log = true` under [attest] the agent sends evidence when its configuration changes, in a session.",
        );
    };
    if claim.checked_evidence.is_err() {
        return Ok(());
    }
    let is_outdated = details.outdated_reason().is_some();
    let outdated_note = match is_outdated {
        true => " Outdated: the present configuration is unknown.",
        false => "",
    };
    if details.is_rolled_out() {
        return output.line(format_args!(
            "The claimed configuration is the roll-out.{outdated_note}"
        ));
    }
    match details.difference() {
        None => Ok(()),
        Some(difference) if difference.is_empty() => {
            output.line(format_args!("The claimed configuration is the expected one.{outdated_note}"))
        }
        Some(_) if details.is_superseded() => output.line(
            "The device has since proven the expected configuration; its earlier claim is superseded and not shown (--output json shows it).",
        ),
        Some(difference) => {
            output.line(match is_outdated {
                true => "Differences from the expected configuration at the last evidence:",
                false => "Differences from the expected configuration:",
            })?;
            for line in difference.to_string().lines() {
                output.line(format_args!("  {line}"))?;
            }
            match difference.pcrs.is_empty() || details.log_before.is_some() {
                true => Ok(()),
                false => output.line(
                    "Events not compared: no TCG event log of the expected boot.",
                ),
            }
        }
    }
}
