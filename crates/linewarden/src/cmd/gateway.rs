//! `linewarden gateway`: the book of gateways, and how they stand.

use clap::{Args, Subcommand};
use linewarden_service::wire::Gateway;

use crate::cmd::device::date;
use crate::failure::Failure;
use crate::output::{Output, counted};
use crate::site::{ReasonArgs, SiteArgs};

/// What about gateways.
#[derive(Subcommand, Debug)]
pub enum GatewayCommand {
    /// List gateways and how they stand
    #[command(after_help = "\
connected: heard within 10 seconds. silent: not. never: in the book, and never heard. retired: for good.
Evidence, of gateways that have to show what they run: trusted; untrusted: gets no rows; unproven: has shown its controller nothing yet; \
overdue: should have shown itself again by now.

Examples:
  linewarden gateway list --config controller.toml
  linewarden gateway list --json --server https://ctl.example:20560 --token-file alice.token")]
    List(ListArgs),
    /// Show one gateway
    #[command(after_help = "\
Examples:
  linewarden gateway status 7 --config controller.toml")]
    Status(StatusArgs),
    /// Enter a gateway in the book, or give it another name
    #[command(after_help = "\
Its certificate, by which it comes in, is made by `linewarden certificate gateway`.

Examples:
  linewarden gateway enter 7 --name \"hall 3\" --reason new --config controller.toml")]
    Enter(EnterArgs),
    /// Retire a gateway for good: whoever has its certificate gets nothing from then on
    #[command(after_help = "\
Examples:
  linewarden gateway retire 7 --reason stolen --config controller.toml")]
    Retire(RetireArgs),
}

/// Of whom.
#[derive(Args, Debug)]
pub struct ListArgs {
    #[command(flatten)]
    site: SiteArgs,
    /// JSON for machines, one object a line
    #[arg(long)]
    json: bool,
}

/// Which.
#[derive(Args, Debug)]
pub struct StatusArgs {
    /// Its number
    gateway: u32,
    #[command(flatten)]
    site: SiteArgs,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

/// Which, and what it is called.
#[derive(Args, Debug)]
pub struct EnterArgs {
    /// Its number
    gateway: u32,
    /// For people
    #[arg(long, value_name = "TEXT")]
    name: String,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    site: SiteArgs,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

/// Which.
#[derive(Args, Debug)]
pub struct RetireArgs {
    /// Its number
    gateway: u32,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    site: SiteArgs,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

impl GatewayCommand {
    /// Whether machines read what it prints.
    pub fn wants_json(&self) -> bool {
        match self {
            Self::List(args) => args.json,
            Self::Status(args) => args.json,
            Self::Enter(args) => args.json,
            Self::Retire(args) => args.json,
        }
    }
}

/// Does it.
pub fn run(command: &GatewayCommand) -> Result<(), Failure> {
    let output = Output::new(command.wants_json());
    match command {
        GatewayCommand::List(args) => list(args, output),
        GatewayCommand::Status(args) => {
            let gateway = args.site.with(async |site| site.gateway(args.gateway).await)?;
            show(&gateway, output)
        }
        GatewayCommand::Enter(args) => {
            let gateway = args.site.with(async |site| {
                site.enter_gateway(args.gateway, &args.name, &args.reason.reason)
                    .await
            })?;
            output.object(&gateway)?;
            output.line(format_args!("entered gateway {}: {}", gateway.id, gateway.name))
        }
        GatewayCommand::Retire(args) => {
            let gateway = args
                .site
                .with(async |site| site.retire_gateway(args.gateway, &args.reason.reason).await)?;
            output.object(&gateway)?;
            output.line(format_args!("retired gateway {}, for good", gateway.id))
        }
    }
}

fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| value.to_string())
}

fn list(args: &ListArgs, output: Output) -> Result<(), Failure> {
    let gateways = args.site.with(async |site| site.gateways().await)?;
    let mut rows = Vec::with_capacity(gateways.len());
    for gateway in &gateways {
        output.object(gateway)?;
        rows.push(vec![
            gateway.id.to_string(),
            gateway.name.clone(),
            gateway.state.clone().into_owned(),
            or_dash(gateway.age_s),
            or_dash(gateway.devices),
            or_dash(gateway.slots),
            or_dash(gateway.sessions),
            or_dash(gateway.authentications_per_s.map(|rate| format!("{rate:.1}"))),
            shown(gateway),
            or_dash(gateway.controller.as_deref()),
        ]);
    }
    let header = [
        "gateway",
        "name",
        "state",
        "heard (s ago)",
        "devices",
        "slots",
        "sessions",
        "auth/s",
        "evidence",
        "controller",
    ];
    output.table(&header, &[0, 3, 4, 5, 6, 7], rows)?;
    output.line(counted(gateways.len() as u64, "gateway"))
}

/// Whether it is trusted, and how old that is on which this rests; a dash where it has to show nothing.
fn shown(gateway: &Gateway) -> String {
    let age = gateway
        .evidence
        .as_ref()
        .map(|evidence| format!(", {} s old", evidence.age_s));
    or_dash(
        gateway
            .trust
            .as_ref()
            .map(|trust| format!("{trust}{}", age.unwrap_or_default())),
    )
}

fn show(gateway: &Gateway, output: Output) -> Result<(), Failure> {
    output.object(gateway)?;
    let latency = gateway.latency_us.as_ref().map(|latency| {
        format!(
            "{:.0} µs, of a hundred one takes {:.0} µs",
            latency.p50, latency.p99
        )
    });
    let mut fields = vec![
        ("gateway", gateway.id.to_string()),
        ("name", gateway.name.clone()),
        ("state", gateway.state.clone().into_owned()),
        ("registered", counted(gateway.fence, "time")),
        ("heard", or_dash(gateway.seen_at_s.map(date))),
        ("by controller", or_dash(gateway.controller.as_deref())),
        ("version", or_dash(gateway.version.as_deref())),
        ("data plane", or_dash(gateway.dataplane.as_deref())),
        ("devices", or_dash(gateway.devices)),
        ("slots", or_dash(gateway.slots)),
        ("sessions", or_dash(gateway.sessions)),
        (
            "authentications a second",
            or_dash(gateway.authentications_per_s.map(|rate| format!("{rate:.1}"))),
        ),
        ("latency", or_dash(latency)),
        ("evidence", shown(gateway)),
    ];
    if let Some(why) = &gateway.trust_why {
        fields.push(("because", why.clone()));
    }
    if let Some(at_s) = gateway.retired_at_s {
        fields.push(("retired", date(at_s)));
        fields.push(("reason", gateway.retired_reason.clone().unwrap_or_default()));
    }
    output.fields(&fields)?;
    for (what, unit, counts) in [
        ("verdict", "frames", &gateway.verdicts),
        (
            "dropped at the gate: Ethernet type",
            "frames",
            &gateway.dropped_types,
        ),
        ("dropped by the kernel", "packets", &gateway.kernel_drops),
        ("tickets", "messages", &gateway.tickets),
    ] {
        let counted = counts.iter().flatten().filter(|(_, count)| **count > 0);
        let rows: Vec<_> = counted
            .map(|(name, count)| vec![name.clone(), count.to_string()])
            .collect();
        if !rows.is_empty() {
            output.table(&[what, unit], &[1], rows)?;
        }
    }
    Ok(())
}
