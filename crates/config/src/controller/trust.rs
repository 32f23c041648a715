//! The trust policy of a gateway, built from the configuration of a controller.

use std::collections::BTreeSet;

use linewarden_cli::evidence;
use linewarden_cli::failure::Failure;
use linewarden_controller::trust::TrustPolicy;
use linewarden_evidence::appraisal::Reference;
use linewarden_evidence::encoding::Object;
use linewarden_evidence::statement::DataPlaneKind;
use linewarden_evidence::{CHANGING_OBJECTS, SwitchId};
use linewarden_protocol::ids::GatewayId;

use super::fields::TrustSection;

/// Builds the trust policy.
///
/// # Errors
/// The field and the reason: reference values or a key cannot be read, or the reference values are of another data plane.
pub fn policy(section: &TrustSection, gateway: GatewayId) -> Result<TrustPolicy, (&'static str, Failure)> {
    let in_field = |field: &'static str| move |failure: Failure| (field, failure);
    let key = evidence::read_public_key(&section.key).map_err(in_field("key"))?;
    let reference_key = section.reference_key.as_deref();
    let reference_key = reference_key
        .map(evidence::read_public_key)
        .transpose()
        .map_err(in_field("reference_key"))?;
    let mut reference = evidence::read_reference(&section.reference, reference_key.as_ref())
        .map_err(in_field("reference"))?;
    let switch = expected_switch(&reference, gateway);
    reference.switch = Some(switch.map_err(|error| ("reference", Failure::input(error)))?);
    let nanoseconds = |seconds: u32| u64::from(seconds).saturating_mul(1_000_000_000);
    Ok(TrustPolicy {
        reference,
        key,
        every_ns: nanoseconds(section.every_s),
        response_timeout_ns: nanoseconds(section.response_timeout_s),
    })
}

/// Returns the ID of the data plane that statements must describe.
///
/// # Errors
/// The reference values are of another data plane.
fn expected_switch(reference: &Reference, gateway: GatewayId) -> Result<SwitchId, String> {
    let id = match reference.kind {
        // A P4 switch has its own ID, which only the reference values contain.
        DataPlaneKind::P4 => reference.switch,
        // The statement of a gateway must not be accepted for another gateway, even if the two gateways share a key.
        DataPlaneKind::Xdp => Some(SwitchId(gateway.0.into())),
    };
    let text = |switch: Option<SwitchId>| switch.map_or("any".to_owned(), |switch| switch.to_string());
    let is_other_switch = reference.switch.is_some_and(|switch| Some(switch) != id);
    if is_other_switch {
        return Err(format!(
            "reference values are of data plane {}; this gateway's is {}",
            text(reference.switch),
            text(id),
        ));
    }
    if reference.kind == DataPlaneKind::P4
        && let Some(object) = fixed_volatile_object(reference)
    {
        return Err(format!(
            "reference values were created without --gateway, but {object} changes while the gateway serves: create them again"
        ));
    }
    id.ok_or_else(|| {
        "reference values name no switch: create them with a switch ID, because another switch with the same key would be accepted, too".to_owned()
    })
}

/// Returns an object that changes constantly in a switch, but is not marked volatile in the reference values.
fn fixed_volatile_object(reference: &Reference) -> Option<&Object> {
    let changing: BTreeSet<Object> = CHANGING_OBJECTS
        .iter()
        .filter_map(|name| name.parse().ok())
        .collect();
    let mut compared = reference.objects.iter().filter(|entry| !entry.is_volatile);
    compared
        .find(|entry| changing.contains(&entry.object))
        .map(|entry| &entry.object)
}
