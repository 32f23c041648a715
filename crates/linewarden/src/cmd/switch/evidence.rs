//! `linewarden switch evidence`.

use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;
use linewarden_cli::results;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use linewarden_dataplane::p4runtime::changing_objects;
use linewarden_evidence::statement::Nonce;
use linewarden_p4runtime::evidence::{Client, Digests, EvidenceClientError, InventoryScope};
use linewarden_tls::ClientTls;
use serde::Serialize;

use super::tls::ClientTlsArgs;
use crate::cmd::appraise::parse_nonce;
use crate::cmd::random_u64;

/// Arguments of `linewarden switch evidence`.
#[derive(Args, Debug)]
pub struct EvidenceArgs {
    /// Address of the switch's P4Runtime server (ADDRESS:PORT)
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = super::control::ADDRESS)]
    grpc_addr: SocketAddr,
    #[command(flatten)]
    tls: ClientTlsArgs,
    /// Output file for a signed statement; without --out, the command prints the present digests (path)
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Output file for the inventory, which `appraise` needs to report entries that differ (path)
    #[arg(long, value_name = "FILE", requires = "out")]
    inventory: Option<PathBuf>,
    /// --inventory: omit the objects that a gateway changes constantly in the switch: devices, rows (which are
    /// keys), and registers (flag)
    #[arg(long, requires = "inventory")]
    gateway: bool,
    /// Nonce for the statement (64 hexadecimal digits, default: random)
    #[arg(long, value_name = "HEX", value_parser = parse_nonce, requires = "out")]
    nonce: Option<Nonce>,
    /// Overwrite existing files (flag)
    #[arg(long, requires = "out")]
    force: bool,
    /// Print JSON instead of text (flag)
    #[arg(long)]
    pub json: bool,
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

/// Requests digests or a statement.
pub fn run(args: &EvidenceArgs) -> Result<(), Failure> {
    let output = Output::new(args.json);
    let tls = args.tls.read()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::failed)?;
    let Some(out) = &args.out else {
        let digests = runtime
            .block_on(read_digests(args.grpc_addr, tls.as_ref()))
            .map_err(|error| to_failure(&error, &args.tls))?;
        return print_digests(output, &digests);
    };
    for path in [Some(out), args.inventory.as_ref()].into_iter().flatten() {
        results::check_new(path, args.force)?;
    }
    let nonce = match args.nonce {
        Some(nonce) => nonce,
        None => random_nonce()?,
    };
    let request = async {
        let mut client = Client::connect(args.grpc_addr, tls.as_ref()).await?;
        let scope = match args.inventory {
            Some(_) if args.gateway => InventoryScope::AllExcept(changing_objects()),
            Some(_) => InventoryScope::ALL,
            None => InventoryScope::None,
        };
        client.attest(nonce.0, scope).await
    };
    let response = runtime
        .block_on(request)
        .map_err(|error| to_failure(&error, &args.tls))?;
    results::write(out, &response.statement)?;
    if let (Some(path), Some(inventory)) = (&args.inventory, &response.inventory) {
        results::write_private(path, inventory)?;
    }
    let nonce = hex::encode(nonce.0);
    output.object(&serde_json::json!({ "nonce": nonce, "statement": out, "inventory": args.inventory }))?;
    output.line(format_args!("nonce {nonce}"))?;
    output.line(format_args!("statement: {}", out.display()))
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

async fn read_digests(address: SocketAddr, tls: Option<&ClientTls>) -> Result<Digests, EvidenceClientError> {
    Client::connect(address, tls).await?.digests().await
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

fn random_nonce() -> Result<Nonce, Failure> {
    let mut bytes = [0; 32];
    for chunk in bytes.chunks_exact_mut(8) {
        chunk.copy_from_slice(&random_u64()?.to_ne_bytes());
    }
    Ok(Nonce(bytes))
}
