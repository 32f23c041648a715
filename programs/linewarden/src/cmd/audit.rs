//! `linewarden audit`.

use clap::Args;
use linewarden_api::AuditQuery;
use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;

use crate::cmd::device::date;
use crate::registry_access::{RegistryAccessArgs, for_each_item};

/// Arguments of `linewarden audit`.
#[derive(Args, Debug)]
#[command(after_help = "\
Prints the registry audit log, newest record first, including refused operations. The user of a local command is the user of the \
operating system, such as `uid 0`, with the origin `command line`.

Examples:
  linewarden audit --config controller.toml
  linewarden audit --user alice --server https://ctl.example:20560 --token-file ada.token")]
pub struct AuditArgs {
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
    access: RegistryAccessArgs,
}

/// Prints audit records.
pub fn run(args: &AuditArgs, output: Output) -> Result<(), Failure> {
    let query = AuditQuery {
        actor: args.user.clone(),
        action: args.action.clone(),
        ..AuditQuery::default()
    };
    let (mut rows, mut changed_records) = (Vec::new(), 0_u64);
    args.access.with(async |access| {
        let read_page = async |limit, after| access.audit_records(&query, limit, after).await;
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
