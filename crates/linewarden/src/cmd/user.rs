//! `linewarden user`.

use clap::{Args, Subcommand, ValueEnum};
use linewarden_service::wire::NewUser;

use crate::cmd::now_s;
use crate::failure::Failure;
use crate::output::Output;
use crate::site::{ReasonArgs, SiteArgs};

/// What about users.
#[derive(Subcommand, Debug)]
pub enum UserCommand {
    /// Let somebody use the API, with a token that is shown once
    #[command(after_help = "\
Examples:
  linewarden user add alice --role admin --config controller.toml
  linewarden user add build-server --role operator --certificate --config controller.toml")]
    Add(AddArgs),
    /// Take somebody's access away, within a second
    #[command(after_help = "\
Examples:
  linewarden user remove alice --config controller.toml")]
    Remove(RemoveArgs),
    /// Show who may use the API
    #[command(after_help = "\
Examples:
  linewarden user list --config controller.toml
  linewarden user list --server https://ctl.example:20560 --token-file ada.token")]
    List(ListArgs),
}

/// As what.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum RoleArg {
    /// May look
    Viewer,
    /// May enrol, revoke, quarantine, release, and ask for rounds
    Operator,
    /// May do everything
    Admin,
}

impl RoleArg {
    fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

/// Whom.
#[derive(Args, Debug)]
pub struct AddArgs {
    /// Their name
    name: String,
    /// What they may
    #[arg(long, value_enum, default_value = "viewer")]
    role: RoleArg,
    /// They come in by a certificate of that name, without a token
    #[arg(long)]
    certificate: bool,
    /// Their access ends after so many days
    #[arg(long, value_name = "DAYS")]
    days: Option<u32>,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    site: SiteArgs,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

/// Whom.
#[derive(Args, Debug)]
pub struct RemoveArgs {
    /// Their name
    name: String,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    site: SiteArgs,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

/// Of whom.
#[derive(Args, Debug)]
pub struct ListArgs {
    #[command(flatten)]
    site: SiteArgs,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

impl UserCommand {
    /// Whether machines read what it prints.
    pub fn wants_json(&self) -> bool {
        match self {
            Self::Add(args) => args.json,
            Self::Remove(args) => args.json,
            Self::List(args) => args.json,
        }
    }
}

/// Does it.
pub fn run(command: &UserCommand) -> Result<(), Failure> {
    let output = Output::new(command.wants_json());
    match command {
        UserCommand::Add(args) => add(args, output),
        UserCommand::Remove(args) => remove(args, output),
        UserCommand::List(args) => list(args, output),
    }
}

fn add(args: &AddArgs, output: Output) -> Result<(), Failure> {
    let now_s = now_s()?;
    let until_s = |days: u32| now_s.saturating_add(u64::from(days).saturating_mul(86_400));
    let new = NewUser {
        name: args.name.clone(),
        role: args.role.name().to_owned(),
        expires_at_s: args.days.map(until_s),
        certificate: args.certificate,
        reason: args.reason.reason.clone(),
    };
    let welcome = args.site.with(async |site| site.add_user(&new).await)?;
    output.object(&serde_json::json!({ "name": welcome.name, "token": welcome.token }))?;
    match &welcome.token {
        Some(token) => {
            output.line(token)?;
            crate::output::tell("this token is shown once, and kept nowhere: whoever has it is that user");
            Ok(())
        }
        None => output.line(format_args!(
            "{} comes in by a certificate: linewarden certificate user --name {}",
            welcome.name, welcome.name
        )),
    }
}

fn remove(args: &RemoveArgs, output: Output) -> Result<(), Failure> {
    let removed = args
        .site
        .with(async |site| site.remove_user(&args.name, &args.reason.reason).await)?;
    if !removed {
        return Err(Failure::input(format!("there is no user {:?}", args.name)));
    }
    output.object(&serde_json::json!({ "removed": args.name }))?;
    output.line(format_args!("{} may use the API no more", args.name))
}

fn list(args: &ListArgs, output: Output) -> Result<(), Failure> {
    let users = args.site.with(async |site| site.users().await)?;
    let mut rows = Vec::new();
    for user in users.items {
        let way = if user.has_token { "token" } else { "certificate" };
        output.object(&serde_json::json!({
            "name": user.name, "role": user.role, "by": way, "created_at_s": user.created_at_s,
            "expires_at_s": user.expires_at_s,
        }))?;
        let until = user
            .expires_at_s
            .map_or_else(|| "-".to_owned(), |until_s| until_s.to_string());
        rows.push(vec![user.name, user.role.into_owned(), way.to_owned(), until]);
    }
    output.table(&["name", "role", "by", "until (s)"], &[3], rows)?;
    match users.damaged {
        0 => Ok(()),
        count => Err(Failure::failed(crate::output::counted(count, "damaged record"))),
    }
}
