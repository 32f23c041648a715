//! `linewarden appraise`.

use linewarden_cli::evidence::{self, parse_nonce, read_reference};
use linewarden_cli::failure::Failure;
use linewarden_cli::now_s;
use linewarden_cli::output::{Output, counted};
use linewarden_cli::results;
use linewarden_config::controller::read_signing_key;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;
use linewarden_controller::attest::Signer as ResultSigner;
use linewarden_evidence::CHANGING_OBJECTS;
use linewarden_evidence::appraisal::{Appraisal, Reference, appraise};
use linewarden_evidence::encoding::Object;
use linewarden_evidence::keys::{PublicKey, Signer};
use linewarden_evidence::statement::{
    INVENTORY_BYTES_MAX, Inventory, Nonce, ProvenEntries, STATEMENT_BYTES_MAX, StatementError,
    VerifiedStatement, verify, verify_recorded,
};
use linewarden_files::read_bounded;
use serde::Serialize;

/// Lifetime of an attestation result, seconds.
const RESULT_LIFETIME_S: u64 = 300;

/// Arguments of `linewarden appraise`.
#[derive(Args, Debug)]
#[command(after_help = "\
Verifies a statement of a P4 switch or an XDP gateway: its signature (--key), its nonce (--nonce), and its content (--reference). Reports \
each table, register or map that differs from the reference values. If the reference values were created with --inventory and the \
statement has an --inventory, too, the command also reports the entries that differ. Without --nonce the age of the statement is \
unknown, and a warning is printed.

--make-reference writes the content of the statement as reference values of this data plane. Use it only on a trusted data plane: \
right after its start, on a known machine. --volatile names objects whose content is not compared, by class and name as \
register:counts; --gateway names all objects that a gateway changes constantly in the switch that the gateway controls.

Exit codes: 0 no difference; 1 a difference, or the statement is not authentic; 2 a file is missing or damaged.

Examples:
  linewarden appraise s.cose --key gateway.pub --inventory s.inventory --make-reference g.reference
  linewarden appraise s.cose --key gateway.pub --nonce $NONCE --reference g.reference
  linewarden appraise s.cose --key gateway.pub --nonce $NONCE --reference g.reference \\
    --inventory s.inventory --ear result.json --output json")]
pub struct AppraiseArgs {
    /// Statement (path)
    statement: PathBuf,
    /// Public key of the data plane (path)
    #[arg(long, value_name = "PUB")]
    key: PathBuf,
    /// Nonce that the statement must contain (64 hexadecimal digits)
    #[arg(long, value_name = "HEX", value_parser = parse_nonce)]
    nonce: Option<Nonce>,
    /// Inventory of the statement: the table, register and map entries that the statement contains as digests (path)
    #[arg(long, value_name = "FILE")]
    inventory: Option<PathBuf>,
    /// Reference values to compare with (path)
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present = "make_reference",
        conflicts_with = "make_reference"
    )]
    reference: Option<PathBuf>,
    /// Public key that must have signed the reference values (path)
    #[arg(long, value_name = "PUB", requires = "reference")]
    reference_key: Option<PathBuf>,
    /// Write reference values from the statement to this file (path)
    #[arg(long, value_name = "FILE")]
    make_reference: Option<PathBuf>,
    /// --make-reference: name of the reference values in results (text, default: the file name)
    #[arg(long, requires = "make_reference")]
    name: Option<String>,
    /// --make-reference: object whose content is not compared, such as register:NAME; repeatable (text)
    #[arg(long, value_name = "OBJECT", requires = "make_reference")]
    volatile: Vec<Object>,
    /// --make-reference: for a switch that a gateway controls (`dataplane = "p4"`), do not compare devices, rows and
    /// registers (flag)
    #[arg(long, requires = "make_reference")]
    gateway: bool,
    /// Private key that signs the output: the reference values of --make-reference, or the result of --ear (path)
    #[arg(long, value_name = "FILE")]
    signing_key: Option<PathBuf>,
    /// Overwrite existing reference values (flag)
    #[arg(long, requires = "make_reference")]
    force: bool,
    /// Write the attestation result (EAR) to this file; signed if --signing-key names a key of `attest key`,
    /// otherwise unsigned (path)
    // The result has a new date, but without a nonce the statement may be old, so --nonce is required.
    #[arg(long, value_name = "FILE", requires_all = ["reference", "nonce"])]
    ear: Option<PathBuf>,
}

/// JSON output.
#[derive(Serialize)]
struct AppraisalOutput<'a> {
    affirmed: bool,
    kind: &'static str,
    switch: u64,
    boot_count: u64,
    sequence: u64,
    is_fresh: bool,
    software_version: &'a str,
    omitted: &'a [String],
    differences: Vec<String>,
}

/// Appraises a statement, or writes reference values.
pub fn run(args: &AppraiseArgs, output: Output) -> Result<(), Failure> {
    let key = evidence::read_public_key(&args.key)?;
    let evidence = read_statement(args, &key)?;
    let proven = args
        .inventory
        .as_ref()
        .map(|path| read_inventory(path, &evidence))
        .transpose()?;
    match (&args.reference, &args.make_reference) {
        (Some(reference), _) => compare(args, reference, &evidence, proven.as_ref(), output),
        (None, Some(path)) => write_reference(args, path, &evidence, proven.as_ref(), output),
        (None, None) => Err(Failure::input(
            "no reference values given: use --reference FILE or --make-reference FILE",
        )),
    }
}

fn file_failure(path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::input(format!("{}: {error}", path.display()))
}

fn read_statement(args: &AppraiseArgs, key: &PublicKey) -> Result<VerifiedStatement, Failure> {
    let path = &args.statement;
    let bytes = read_bounded(path, STATEMENT_BYTES_MAX).map_err(|error| file_failure(path, error))?;
    let evidence = match args.nonce {
        Some(nonce) => verify(&bytes, key, nonce),
        None => verify_recorded(&bytes, key),
    };
    if evidence.is_ok() && args.nonce.is_none() {
        tracing::warn!("statement verified without --nonce: its age is unknown");
    }
    evidence.map_err(|error| match error {
        StatementError::TooLong(_) | StatementError::InvalidCose(_) | StatementError::InvalidClaims(..) => {
            file_failure(path, error)
        }
        _ => Failure::failed(format!("{}: statement is not authentic: {error}", path.display())),
    })
}

fn read_inventory(path: &Path, evidence: &VerifiedStatement) -> Result<ProvenEntries, Failure> {
    let bytes = read_bounded(path, INVENTORY_BYTES_MAX).map_err(|error| file_failure(path, error))?;
    let inventory = Inventory::read(&bytes).map_err(|error| file_failure(path, error))?;
    inventory
        .prove(evidence)
        .map_err(|error| file_failure(path, error))
}

fn compare(
    args: &AppraiseArgs,
    path: &Path,
    evidence: &VerifiedStatement,
    proven: Option<&ProvenEntries>,
    output: Output,
) -> Result<(), Failure> {
    let key = args
        .reference_key
        .as_deref()
        .map(evidence::read_public_key)
        .transpose()?;
    let reference = read_reference(path, key.as_ref())?;
    if let Some(path) = &args.ear {
        results::check(path)?;
    }
    let appraisal = appraise(evidence, &reference, proven).map_err(|error| file_failure(path, error))?;
    if let Some(path) = &args.ear {
        results::write(path, encode_result(&appraisal, args.signing_key.as_deref())?)?;
    }
    print_appraisal(args, evidence, &appraisal, output)?;
    match appraisal.differences().len() as u64 {
        0 => Ok(()),
        count => Err(Failure::failed(format!(
            "data plane does not match its reference values: {}",
            counted(count, "difference")
        ))),
    }
}

fn encode_result(appraisal: &Appraisal, signing_key: Option<&Path>) -> Result<Vec<u8>, Failure> {
    let now_s = now_s()?;
    let claims = appraisal.ear(now_s, now_s.saturating_add(RESULT_LIFETIME_S));
    let Some(path) = signing_key else {
        let mut bytes = serde_json::to_vec_pretty(&claims).map_err(Failure::failed)?;
        bytes.push(b'\n');
        return Ok(bytes);
    };
    let signer: ResultSigner = read_signing_key(path)?;
    let token = signer.sign_claims(&claims).map_err(Failure::failed)?;
    Ok(format!("{token}\n").into_bytes())
}

fn print_appraisal(
    args: &AppraiseArgs,
    evidence: &VerifiedStatement,
    appraisal: &Appraisal,
    output: Output,
) -> Result<(), Failure> {
    let state = evidence.snapshot();
    let differences = appraisal.differences();
    output.object(&AppraisalOutput {
        affirmed: appraisal.is_affirmed(),
        kind: evidence.kind().name(),
        switch: state.switch.0,
        boot_count: state.boot_count.0,
        sequence: state.sequence.0,
        is_fresh: args.nonce.is_some(),
        software_version: evidence.software_version(),
        omitted: evidence.exclusions(),
        differences: differences.iter().map(ToString::to_string).collect(),
    })?;
    output.line(format_args!(
        "data plane {} ({}, version {}), boot {}, sequence {}",
        state.switch,
        evidence.kind().name(),
        evidence.software_version(),
        state.boot_count,
        state.sequence
    ))?;
    output.line(appraisal.to_string().trim_end())
}

/// The objects whose content is not compared.
fn volatile_objects(args: &AppraiseArgs) -> Result<BTreeSet<Object>, Failure> {
    let mut volatile: BTreeSet<Object> = args.volatile.iter().cloned().collect();
    if args.gateway {
        for name in CHANGING_OBJECTS {
            volatile.insert(name.parse().map_err(Failure::failed)?);
        }
    }
    Ok(volatile)
}

fn write_reference(
    args: &AppraiseArgs,
    path: &Path,
    evidence: &VerifiedStatement,
    proven: Option<&ProvenEntries>,
    output: Output,
) -> Result<(), Failure> {
    results::check_new(path, args.force)?;
    let name = args.name.clone().unwrap_or_else(|| {
        let stem = path.file_stem().unwrap_or_default();
        stem.to_string_lossy().into_owned()
    });
    let volatile = volatile_objects(args)?;
    let reference = Reference::from_statement(&name, evidence, proven, |object| volatile.contains(object));
    let is_unknown = |object: &&Object| !reference.objects.iter().any(|entry| entry.object == **object);
    if let Some(unknown) = volatile.iter().find(is_unknown) {
        return Err(Failure::input(format!(
            "--{}: the statement does not contain {unknown}",
            if args.volatile.contains(unknown) {
                "volatile"
            } else {
                "gateway"
            }
        )));
    }
    let mut signer = match &args.signing_key {
        Some(key) => Some(evidence::read_signer(key, None)?),
        None => None,
    };
    let signer = signer.as_mut().map(|signer| &mut **signer as &mut dyn Signer);
    let bytes = reference.to_file(signer).map_err(Failure::failed)?;
    // Private, because the entries may include keys.
    results::write_private(path, bytes)?;
    let objects = reference.objects.len() as u64;
    output.object(&serde_json::json!({ "reference": path, "name": name, "objects": objects }))?;
    output.line(format_args!(
        "reference values of {}: {}",
        counted(objects, "object"),
        path.display()
    ))?;
    match proven {
        Some(_) => Ok(()),
        None => output
            .line("created without --inventory: `appraise` will report differences by object, not by entry"),
    }
}
