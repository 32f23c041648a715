//! `linewarden evidence ask`.

use std::path::PathBuf;

use clap::Args;
use linewarden_evidence::statement::Nonce;
use linewarden_gateway::evidence_desk;

use crate::cmd::appraise::parse_nonce;
use crate::cmd::random_u64;
use crate::failure::Failure;
use crate::output::Output;
use crate::results;

/// Whom to ask, and where to put the answer.
#[derive(Args, Debug)]
#[command(after_help = "\
Asks the gateway that has this socket in its configuration (`[evidence] socket`) for a statement: what its data plane runs, signed, \
with the nonce. Who will believe it draws the nonce; without --nonce one is drawn here, and printed. With --inventory come the \
entries behind the statement's digests, by which `appraise` names what differs.

Examples:
  linewarden evidence ask --socket evidence.sock --out s.cose --inventory s.inventory
  linewarden evidence ask --socket evidence.sock --nonce $(openssl rand -hex 32) --out s.cose")]
pub struct AskArgs {
    /// The gateway's socket
    #[arg(long, value_name = "FILE")]
    socket: PathBuf,
    /// What is to be in the statement, 64 hexadecimal digits
    #[arg(long, value_name = "HEX", value_parser = parse_nonce)]
    nonce: Option<Nonce>,
    /// Where to put the statement
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Where to put its entries
    #[arg(long, value_name = "FILE")]
    inventory: Option<PathBuf>,
    /// Write over files that are there
    #[arg(long)]
    force: bool,
    /// JSON for machines
    #[arg(long)]
    pub json: bool,
}

/// Asks.
pub fn run(args: &AskArgs, output: Output) -> Result<(), Failure> {
    for path in [Some(&args.out), args.inventory.as_ref()].into_iter().flatten() {
        results::check_new(path, args.force)?;
    }
    let nonce = match args.nonce {
        Some(nonce) => nonce,
        None => {
            let mut bytes = [0; 32];
            for eight in bytes.chunks_exact_mut(8) {
                eight.copy_from_slice(&random_u64()?.to_ne_bytes());
            }
            Nonce(bytes)
        }
    };
    let shown = evidence_desk::ask(&args.socket, nonce).map_err(Failure::failed)?;
    results::write(&args.out, &shown.statement)?;
    if let Some(path) = &args.inventory {
        results::write_private(path, &shown.inventory)?;
    }
    let nonce = hex::encode(nonce.0);
    output
        .object(&serde_json::json!({ "nonce": nonce, "statement": args.out, "inventory": args.inventory }))?;
    output.line(format_args!("nonce {nonce}"))?;
    output.line(format_args!("statement: {}", args.out.display()))
}
