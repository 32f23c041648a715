//! `linewarden-gateway evidence export`.

use std::path::PathBuf;

use clap::Args;
use linewarden_cli::evidence::{parse_nonce, random_nonce};
use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;
use linewarden_cli::results;
use linewarden_evidence::statement::Nonce;
use linewarden_gateway::evidence_server;

/// Arguments of `linewarden-gateway evidence export`.
#[derive(Args, Debug)]
#[command(after_help = "\
Requests a statement from the gateway whose configuration names this socket (`[evidence] socket`). A statement contains the state of \
the data plane and a nonce, and is signed. The verifier should choose the nonce; without --nonce the command uses and prints a random \
nonce. --inventory also writes the entries whose digests the statement contains; `appraise` needs these entries to report differences.

Examples:
  linewarden-gateway evidence export --socket evidence.sock --out s.cose --inventory s.inventory
  linewarden-gateway evidence export --socket evidence.sock --nonce $(openssl rand -hex 32) \\
      --out s.cose")]
pub struct ExportArgs {
    /// Evidence socket of the gateway (path)
    #[arg(long, value_name = "FILE")]
    socket: PathBuf,
    /// Nonce for the statement (64 hexadecimal digits, default: random)
    #[arg(long, value_name = "HEX", value_parser = parse_nonce)]
    nonce: Option<Nonce>,
    /// Output file for the statement (path)
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Output file for the inventory (path)
    #[arg(long, value_name = "FILE")]
    inventory: Option<PathBuf>,
    /// Overwrite existing files (flag)
    #[arg(long)]
    force: bool,
}

/// Requests and writes a statement.
pub fn run(args: &ExportArgs, output: Output) -> Result<(), Failure> {
    for path in [Some(&args.out), args.inventory.as_ref()].into_iter().flatten() {
        results::check_new(path, args.force)?;
    }
    let nonce = match args.nonce {
        Some(nonce) => nonce,
        None => random_nonce()?,
    };
    let evidence = evidence_server::request_statement(&args.socket, nonce).map_err(Failure::failed)?;
    results::write(&args.out, &evidence.statement)?;
    if let Some(path) = &args.inventory {
        results::write_private(path, &evidence.inventory)?;
    }
    let nonce = hex::encode(nonce.0);
    output
        .object(&serde_json::json!({ "nonce": nonce, "statement": args.out, "inventory": args.inventory }))?;
    output.line(format_args!("nonce {nonce}"))?;
    output.line(format_args!("statement: {}", args.out.display()))
}
