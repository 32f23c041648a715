//! `linewarden audit`: who had what done, and why.

use clap::Args;
use linewarden_service::wire::WhichActs;

use crate::cmd::device::date;
use crate::failure::Failure;
use crate::output::Output;
use crate::site::{SiteArgs, walk};

/// Which acts.
#[derive(Args, Debug)]
#[command(after_help = "\
Newest first, what was refused among it. What is done by this program on a registry at hand is by the user of the operating system, \
`uid 0`, from the command line.

Examples:
  linewarden audit --config controller.toml
  linewarden audit --by alice --server https://ctl.example:20560 --token-file ada.token")]
pub struct AuditArgs {
    /// Only by this user
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// Only this, such as revoked
    #[arg(long, value_name = "KIND")]
    what: Option<String>,
    /// At most so many
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    limit: u64,
    #[command(flatten)]
    site: SiteArgs,
    /// JSON for machines, one object a line
    #[arg(long)]
    pub json: bool,
}

/// Shows them.
pub fn run(args: &AuditArgs) -> Result<(), Failure> {
    let output = Output::new(args.json);
    let which = WhichActs {
        by: args.by.clone(),
        what: args.what.clone(),
        ..WhichActs::default()
    };
    let (mut rows, mut changed) = (Vec::new(), 0_u64);
    args.site.with(async |site| {
        let ask = async |limit, after| site.acts(&which, limit, after).await;
        walk(Some(args.limit), output, ask, |act| {
            output.object(&act)?;
            changed += u64::from(!act.authentic);
            rows.push(vec![
                act.id.to_string(),
                date(act.at_s),
                act.by,
                act.role.into_owned(),
                act.from,
                act.what,
                act.device.unwrap_or_default(),
                act.gateway.map(|gateway| gateway.to_string()).unwrap_or_default(),
                match act.authentic {
                    true => act.outcome.into_owned(),
                    false => format!("{}, CHANGED", act.outcome),
                },
                act.reason,
                act.detail,
            ]);
            Ok(())
        })
        .await
    })?;
    let header = [
        "number", "time", "by", "as", "from", "what", "device", "gateway", "outcome", "reason", "detail",
    ];
    output.table(&header, &[0], rows)?;
    match changed {
        0 => Ok(()),
        changed => Err(Failure::failed(format!(
            "{} not as they were written, or the ones before them; see `registry check`",
            crate::output::counted(changed, "entry that is").replace("entry that iss", "entries that are")
        ))),
    }
}
