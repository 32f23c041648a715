//! `linewarden gateway`: manages gateways and shows their state.

use clap::{Args, Subcommand};
use linewarden_api::{Gateway, NewGateway};
use linewarden_cli::failure::Failure;
use linewarden_cli::output::{Output, counted};

use crate::access::{AccessArgs, ReasonArgs, check_damaged, read_all};
use crate::date::date;

/// Subcommands of `linewarden gateway`.
#[derive(Subcommand, Debug)]
pub enum GatewayCommand {
    /// List gateways and their states
    #[command(after_help = "\
States. connected: a report arrived within 10 seconds. disconnected: no report for longer. never_connected: no report yet. revoked: excluded permanently.

States of evidence, for gateways that must submit it; such a gateway receives rows only while trusted. trusted: the last evidence was accepted. \
untrusted: the last evidence was not accepted, or none arrived in time. unproven: the gateway has submitted no evidence yet. overdue: the \
next evidence is late.

Examples:
  linewarden gateway list --config controller.toml
  linewarden gateway list --output json --server https://ctl.example:20560 --token-file alice.token")]
    List(ListArgs),
    /// Show a gateway
    #[command(after_help = "\
Examples:
  linewarden gateway show 7 --config controller.toml")]
    Show(ShowArgs),
    /// Create a gateway, or change its name
    #[command(after_help = "\
Create the gateway's certificate with `linewarden certificate gateway`.

Examples:
  linewarden gateway create 7 --name \"hall 3\" --reason new --config controller.toml")]
    Create(CreateArgs),
    /// Revoke a gateway permanently: its certificate is refused
    #[command(after_help = "\
Examples:
  linewarden gateway revoke 7 --reason stolen --config controller.toml")]
    Revoke(RevokeArgs),
}

/// Arguments of `linewarden gateway list`.
#[derive(Args, Debug)]
pub struct ListArgs {
    #[command(flatten)]
    access: AccessArgs,
}

/// Arguments of `linewarden gateway show`.
#[derive(Args, Debug)]
pub struct ShowArgs {
    /// ID of the gateway (integer)
    gateway: u32,
    #[command(flatten)]
    access: AccessArgs,
}

/// Arguments of `linewarden gateway create`.
#[derive(Args, Debug)]
pub struct CreateArgs {
    /// ID of the gateway (integer)
    gateway: u32,
    /// Display name (text)
    #[arg(long, value_name = "TEXT")]
    name: String,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    access: AccessArgs,
}

/// Arguments of `linewarden gateway revoke`.
#[derive(Args, Debug)]
pub struct RevokeArgs {
    /// ID of the gateway (integer)
    gateway: u32,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    access: AccessArgs,
}

/// Runs the command.
pub fn run(command: &GatewayCommand, output: Output) -> Result<(), Failure> {
    match command {
        GatewayCommand::List(args) => list(args, output),
        GatewayCommand::Show(args) => {
            let gateway = args
                .access
                .with(async |client| Ok(client.gateway(args.gateway).await?))?;
            show(&gateway, output)
        }
        GatewayCommand::Create(args) => {
            let new = NewGateway {
                id: args.gateway,
                name: args.name.clone(),
                reason: args.reason.reason.clone(),
            };
            let gateway = args
                .access
                .with(async |client| Ok(client.create_gateway(&new).await?))?;
            output.object(&gateway)?;
            output.line(format_args!("created gateway {}: {}", gateway.id, gateway.name))
        }
        GatewayCommand::Revoke(args) => {
            let gateway = args
                .access
                .with(async |client| Ok(client.revoke_gateway(args.gateway, &args.reason.reason).await?))?;
            output.object(&gateway)?;
            output.line(format_args!("revoked gateway {} permanently", gateway.id))
        }
    }
}

fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| value.to_string())
}

fn list(args: &ListArgs, output: Output) -> Result<(), Failure> {
    let gateways = args
        .access
        .with(async |client| read_all(async |page| client.gateways(&page).await).await)?;
    let mut rows = Vec::with_capacity(gateways.items.len());
    for gateway in &gateways.items {
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
            trust_text(gateway),
            or_dash(gateway.controller.as_deref()),
        ]);
    }
    let header = [
        "gateway",
        "name",
        "state",
        "last report (s ago)",
        "devices",
        "slots",
        "sessions",
        "auth/s",
        "evidence",
        "controller",
    ];
    output.table(&header, &[0, 3, 4, 5, 6, 7], rows)?;
    output.line(counted(gateways.items.len() as u64, "gateway"))?;
    check_damaged(gateways.damaged_records)
}

/// Trust state and age of the evidence; a dash if the gateway need not provide evidence.
fn trust_text(gateway: &Gateway) -> String {
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
            "{:.0} µs (median), {:.0} µs (99th percentile)",
            latency.p50, latency.p99
        )
    });
    let mut fields = vec![
        ("gateway", gateway.id.to_string()),
        ("name", gateway.name.clone()),
        ("state", gateway.state.clone().into_owned()),
        ("fencing token", gateway.fencing_token.to_string()),
        ("last report", or_dash(gateway.seen_at_s.map(date))),
        ("controller", or_dash(gateway.controller.as_deref())),
        ("version", or_dash(gateway.version.as_deref())),
        ("data plane", or_dash(gateway.data_plane.as_deref())),
        ("devices", or_dash(gateway.devices)),
        ("slots", or_dash(gateway.slots)),
        ("sessions", or_dash(gateway.sessions)),
        (
            "authentications/s",
            or_dash(gateway.authentications_per_s.map(|rate| format!("{rate:.1}"))),
        ),
        ("latency", or_dash(latency)),
        ("evidence", trust_text(gateway)),
    ];
    if let Some(reason) = &gateway.trust_reason {
        fields.push(("evidence detail", reason.clone()));
    }
    if let Some(at_s) = gateway.revoked_at_s {
        fields.push(("revoked", date(at_s)));
        fields.push(("reason", gateway.revoked_reason.clone().unwrap_or_default()));
    }
    output.fields(&fields)?;
    for (title, unit, counts) in [
        ("verdict", "frames", &gateway.verdicts),
        ("dropped by the gate: EtherType", "frames", &gateway.dropped_types),
        ("dropped by the kernel", "packets", &gateway.kernel_drops),
        ("tickets", "messages", &gateway.tickets),
    ] {
        let nonzero_counts = counts.iter().flatten().filter(|(_, count)| **count > 0);
        let rows: Vec<_> = nonzero_counts
            .map(|(name, count)| vec![name.clone(), count.to_string()])
            .collect();
        if !rows.is_empty() {
            output.table(&[title, unit], &[1], rows)?;
        }
    }
    Ok(())
}
