//! `linewarden switch evidence`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use linewarden_dataplane::p4runtime::changing_objects;
use linewarden_evidence::statement::Nonce;
use linewarden_p4runtime::evidence::{AskError, Client, Digests, Listing};
use linewarden_tls::ClientTls;
use serde::Serialize;

use super::tls::ClientTlsArgs;
use crate::cmd::appraise::parse_nonce;
use crate::cmd::random_u64;
use crate::failure::Failure;
use crate::output::Output;
use crate::results;

/// Which switch, and what of it.
#[derive(Args, Debug)]
pub struct EvidenceArgs {
    /// Where the switch serves P4Runtime
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = super::control::ADDRESS)]
    grpc_addr: SocketAddr,
    #[command(flatten)]
    tls: ClientTlsArgs,
    /// Where to put a signed statement
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Where to put the entries behind it, by which `appraise` names what differs
    #[arg(long, value_name = "FILE", requires = "out")]
    inventory: Option<PathBuf>,
    /// --inventory: leave out what a gateway changes in the switch all the time: devices, rows, which are keys, and registers
    #[arg(long, requires = "inventory")]
    gateway: bool,
    /// What is to be in the statement, 64 hexadecimal digits; else it is drawn here, and printed
    #[arg(long, value_name = "HEX", value_parser = parse_nonce, requires = "out")]
    nonce: Option<Nonce>,
    /// Write over files that are there
    #[arg(long, requires = "out")]
    force: bool,
    /// JSON for machines
    #[arg(long)]
    pub json: bool,
}

/// The digests as they are now.
#[derive(Serialize)]
struct Shown {
    switch_id: u64,
    boot_count: u64,
    sequence: u64,
    registers: String,
    tables: String,
    program: String,
}

/// Asks.
pub fn run(args: &EvidenceArgs) -> Result<(), Failure> {
    let output = Output::new(args.json);
    let tls = args.tls.read()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::failed)?;
    let Some(out) = &args.out else {
        let digests = runtime
            .block_on(digests(args.grpc_addr, tls.as_ref()))
            .map_err(|error| failed(&error, &args.tls))?;
        return show(output, &digests);
    };
    for path in [Some(out), args.inventory.as_ref()].into_iter().flatten() {
        results::check_new(path, args.force)?;
    }
    let nonce = match args.nonce {
        Some(nonce) => nonce,
        None => drawn()?,
    };
    let asked = async {
        let mut client = Client::connect(args.grpc_addr, tls.as_ref()).await?;
        let listing = match args.inventory {
            Some(_) if args.gateway => Listing::AllBut(changing_objects()),
            Some(_) => Listing::ALL,
            None => Listing::Nothing,
        };
        client.attest(nonce.0, listing).await
    };
    let attested = runtime
        .block_on(asked)
        .map_err(|error| failed(&error, &args.tls))?;
    results::write(out, &attested.statement)?;
    if let (Some(path), Some(inventory)) = (&args.inventory, &attested.inventory) {
        results::write_private(path, inventory)?;
    }
    let nonce = hex::encode(nonce.0);
    output.object(&serde_json::json!({ "nonce": nonce, "statement": out, "inventory": args.inventory }))?;
    output.line(format_args!("nonce {nonce}"))?;
    output.line(format_args!("statement: {}", out.display()))
}

/// A connection that broke may be one that the switch did not want, also before it was whole.
fn failed(error: &AskError, args: &ClientTlsArgs) -> Failure {
    let said = error.to_string();
    match error {
        AskError::Unreachable(_) if said.contains("refused") => {
            Failure::failed(format_args!("{error}; is it started there?"))
        }
        AskError::Unreachable(_) if said.contains("invalid peer certificate") => {
            Failure::failed(format_args!(
                "{error}; what the switch shows must be of the CA of --ca, and for its address or --domain"
            ))
        }
        AskError::Unreachable(_) | AskError::Broken(_) => {
            Failure::failed(format_args!("{error}; {}", args.hint()))
        }
        _ => Failure::failed(error),
    }
}

async fn digests(address: SocketAddr, tls: Option<&ClientTls>) -> Result<Digests, AskError> {
    Client::connect(address, tls).await?.digests().await
}

fn show(output: Output, digests: &Digests) -> Result<(), Failure> {
    let shown = Shown {
        switch_id: digests.switch_id,
        boot_count: digests.boot_count,
        sequence: digests.sequence,
        registers: hex::encode(&digests.registers),
        tables: hex::encode(&digests.tables),
        program: hex::encode(&digests.program),
    };
    output.object(&shown)?;
    output.line(format_args!(
        "switch {}, start {}, state {}",
        shown.switch_id, shown.boot_count, shown.sequence
    ))?;
    output.line(format_args!("registers {}", shown.registers))?;
    output.line(format_args!("tables    {}", shown.tables))?;
    output.line(format_args!("program   {}", shown.program))
}

fn drawn() -> Result<Nonce, Failure> {
    let mut bytes = [0; 32];
    for eight in bytes.chunks_exact_mut(8) {
        eight.copy_from_slice(&random_u64()?.to_ne_bytes());
    }
    Ok(Nonce(bytes))
}
