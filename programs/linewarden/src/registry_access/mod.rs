//! Access to a registry: directly, or through a controller's API. Commands use both kinds of access in the same way.

mod args;
mod lists;
mod store;
mod users;

use linewarden_cli::failure::Failure;
use linewarden_cli::now_s;
use std::os::unix::fs::MetadataExt as _;

use linewarden_api::{Device, Gateway, NewGateway, NewSigner, Policy, PolicyChange, Signer};
use linewarden_client::{Client, ClientError, DeviceAction};
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_registry::{
    Action, Actor, AttestationError, DeviceError, NewEvent, Registry, RegistryError, Role,
};
use linewarden_service::convert;
use linewarden_types::GroupName;

pub use self::args::RegistryAccessArgs;
pub use self::lists::{Page, for_each_item};

/// A local registry, or a controller.
pub enum RegistryAccess {
    /// A registry that this process opens.
    Local(Registry),
    /// A controller, through its API.
    Remote(Client),
}

/// Option for the reason of a change; stored in the registry audit log.
#[derive(clap::Args, Debug)]
pub struct ReasonArgs {
    /// Reason, stored in the registry audit log (text; required with --server)
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
}

/// The actor of a local command: the user of the operating system.
fn local_actor() -> Actor {
    let uid = std::fs::metadata("/proc/self")
        .map_or_else(|_| "?".to_owned(), |metadata| metadata.uid().to_string());
    Actor {
        name: format!("uid {uid}"),
        role: Role::Admin,
        origin: "command line".to_owned(),
    }
}

/// Returns a handle of the registry. In the transaction of each change, the handle stores an audit record with actor and
/// reason.
fn audited_registry(registry: &Registry, reason: &str, note: NewEvent) -> Result<Registry, Failure> {
    Ok(registry.with_action(Action {
        at_ms: now_s()?.saturating_mul(1_000),
        actor: local_actor(),
        reason: reason.to_owned(),
        event: note,
    })?)
}

fn audit_note(kind: &str, detail: impl Into<String>) -> NewEvent {
    NewEvent {
        kind: kind.to_owned(),
        detail: detail.into(),
        ..NewEvent::default()
    }
}

/// Refuses an empty reason, because a controller requires a reason.
fn require_reason(reason: &str) -> Result<&str, Failure> {
    match reason.trim().is_empty() {
        true => Err(Failure::input(
            "no reason given: use --reason TEXT; the registry audit log stores the reason",
        )),
        false => Ok(reason),
    }
}

impl RegistryAccess {
    /// Closes the registry.
    async fn close(self) {
        if let Self::Local(registry) = self {
            registry.close().await;
        }
    }

    /// Returns a device; an unknown device is an error.
    pub async fn device(&self, device: DeviceId) -> Result<Device, Failure> {
        Ok(match self {
            Self::Local(registry) => convert::device_from_info(registry.get(device).await?),
            Self::Remote(client) => client.device(&device.to_string()).await?,
        })
    }

    /// Returns a device; `None` if the device is unknown.
    pub async fn find(&self, device: DeviceId) -> Result<Option<Device>, Failure> {
        match self {
            Self::Local(registry) => match registry.get(device).await {
                Err(RegistryError::Device(DeviceError::UnknownDevice { .. })) => Ok(None),
                result => Ok(Some(convert::device_from_info(result?))),
            },
            Self::Remote(client) => match client.device(&device.to_string()).await {
                Err(error) if error.code() == Some("unknown_device") => Ok(None),
                result => Ok(Some(result?)),
            },
        }
    }

    /// Returns a device; `None` if the record of the device is damaged. A device with a damaged record can still be revoked.
    pub async fn find_even_damaged(&self, device: DeviceId) -> Result<Option<Device>, Failure> {
        match self {
            Self::Local(registry) => match registry.get(device).await {
                Err(error @ RegistryError::Device(DeviceError::DamagedRecord { .. })) => {
                    tracing::warn!(%error, "device record is damaged; the command revokes the device");
                    Ok(None)
                }
                result => Ok(Some(convert::device_from_info(result?))),
            },
            Self::Remote(client) => match client.device(&device.to_string()).await {
                Err(error) if error.code() == Some("damaged_record") => {
                    tracing::warn!(%error, "device record is damaged; the command revokes the device");
                    Ok(None)
                }
                result => Ok(Some(result?)),
            },
        }
    }

    /// Changes the state of a device; returns the revision with which gateways learn of the change.
    pub async fn change_state(
        &self,
        device: DeviceId,
        action: DeviceAction,
        reason: &str,
    ) -> Result<u64, Failure> {
        let registry = match self {
            Self::Remote(client) => {
                let response = client
                    .change_device_state(&device.to_string(), action, require_reason(reason)?)
                    .await?;
                return Ok(response.revision);
            }
            Self::Local(registry) => registry,
        };
        let kind = match action {
            DeviceAction::Revoke => "revoked",
            DeviceAction::Quarantine => "quarantined",
            DeviceAction::Release => "released",
        };
        let note = NewEvent {
            device: Some(device),
            ..audit_note(kind, "")
        };
        let registry = audited_registry(registry, reason, note)?;
        let revision = match action {
            DeviceAction::Revoke => registry.revoke(device, reason, now_s()?).await?,
            DeviceAction::Quarantine => registry.quarantine_manually(device, reason, now_s()?).await?,
            DeviceAction::Release => registry.release(device).await?,
        };
        Ok(revision.0)
    }

    /// Creates a gateway in the registry, or changes its name.
    pub async fn create_gateway(&self, id: u32, name: &str, reason: &str) -> Result<Gateway, Failure> {
        match self {
            Self::Local(registry) => {
                let note = NewEvent {
                    gateway: Some(GatewayId(id)),
                    ..audit_note("gateway_created", name)
                };
                let audited = audited_registry(registry, reason, note)?;
                audited.set_gateway(GatewayId(id), name, now_s()?).await?;
                self.gateway(id).await
            }
            Self::Remote(client) => Ok(client
                .create_gateway(&NewGateway {
                    id,
                    name: name.to_owned(),
                    reason: require_reason(reason)?.to_owned(),
                })
                .await?),
        }
    }

    /// Revokes a gateway permanently.
    pub async fn revoke_gateway(&self, id: u32, reason: &str) -> Result<Gateway, Failure> {
        match self {
            Self::Local(registry) => {
                let note = NewEvent {
                    gateway: Some(GatewayId(id)),
                    ..audit_note("gateway_revoked", "")
                };
                let audited = audited_registry(registry, reason, note)?;
                audited.revoke_gateway(GatewayId(id), reason, now_s()?).await?;
                self.gateway(id).await
            }
            Self::Remote(client) => Ok(client.revoke_gateway(id, require_reason(reason)?).await?),
        }
    }

    /// Returns a gateway; an unknown gateway is an error.
    pub async fn gateway(&self, id: u32) -> Result<Gateway, Failure> {
        let gateway = self
            .gateways()
            .await?
            .into_iter()
            .find(|gateway| gateway.id == id);
        gateway.ok_or_else(|| {
            Failure::input(format!(
                "no gateway with ID {id}: `gateway list` shows all gateways"
            ))
        })
    }

    /// Creates a group, or changes its attestation policy.
    pub async fn set_policy(&self, name: &GroupName, change: &PolicyChange) -> Result<Policy, Failure> {
        let registry = match self {
            Self::Remote(client) => {
                require_reason(&change.reason)?;
                return Ok(client.set_policy(name.as_str(), change).await?);
            }
            Self::Local(registry) => registry,
        };
        let audited = audited_registry(
            registry,
            &change.reason,
            audit_note("policy_changed", name.as_str()),
        )?;
        audited
            .change_group(name, now_s()?, |current| {
                let invalid_field = |(field, problem)| Failure::input(format!("{field}: {problem}"));
                convert::changed_group(change, name, current?).map_err(invalid_field)
            })
            .await?;
        local_policy(registry, name).await
    }

    /// Requests a round of a group.
    pub async fn request_round(&self, name: &GroupName, reason: &str) -> Result<Policy, Failure> {
        match self {
            Self::Local(registry) => {
                let audited =
                    audited_registry(registry, reason, audit_note("round_requested", name.as_str()))?;
                audited.request_round(name).await?;
                local_policy(registry, name).await
            }
            Self::Remote(client) => Ok(client.start_round(name.as_str(), require_reason(reason)?).await?),
        }
    }

    /// Adds a trusted signer.
    pub async fn add_signer(&self, new: &NewSigner) -> Result<Signer, Failure> {
        let registry = match self {
            Self::Remote(client) => {
                require_reason(&new.reason)?;
                return Ok(client.create_signer(new).await?);
            }
            Self::Local(registry) => registry,
        };
        let entry = convert::signer_record(new, now_s()?).map_err(Failure::input)?;
        let note = audit_note(
            "signer_changed",
            format!("added {} {}", hex::encode(&entry.id), entry.name),
        );
        audited_registry(registry, &new.reason, note)?
            .add_signer(&entry)
            .await?;
        Ok(convert::signer_from_record(entry))
    }

    /// Revokes a signer permanently.
    pub async fn revoke_signer(&self, id: &str, reason: &str) -> Result<(), Failure> {
        let registry = match self {
            Self::Remote(client) => {
                client.revoke_signer(id, require_reason(reason)?).await?;
                return Ok(());
            }
            Self::Local(registry) => registry,
        };
        let bytes = hex::decode(id)
            .map_err(|_| Failure::input("signer ID is not hexadecimal: `signer list` shows all signers"))?;
        let note = audit_note("signer_changed", format!("revoked {}", hex::encode(&bytes)));
        match audited_registry(registry, reason, note)?
            .revoke_signer(&bytes, now_s()?)
            .await?
        {
            true => Ok(()),
            false => Err(Failure::input(format!(
                "no signer with ID {id}: `signer list` shows all signers"
            ))),
        }
    }
}

async fn local_policy(registry: &Registry, name: &GroupName) -> Result<Policy, Failure> {
    let group = registry.group(name).await?;
    let group = group
        .ok_or_else(|| RegistryError::Attestation(AttestationError::UnknownGroup { group: name.clone() }))?;
    Ok(convert::policy_from_group(group))
}

/// Whether the controller reports that an object does not exist.
pub fn is_not_found(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused { status: 404, .. })
}
