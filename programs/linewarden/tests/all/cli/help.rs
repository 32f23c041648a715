//! The help of all commands, completions for shells, and the commands in the documents.

use super::*;
use crate::support::PROGRAMS;

#[test]
fn every_shell_has_completions() {
    let site = Site::empty();
    for (program, command) in [
        ("linewarden", "enroll"),
        ("linewarden-agent", "measure"),
        ("linewarden-controller", "check"),
        ("linewarden-gateway", "remove-gate"),
        ("linewarden-lab", "bench"),
        ("linewarden-switch", "evidence"),
    ] {
        for shell in ["bash", "zsh", "fish"] {
            let script = site.run(&format!("{program} completions {shell}")).ok();
            assert!(
                script.contains(program) && script.contains(command),
                "{program}, {shell}"
            );
        }
        assert_eq!(site.run(&format!("{program} completions tcsh")).code, 2);
    }
}

#[test]
fn every_command_has_help_with_examples() {
    let site = Site::empty();
    let mut commands = PROGRAMS.map(str::to_owned).to_vec();
    let mut checked = 0;
    while let Some(command) = commands.pop() {
        let help = site.run(&format!("{command} --help")).ok();
        assert!(help.contains("Examples:"), "{command}: {help}");
        assert!(!help.contains('\u{1b}'), "{command}: colors without a terminal");
        check_lines(&command, &help);
        let section = help.lines().skip_while(|line| *line != "Commands:").skip(1);
        let section = section.take_while(|line| !line.is_empty());
        // Only command names are indented by two spaces.
        let names = section.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
        let names = names.filter(|name| !name.is_empty() && *name != "help");
        commands.extend(names.map(|name| format!("{command} {name}")));
        checked += 1;
    }
    assert!(checked > 40, "{checked} commands");
}

/// Checks that prose is wrapped at the maximum width, that each example begins with the name of a program, and that each line of
/// an example, except the last line, ends with `\`.
fn check_lines(command: &str, help: &str) {
    const COLUMNS: usize = 100;
    let lines: Vec<&str> = help.lines().collect();
    for pair in lines.windows(2) {
        let is_text = |line: &str| !line.is_empty() && !line.starts_with(' ') && !line.ends_with(':');
        if let (true, true, Some(word)) = (is_text(pair[0]), is_text(pair[1]), pair[1].split(' ').next()) {
            let with_next = pair[0].chars().count() + 1 + word.chars().count();
            assert!(with_next > COLUMNS, "{command}: {}⏎{word}", pair[0]);
        }
    }
    let examples = lines.iter().skip_while(|line| **line != "Examples:").skip(1);
    let mut is_continued = false;
    for line in examples.take_while(|line| !line.is_empty()) {
        assert!(
            is_continued || line.starts_with("  linewarden"),
            "{command}: {line}"
        );
        assert!(line.chars().count() <= COLUMNS, "{command}: {line}");
        is_continued = line.ends_with('\\');
    }
}

/// Every command line in the documents' shell blocks is valid. The test appends `--help`: the command line is parsed, but the
/// command is not run.
#[test]
fn the_command_lines_in_the_documents_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = vec![root.join("README.md")];
    add_documents(&root.join("docs"), &mut files);
    let mut commands = 0;
    for file in &files {
        for line in shell_lines(&fs::read_to_string(file).unwrap()) {
            // Removes shell syntax: comments, redirections, line continuations and quotes.
            let command_line = line.split(['#', '>', '\\']).next().unwrap().replace('"', "");
            let mut words = command_line.split_whitespace().take_while(|word| *word != "--");
            let program = match words.next() {
                // `lw` runs `linewarden` as the service's user.
                Some("lw") => "linewarden",
                Some(program) if PROGRAMS.contains(&program) => program,
                _ => continue,
            };
            let words: Vec<&str> = [program].into_iter().chain(words).chain(["--help"]).collect();
            let output = Site::empty().run(&words.join(" "));
            assert_eq!(output.code, 0, "{}: {line}: {}", file.display(), output.err);
            commands += 1;
        }
    }
    assert!(commands > 15, "{commands}");
}

/// Adds the documents in the directory and in its subdirectories.
fn add_documents(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            add_documents(&path, files);
        } else if path.extension().is_some_and(|end| end == "md") {
            files.push(path);
        }
    }
}

fn shell_lines(text: &str) -> Vec<&str> {
    let mut inside = false;
    text.lines()
        .map(str::trim_start)
        .filter(|line| {
            inside = if line.starts_with("```") {
                *line == "```sh"
            } else {
                inside
            };
            inside
        })
        .collect()
}
