//! `linewarden manual`.

use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory as _};
use clap_mangen::roff::{Roff, roman};

use super::config::{AGENT, CONTROLLER, GATEWAY};
use crate::cli::Cli;

/// Footer of each page.
const SOURCE: &str = concat!("linewarden ", env!("CARGO_PKG_VERSION"));
/// Configuration files: page name without section, command, and commented example.
const FILES: [(&str, &str, &str); 3] = [
    ("linewarden-gateway.toml", "serve", GATEWAY),
    ("linewarden-controller.toml", "controller", CONTROLLER),
    ("linewarden-agent.toml", "agent", AGENT),
];

/// Arguments of `linewarden manual`.
#[derive(Args, Debug)]
#[command(after_help = "\
Writes a page for each command, such as linewarden-serve.1, and one for each configuration file, such as linewarden-gateway.toml.5. \
Existing files of these names are overwritten.

Examples:
  linewarden manual --out /usr/local/share/man")]
pub struct ManualArgs {
    /// Output directory for the subdirectories man1 and man5 (path)
    #[arg(long, value_name = "DIRECTORY")]
    out: PathBuf,
}

/// Writes the manual pages.
pub fn run(args: &ManualArgs, output: Output) -> Result<(), Failure> {
    let create_directory = |path: &Path| {
        std::fs::create_dir_all(path)
            .map_err(|error| Failure::input(format!("{}: cannot be created: {error}", path.display())))
    };
    let commands = args.out.join("man1");
    create_directory(&commands)?;
    clap_mangen::generate_to(Cli::command(), &commands)
        .map_err(|error| Failure::input(format!("{}: {error}", commands.display())))?;
    let files = args.out.join("man5");
    create_directory(&files)?;
    for (name, command, example) in FILES {
        let path = files.join(format!("{name}.5"));
        std::fs::write(&path, page(name, command, example))
            .map_err(|error| Failure::input(format!("{}: cannot be written: {error}", path.display())))?;
    }
    output.line(format_args!("manual pages written to {}", args.out.display()))
}

/// The page of a configuration file: mostly its commented example, which the tests parse.
fn page(name: &str, command: &str, example: &str) -> String {
    let title = format!("configuration of linewarden {command}");
    let about = format!(
        "A file in TOML format. All fields are listed below; commented fields show their default, or an example if there is none. \
         \"linewarden check FILE\" reports every mistake in a file, and \"linewarden config example {}\" prints this text.",
        match command {
            "serve" => "gateway",
            other => other,
        }
    );
    let mut page = Roff::new();
    page.control("TH", [name, "5", "", SOURCE, "Linewarden"])
        .control("SH", ["NAME"])
        .text([roman(format!("{name} - {title}"))])
        .control("SH", ["DESCRIPTION"])
        .text([roman(about)])
        .control("SH", ["FIELDS"])
        .control("nf", []);
    for line in example.lines() {
        page.text([roman(line)]);
    }
    page.control("fi", [])
        .control("SH", ["SEE ALSO"])
        .text([roman(format!("linewarden-{command}(1), linewarden-check(1)"))]);
    page.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_a_file_has_every_line_of_its_example() {
        for (name, command, example) in FILES {
            let page = page(name, command, example);
            let plain = page.replace("\\-", "-").replace("\\&", "");
            for line in example.lines().filter(|line| !line.contains(['\\', '\''])) {
                assert!(plain.lines().any(|page_line| page_line == line), "{name}: {line}");
            }
        }
    }
}
