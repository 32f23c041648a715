//! Lists, part by part.

use linewarden_client::ClientError;
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_registry::GroupName;
use linewarden_registry::JournalFilter;
use linewarden_registry::RegistryError;
use linewarden_service::wire::{
    self, Act, Device, Gateway, Happening, History, List, Policy, Round, Signer, Standing, WhichActs,
    WhichDevices, WhichResults, WhichRounds,
};

use super::Site;
use crate::failure::Failure;
use crate::output::Output;

/// Items asked for at once: as many as a controller gives.
const PART: u32 = 1_000;

/// A part of a list.
pub struct Part<T> {
    /// What is in it.
    pub items: Vec<T>,
    /// Where it goes on.
    pub next: Option<String>,
    /// Records of a registry at hand that could not be read.
    pub damaged: u64,
}

impl<T> From<List<T>> for Part<T> {
    fn from(list: List<T>) -> Self {
        Self {
            items: list.items,
            next: list.next,
            damaged: 0,
        }
    }
}

impl<T> Part<T> {
    /// All that there is.
    pub(super) fn whole(items: Vec<T>) -> Self {
        Self {
            items,
            next: None,
            damaged: 0,
        }
    }

    /// A whole list at hand, some of whose records may be damaged.
    pub(super) fn of<S: Into<T>>(records: Vec<Result<S, RegistryError>>) -> Self {
        let mut part = Self {
            items: Vec::with_capacity(records.len()),
            next: None,
            damaged: 0,
        };
        for record in records {
            match record {
                Ok(record) => part.items.push(record.into()),
                Err(error) => {
                    tracing::error!(%error, "left out");
                    part.damaged += 1;
                }
            }
        }
        part
    }
}

/// Goes through a list until its end, `limit`, or until nobody reads any more; how many records were left out for damage.
pub async fn walk<T>(
    limit: Option<u64>,
    output: Output,
    mut ask: impl AsyncFnMut(u32, Option<String>) -> Result<Part<T>, Failure>,
    mut each: impl FnMut(T) -> Result<(), Failure>,
) -> Result<u64, Failure> {
    let (mut left, mut after, mut damaged) = (limit.unwrap_or(u64::MAX), None, 0);
    while left > 0 {
        let wanted = u32::try_from(left).unwrap_or(PART).min(PART);
        let part = ask(wanted, after).await?;
        damaged += part.damaged;
        for item in part.items {
            if left == 0 {
                break;
            }
            left -= 1;
            each(item)?;
        }
        after = part.next;
        if after.is_none() || !output.is_read() {
            break;
        }
    }
    Ok(damaged)
}

/// A controller's list from its beginning to its end.
pub(super) async fn whole<T>(
    mut ask: impl AsyncFnMut(wire::Part) -> Result<List<T>, ClientError>,
) -> Result<Vec<T>, Failure> {
    let (mut items, mut after) = (Vec::new(), None);
    loop {
        let part = ask(wire::Part {
            limit: Some(PART),
            after,
        });
        let part = part.await?;
        items.extend(part.items);
        after = part.next;
        if after.is_none() {
            return Ok(items);
        }
    }
}

fn after_number(after: Option<&str>) -> Option<u64> {
    after.and_then(|after| after.parse().ok())
}

fn after_device(after: Option<&str>) -> Option<DeviceId> {
    after
        .and_then(|after| u64::from_str_radix(after, 16).ok())
        .map(DeviceId)
}

impl Site {
    /// Devices.
    pub async fn devices(
        &self,
        which: &WhichDevices,
        limit: u32,
        after: Option<String>,
    ) -> Result<Part<Device>, Failure> {
        match self {
            Self::Local(registry) => {
                let wrong = |(field, problem)| Failure::input(format!("{field}: {problem}"));
                let filter = which.filter().map_err(wrong)?;
                let page = registry
                    .list(&filter, after_device(after.as_deref()), limit)
                    .await?;
                for error in &page.damaged {
                    tracing::error!(%error, "left out");
                }
                Ok(Part {
                    items: page.devices.into_iter().map(Device::from).collect(),
                    next: page.next.map(|device| device.to_string()),
                    damaged: page.damaged.len() as u64,
                })
            }
            Self::Remote(client) => {
                let which = WhichDevices {
                    limit: Some(limit),
                    after,
                    ..which.clone()
                };
                Ok(client.devices(&which).await?.into())
            }
        }
    }

    /// All gateways.
    pub async fn gateways(&self) -> Result<Vec<Gateway>, Failure> {
        Ok(match self {
            Self::Local(registry) => Gateway::noted(registry).await?,
            Self::Remote(client) => whole(async |part| client.gateways(&part).await).await?,
        })
    }

    /// Rounds that are over, newest first.
    pub async fn rounds(
        &self,
        which: &WhichRounds,
        limit: u32,
        after: Option<String>,
    ) -> Result<Part<Round>, Failure> {
        let which = WhichRounds {
            limit: Some(limit),
            after,
            ..which.clone()
        };
        let registry = match self {
            Self::Remote(client) => return Ok(client.rounds(&which).await?.into()),
            Self::Local(registry) => registry,
        };
        let gateway = which
            .gateway
            .as_deref()
            .and_then(|id| id.parse().ok())
            .map(GatewayId);
        let group = which.group.map(GroupName::new).transpose();
        let group = group.map_err(Failure::input)?;
        let after = which.after.as_deref().and_then(|after| after.parse().ok());
        let page = registry
            .rounds_page(gateway, group.as_ref(), after, limit)
            .await?;
        Ok(Part {
            items: page.rounds.into_iter().map(Round::from).collect(),
            next: page.next.map(|place| place.to_string()),
            damaged: 0,
        })
    }

    /// How attested devices stand.
    pub async fn results(
        &self,
        state: Option<&str>,
        limit: u32,
        after: Option<String>,
    ) -> Result<Part<Standing>, Failure> {
        match self {
            Self::Local(registry) => {
                let page = registry.appraisals(after_device(after.as_deref()), limit).await?;
                for error in &page.damaged {
                    tracing::error!(error, "left out");
                }
                let items = page.appraisals.iter().map(Standing::from);
                Ok(Part {
                    items: items
                        .filter(|item| state.is_none_or(|state| item.state == state))
                        .collect(),
                    next: page.next.map(|device| device.to_string()),
                    damaged: page.damaged.len() as u64,
                })
            }
            Self::Remote(client) => {
                let which = WhichResults {
                    state: state.map(str::to_owned),
                    limit: Some(limit),
                    after,
                };
                Ok(client.results(&which).await?.into())
            }
        }
    }

    /// All groups.
    pub async fn policies(&self) -> Result<Part<Policy>, Failure> {
        match self {
            Self::Local(registry) => {
                let groups = registry.groups().await?;
                for error in &groups.damaged {
                    tracing::error!(error, "left out");
                }
                Ok(Part {
                    items: groups.groups.into_iter().map(Policy::from).collect(),
                    next: None,
                    damaged: groups.damaged.len() as u64,
                })
            }
            Self::Remote(client) => Ok(Part::whole(
                whole(async |part| client.policies(&part).await).await?,
            )),
        }
    }

    /// All signers.
    pub async fn signers(&self) -> Result<Part<Signer>, Failure> {
        match self {
            Self::Local(registry) => Ok(Part::of(registry.signers().await?)),
            Self::Remote(client) => Ok(Part::whole(
                whole(async |part| client.signers(&part).await).await?,
            )),
        }
    }

    /// What has happened, newest first.
    pub async fn history(
        &self,
        which: &History,
        limit: u32,
        after: Option<String>,
    ) -> Result<Part<Happening>, Failure> {
        let which = History {
            limit: Some(limit),
            after,
            ..which.clone()
        };
        let registry = match self {
            Self::Remote(client) => return Ok(client.history(&which).await?.into()),
            Self::Local(registry) => registry,
        };
        let kinds = which.kinds.iter().flat_map(|kinds| kinds.split(','));
        let filter = JournalFilter {
            kinds: kinds.filter(|kind| !kind.is_empty()).map(str::to_owned).collect(),
            device: after_device(which.device.as_deref()),
            gateway: which
                .gateway
                .as_deref()
                .and_then(|id| id.parse().ok())
                .map(GatewayId),
            without_refused: true,
            ..JournalFilter::default()
        };
        let page = registry
            .journal(&filter, after_number(which.after.as_deref()), limit)
            .await?;
        let damaged = page.entries.iter().filter(|entry| !entry.authentic).count() as u64;
        Ok(Part {
            items: page.entries.iter().filter_map(Happening::of).collect(),
            next: page.next.map(|number| number.to_string()),
            damaged,
        })
    }

    /// Who had what done, newest first.
    pub async fn acts(
        &self,
        which: &WhichActs,
        limit: u32,
        after: Option<String>,
    ) -> Result<Part<Act>, Failure> {
        let which = WhichActs {
            limit: Some(limit),
            after,
            ..which.clone()
        };
        match self {
            Self::Local(registry) => {
                let page = registry
                    .journal(&which.filter(), after_number(which.after.as_deref()), limit)
                    .await?;
                Ok(Part {
                    items: page.entries.into_iter().filter_map(Act::of).collect(),
                    next: page.next.map(|number| number.to_string()),
                    damaged: 0,
                })
            }
            Self::Remote(client) => Ok(client.acts(&which).await?.into()),
        }
    }
}
