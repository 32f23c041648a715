//! `linewarden events`: what has happened, and what happens.

use std::time::Duration;

use clap::Args;
use linewarden_agent::config::parse_device_id;
use linewarden_protocol::ids::DeviceId;
use linewarden_registry::{Follower, Registry};
use linewarden_service::wire::{Happening, History};

use crate::cmd::device::{date, left_out};
use crate::failure::Failure;
use crate::output::Output;
use crate::site::{Site, SiteArgs, walk};

/// How often a registry at hand is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Entries read at once.
const PAGE: u32 = 1_000;

/// The columns of a table of them.
pub const HEADER: [&str; 8] = [
    "number", "time", "event", "device", "gateway", "by", "reason", "detail",
];

/// Which events.
#[derive(Args, Debug)]
#[command(after_help = "\
Newest first; with --follow as they happen, until it is ended. A stream that breaks off is begun again behind the last event that was \
shown.

Examples:
  linewarden events --limit 20 --config controller.toml
  linewarden events --kind revoked --kind quarantined --config controller.toml
  linewarden events --follow --json --server https://ctl.example:20560 --token-file alice.token")]
pub struct EventsArgs {
    /// Only events of this kind, such as revoked; may be given more than once
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    kind: Vec<String>,
    /// Only events about this device
    #[arg(long, value_name = "ID", value_parser = parse_device_id)]
    device: Option<DeviceId>,
    /// Only events about this gateway
    #[arg(long, value_name = "NUMBER")]
    gateway: Option<u32>,
    /// At most so many
    #[arg(long, value_name = "COUNT", default_value_t = 100, conflicts_with = "follow")]
    limit: u64,
    /// Go on with what happens
    #[arg(long)]
    follow: bool,
    /// --follow: begin behind the event of this number
    #[arg(long, value_name = "NUMBER", requires = "follow")]
    after: Option<u64>,
    #[command(flatten)]
    site: SiteArgs,
    /// JSON for machines, one object a line
    #[arg(long)]
    pub json: bool,
}

/// A row of a table.
pub fn row(event: &Happening) -> Vec<String> {
    vec![
        event.id.to_string(),
        date(event.at_ms / 1_000),
        event.kind.clone(),
        event.device.clone().unwrap_or_default(),
        event
            .gateway
            .map(|gateway| gateway.to_string())
            .unwrap_or_default(),
        event.by.clone().unwrap_or_default(),
        event.reason.clone().unwrap_or_default(),
        event.detail.clone(),
    ]
}

/// Shows them.
pub fn run(args: &EventsArgs) -> Result<(), Failure> {
    let output = Output::new(args.json);
    match args.follow {
        true => follow(args, output),
        false => list(args, output),
    }
}

fn list(args: &EventsArgs, output: Output) -> Result<(), Failure> {
    let which = History {
        kinds: (!args.kind.is_empty()).then(|| args.kind.join(",")),
        device: args.device.map(|device| device.to_string()),
        gateway: args.gateway.map(|gateway| gateway.to_string()),
        ..History::default()
    };
    let mut rows = Vec::new();
    let damaged = args.site.with(async |site| {
        let ask = async |limit, after| site.history(&which, limit, after).await;
        walk(Some(args.limit), output, ask, |event| {
            rows.push(row(&event));
            output.object(&event)
        })
        .await
    })?;
    output.table(&HEADER, &[0], rows)?;
    match damaged {
        0 => Ok(()),
        damaged => Err(left_out(damaged)),
    }
}

impl EventsArgs {
    fn is_wanted(&self, event: &Happening) -> bool {
        let of_kind = self.kind.is_empty() || self.kind.contains(&event.kind);
        let device = self.device.map(|device| device.to_string());
        of_kind
            && device.is_none_or(|device| event.device == Some(device))
            && self.gateway.is_none_or(|gateway| event.gateway == Some(gateway))
    }

    fn tell(&self, event: &Happening, output: Output) -> Result<(), Failure> {
        if !self.is_wanted(event) {
            return Ok(());
        }
        output.object(event)?;
        let row = row(event);
        let words: Vec<&str> = row
            .iter()
            .map(String::as_str)
            .filter(|word| !word.is_empty())
            .collect();
        output.line(words.join("  ").replace('\n', " "))
    }
}

fn follow(args: &EventsArgs, output: Output) -> Result<(), Failure> {
    args.site.with(async |site| match site {
        Site::Local(registry) => follow_registry(registry, args, output).await,
        Site::Remote(client) => {
            let mut events = client.events(args.after).await?;
            while output.is_read() {
                args.tell(&events.next().await?, output)?;
            }
            Ok(())
        }
    })
}

async fn follow_registry(registry: &Registry, args: &EventsArgs, output: Output) -> Result<(), Failure> {
    let mut follower = Follower::after(match args.after {
        Some(after) => after,
        None => registry.journal_end().await?,
    });
    while output.is_read() {
        let entries = follower.next(registry, PAGE).await?;
        for entry in &entries {
            match Happening::of(entry) {
                Some(event) => args.tell(&event, output)?,
                None if !entry.authentic => {
                    tracing::error!(
                        number = entry.number,
                        "an entry was changed: see `registry check`"
                    );
                }
                None => {}
            }
        }
        if entries.is_empty() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
    Ok(())
}
