//! `linewarden attest rollout`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use linewarden_api::{Group, NewRollOut, RollOut};
use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;
use linewarden_client::Client;
use linewarden_types::GroupName;

use super::group::NamedArgs;
use super::reference;
use crate::access::{AccessArgs, ReasonArgs};
use crate::date::date;

/// Subcommands of `linewarden attest rollout`.
#[derive(Subcommand, Debug)]
pub enum RolloutCommand {
    /// Begin a roll-out: accept another reference value beside the present one, for a limited time
    #[command(after_help = "\
Begin the roll-out before the first device is updated. End the roll-out with `approve` after the last update, or with `delete`. If \
neither command has ended the roll-out after the duration of --for, only the old reference value stays valid.

Examples:
  linewarden attest rollout create pumps --reference pumps-2.conf --for 86400 \\
    --config controller.toml
  linewarden attest list --group pumps --config controller.toml
  linewarden attest rollout approve pumps --config controller.toml")]
    Create(CreateArgs),
    /// End a roll-out: its reference value replaces the old one
    #[command(after_help = "\
Examples:
  linewarden attest rollout approve pumps --config controller.toml")]
    Approve(NamedArgs),
    /// End a roll-out: the old reference value stays valid
    #[command(after_help = "\
Examples:
  linewarden attest rollout delete pumps --config controller.toml")]
    Delete(NamedArgs),
}

/// Arguments of `linewarden attest rollout create`.
#[derive(Args, Debug)]
pub struct CreateArgs {
    /// Group name
    name: GroupName,
    /// Reference value that is also accepted: a file of `linewarden-agent measure --out` (path)
    #[arg(long, value_name = "FILE")]
    reference: PathBuf,
    /// Duration of the roll-out (integer, seconds)
    #[arg(long = "for", value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    for_s: u64,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    access: AccessArgs,
}

/// Runs the command.
pub fn run(command: &RolloutCommand, output: Output) -> Result<(), Failure> {
    match command {
        RolloutCommand::Create(args) => create(args, output),
        RolloutCommand::Approve(args) => approve(args, output),
        RolloutCommand::Delete(args) => delete(args, output),
    }
}

fn create(args: &CreateArgs, output: Output) -> Result<(), Failure> {
    let reference = reference::read(&args.reference)?;
    let new = NewRollOut {
        reference: reference::encode_hex(&reference),
        for_s: args.for_s,
        reason: args.reason.reason.clone(),
    };
    let name = args.name.as_str();
    let (previous, group) = args.access.with(async |client| {
        let before = client.group(name).await?;
        if before.reference.is_none() {
            return Err(Failure::input(format!(
                "group {name} has no reference value, which a roll-out needs: set one with `attest group set {name} --reference FILE`"
            )));
        }
        Ok((before.roll_out, client.create_roll_out(name, &new).await?))
    })?;
    output.object(&group)?;
    if let Some(previous) = previous {
        output.line(format_args!("replaces the roll-out of {}", previous.reference))?;
    }
    let until_s = group.roll_out.map_or(0, |roll_out| roll_out.until_s);
    output.line(format_args!(
        "group {name}: {} is also valid until {}",
        reference.hash(),
        date(until_s)
    ))
}

fn approve(args: &NamedArgs, output: Output) -> Result<(), Failure> {
    let (_, group) = end(args, async |client, name, reason| {
        Ok(client.approve_roll_out(name, reason).await?)
    })?;
    output.object(&group)?;
    output.line(format_args!(
        "group {}: {} is now the only valid reference value",
        group.name,
        group.reference.unwrap_or_default()
    ))
}

fn delete(args: &NamedArgs, output: Output) -> Result<(), Failure> {
    let (deleted, group) = end(args, async |client, name, reason| {
        Ok(client.delete_roll_out(name, reason).await?)
    })?;
    output.object(&group)?;
    output.line(format_args!(
        "group {}: {} is no longer valid, only {}",
        group.name,
        deleted.reference,
        group.reference.unwrap_or_default()
    ))
}

/// Ends a roll-out; returns the roll-out, and the group after the change.
fn end(
    args: &NamedArgs,
    change: impl AsyncFnOnce(&Client, &str, &str) -> Result<Group, Failure>,
) -> Result<(RollOut, Group), Failure> {
    let name = args.name.as_str();
    args.access.with(async |client| {
        let roll_out = client.group(name).await?.roll_out.ok_or_else(|| {
            Failure::input(format!(
                "group {name} has no roll-out: begin one with `attest rollout create {name} --reference FILE --for SECONDS`"
            ))
        })?;
        Ok((roll_out, change(client, name, &args.reason.reason).await?))
    })
}
