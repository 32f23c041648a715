//! `linewarden device list` and `show`.

use clap::{Args, ValueEnum};
use linewarden_api::{Device, DeviceQuery, EventHistoryQuery, PageQuery};
use linewarden_cli::failure::Failure;
use linewarden_cli::output::{Output, counted};
use linewarden_protocol::ids::{DeviceId, Mode};
use linewarden_registry::ids_with_prefix;
use linewarden_service::convert::device_line;

use crate::access::{AccessArgs, check_damaged, for_each_item};
use crate::cmd::event::{HEADER, on_page, row as row_of_event};
use crate::date::date;

/// Maximum number of rows of a device that a restore of the registry loses: two leases of the default length.
const RESTORE_LOSS_ROWS_MAX: u32 = 32;
/// Maximum number of events that `--history` prints.
const HISTORY_EVENTS_MAX: u64 = 1_000;

/// Arguments of `linewarden device list`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  linewarden device list --config controller.toml
  linewarden device list --config controller.toml --revoked
  linewarden device list --config controller.toml --name pump --output json | jq -r .device_id
  linewarden device list --server https://ctl.example:20560 --token-file alice.token")]
pub struct ListArgs {
    #[command(flatten)]
    access: AccessArgs,
    /// Only devices whose name starts with this prefix (text)
    #[arg(long, value_name = "PREFIX")]
    name: Option<String>,
    /// Only devices whose 16-digit ID starts with this prefix (hexadecimal digits)
    #[arg(long, value_name = "DIGITS", value_parser = parse_id_prefix)]
    id: Option<String>,
    /// Only devices of this mode
    #[arg(long, value_name = "MODE")]
    mode: Option<ModeName>,
    /// Only active devices (flag)
    #[arg(long, conflicts_with_all = ["revoked", "quarantined"])]
    active: bool,
    /// Only revoked devices (flag)
    #[arg(long, conflicts_with = "quarantined")]
    revoked: bool,
    /// Only devices in quarantine (flag)
    #[arg(long)]
    quarantined: bool,
    /// Maximum number of devices to print (integer, default: unlimited)
    #[arg(long, value_name = "COUNT")]
    limit: Option<u64>,
}

/// A mode, as an option value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModeName {
    /// Pool mode: strong PUFs
    Pool,
    /// Key mode: weak PUFs
    Key,
}

impl From<ModeName> for Mode {
    fn from(name: ModeName) -> Self {
        match name {
            ModeName::Pool => Self::Pool,
            ModeName::Key => Self::Key,
        }
    }
}

fn parse_id_prefix(digits: &str) -> Result<String, &'static str> {
    match ids_with_prefix(digits) {
        Some(_) => Ok(digits.to_owned()),
        None => Err("expected 1 to 16 hexadecimal digits"),
    }
}

/// Arguments of `linewarden device show`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  linewarden device show 00000000000000d1 --config controller.toml
  linewarden device show d1 --history --config controller.toml")]
pub struct ShowArgs {
    /// Device ID (1 to 16 hexadecimal digits)
    device: DeviceId,
    /// Also print stored events of the device, newest first (flag)
    #[arg(long)]
    history: bool,
    #[command(flatten)]
    access: AccessArgs,
}

/// Prints devices.
pub fn list(args: &ListArgs, output: Output) -> Result<(), Failure> {
    let status = match (args.active, args.revoked, args.quarantined) {
        (true, ..) => Some("active"),
        (_, true, _) => Some("revoked"),
        (.., true) => Some("quarantined"),
        _ => None,
    };
    let query = DeviceQuery {
        name_prefix: args.name.clone(),
        id_prefix: args.id.clone(),
        mode: args.mode.map(|mode| {
            match mode {
                ModeName::Pool => "pool",
                ModeName::Key => "key",
            }
            .to_owned()
        }),
        status: status.map(str::to_owned),
        ..DeviceQuery::default()
    };
    let mut rows = Vec::new();
    let damaged_records = args.access.with(async |client| {
        let read_page = async |PageQuery { limit, after }| {
            let query = DeviceQuery {
                limit,
                after,
                ..query.clone()
            };
            client.devices(&query).await
        };
        for_each_item(args.limit, output, read_page, |device| {
            output.object(&device_line(&device))?;
            if !output.is_json() {
                rows.push(row(&device));
            }
            Ok(())
        })
        .await
    })?;
    let count = rows.len() as u64;
    let header = ["device", "name", "mode", "status", "rows left", "of", "PUF"];
    output.table(&header, &[4, 5], rows)?;
    output.line(counted(count, "device"))?;
    check_damaged(damaged_records)
}

fn row(device: &Device) -> Vec<String> {
    let rows = |count: Option<u32>| count.map_or("–".to_owned(), |count| count.to_string());
    vec![
        device.id.clone(),
        device.name.clone(),
        device.mode.clone().into_owned(),
        device.status.clone().into_owned(),
        rows(device.rows_left),
        rows(device.rows_left.map(|_| device.rows_total)),
        device.puf_profile.clone(),
    ]
}

/// Prints a device.
pub fn show(args: &ShowArgs, output: Output) -> Result<(), Failure> {
    let mut history = Vec::new();
    let device = args.access.with(async |client| {
        let device = client.device(&args.device.to_string()).await?;
        if args.history {
            let query = EventHistoryQuery {
                device: Some(device.id.clone()),
                ..EventHistoryQuery::default()
            };
            let read_page = async |page| client.history(&on_page(&query, page)).await;
            for_each_item(Some(HISTORY_EVENTS_MAX), output, read_page, |entry| {
                history.push(entry);
                Ok(())
            })
            .await?;
        }
        Ok(device)
    })?;
    output.object(&device_line(&device))?;
    output.fields(&fields(&device))?;
    for entry in &history {
        output.object(entry)?;
    }
    output.table(&HEADER, &[0], history.iter().map(row_of_event).collect())
}

fn fields(device: &Device) -> Vec<(&'static str, String)> {
    let mut fields = vec![
        ("device", device.id.clone()),
        ("name", device.name.clone()),
        ("mode", device.mode.clone().into_owned()),
        ("PUF", device.puf_profile.clone()),
        ("suite", device.suite.to_string()),
        ("enrolled", date(device.enrolled_at_s)),
        ("credentials replaced", counted(u64::from(device.epoch), "time")),
    ];
    let since = device.since_s.map(date).unwrap_or_default();
    fields.push((
        "status",
        match &*device.status {
            "revoked" => format!("revoked on {since}"),
            "quarantined" => format!("in quarantine since {since}"),
            other => other.to_owned(),
        },
    ));
    fields.extend(device.reason.clone().map(|reason| ("reason", reason)));
    if let Some(remaining) = device.rows_left {
        fields.push(("rows", format!("{} from {}", device.rows_total, device.first_idx)));
        fields.push(("rows left", rows_left(remaining)));
        fields.push(("next row", device.idx_floor.to_string()));
    }
    fields
}

/// Formats the number of remaining rows, with a remedy if this number is low. Rows that are leased to gateways do not
/// count as remaining.
fn rows_left(remaining: u32) -> String {
    match remaining {
        0 => "0; enroll the device again with --replace, unless its agent renews rows".to_owned(),
        1..=RESTORE_LOSS_ROWS_MAX => format!(
            "{remaining}; a restore of the registry loses up to {RESTORE_LOSS_ROWS_MAX} rows: if the device is refused then, enroll it again with \
             --replace"
        ),
        _ => remaining.to_string(),
    }
}
