//! The trust policy of a gateway, built from the configuration of the gateway or of a controller.

use linewarden_cli::failure::Failure;
use std::collections::BTreeSet;

use linewarden_controller::trust::TrustPolicy;
use linewarden_dataplane::p4runtime::changing_objects;
use linewarden_evidence::SwitchId;
use linewarden_evidence::appraisal::Reference;
use linewarden_evidence::encoding::Object;
use linewarden_evidence::statement::DataPlaneKind;
use linewarden_gateway::config::TrustSection;
use linewarden_protocol::ids::GatewayId;

use crate::{cmd, evidence_key};

/// Builds the trust policy. `kind` is the kind of the data plane if known; otherwise that of the reference values.
///
/// # Errors
/// Reference values or a key cannot be read, or reference values are of another data plane; with the field.
pub fn policy(
    section: &TrustSection,
    gateway: GatewayId,
    kind: Option<DataPlaneKind>,
) -> Result<TrustPolicy, (&'static str, Failure)> {
    let of = |field: &'static str| move |failure: Failure| (field, failure);
    let key = evidence_key::read_public_key(&section.key).map_err(of("key"))?;
    let reference_key = section.reference_key.as_deref();
    let reference_key = reference_key
        .map(evidence_key::read_public_key)
        .transpose()
        .map_err(of("reference_key"))?;
    let mut reference =
        cmd::appraise::read_reference(&section.reference, reference_key.as_ref()).map_err(of("reference"))?;
    let switch = expected_switch(&reference, gateway, kind.unwrap_or(reference.kind));
    reference.switch = Some(switch.map_err(|error| ("reference", Failure::input(error)))?);
    let nanoseconds = |seconds: u32| u64::from(seconds).saturating_mul(1_000_000_000);
    Ok(TrustPolicy {
        reference,
        key,
        every_ns: nanoseconds(section.every_s),
        response_timeout_ns: nanoseconds(section.response_timeout_s),
    })
}

/// The data plane that statements must be about; the reference values must be of the same one.
///
/// # Errors
/// The reference values are of another data plane, described in words.
fn expected_switch(
    reference: &Reference,
    gateway: GatewayId,
    kind: DataPlaneKind,
) -> Result<SwitchId, String> {
    let id = match kind {
        // A P4 switch has its own ID, which only the reference values contain.
        DataPlaneKind::P4 => reference.switch,
        // If two gateways share a key, the statement of one must not be accepted for the other.
        DataPlaneKind::Xdp => Some(SwitchId(gateway.0.into())),
    };
    let number = |switch: Option<SwitchId>| switch.map_or("any".to_owned(), |switch| switch.to_string());
    let is_other = reference.switch.is_some_and(|switch| Some(switch) != id);
    if is_other || reference.kind != kind {
        return Err(format!(
            "reference values are of data plane {}, kind {}; this gateway's is {}, kind {}",
            number(reference.switch),
            reference.kind.name(),
            number(id),
            kind.name()
        ));
    }
    if kind == DataPlaneKind::P4
        && let Some(changing) = fixed_volatile_object(reference)
    {
        return Err(format!(
            "reference values were created without --gateway, but {changing} changes while the gateway serves: create them again"
        ));
    }
    id.ok_or_else(|| {
        "reference values are of any switch: create them with a switch ID, because another switch with the same key would be accepted".to_owned()
    })
}

/// An object that changes constantly in a switch, but is not marked volatile.
fn fixed_volatile_object(reference: &Reference) -> Option<&Object> {
    let names = changing_objects();
    let changes: BTreeSet<Object> = names.iter().filter_map(|name| name.parse().ok()).collect();
    let mut fixed = reference.objects.iter().filter(|listed| !listed.is_volatile);
    fixed
        .find(|listed| changes.contains(&listed.object))
        .map(|listed| &listed.object)
}
