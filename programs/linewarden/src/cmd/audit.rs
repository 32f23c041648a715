//! `linewarden audit`: prints the registry audit log.

use clap::{Args, Subcommand};
use linewarden_api::{AuditQuery, PageQuery};
use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;

use crate::access::{AccessArgs, for_each_item};
use crate::date::date;

/// Subcommands of `linewarden audit`.
#[derive(Subcommand, Debug)]
pub enum AuditCommand {
    /// List records of the registry audit log
    List(ListArgs),
}

/// Arguments of `linewarden audit list`.
#[derive(Args, Debug)]
#[command(after_help = "\
Prints the registry audit log, newest record first, including refused operations. The user of a local command is the user of the \
operating system, such as `uid 0`, with the origin `command line`.

Examples:
  linewarden audit list --config controller.toml
  linewarden audit list --user alice --server https://ctl.example:20560 --token-file ada.token")]
pub struct ListArgs {
    /// Only records of this user (name)
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Only records of this action, such as revoked (text)
    #[arg(long, value_name = "KIND")]
    action: Option<String>,
    /// Maximum number of records to print (integer)
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    limit: u64,
    #[command(flatten)]
    access: AccessArgs,
}

/// Runs the command.
pub fn run(command: &AuditCommand, output: Output) -> Result<(), Failure> {
    let AuditCommand::List(args) = command;
    let query = AuditQuery {
        actor: args.user.clone(),
        action: args.action.clone(),
        ..AuditQuery::default()
    };
    let (mut rows, mut changed_records) = (Vec::new(), 0_u64);
    args.access.with(async |client| {
        let read_page = async |PageQuery { limit, after }| {
            let query = AuditQuery {
                limit,
                after,
                ..query.clone()
            };
            client.audit_records(&query).await
        };
        for_each_item(Some(args.limit), output, read_page, |record| {
            output.object(&record)?;
            changed_records += u64::from(!record.authentic);
            rows.push(vec![
                record.id.to_string(),
                date(record.at_s),
                record.actor,
                record.role.into_owned(),
                record.origin,
                record.action,
                record.device.unwrap_or_default(),
                record
                    .gateway
                    .map(|gateway| gateway.to_string())
                    .unwrap_or_default(),
                match record.authentic {
                    true => record.outcome.into_owned(),
                    false => format!("{}, CHANGED", record.outcome),
                },
                record.reason,
                record.detail,
            ]);
            Ok(())
        })
        .await
    })?;
    let header = [
        "number", "time", "user", "role", "origin", "action", "device", "gateway", "outcome", "reason",
        "detail",
    ];
    output.table(&header, &[0], rows)?;
    match changed_records {
        0 => Ok(()),
        count => Err(Failure::failed(format!(
            "registry audit log is damaged: {} marked CHANGED: the record itself, or an earlier record, was modified; run `linewarden registry \
             check`, and check write access to the registry",
            linewarden_cli::output::counted(count, "record")
        ))),
    }
}
