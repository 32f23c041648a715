//! `linewarden user`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use linewarden_registry::{Registry, Role, User};

use super::controller;
use crate::cmd::now_s;
use crate::failure::Failure;
use crate::output::Output;
use crate::registry::{block_on, open};

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
  linewarden user list --config controller.toml")]
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

impl From<RoleArg> for Role {
    fn from(role: RoleArg) -> Self {
        match role {
            RoleArg::Viewer => Self::Viewer,
            RoleArg::Operator => Self::Operator,
            RoleArg::Admin => Self::Admin,
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
    /// The controller's configuration, whose registry is meant
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

/// Whom.
#[derive(Args, Debug)]
pub struct RemoveArgs {
    /// Their name
    name: String,
    /// The controller's configuration, whose registry is meant
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

/// Of whom.
#[derive(Args, Debug)]
pub struct ListArgs {
    /// The controller's configuration, whose registry is meant
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
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

/// Runs `what` on the registry of a controller's configuration.
fn on_registry<T>(
    config: &std::path::Path,
    what: impl AsyncFnOnce(&Registry) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let file = controller::read(config)?;
    block_on(async {
        let registry = open(&file.value.registry).await?;
        let done = what(&registry).await;
        registry.close().await;
        done
    })
}

fn add(args: &AddArgs, output: Output) -> Result<(), Failure> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).map_err(|error| Failure::failed(format!("no random bytes: {error}")))?;
    let token = (!args.certificate).then(|| format!("lw_{}", hex::encode(bytes)));
    let created_at_s = now_s()?;
    let user = User {
        name: args.name.clone(),
        role: args.role.into(),
        has_token: token.is_some(),
        created_at_s,
        expires_at_s: args
            .days
            .map(|days| created_at_s.saturating_add(u64::from(days).saturating_mul(86_400))),
    };
    on_registry(&args.config, async |registry| {
        Ok(registry.add_user(&user, token.as_deref()).await?)
    })?;
    output.object(&serde_json::json!({ "name": user.name, "token": token }))?;
    match &token {
        Some(token) => {
            output.line(token)?;
            crate::output::tell("this token is shown once, and kept nowhere: whoever has it is that user");
            Ok(())
        }
        None => output.line(format_args!(
            "{} comes in by a certificate: linewarden certificate user --name {}",
            user.name, user.name
        )),
    }
}

fn remove(args: &RemoveArgs, output: Output) -> Result<(), Failure> {
    let removed = on_registry(&args.config, async |registry| {
        Ok(registry.remove_user(&args.name).await?)
    })?;
    if !removed {
        return Err(Failure::input(format!("there is no user {:?}", args.name)));
    }
    output.object(&serde_json::json!({ "removed": args.name }))?;
    output.line(format_args!("{} may use the API no more", args.name))
}

fn list(args: &ListArgs, output: Output) -> Result<(), Failure> {
    let users = on_registry(&args.config, async |registry| Ok(registry.users().await?))?;
    let mut rows = Vec::new();
    let mut damaged = 0;
    for user in users {
        match user {
            Ok(user) => {
                let role = match user.role {
                    Role::Viewer => "viewer",
                    Role::Operator => "operator",
                    Role::Admin => "admin",
                };
                let way = if user.has_token { "token" } else { "certificate" };
                output.object(&serde_json::json!({
                    "name": user.name, "role": role, "by": way, "created_at_s": user.created_at_s,
                    "expires_at_s": user.expires_at_s,
                }))?;
                let until = user
                    .expires_at_s
                    .map_or_else(|| "-".to_owned(), |until_s| until_s.to_string());
                rows.push(vec![user.name, role.to_owned(), way.to_owned(), until]);
            }
            Err(error) => {
                damaged += 1;
                tracing::error!(%error, "left out");
            }
        }
    }
    output.table(&["name", "role", "by", "until (s)"], &[3], rows)?;
    match damaged {
        0 => Ok(()),
        count => Err(Failure::failed(crate::output::counted(count, "damaged record"))),
    }
}
