//! `linewarden completions`.

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::failure::Failure;
use crate::output::Output;

/// Which shell.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  linewarden completions bash > /etc/bash_completion.d/linewarden
  linewarden completions zsh > ~/.zfunc/_linewarden
  linewarden completions fish > ~/.config/fish/completions/linewarden.fish")]
pub struct CompletionsArgs {
    /// The shell
    pub shell: Shell,
}

/// Prints the script.
pub fn run(args: &CompletionsArgs, output: Output) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "linewarden", &mut script);
    output.raw(&script)
}
