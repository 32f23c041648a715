//! `linewarden event`: prints past events, or new events as they occur.

use clap::{Args, Subcommand};
use linewarden_api::{EventHistoryQuery, EventRecord, PageQuery};
use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;
use linewarden_protocol::ids::DeviceId;

use crate::access::{AccessArgs, check_damaged, for_each_item};
use crate::date::date;

/// Columns of an event table.
pub const HEADER: [&str; 8] = [
    "number", "time", "event", "device", "gateway", "actor", "reason", "detail",
];

/// Subcommands of `linewarden event`.
#[derive(Subcommand, Debug)]
pub enum EventCommand {
    /// List past events, newest first
    #[command(after_help = "\
Examples:
  linewarden event list --limit 20 --config controller.toml
  linewarden event list --kind revoked --kind quarantined --config controller.toml")]
    List(ListArgs),
    /// Print events as they occur
    #[command(after_help = "\
Prints events in order of occurrence, until the command is interrupted. If the connection to the controller breaks, the stream continues \
after the last event that was shown.

Examples:
  linewarden event trace --kind revoked --config controller.toml
  linewarden event trace --output json --server https://ctl.example:20560 --token-file alice.token")]
    Trace(TraceArgs),
}

/// The selected events.
#[derive(Args, Debug)]
struct FilterArgs {
    /// Only events of this kind, such as revoked; repeatable (text)
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    kind: Vec<String>,
    /// Only events of this device (ID)
    #[arg(long, value_name = "ID")]
    device: Option<DeviceId>,
    /// Only events of the gateway with this ID (integer)
    #[arg(long, value_name = "NUMBER")]
    gateway: Option<u32>,
}

/// Arguments of `linewarden event list`.
#[derive(Args, Debug)]
pub struct ListArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// Maximum number of events to print (integer)
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    limit: u64,
    #[command(flatten)]
    access: AccessArgs,
}

/// Arguments of `linewarden event trace`.
#[derive(Args, Debug)]
pub struct TraceArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// Start after the event with this number (integer, default: the newest event)
    #[arg(long, value_name = "NUMBER")]
    after: Option<u64>,
    #[command(flatten)]
    access: AccessArgs,
}

/// A query for one page of events.
pub fn on_page(query: &EventHistoryQuery, PageQuery { limit, after }: PageQuery) -> EventHistoryQuery {
    EventHistoryQuery {
        limit,
        after,
        ..query.clone()
    }
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

/// Runs the command.
pub fn run(command: &EventCommand, output: Output) -> Result<(), Failure> {
    match command {
        EventCommand::List(args) => list(args, output),
        EventCommand::Trace(args) => trace(args, output),
    }
}

fn list(args: &ListArgs, output: Output) -> Result<(), Failure> {
    let filter = &args.filter;
    let query = EventHistoryQuery {
        kinds: (!filter.kind.is_empty()).then(|| filter.kind.join(",")),
        device: filter.device.map(|device| device.to_string()),
        gateway: filter.gateway.map(|gateway| gateway.to_string()),
        ..EventHistoryQuery::default()
    };
    let mut rows = Vec::new();
    let damaged_records = args.access.with(async |client| {
        let read_page = async |page| client.history(&on_page(&query, page)).await;
        for_each_item(Some(args.limit), output, read_page, |event| {
            rows.push(row(&event));
            output.object(&event)
        })
        .await
    })?;
    output.table(&HEADER, &[0], rows)?;
    check_damaged(damaged_records)
}

impl FilterArgs {
    fn matches(&self, event: &EventRecord) -> bool {
        let is_of_kind = self.kind.is_empty() || self.kind.contains(&event.kind);
        let device = self.device.map(|device| device.to_string());
        is_of_kind
            && device.is_none_or(|device| event.device == Some(device))
            && self.gateway.is_none_or(|gateway| event.gateway == Some(gateway))
    }
}

fn print_event(event: &EventRecord, output: Output) -> Result<(), Failure> {
    output.object(event)?;
    let row = row(event);
    let cells: Vec<&str> = row
        .iter()
        .map(String::as_str)
        .filter(|cell| !cell.is_empty())
        .collect();
    output.line(cells.join("  ").replace('\n', " "))
}

fn trace(args: &TraceArgs, output: Output) -> Result<(), Failure> {
    args.access.with(async |client| {
        let mut events = client.events(args.after).await?;
        while output.has_reader() {
            let event = events.next().await?;
            if args.filter.matches(&event) {
                print_event(&event, output)?;
            }
        }
        Ok(())
    })
}
