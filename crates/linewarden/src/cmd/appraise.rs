//! `linewarden appraise`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;
use linewarden_controller::attest::Signer as ResultSigner;
use linewarden_dataplane::p4runtime::changing_objects;
use linewarden_evidence::appraisal::{Appraisal, REFERENCE_BYTES_MAX, Reference, appraise};
use linewarden_evidence::encoding::Object;
use linewarden_evidence::keys::{PublicKey, Signer};
use linewarden_evidence::statement::{
    Evidence, INVENTORY_BYTES_MAX, Inventory, NONCE_BYTES, Nonce, Proven, STATEMENT_BYTES_MAX,
    StatementError, verify, verify_recorded,
};
use linewarden_files::read_bounded;
use serde::Serialize;

use crate::cmd::now_s;
use crate::failure::Failure;
use crate::output::{Output, counted};
use crate::{evidence_key, results, secret_file};

/// A result must not be believed for longer, s.
const RESULT_GOOD_S: u64 = 300;

/// What to appraise, and by what.
#[derive(Args, Debug)]
#[command(after_help = "\
Takes the statement of any data plane, the P4 switch's or the XDP gateway's: checks that this key has signed it in answer to this \
nonce, compares it with reference values, and names what differs: which table, register or map, and with both inventories (the \
statement's by --inventory, the other in the reference values) which entry. Without --nonce nothing says how old it is; a warning \
tells so.

--make-reference writes what the statement says as the reference values of this data plane. Do so only where you trust it: right \
after you have started it, on a machine that you know. --volatile names what may be anything, by class and name as register:counts; \
--gateway what a gateway changes all the time in the switch that it controls.

Exit codes: 0 nothing differs; 1 something does, or the statement is not believed; 2 a file that is damaged or none.

Examples:
  linewarden appraise s.cose --key gateway.pub --inventory s.inventory --make-reference g.reference
  linewarden appraise s.cose --key gateway.pub --nonce $NONCE --reference g.reference
  linewarden appraise s.cose --key gateway.pub --nonce $NONCE --reference g.reference \\
    --inventory s.inventory --ear result.json --json")]
pub struct AppraiseArgs {
    /// The statement
    statement: PathBuf,
    /// The data plane's public key
    #[arg(long, value_name = "PUB")]
    key: PathBuf,
    /// What it is to answer, 64 hexadecimal digits
    #[arg(long, value_name = "HEX", value_parser = parse_nonce)]
    nonce: Option<Nonce>,
    /// The entries behind the statement
    #[arg(long, value_name = "FILE")]
    inventory: Option<PathBuf>,
    /// What it is compared with
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present = "make_reference",
        conflicts_with = "make_reference"
    )]
    reference: Option<PathBuf>,
    /// By whom the reference values must be signed
    #[arg(long, value_name = "PUB", requires = "reference")]
    reference_key: Option<PathBuf>,
    /// Write reference values from the statement
    #[arg(long, value_name = "FILE")]
    make_reference: Option<PathBuf>,
    /// --make-reference: their name in results; the file's unless given
    #[arg(long, requires = "make_reference")]
    name: Option<String>,
    /// --make-reference: what may be anything, as register:NAME
    #[arg(long, value_name = "OBJECT", requires = "make_reference")]
    volatile: Vec<Object>,
    /// --make-reference: of a switch that a gateway controls (`dataplane = "p4"`), whose devices, rows and registers may be anything
    #[arg(long, requires = "make_reference")]
    gateway: bool,
    /// --make-reference: who signs them; --ear: who signs the result
    #[arg(long, value_name = "FILE")]
    signing_key: Option<PathBuf>,
    /// Write over reference values that are there
    #[arg(long, requires = "make_reference")]
    force: bool,
    /// Write the result (EAR): signed with --signing-key, which `attest key` has made, else its claims
    // A result is new; without a nonce the statement may be old.
    #[arg(long, value_name = "FILE", requires_all = ["reference", "nonce"])]
    ear: Option<PathBuf>,
    /// JSON for machines
    #[arg(long)]
    pub json: bool,
}

/// 32 bytes in hexadecimal.
pub fn parse_nonce(text: &str) -> Result<Nonce, String> {
    let mut nonce = [0; NONCE_BYTES];
    hex::decode_to_slice(text, &mut nonce)
        .map_err(|error| format!("{error}; 64 hexadecimal digits are wanted"))?;
    Ok(Nonce(nonce))
}

/// What machines get.
#[derive(Serialize)]
struct Told<'a> {
    affirmed: bool,
    kind: &'static str,
    switch: u64,
    boot_count: u64,
    sequence: u64,
    is_fresh: bool,
    software_version: &'a str,
    left_out: &'a [String],
    differences: Vec<String>,
}

/// Appraises, or makes reference values.
pub fn run(args: &AppraiseArgs, output: Output) -> Result<(), Failure> {
    let key = evidence_key::public(&args.key)?;
    let evidence = read_statement(args, &key)?;
    let proven = args
        .inventory
        .as_ref()
        .map(|path| read_inventory(path, &evidence))
        .transpose()?;
    match (&args.reference, &args.make_reference) {
        (Some(reference), _) => compare(args, reference, &evidence, proven.as_ref(), output),
        (None, Some(path)) => make(args, path, &evidence, proven.as_ref(), output),
        (None, None) => Err(Failure::input(
            "name reference values with --reference or --make-reference",
        )),
    }
}

fn of_file(path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::input(format!("{}: {error}", path.display()))
}

fn read_statement(args: &AppraiseArgs, key: &PublicKey) -> Result<Evidence, Failure> {
    let path = &args.statement;
    let bytes = read_bounded(path, STATEMENT_BYTES_MAX).map_err(|error| of_file(path, error))?;
    let evidence = match args.nonce {
        Some(nonce) => verify(&bytes, key, nonce),
        None => verify_recorded(&bytes, key),
    };
    if evidence.is_ok() && args.nonce.is_none() {
        tracing::warn!("without --nonce nothing says when this statement was made");
    }
    evidence.map_err(|error| match error {
        StatementError::TooLong(_) | StatementError::Cose(_) | StatementError::Claims(..) => {
            of_file(path, error)
        }
        _ => Failure::failed(format!("{}: not believed: {error}", path.display())),
    })
}

fn read_inventory(path: &Path, evidence: &Evidence) -> Result<Proven, Failure> {
    let bytes = read_bounded(path, INVENTORY_BYTES_MAX).map_err(|error| of_file(path, error))?;
    let inventory = Inventory::read(&bytes).map_err(|error| of_file(path, error))?;
    inventory.prove(evidence).map_err(|error| of_file(path, error))
}

/// Reads reference values.
///
/// # Errors
/// A file that cannot be read, is damaged, or is not signed by this key: it names the element.
pub fn read_reference(path: &Path, key: Option<&PublicKey>) -> Result<Reference, Failure> {
    let bytes = read_bounded(path, REFERENCE_BYTES_MAX).map_err(|error| of_file(path, error))?;
    Reference::read(&bytes, key).map_err(|error| of_file(path, error))
}

fn compare(
    args: &AppraiseArgs,
    path: &Path,
    evidence: &Evidence,
    proven: Option<&Proven>,
    output: Output,
) -> Result<(), Failure> {
    let key = args
        .reference_key
        .as_deref()
        .map(evidence_key::public)
        .transpose()?;
    let reference = read_reference(path, key.as_ref())?;
    if let Some(path) = &args.ear {
        results::check(path)?;
    }
    let appraisal = appraise(evidence, &reference, proven).map_err(|error| of_file(path, error))?;
    if let Some(path) = &args.ear {
        results::write(path, ear(&appraisal, args.signing_key.as_deref())?)?;
    }
    tell(args, evidence, &appraisal, output)?;
    match appraisal.differences().len() as u64 {
        0 => Ok(()),
        count => Err(Failure::failed(format!(
            "this data plane is not what it should be: {}",
            counted(count, "difference")
        ))),
    }
}

fn ear(appraisal: &Appraisal, signing_key: Option<&Path>) -> Result<Vec<u8>, Failure> {
    let now_s = now_s()?;
    let claims = appraisal.ear(now_s, now_s.saturating_add(RESULT_GOOD_S));
    let Some(path) = signing_key else {
        let mut bytes = serde_json::to_vec_pretty(&claims).map_err(Failure::failed)?;
        bytes.push(b'\n');
        return Ok(bytes);
    };
    let signer: ResultSigner = secret_file::signer(path)?;
    let token = signer.sign_claims(&claims).map_err(Failure::failed)?;
    Ok(format!("{token}\n").into_bytes())
}

fn tell(
    args: &AppraiseArgs,
    evidence: &Evidence,
    appraisal: &Appraisal,
    output: Output,
) -> Result<(), Failure> {
    let state = evidence.snapshot();
    let differences = appraisal.differences();
    output.object(&Told {
        affirmed: appraisal.is_affirmed(),
        kind: evidence.kind().name(),
        switch: state.switch.0,
        boot_count: state.boot_count.0,
        sequence: state.sequence.0,
        is_fresh: args.nonce.is_some(),
        software_version: evidence.software_version(),
        left_out: evidence.left_out(),
        differences: differences.iter().map(ToString::to_string).collect(),
    })?;
    output.line(format_args!(
        "data plane {} ({}, version {}), start {}, state {}",
        state.switch,
        evidence.kind().name(),
        evidence.software_version(),
        state.boot_count,
        state.sequence
    ))?;
    output.line(appraisal.to_string().trim_end())
}

/// What may be anything.
fn volatile(args: &AppraiseArgs) -> Result<BTreeSet<Object>, Failure> {
    let mut volatile: BTreeSet<Object> = args.volatile.iter().cloned().collect();
    if args.gateway {
        for name in changing_objects() {
            volatile.insert(name.parse().map_err(Failure::failed)?);
        }
    }
    Ok(volatile)
}

fn make(
    args: &AppraiseArgs,
    path: &Path,
    evidence: &Evidence,
    proven: Option<&Proven>,
    output: Output,
) -> Result<(), Failure> {
    results::check_new(path, args.force)?;
    let name = args.name.clone().unwrap_or_else(|| {
        let stem = path.file_stem().unwrap_or_default();
        stem.to_string_lossy().into_owned()
    });
    let volatile = volatile(args)?;
    let reference = Reference::of(&name, evidence, proven, |object| volatile.contains(object));
    let unknown = |wanted: &&Object| !reference.objects.iter().any(|listed| listed.object == **wanted);
    if let Some(unknown) = volatile.iter().find(unknown) {
        return Err(Failure::input(format!(
            "--{}: the statement says nothing of {unknown}",
            if args.volatile.contains(unknown) {
                "volatile"
            } else {
                "gateway"
            }
        )));
    }
    let mut signer = match &args.signing_key {
        Some(key) => Some(evidence_key::signer(key, None)?),
        None => None,
    };
    let signer = signer.as_mut().map(|signer| &mut **signer as &mut dyn Signer);
    let bytes = reference.to_file(signer).map_err(Failure::failed)?;
    // Entries are in it, and a table's may be keys.
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
        None => output.line("without --inventory they tell which object differs, and not which entry"),
    }
}
