//! What gateways must show to get rows, from what a configuration names: a gateway's own, or a controller's.

use std::collections::BTreeSet;

use linewarden_controller::trust::TrustPolicy;
use linewarden_dataplane::p4runtime::changing_objects;
use linewarden_evidence::SwitchId;
use linewarden_evidence::appraisal::Reference;
use linewarden_evidence::encoding::Object;
use linewarden_evidence::statement::Kind;
use linewarden_gateway::config::TrustSection;
use linewarden_protocol::ids::GatewayId;

use crate::failure::Failure;
use crate::{cmd, evidence_key};

/// What a section comes to. `kind` of the data plane, where it is known; else that of its reference values.
///
/// # Errors
/// Reference values or a key that cannot be read, or reference values of another data plane; with the field.
pub fn policy(
    section: &TrustSection,
    gateway: GatewayId,
    kind: Option<Kind>,
) -> Result<TrustPolicy, (&'static str, Failure)> {
    let of = |field: &'static str| move |failure: Failure| (field, failure);
    let key = evidence_key::public(&section.key).map_err(of("key"))?;
    let reference_key = section.reference_key.as_deref();
    let reference_key = reference_key
        .map(evidence_key::public)
        .transpose()
        .map_err(of("reference_key"))?;
    let mut reference =
        cmd::appraise::read_reference(&section.reference, reference_key.as_ref()).map_err(of("reference"))?;
    let switch = data_plane(&reference, gateway, kind.unwrap_or(reference.kind));
    reference.switch = Some(switch.map_err(|said| ("reference", Failure::input(said)))?);
    let nanoseconds = |seconds: u32| u64::from(seconds).saturating_mul(1_000_000_000);
    Ok(TrustPolicy {
        reference,
        key,
        every_ns: nanoseconds(section.every_s),
        answer_ns: nanoseconds(section.answer_s),
    })
}

/// The data plane that statements must be of, which the reference values must be for.
///
/// # Errors
/// They are for another, in words.
fn data_plane(reference: &Reference, gateway: GatewayId, kind: Kind) -> Result<SwitchId, String> {
    let id = match kind {
        // The switch has a number of its own, which only they tell.
        Kind::P4 => reference.switch,
        // One key on two gateways, and values for any: still the one's statement does not stand for the other.
        Kind::Xdp => Some(SwitchId(gateway.0.into())),
    };
    let number = |switch: Option<SwitchId>| switch.map_or("any".to_owned(), |switch| switch.to_string());
    let is_other = reference.switch.is_some_and(|switch| Some(switch) != id);
    if is_other || reference.kind != kind {
        return Err(format!(
            "it is for data plane {}, of kind {}; this gateway's is {}, of kind {}",
            number(reference.switch),
            reference.kind.name(),
            number(id),
            kind.name()
        ));
    }
    if kind == Kind::P4
        && let Some(changing) = changing(reference)
    {
        return Err(format!(
            "it was made without --gateway: {changing} changes while the gateway serves; make it anew"
        ));
    }
    id.ok_or_else(|| {
        "it is for any switch; name the one, for whoever has its key could be another".to_owned()
    })
}

/// What changes all the time in a switch and is not left open.
fn changing(reference: &Reference) -> Option<&Object> {
    let names = changing_objects();
    let changes: BTreeSet<Object> = names.iter().filter_map(|name| name.parse().ok()).collect();
    let mut fixed = reference.objects.iter().filter(|listed| !listed.is_volatile);
    fixed
        .find(|listed| changes.contains(&listed.object))
        .map(|listed| &listed.object)
}
