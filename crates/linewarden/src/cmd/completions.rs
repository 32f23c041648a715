//! `linewarden completions`.

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;
use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;

use crate::cli::Cli;

/// Arguments of `linewarden completions`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  linewarden completions bash > /etc/bash_completion.d/linewarden
  linewarden completions zsh > ~/.zfunc/_linewarden
  linewarden completions fish > ~/.config/fish/completions/linewarden.fish")]
pub struct CompletionsArgs {
    /// Shell to print the script for
    pub shell: Shell,
}

/// Prints the completion script.
pub fn run(args: &CompletionsArgs, output: Output) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "linewarden", &mut script);
    output.raw(&script)
}
