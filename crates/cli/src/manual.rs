//! The command `manual`.

use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_mangen::roff::{Roff, roman};

use crate::failure::Failure;
use crate::output::Output;

/// Footer of each page.
const SOURCE: &str = concat!("linewarden ", env!("CARGO_PKG_VERSION"));

/// The program whose page has the name of the page of a group of commands of `linewarden`.
const NAME_OF_PROGRAM: &str = "linewarden-gateway";

/// The manual page of a program's configuration file.
#[derive(Clone, Copy, Debug)]
pub struct ConfigPage {
    /// Name of the program.
    pub program: &'static str,
    /// Commented example with all fields.
    pub example: &'static str,
}

/// Arguments of `manual`.
#[derive(Args, Debug)]
pub struct ManualArgs {
    /// Output directory for the subdirectories man1 and man5 (path)
    #[arg(long, value_name = "DIRECTORY")]
    out: PathBuf,
}

/// Writes the manual pages of a program.
pub(crate) fn write(
    command: Command,
    file: Option<&ConfigPage>,
    args: &ManualArgs,
    output: Output,
) -> Result<(), Failure> {
    let commands = create_directory(args.out.join("man1"))?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    write_commands(&command, &commands)?;
    if let Some(file) = file {
        let path = create_directory(args.out.join("man5"))?.join(format!("{}.toml.5", file.program));
        write_page(&path, file.render().as_bytes())?;
    }
    output.line(format_args!("manual pages written to {}", args.out.display()))
}

/// Writes the pages of a command and of its subcommands. The group `linewarden gateway` has no page, because the page would have
/// the name of the page of the program `linewarden-gateway`; the commands of the group have pages.
fn write_commands(command: &Command, directory: &Path) -> Result<(), Failure> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    let mut page = Vec::new();
    // Writing to a Vec cannot fail.
    let _ = clap_mangen::Man::new(command.clone()).render(&mut page);
    write_page(&directory.join(format!("{name}.1")), &page)?;
    write_subcommands(command, directory)
}

fn write_subcommands(command: &Command, directory: &Path) -> Result<(), Failure> {
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        match command.get_display_name() {
            Some(NAME_OF_PROGRAM) => write_subcommands(command, directory)?,
            _ => write_commands(command, directory)?,
        }
    }
    Ok(())
}

fn write_page(path: &Path, page: &[u8]) -> Result<(), Failure> {
    std::fs::write(path, page)
        .map_err(|error| Failure::input(format!("{}: cannot be written: {error}", path.display())))
}

fn create_directory(path: PathBuf) -> Result<PathBuf, Failure> {
    let create = |path: &Path| std::fs::create_dir_all(path);
    match create(&path) {
        Ok(()) => Ok(path),
        Err(error) => Err(Failure::input(format!(
            "{}: cannot be created: {error}",
            path.display()
        ))),
    }
}

impl ConfigPage {
    /// The page: mostly the commented example, which the tests parse.
    fn render(&self) -> String {
        let Self { program, example } = self;
        let about = format!(
            "A file in TOML format. All fields are listed below; commented fields show their default, or an example if there is none. \
             \"{program} check FILE\" reports every mistake in a file, and \"{program} config example\" prints this text."
        );
        let name = format!("{program}.toml");
        let mut page = Roff::new();
        page.control("TH", [&name, "5", "", SOURCE, "Linewarden"])
            .control("SH", ["NAME"])
            .text([roman(format!("{name} - configuration of {program}"))])
            .control("SH", ["DESCRIPTION"])
            .text([roman(about)])
            .control("SH", ["FIELDS"])
            .control("nf", []);
        for line in example.lines() {
            page.text([roman(line)]);
        }
        page.control("fi", [])
            .control("SH", ["SEE ALSO"])
            .text([roman(format!("{program}-run(1), {program}-check(1)"))]);
        page.render()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_a_file_has_every_line_of_its_example() {
        let example = "# A comment.\n[table]\n# field = \"a-b\"\n.start = 1\n";
        let page = ConfigPage {
            program: "linewarden-gateway",
            example,
        };
        let plain = page.render().replace("\\-", "-").replace("\\&", "");
        for line in example.lines() {
            assert!(plain.lines().any(|page_line| page_line == line), "{line}");
        }
    }
}
