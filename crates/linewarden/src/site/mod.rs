//! What commands work on: a registry at hand, or a controller elsewhere. They ask both the same, and get the same.

mod args;
mod lists;
mod store;
mod users;

use std::os::unix::fs::MetadataExt as _;

use linewarden_client::{Client, ClientError, Treatment};
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_registry::{Act, Actor, GroupName, Note, Registry, RegistryError, Role};
use linewarden_service::wire::{Device, Gateway, NewGateway, NewSigner, Policy, PolicyChange, Signer};

pub use self::args::SiteArgs;
pub use self::lists::{Part, walk};
use crate::cmd::now_s;
use crate::failure::Failure;

/// A registry, or the controller in front of one.
pub enum Site {
    /// At hand.
    Local(Registry),
    /// Elsewhere.
    Remote(Client),
}

/// Why something is done: kept with what is done, and with who had it done.
#[derive(clap::Args, Debug)]
pub struct ReasonArgs {
    /// Why; kept in the audit. A controller wants it
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
}

/// Who is at this command line: there is no more to know of them.
fn operator() -> Actor {
    let uid = std::fs::metadata("/proc/self").map_or_else(|_| "?".to_owned(), |of| of.uid().to_string());
    Actor {
        name: format!("uid {uid}"),
        role: Role::Admin,
        origin: "command line".to_owned(),
    }
}

/// The registry, with a note of what is done to it, by whom and why, in the transaction that does it.
fn acting(registry: &Registry, reason: &str, note: Note) -> Result<Registry, Failure> {
    Ok(registry.acting(Act {
        at_ms: now_s()?.saturating_mul(1_000),
        actor: operator(),
        reason: reason.to_owned(),
        note,
    })?)
}

fn note(kind: &str, detail: impl Into<String>) -> Note {
    Note {
        kind: kind.to_owned(),
        detail: detail.into(),
        ..Note::default()
    }
}

/// A controller does nothing without one.
fn wanted(reason: &str) -> Result<&str, Failure> {
    match reason.trim().is_empty() {
        true => Err(Failure::input(
            "say why by --reason: it is kept with what is done",
        )),
        false => Ok(reason),
    }
}

impl Site {
    /// Ends what is under way.
    async fn close(self) {
        if let Self::Local(registry) = self {
            registry.close().await;
        }
    }

    /// A device that must be there.
    pub async fn device(&self, device: DeviceId) -> Result<Device, Failure> {
        Ok(match self {
            Self::Local(registry) => registry.get(device).await?.into(),
            Self::Remote(client) => client.device(&device.to_string()).await?,
        })
    }

    /// A device, if it is there.
    pub async fn find(&self, device: DeviceId) -> Result<Option<Device>, Failure> {
        match self {
            Self::Local(registry) => match registry.get(device).await {
                Err(RegistryError::UnknownDevice { .. }) => Ok(None),
                found => Ok(Some(found?.into())),
            },
            Self::Remote(client) => match client.device(&device.to_string()).await {
                Err(error) if error.code() == Some("unknown_device") => Ok(None),
                found => Ok(Some(found?)),
            },
        }
    }

    /// A device whose record may be damaged, which is `None`: it can be revoked all the same.
    pub async fn find_even_damaged(&self, device: DeviceId) -> Result<Option<Device>, Failure> {
        match self {
            Self::Local(registry) => match registry.get(device).await {
                Err(error @ RegistryError::DamagedRecord { .. }) => {
                    tracing::warn!(%error, "revoked all the same");
                    Ok(None)
                }
                found => Ok(Some(found?.into())),
            },
            Self::Remote(client) => match client.device(&device.to_string()).await {
                Err(error) if error.code() == Some("damaged_record") => {
                    tracing::warn!(%error, "revoked all the same");
                    Ok(None)
                }
                found => Ok(Some(found?)),
            },
        }
    }

    /// Does something to a device; the revision under which gateways learn of it.
    pub async fn treat(&self, device: DeviceId, what: Treatment, reason: &str) -> Result<u64, Failure> {
        let registry = match self {
            Self::Remote(client) => {
                let treated = client.treat(&device.to_string(), what, wanted(reason)?).await?;
                return Ok(treated.revision);
            }
            Self::Local(registry) => registry,
        };
        let kind = match what {
            Treatment::Revoke => "revoked",
            Treatment::Quarantine => "quarantined",
            Treatment::Release => "released",
        };
        let what_of = Note {
            device: Some(device),
            ..note(kind, "")
        };
        let registry = acting(registry, reason, what_of)?;
        let revision = match what {
            Treatment::Revoke => registry.revoke(device, reason, now_s()?).await?,
            Treatment::Quarantine => registry.quarantine_by_order(device, reason, now_s()?).await?,
            Treatment::Release => registry.readmit(device).await?,
        };
        Ok(revision.0)
    }

    /// Enters a gateway in the book, or gives it another name.
    pub async fn enter_gateway(&self, id: u32, name: &str, reason: &str) -> Result<Gateway, Failure> {
        match self {
            Self::Local(registry) => {
                let what = Note {
                    gateway: Some(GatewayId(id)),
                    ..note("gateway_entered", name)
                };
                let acting = acting(registry, reason, what)?;
                acting.enter_gateway(GatewayId(id), name, now_s()?).await?;
                self.gateway(id).await
            }
            Self::Remote(client) => Ok(client
                .enter_gateway(&NewGateway {
                    id,
                    name: name.to_owned(),
                    reason: wanted(reason)?.to_owned(),
                })
                .await?),
        }
    }

    /// Retires a gateway for good.
    pub async fn retire_gateway(&self, id: u32, reason: &str) -> Result<Gateway, Failure> {
        match self {
            Self::Local(registry) => {
                let what = Note {
                    gateway: Some(GatewayId(id)),
                    ..note("gateway_retired", "")
                };
                let acting = acting(registry, reason, what)?;
                acting.retire_gateway(GatewayId(id), reason, now_s()?).await?;
                self.gateway(id).await
            }
            Self::Remote(client) => Ok(client.retire_gateway(id, wanted(reason)?).await?),
        }
    }

    /// A gateway that must be there.
    pub async fn gateway(&self, id: u32) -> Result<Gateway, Failure> {
        let found = self
            .gateways()
            .await?
            .into_iter()
            .find(|gateway| gateway.id == id);
        found.ok_or_else(|| {
            Failure::input(format!(
                "there is no gateway {id}; `gateway list` shows those that are"
            ))
        })
    }

    /// Makes a group, or changes how it is asked.
    pub async fn set_policy(&self, name: &GroupName, change: &PolicyChange) -> Result<Policy, Failure> {
        let registry = match self {
            Self::Remote(client) => {
                wanted(&change.reason)?;
                return Ok(client.set_policy(name.as_str(), change).await?);
            }
            Self::Local(registry) => registry,
        };
        let acting = acting(registry, &change.reason, note("policy", name.as_str()))?;
        acting
            .change_group(name, now_s()?, |before| {
                let wrong = |(field, problem)| Failure::input(format!("{field}: {problem}"));
                change.apply(name, before?).map_err(wrong)
            })
            .await?;
        local_policy(registry, name).await
    }

    /// Has a group asked now.
    pub async fn want_round(&self, name: &GroupName, reason: &str) -> Result<Policy, Failure> {
        match self {
            Self::Local(registry) => {
                let acting = acting(registry, reason, note("round_wanted", name.as_str()))?;
                acting.want_round(name).await?;
                local_policy(registry, name).await
            }
            Self::Remote(client) => Ok(client.want_round(name.as_str(), wanted(reason)?).await?),
        }
    }

    /// Believes a signer from now on.
    pub async fn add_signer(&self, new: &NewSigner) -> Result<Signer, Failure> {
        let registry = match self {
            Self::Remote(client) => {
                wanted(&new.reason)?;
                return Ok(client.add_signer(new).await?);
            }
            Self::Local(registry) => registry,
        };
        let entry = new.entry(now_s()?).map_err(Failure::input)?;
        let what = note(
            "signer",
            format!("added {} {}", hex::encode(&entry.id), entry.name),
        );
        acting(registry, &new.reason, what)?.add_signer(&entry).await?;
        Ok(entry.into())
    }

    /// Believes a signer no more.
    pub async fn revoke_signer(&self, id: &str, reason: &str) -> Result<(), Failure> {
        let registry = match self {
            Self::Remote(client) => {
                client.revoke_signer(id, wanted(reason)?).await?;
                return Ok(());
            }
            Self::Local(registry) => registry,
        };
        let bytes = hex::decode(id).map_err(|_| Failure::input("a signer's id is hexadecimal"))?;
        let what = note("signer", format!("revoked {}", hex::encode(&bytes)));
        match acting(registry, reason, what)?
            .revoke_signer(&bytes, now_s()?)
            .await?
        {
            true => Ok(()),
            false => Err(Failure::input("there is no such signer")),
        }
    }
}

async fn local_policy(registry: &Registry, name: &GroupName) -> Result<Policy, Failure> {
    let group = registry.group(name).await?;
    let group = group.ok_or_else(|| RegistryError::UnknownGroup { group: name.clone() })?;
    Ok(group.into())
}

/// Whether it says that a controller does not know something.
pub fn is_unknown(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused { status: 404, .. })
}
