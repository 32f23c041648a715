//! `linewarden events`: prints past events, or follows new events.

use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;
use std::time::Duration;

use clap::Args;
use linewarden_api::{EventHistoryQuery, EventRecord};
use linewarden_protocol::ids::DeviceId;
use linewarden_registry::{EventLogReader, Registry};
use linewarden_service::convert::event_from_public_entry;

use crate::cmd::device::{damaged_records_failure, date};
use crate::registry_access::{RegistryAccess, RegistryAccessArgs, for_each_item};

/// Interval at which a local registry is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Entries of the registry event log per query.
const PAGE_ENTRIES: u32 = 1_000;

/// Columns of an event table.
pub const HEADER: [&str; 8] = [
    "number", "time", "event", "device", "gateway", "actor", "reason", "detail",
];

/// Arguments of `linewarden events`.
#[derive(Args, Debug)]
#[command(after_help = "\
Prints events, newest first; with --follow in order of occurrence, until the command is interrupted. If the connection to the controller \
breaks, the stream continues after the last event that was shown.

Examples:
  linewarden events --limit 20 --config controller.toml
  linewarden events --kind revoked --kind quarantined --config controller.toml
  linewarden events --follow --output json --server https://ctl.example:20560 --token-file alice.token")]
pub struct EventsArgs {
    /// Only events of this kind, such as revoked; repeatable (text)
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    kind: Vec<String>,
    /// Only events of this device (ID)
    #[arg(long, value_name = "ID")]
    device: Option<DeviceId>,
    /// Only events of the gateway with this ID (integer)
    #[arg(long, value_name = "NUMBER")]
    gateway: Option<u32>,
    /// Maximum number of events to print (integer)
    #[arg(long, value_name = "COUNT", default_value_t = 100, conflicts_with = "follow")]
    limit: u64,
    /// Print new events as they occur (flag)
    #[arg(long)]
    follow: bool,
    /// --follow: start after the event with this number (integer)
    #[arg(long, value_name = "NUMBER", requires = "follow")]
    after: Option<u64>,
    #[command(flatten)]
    access: RegistryAccessArgs,
}

/// A table row of an event.
pub fn row(event: &EventRecord) -> Vec<String> {
    vec![
        event.id.to_string(),
        date(event.at_ms / 1_000),
        event.kind.clone(),
        event.device.clone().unwrap_or_default(),
        event
            .gateway
            .map(|gateway| gateway.to_string())
            .unwrap_or_default(),
        event.actor.clone().unwrap_or_default(),
        event.reason.clone().unwrap_or_default(),
        event.detail.clone(),
    ]
}

/// Prints events.
pub fn run(args: &EventsArgs, output: Output) -> Result<(), Failure> {
    match args.follow {
        true => follow(args, output),
        false => list(args, output),
    }
}

fn list(args: &EventsArgs, output: Output) -> Result<(), Failure> {
    let query = EventHistoryQuery {
        kinds: (!args.kind.is_empty()).then(|| args.kind.join(",")),
        device: args.device.map(|device| device.to_string()),
        gateway: args.gateway.map(|gateway| gateway.to_string()),
        ..EventHistoryQuery::default()
    };
    let mut rows = Vec::new();
    let damaged_records = args.access.with(async |access| {
        let read_page = async |limit, after| access.history(&query, limit, after).await;
        for_each_item(Some(args.limit), output, read_page, |event| {
            rows.push(row(&event));
            output.object(&event)
        })
        .await
    })?;
    output.table(&HEADER, &[0], rows)?;
    match damaged_records {
        0 => Ok(()),
        damaged_records => Err(damaged_records_failure(damaged_records)),
    }
}

impl EventsArgs {
    fn matches(&self, event: &EventRecord) -> bool {
        let is_of_kind = self.kind.is_empty() || self.kind.contains(&event.kind);
        let device = self.device.map(|device| device.to_string());
        is_of_kind
            && device.is_none_or(|device| event.device == Some(device))
            && self.gateway.is_none_or(|gateway| event.gateway == Some(gateway))
    }

    fn print_event(&self, event: &EventRecord, output: Output) -> Result<(), Failure> {
        if !self.matches(event) {
            return Ok(());
        }
        output.object(event)?;
        let row = row(event);
        let cells: Vec<&str> = row
            .iter()
            .map(String::as_str)
            .filter(|cell| !cell.is_empty())
            .collect();
        output.line(cells.join("  ").replace('\n', " "))
    }
}

fn follow(args: &EventsArgs, output: Output) -> Result<(), Failure> {
    args.access.with(async |access| match access {
        RegistryAccess::Local(registry) => follow_registry(registry, args, output).await,
        RegistryAccess::Remote(client) => {
            let mut events = client.events(args.after).await?;
            while output.has_reader() {
                args.print_event(&events.next().await?, output)?;
            }
            Ok(())
        }
    })
}

async fn follow_registry(registry: &Registry, args: &EventsArgs, output: Output) -> Result<(), Failure> {
    let mut reader = EventLogReader::after(match args.after {
        Some(after) => after,
        None => registry.newest_authentic_event().await?,
    });
    while output.has_reader() {
        let entries = reader.next(registry, PAGE_ENTRIES).await?;
        for entry in &entries {
            match event_from_public_entry(entry) {
                Some(event) => args.print_event(&event, output)?,
                None if !entry.authentic => {
                    tracing::error!(
                        event = entry.number,
                        "entry of the registry event log is not authentic; run `linewarden registry check`"
                    );
                }
                None => {}
            }
        }
        if entries.is_empty() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
    Ok(())
}
