//! `linewarden user`.

use clap::{Args, Subcommand, ValueEnum};
use linewarden_api::NewUser;
use linewarden_cli::failure::Failure;
use linewarden_cli::now_s;
use linewarden_cli::output::Output;

use crate::access::{AccessArgs, ReasonArgs, check_damaged, read_all};
use crate::date::date;

/// Subcommands of `linewarden user`.
#[derive(Subcommand, Debug)]
pub enum UserCommand {
    /// Create an API user; the command prints the user's token once
    #[command(after_help = "\
Examples:
  linewarden user create alice --role admin --config controller.toml
  linewarden user create build-server --role operator --certificate --config controller.toml")]
    Create(CreateArgs),
    /// Delete an API user; access ends within a second
    #[command(after_help = "\
Examples:
  linewarden user delete alice --config controller.toml")]
    Delete(DeleteArgs),
    /// List API users
    #[command(after_help = "\
Examples:
  linewarden user list --config controller.toml
  linewarden user list --server https://ctl.example:20560 --token-file ada.token")]
    List(ListArgs),
}

/// Role of an API user.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum RoleArg {
    /// Read only
    Viewer,
    /// Read; enroll, revoke, quarantine and release devices; request rounds
    Operator,
    /// All operations
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

/// Arguments of `linewarden user create`.
#[derive(Args, Debug)]
pub struct CreateArgs {
    /// Name of the API user (text)
    name: String,
    /// Role of the API user
    #[arg(long, value_enum, default_value = "viewer")]
    role: RoleArg,
    /// Authenticate by a client certificate with this name, without a token (flag)
    #[arg(long)]
    certificate: bool,
    /// Lifetime of the access (integer, days, default: unlimited)
    #[arg(long, value_name = "DAYS")]
    days: Option<u32>,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    access: AccessArgs,
}

/// Arguments of `linewarden user delete`.
#[derive(Args, Debug)]
pub struct DeleteArgs {
    /// Name of the API user (text)
    name: String,
    #[command(flatten)]
    reason: ReasonArgs,
    #[command(flatten)]
    access: AccessArgs,
}

/// Arguments of `linewarden user list`.
#[derive(Args, Debug)]
pub struct ListArgs {
    #[command(flatten)]
    access: AccessArgs,
}

/// Runs the command.
pub fn run(command: &UserCommand, output: Output) -> Result<(), Failure> {
    match command {
        UserCommand::Create(args) => create(args, output),
        UserCommand::Delete(args) => delete(args, output),
        UserCommand::List(args) => list(args, output),
    }
}

fn create(args: &CreateArgs, output: Output) -> Result<(), Failure> {
    let now_s = now_s()?;
    let until_s = |days: u32| now_s.saturating_add(u64::from(days).saturating_mul(86_400));
    let new = NewUser {
        name: args.name.clone(),
        role: args.role.name().to_owned(),
        expires_at_s: args.days.map(until_s),
        certificate: args.certificate,
        reason: args.reason.reason.clone(),
    };
    let created = args
        .access
        .with(async |client| Ok(client.create_user(&new).await?))?;
    output.object(&serde_json::json!({ "name": created.name, "token": created.token }))?;
    match &created.token {
        Some(token) => {
            output.line(token)?;
            linewarden_cli::output::print_error(
                "the token is printed once and not stored; the token gives access as this user",
            );
            Ok(())
        }
        None => output.line(format_args!(
            "user {} authenticates by a certificate; create the certificate with: linewarden certificate user --name {}",
            created.name, created.name
        )),
    }
}

fn delete(args: &DeleteArgs, output: Output) -> Result<(), Failure> {
    args.access
        .with(async |client| Ok(client.delete_user(&args.name, &args.reason.reason).await?))?;
    output.object(&serde_json::json!({ "deleted": args.name }))?;
    output.line(format_args!("deleted API user {}", args.name))
}

fn list(args: &ListArgs, output: Output) -> Result<(), Failure> {
    let users = args
        .access
        .with(async |client| read_all(async |page| client.users(&page).await).await)?;
    let mut rows = Vec::new();
    for user in users.items {
        let method = if user.has_token { "token" } else { "certificate" };
        output.object(&serde_json::json!({
            "name": user.name, "role": user.role, "authentication": method, "created_at_s": user.created_at_s,
            "expires_at_s": user.expires_at_s,
        }))?;
        let until = user.expires_at_s.map_or_else(|| "-".to_owned(), date);
        rows.push(vec![user.name, user.role.into_owned(), method.to_owned(), until]);
    }
    output.table(&["name", "role", "authentication", "expires"], &[], rows)?;
    check_damaged(users.damaged_records)
}
