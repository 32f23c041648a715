//! `linewarden device list` and `show`.

use std::ops::RangeInclusive;

use clap::{Args, ValueEnum};
use linewarden_agent::config::parse_device_id;
use linewarden_protocol::ids::{DeviceId, Mode};
use linewarden_registry::{DeviceInfo, DeviceLine, Filter, Quarantine, Registry, Status, ids_beginning};

use crate::failure::Failure;
use crate::output::{Output, counted};
use crate::registry::{RegistryArgs, block_on};

/// Devices read at once.
const PAGE: u32 = 1000;

/// Which devices.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  linewarden device list --config gateway.toml
  linewarden device list --config gateway.toml --revoked
  linewarden device list --config gateway.toml --name pump --json | jq -r .device_id")]
pub struct ListArgs {
    #[command(flatten)]
    registry: RegistryArgs,
    /// Only devices whose name begins like this
    #[arg(long, value_name = "PREFIX")]
    name: Option<String>,
    /// Only devices whose id, of 16 digits, begins like this
    #[arg(long, value_name = "DIGITS", value_parser = parse_id_prefix)]
    id: Option<IdPrefix>,
    /// Only devices of this mode
    #[arg(long, value_name = "MODE")]
    mode: Option<ModeName>,
    /// Only devices that may authenticate
    #[arg(long, conflicts_with_all = ["revoked", "quarantined"])]
    active: bool,
    /// Only revoked devices
    #[arg(long, conflicts_with = "quarantined")]
    revoked: bool,
    /// Only devices in quarantine
    #[arg(long)]
    quarantined: bool,
    /// At most so many
    #[arg(long, value_name = "COUNT")]
    limit: Option<u64>,
    /// JSON for machines, one object a line
    #[arg(long)]
    pub json: bool,
}

/// A mode by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModeName {
    /// Strong PUFs
    Pool,
    /// Weak PUFs
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

/// The ids that begin with the digits that were given.
#[derive(Clone, Debug)]
struct IdPrefix(RangeInclusive<DeviceId>);

fn parse_id_prefix(digits: &str) -> Result<IdPrefix, &'static str> {
    ids_beginning(digits)
        .map(IdPrefix)
        .ok_or("1 to 16 hexadecimal digits")
}

/// Which device.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  linewarden device show 00000000000000d1 --config gateway.toml")]
pub struct ShowArgs {
    /// Its id, up to 16 hexadecimal digits
    #[arg(value_parser = parse_device_id)]
    device: DeviceId,
    #[command(flatten)]
    registry: RegistryArgs,
    /// JSON for machines
    #[arg(long)]
    pub json: bool,
}

/// Prints the list.
pub fn list(args: &ListArgs, output: Output) -> Result<(), Failure> {
    let filter = Filter {
        name_prefix: args.name.clone(),
        ids: args.id.as_ref().map(|prefix| prefix.0.clone()),
        mode: args.mode.map(Mode::from),
        active: match (args.active, args.revoked) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        },
        quarantined: args.quarantined,
    };
    let (rows, damaged) = block_on(async {
        let registry = args.registry.open().await?;
        let read = read_list(&registry, &filter, args.limit.unwrap_or(u64::MAX), output).await?;
        registry.close().await;
        Ok(read)
    })?;
    let count = rows.len() as u64;
    let header = ["device", "name", "mode", "status", "rows left", "of", "PUF"];
    output.table(&header, &[4, 5], rows)?;
    output.line(counted(count, "device"))?;
    if damaged > 0 {
        return Err(left_out(damaged));
    }
    Ok(())
}

/// That damaged records were left out.
pub fn left_out(damaged: u64) -> Failure {
    Failure::failed(format!(
        "left out: {}; see `registry check`",
        counted(damaged, "damaged record")
    ))
}

/// Prints each device for machines, and returns the rows of the table for people with the count of damaged records.
async fn read_list(
    registry: &Registry,
    filter: &Filter,
    limit: u64,
    output: Output,
) -> Result<(Vec<Vec<String>>, u64), Failure> {
    let (mut rows, mut damaged, mut after, mut left) = (Vec::new(), 0, None, limit);
    loop {
        let wanted = u32::try_from(left).unwrap_or(PAGE).min(PAGE);
        let page = registry.list(filter, after, wanted).await?;
        damaged += page.damaged.len() as u64;
        for error in &page.damaged {
            tracing::error!(%error, "left out");
        }
        for device in &page.devices {
            output.object(&DeviceLine::from(device))?;
            if !output.is_json() {
                rows.push(row(device));
            }
        }
        left = left.saturating_sub(page.devices.len() as u64);
        after = page.next;
        if after.is_none() || left == 0 || !output.is_read() {
            return Ok((rows, damaged));
        }
    }
}

fn row(device: &DeviceInfo) -> Vec<String> {
    let rows = |count: Option<u32>| count.map_or("–".to_owned(), |count| count.to_string());
    vec![
        device.device.to_string(),
        device.name.clone(),
        mode(device).to_owned(),
        match (&device.status, &device.quarantine) {
            (Status::Revoked { .. }, _) => "revoked",
            (Status::Active, Some(_)) => "quarantined",
            (Status::Active, None) => "active",
        }
        .to_owned(),
        rows(device.rows_left()),
        rows(device.rows_left().map(|_| device.rows_total)),
        device.puf_profile.clone(),
    ]
}

fn mode(device: &DeviceInfo) -> &'static str {
    match device.mode {
        Mode::Pool => "pool",
        Mode::Key => "key",
    }
}

/// Prints one device.
pub fn show(args: &ShowArgs, output: Output) -> Result<(), Failure> {
    let device = block_on(async {
        let registry = args.registry.open().await?;
        let device = registry.get(args.device).await?;
        registry.close().await;
        Ok(device)
    })?;
    output.object(&DeviceLine::from(&device))?;
    let mut fields = vec![
        ("device", device.device.to_string()),
        ("name", device.name.clone()),
        ("mode", mode(&device).to_owned()),
        ("PUF", device.puf_profile.clone()),
        ("suite", device.suite.number().to_string()),
        ("enrolled", date(device.enrolled_at_s)),
        ("credentials replaced", counted(u64::from(device.epoch), "time")),
    ];
    let (status, reason) = match (&device.status, &device.quarantine) {
        (Status::Revoked { at_s, reason }, _) => (format!("revoked on {}", date(*at_s)), Some(reason)),
        (Status::Active, Some(Quarantine { at_s, reason })) => {
            (format!("in quarantine since {}", date(*at_s)), Some(reason))
        }
        (Status::Active, None) => ("active".to_owned(), None),
    };
    fields.push(("status", status));
    fields.extend(reason.map(|reason| ("reason", reason.clone())));
    if let Some(left) = device.rows_left() {
        let numbers = device.indices();
        fields.push(("rows", format!("{} from {}", device.rows_total, numbers.start)));
        fields.push(("rows left", left.to_string()));
        fields.push(("next row", device.idx_floor.to_string()));
    }
    output.fields(&fields)
}

/// `YYYY-MM-DD hh:mm UTC`, by the days-to-civil algorithm (H. Hinnant, "chrono-Compatible Low-Level Date Algorithms").
pub fn date(at_s: u64) -> String {
    let (days, second) = (at_s / 86_400, at_s % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02} UTC",
        second / 3600,
        second / 60 % 60
    )
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_399), "2000-02-28 23:59 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_798_761_599), "2026-12-31 23:59 UTC");
        assert_eq!(date(4_107_542_400), "2100-03-01 00:00 UTC");
    }
}
