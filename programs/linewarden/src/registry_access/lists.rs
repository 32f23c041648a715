//! Lists, which are read page by page.

use linewarden_api::{
    AttestationResult, AuditQuery, AuditRecord, Device, DeviceQuery, EventHistoryQuery, EventRecord, Gateway,
    List, PageQuery, Policy, ResultQuery, Round, RoundQuery, Signer,
};
use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;
use linewarden_client::ClientError;
use linewarden_protocol::ids::{DeviceId, GatewayId};
use linewarden_registry::EventFilter;
use linewarden_registry::RegistryError;
use linewarden_service::convert;
use linewarden_types::GroupName;

use super::RegistryAccess;

/// Number of items per page: the maximum number that a controller returns.
const PAGE_ITEMS: u32 = 1_000;

/// A page of a list.
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// Cursor of the next page; `None` on the last page.
    pub next: Option<String>,
    /// Number of records of a local registry that could not be read.
    pub damaged_records: u64,
}

impl<T> From<List<T>> for Page<T> {
    fn from(list: List<T>) -> Self {
        Self {
            items: list.items,
            next: list.next,
            damaged_records: 0,
        }
    }
}

impl<T> Page<T> {
    /// A page with all items of a list.
    pub(super) fn from_all_items(items: Vec<T>) -> Self {
        Self {
            items,
            next: None,
            damaged_records: 0,
        }
    }

    /// A page with all records of a local list, converted by `convert`. Damaged records are logged and skipped.
    pub(super) fn from_records<S>(records: Vec<Result<S, RegistryError>>, convert: impl Fn(S) -> T) -> Self {
        let mut page = Self {
            items: Vec::with_capacity(records.len()),
            next: None,
            damaged_records: 0,
        };
        for record in records {
            match record {
                Ok(record) => page.items.push(convert(record)),
                Err(error) => {
                    tracing::error!(%error, action = "run `linewarden registry check`", "registry record is damaged; skipped");
                    page.damaged_records += 1;
                }
            }
        }
        page
    }
}

/// Calls `on_item` for each item of a list; returns the number of damaged records.
///
/// Ends after `limit` items, or when standard output is closed.
pub async fn for_each_item<T>(
    limit: Option<u64>,
    output: Output,
    mut read_page: impl AsyncFnMut(u32, Option<String>) -> Result<Page<T>, Failure>,
    mut on_item: impl FnMut(T) -> Result<(), Failure>,
) -> Result<u64, Failure> {
    let (mut remaining, mut after, mut damaged_records) = (limit.unwrap_or(u64::MAX), None, 0);
    while remaining > 0 {
        let count = u32::try_from(remaining).unwrap_or(PAGE_ITEMS).min(PAGE_ITEMS);
        let page = read_page(count, after).await?;
        damaged_records += page.damaged_records;
        for item in page.items {
            if remaining == 0 {
                break;
            }
            remaining -= 1;
            on_item(item)?;
        }
        after = page.next;
        if after.is_none() || !output.has_reader() {
            break;
        }
    }
    Ok(damaged_records)
}

/// Reads a complete list from a controller.
pub(super) async fn read_all<T>(
    mut read_page: impl AsyncFnMut(PageQuery) -> Result<List<T>, ClientError>,
) -> Result<Vec<T>, Failure> {
    let (mut items, mut after) = (Vec::new(), None);
    loop {
        let page = read_page(PageQuery {
            limit: Some(PAGE_ITEMS),
            after,
        });
        let page = page.await?;
        items.extend(page.items);
        after = page.next;
        if after.is_none() {
            return Ok(items);
        }
    }
}

/// Parses a cursor that is a number.
fn parse_number(after: Option<&str>) -> Option<u64> {
    after.and_then(|after| after.parse().ok())
}

/// Parses a cursor that is a device ID.
fn parse_device(after: Option<&str>) -> Option<DeviceId> {
    after
        .and_then(|after| u64::from_str_radix(after, 16).ok())
        .map(DeviceId)
}

impl RegistryAccess {
    /// Devices.
    pub async fn devices(
        &self,
        query: &DeviceQuery,
        limit: u32,
        after: Option<String>,
    ) -> Result<Page<Device>, Failure> {
        match self {
            Self::Local(registry) => {
                let invalid_field = |(field, problem)| Failure::input(format!("{field}: {problem}"));
                let filter = convert::device_filter(query).map_err(invalid_field)?;
                let page = registry
                    .list(&filter, parse_device(after.as_deref()), limit)
                    .await?;
                for error in &page.damaged {
                    tracing::error!(%error, action = "run `linewarden registry check`", "registry record is damaged; skipped");
                }
                Ok(Page {
                    items: page.devices.into_iter().map(convert::device_from_info).collect(),
                    next: page.next.map(|device| device.to_string()),
                    damaged_records: page.damaged.len() as u64,
                })
            }
            Self::Remote(client) => {
                let query = DeviceQuery {
                    limit: Some(limit),
                    after,
                    ..query.clone()
                };
                Ok(client.devices(&query).await?.into())
            }
        }
    }

    /// All gateways.
    pub async fn gateways(&self) -> Result<Vec<Gateway>, Failure> {
        Ok(match self {
            Self::Local(registry) => convert::gateways_from_registry(registry).await?,
            Self::Remote(client) => read_all(async |query| client.gateways(&query).await).await?,
        })
    }

    /// Completed rounds, newest first.
    pub async fn rounds(
        &self,
        query: &RoundQuery,
        limit: u32,
        after: Option<String>,
    ) -> Result<Page<Round>, Failure> {
        let query = RoundQuery {
            limit: Some(limit),
            after,
            ..query.clone()
        };
        let registry = match self {
            Self::Remote(client) => return Ok(client.rounds(&query).await?.into()),
            Self::Local(registry) => registry,
        };
        let gateway = query
            .gateway
            .as_deref()
            .and_then(|id| id.parse().ok())
            .map(GatewayId);
        let group = query.group.map(GroupName::new).transpose();
        let group = group.map_err(Failure::input)?;
        let after = query.after.as_deref().and_then(|after| after.parse().ok());
        let page = registry
            .rounds_page(gateway, group.as_ref(), after, limit)
            .await?;
        Ok(Page {
            items: page.rounds.into_iter().map(convert::round_from_record).collect(),
            next: page.next.map(|cursor| cursor.to_string()),
            damaged_records: 0,
        })
    }

    /// Attestation states of devices.
    pub async fn results(
        &self,
        state: Option<&str>,
        limit: u32,
        after: Option<String>,
    ) -> Result<Page<AttestationResult>, Failure> {
        match self {
            Self::Local(registry) => {
                let page = registry.appraisals(parse_device(after.as_deref()), limit).await?;
                for error in &page.damaged {
                    tracing::error!(
                        error,
                        action = "run `linewarden registry check`",
                        "registry record is damaged; skipped"
                    );
                }
                let items = page.appraisals.iter().map(convert::result_from_appraisal);
                Ok(Page {
                    items: items
                        .filter(|item| state.is_none_or(|state| item.state == state))
                        .collect(),
                    next: page.next.map(|device| device.to_string()),
                    damaged_records: page.damaged.len() as u64,
                })
            }
            Self::Remote(client) => {
                let query = ResultQuery {
                    state: state.map(str::to_owned),
                    limit: Some(limit),
                    after,
                };
                Ok(client.results(&query).await?.into())
            }
        }
    }

    /// All groups.
    pub async fn policies(&self) -> Result<Page<Policy>, Failure> {
        match self {
            Self::Local(registry) => {
                let groups = registry.groups().await?;
                for error in &groups.damaged {
                    tracing::error!(
                        error,
                        action = "run `linewarden registry check`",
                        "registry record is damaged; skipped"
                    );
                }
                Ok(Page {
                    items: groups
                        .groups
                        .into_iter()
                        .map(convert::policy_from_group)
                        .collect(),
                    next: None,
                    damaged_records: groups.damaged.len() as u64,
                })
            }
            Self::Remote(client) => Ok(Page::from_all_items(
                read_all(async |query| client.policies(&query).await).await?,
            )),
        }
    }

    /// All signers.
    pub async fn signers(&self) -> Result<Page<Signer>, Failure> {
        match self {
            Self::Local(registry) => Ok(Page::from_records(
                registry.signers().await?,
                convert::signer_from_record,
            )),
            Self::Remote(client) => Ok(Page::from_all_items(
                read_all(async |query| client.signers(&query).await).await?,
            )),
        }
    }

    /// Past events, newest first.
    pub async fn history(
        &self,
        query: &EventHistoryQuery,
        limit: u32,
        after: Option<String>,
    ) -> Result<Page<EventRecord>, Failure> {
        let query = EventHistoryQuery {
            limit: Some(limit),
            after,
            ..query.clone()
        };
        let registry = match self {
            Self::Remote(client) => return Ok(client.history(&query).await?.into()),
            Self::Local(registry) => registry,
        };
        let kinds = query.kinds.iter().flat_map(|kinds| kinds.split(','));
        let filter = EventFilter {
            kinds: kinds.filter(|kind| !kind.is_empty()).map(str::to_owned).collect(),
            device: parse_device(query.device.as_deref()),
            gateway: query
                .gateway
                .as_deref()
                .and_then(|id| id.parse().ok())
                .map(GatewayId),
            exclude_refused: true,
            ..EventFilter::default()
        };
        let page = registry
            .events(&filter, parse_number(query.after.as_deref()), limit)
            .await?;
        let damaged_records = page.entries.iter().filter(|entry| !entry.authentic).count() as u64;
        Ok(Page {
            items: page
                .entries
                .iter()
                .filter_map(convert::event_from_public_entry)
                .collect(),
            next: page.next.map(|number| number.to_string()),
            damaged_records,
        })
    }

    /// Audit records, newest first.
    pub async fn audit_records(
        &self,
        query: &AuditQuery,
        limit: u32,
        after: Option<String>,
    ) -> Result<Page<AuditRecord>, Failure> {
        let query = AuditQuery {
            limit: Some(limit),
            after,
            ..query.clone()
        };
        match self {
            Self::Local(registry) => {
                let page = registry
                    .events(
                        &convert::audit_filter(&query),
                        parse_number(query.after.as_deref()),
                        limit,
                    )
                    .await?;
                Ok(Page {
                    items: page
                        .entries
                        .into_iter()
                        .filter_map(convert::audit_record_from_entry)
                        .collect(),
                    next: page.next.map(|number| number.to_string()),
                    damaged_records: 0,
                })
            }
            Self::Remote(client) => Ok(client.audit_records(&query).await?.into()),
        }
    }
}
