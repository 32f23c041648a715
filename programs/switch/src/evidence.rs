//! `linewarden-switch evidence`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use linewarden_cli::evidence::{self, KeyArgs, parse_nonce, random_nonce};
use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;
use linewarden_cli::results;
use linewarden_evidence::CHANGING_OBJECTS;
use linewarden_evidence::statement::Nonce;
use linewarden_p4runtime::evidence::{Client, Digests, EvidenceClientError, InventoryScope};
use serde::Serialize;

use crate::tls::ClientTlsArgs;

/// Subcommands of `evidence`.
#[derive(Subcommand, Debug)]
pub enum EvidenceCommand {
    /// Show the present digests of a running switch; they are not authenticated
    #[command(after_help = "\
Examples:
  linewarden-switch evidence show
  linewarden-switch evidence show --grpc-addr 192.0.2.1:9559 --ca ca.crt --cert me.crt \\
      --key-file me.key")]
    Show(ShowArgs),
    /// Export a signed statement of a running switch
    #[command(after_help = "\
The statement contains the nonce of the verifier. Verify the statement with `linewarden appraise`.

Examples:
  linewarden-switch evidence export --out s.cose --inventory s.inventory --nonce $NONCE
  linewarden appraise s.cose --reference r.reference --key switch.pub --inventory s.inventory")]
    Export(ExportArgs),
    /// Create or show the key that signs statements
    Key(KeyArgs),
}

/// The switch, and whether the output is JSON.
#[derive(Args, Debug)]
pub struct ShowArgs {
    /// Address of the switch's P4Runtime server (ADDRESS:PORT)
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = crate::control::ADDRESS)]
    grpc_addr: SocketAddr,
    #[command(flatten)]
    tls: ClientTlsArgs,
}

/// Arguments of `evidence export`.
#[derive(Args, Debug)]
pub struct ExportArgs {
    #[command(flatten)]
    switch: ShowArgs,
    /// Output file for the signed statement (path)
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Output file for the inventory, which `appraise` needs to report entries that differ (path)
    #[arg(long, value_name = "FILE")]
    inventory: Option<PathBuf>,
    /// --inventory: omit the objects that a gateway changes constantly in the switch: devices, rows (which are
    /// keys), and registers (flag)
    #[arg(long, requires = "inventory")]
    gateway: bool,
    /// Nonce for the statement (64 hexadecimal digits, default: random)
    #[arg(long, value_name = "HEX", value_parser = parse_nonce)]
    nonce: Option<Nonce>,
    /// Overwrite existing files (flag)
    #[arg(long)]
    force: bool,
}

/// JSON output: the present digests.
#[derive(Serialize)]
struct DigestOutput {
    switch_id: u64,
    boot_count: u64,
    sequence: u64,
    registers: String,
    tables: String,
    program: String,
}

/// Runs the command.
pub fn run(command: &EvidenceCommand, output: Output) -> Result<(), Failure> {
    match command {
        EvidenceCommand::Show(args) => show(args, output),
        EvidenceCommand::Export(args) => export(args, output),
        EvidenceCommand::Key(args) => evidence::create_or_show_key(args, output),
    }
}

/// Connects to the switch and sends a request.
fn request<T>(
    args: &ShowArgs,
    send: impl AsyncFnOnce(Client) -> Result<T, EvidenceClientError>,
) -> Result<T, Failure> {
    let tls = args.tls.read()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::failed)?;
    let result = runtime.block_on(async { send(Client::connect(args.grpc_addr, tls.as_ref()).await?).await });
    result.map_err(|error| to_failure(&error, &args.tls))
}

fn show(args: &ShowArgs, output: Output) -> Result<(), Failure> {
    let digests = request(args, async |mut client| client.digests().await)?;
    print_digests(output, &digests)
}

fn export(args: &ExportArgs, output: Output) -> Result<(), Failure> {
    for path in [Some(&args.out), args.inventory.as_ref()].into_iter().flatten() {
        results::check_new(path, args.force)?;
    }
    let nonce = match args.nonce {
        Some(nonce) => nonce,
        None => random_nonce()?,
    };
    let scope = match args.inventory {
        Some(_) if args.gateway => InventoryScope::AllExcept(CHANGING_OBJECTS.map(str::to_owned).to_vec()),
        Some(_) => InventoryScope::ALL,
        None => InventoryScope::None,
    };
    let response = request(&args.switch, async |mut client| {
        client.attest(nonce.0, scope).await
    })?;
    results::write(&args.out, &response.statement)?;
    if let (Some(path), Some(inventory)) = (&args.inventory, &response.inventory) {
        results::write_private(path, inventory)?;
    }
    let nonce = hex::encode(nonce.0);
    output
        .object(&serde_json::json!({ "nonce": nonce, "statement": args.out, "inventory": args.inventory }))?;
    output.line(format_args!("nonce {nonce}"))?;
    output.line(format_args!("statement: {}", args.out.display()))
}

/// Converts an error to a failure, with advice. If a connection cannot be opened or breaks, the switch may have refused
/// the client.
fn to_failure(error: &EvidenceClientError, args: &ClientTlsArgs) -> Failure {
    let message = error.to_string();
    match error {
        EvidenceClientError::Unreachable(_) if message.contains("refused") => {
            Failure::failed(format_args!("{error}; check that the switch is running"))
        }
        EvidenceClientError::Unreachable(_) if message.contains("invalid peer certificate") => {
            Failure::failed(format_args!(
                "{error}; the switch's certificate must be of the CA of --ca, and for the switch's address or --domain"
            ))
        }
        EvidenceClientError::Unreachable(_) | EvidenceClientError::ConnectionLost(_) => {
            Failure::failed(format_args!("{error}; {}", args.hint()))
        }
        _ => Failure::failed(error),
    }
}

fn print_digests(output: Output, digests: &Digests) -> Result<(), Failure> {
    let report = DigestOutput {
        switch_id: digests.switch_id,
        boot_count: digests.boot_count,
        sequence: digests.sequence,
        registers: hex::encode(&digests.registers),
        tables: hex::encode(&digests.tables),
        program: hex::encode(&digests.program),
    };
    output.object(&report)?;
    output.line(format_args!(
        "switch {}, boot {}, sequence {}",
        report.switch_id, report.boot_count, report.sequence
    ))?;
    output.line(format_args!("registers {}", report.registers))?;
    output.line(format_args!("tables    {}", report.tables))?;
    output.line(format_args!("program   {}", report.program))
}
