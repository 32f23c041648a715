//! Records of groups, for commands that open the registry directly.

use linewarden_cli::failure::Failure;
use linewarden_registry::{AttestationError, Group, Registry, RegistryError};
use linewarden_types::GroupName;

/// Returns the group with this name.
///
/// # Errors
/// The group does not exist, or its record is damaged.
pub async fn find_group(registry: &Registry, name: &GroupName) -> Result<Group, Failure> {
    let group = registry.group(name).await?;
    group.ok_or_else(|| {
        RegistryError::Attestation(AttestationError::UnknownGroup { group: name.clone() }).into()
    })
}
