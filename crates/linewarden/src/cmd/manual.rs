//! `linewarden manual`.

use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory as _};
use clap_mangen::roff::{Roff, roman};

use super::config::{AGENT, CONTROLLER, GATEWAY};
use crate::cli::Cli;
use crate::failure::Failure;
use crate::output::Output;

/// What stands at the foot of each page.
const SOURCE: &str = concat!("linewarden ", env!("CARGO_PKG_VERSION"));
/// Files of configuration: the page's name without its section, whose file it is, and the commented example.
const FILES: [(&str, &str, &str); 3] = [
    ("linewarden-gateway.toml", "serve", GATEWAY),
    ("linewarden-controller.toml", "controller", CONTROLLER),
    ("linewarden-agent.toml", "agent", AGENT),
];

/// Where to.
#[derive(Args, Debug)]
#[command(after_help = "\
Writes a page for each command, linewarden-serve.1 and so on, and one for each configuration file, such as linewarden-gateway.toml.5. Files \
of these names are overwritten.

Examples:
  linewarden manual --out /usr/local/share/man")]
pub struct ManualArgs {
    /// The directory that man1 and man5 are made in
    #[arg(long, value_name = "DIRECTORY")]
    out: PathBuf,
}

/// Writes the pages.
pub fn run(args: &ManualArgs, output: Output) -> Result<(), Failure> {
    let made = |path: &Path| {
        std::fs::create_dir_all(path)
            .map_err(|error| Failure::input(format!("{}: cannot be made: {error}", path.display())))
    };
    let commands = args.out.join("man1");
    made(&commands)?;
    clap_mangen::generate_to(Cli::command(), &commands)
        .map_err(|error| Failure::input(format!("{}: {error}", commands.display())))?;
    let files = args.out.join("man5");
    made(&files)?;
    for (name, command, example) in FILES {
        let path = files.join(format!("{name}.5"));
        std::fs::write(&path, page(name, command, example))
            .map_err(|error| Failure::input(format!("{}: cannot be written: {error}", path.display())))?;
    }
    output.line(format_args!("manual pages are in {}", args.out.display()))
}

/// The commented example is what says most of a configuration file, and what the tests read.
fn page(name: &str, command: &str, example: &str) -> String {
    let what = format!("configuration of linewarden {command}");
    let about = format!(
        "A file in TOML. All fields are below; what is commented out shows the default, or an example where there is none. \
         \"linewarden check FILE\" tells every mistake in one, and \"linewarden config example {}\" prints this text.",
        match command {
            "serve" => "gateway",
            other => other,
        }
    );
    let mut page = Roff::new();
    page.control("TH", [name, "5", "", SOURCE, "Linewarden"])
        .control("SH", ["NAME"])
        .text([roman(format!("{name} - {what}"))])
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
                assert!(plain.lines().any(|shown| shown == line), "{name}: {line}");
            }
        }
    }
}
