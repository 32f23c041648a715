//! The parts that all programs share: global options, the commands `completions` and `manual`, and the start.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Args, Command, CommandFactory, FromArgMatches, Subcommand};
use clap_complete::Shell;

use crate::color::ColorWhen;
use crate::failure::Failure;
use crate::manual::{self, ConfigPage, ManualArgs};
use crate::output::{Output, OutputFormat};

/// Options of every program.
#[derive(Args, Debug)]
pub struct GlobalArgs {
    /// Log level (error, warn, info, debug, trace or off) or filter, such as linewarden_gateway=debug [env: LINEWARDEN_LOG]
    #[arg(long, global = true, value_name = "LEVEL")]
    pub log: Option<String>,
    /// When to color the output
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub color: ColorWhen,
    /// Format of results: tables and text for people, or JSON objects for programs, one per line
    #[arg(long, global = true, value_name = "FORMAT", default_value = "table")]
    output: OutputFormat,
}

impl GlobalArgs {
    /// The output in the selected format.
    pub fn output(&self) -> Output {
        Output::new(self.output)
    }
}

/// Commands of every program.
#[derive(Subcommand, Debug)]
pub enum CommonCommand {
    /// Print a shell completion script
    Completions(CompletionsArgs),
    /// Write the manual pages
    Manual(ManualArgs),
}

/// Arguments of `completions`.
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// Shell to print the script for
    pub shell: Shell,
}

impl CommonCommand {
    /// Runs the command for a program, whose configuration file is described by `file`.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn run<C: CommandFactory>(&self, file: Option<&ConfigPage>) -> Result<(), Failure> {
        let output = Output::default();
        match self {
            Self::Completions(args) => {
                let (mut command, mut script) = (command::<C>(), Vec::new());
                let name = command.get_name().to_owned();
                clap_complete::generate(args.shell, &mut command, name, &mut script);
                output.raw(&script)
            }
            Self::Manual(args) => manual::write(command::<C>(), file, args, output),
        }
    }
}

/// The grammar of a program, with examples for the common commands.
fn command<C: CommandFactory>() -> Command {
    let command = C::command();
    let name = command.get_name().to_owned();
    let completions = format!(
        "Examples:\n  {name} completions bash > /etc/bash_completion.d/{name}\n  {name} completions zsh > ~/.zfunc/_{name}\n  \
         {name} completions fish > ~/.config/fish/completions/{name}.fish"
    );
    let manual = format!(
        "Writes a page for each command, and a page for the configuration file, if the program has one. Existing files of these names \
         are overwritten.\n\nExamples:\n  {name} manual --out /usr/local/share/man"
    );
    let mut command = command
        .mut_subcommand("completions", |command| command.after_help(completions))
        .mut_subcommand("manual", |command| command.after_help(manual));
    if command.find_subcommand("config").is_some() {
        let role = name.trim_start_matches("linewarden-");
        let example = format!("Examples:\n  {name} config example > {role}.toml");
        let schema = format!("Examples:\n  {name} config schema > {role}.schema.json");
        command = command.mut_subcommand("config", |command| {
            command
                .mut_subcommand("example", |command| command.after_help(example))
                .mut_subcommand("schema", |command| command.after_help(schema))
        });
    }
    command
}

/// Parses a command line and runs the program; returns its exit code. `global` returns the global options. An error of `run`
/// is printed in the selected format; clap prints errors of the command line as text.
pub fn main<C: CommandFactory + FromArgMatches>(
    arguments: impl IntoIterator<Item = OsString>,
    global: impl FnOnce(&C) -> &GlobalArgs,
    run: impl FnOnce(C) -> Result<(), Failure>,
) -> ExitCode {
    let mut command = command::<C>();
    let matches = command
        .try_get_matches_from_mut(arguments)
        .unwrap_or_else(|error| error.exit());
    let cli = C::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit());
    let options = global(&cli);
    options.color.apply();
    let output = options.output();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.print(output),
    }
}
