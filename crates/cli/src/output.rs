//! Output of commands: lines and tables for people, JSON for programs.
//!
//! If the reader closes standard output (`| head`), the command still completes with its usual exit code, and further output
//! is discarded. Only commands that list data and have no other effect end early ([`Output::has_reader`]).

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::ValueEnum;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::failure::Failure;

/// Escapes all characters that control a terminal: control characters except line breaks, and marks of writing direction.
/// File names, device names and parser messages contain text from other parties, which could misuse these characters.
pub fn printable(text: &str) -> String {
    let controls_terminal = |character: char| {
        character.is_control() && character != '\n'
            || matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut output = String::with_capacity(text.len());
    for character in text.chars() {
        if controls_terminal(character) {
            output.extend(character.escape_unicode());
        } else {
            output.push(character);
        }
    }
    output
}

/// A count with a noun: "1 device", "2 devices".
pub fn counted(count: u64, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}

/// Prints a line on standard error; write errors are ignored.
pub fn print_error(text: impl Display) {
    writeln!(anstream::stderr().lock(), "{text}").ok();
}

/// Whether a write has failed because the reader closed standard output.
static STDOUT_CLOSED: AtomicBool = AtomicBool::new(false);

/// The format of results on standard output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// Tables and text, for people.
    #[default]
    Table,
    /// JSON objects, one per line, for programs.
    Json,
}

/// Standard output in one format; by default as tables and text.
#[derive(Clone, Copy, Debug, Default)]
pub struct Output {
    format: OutputFormat,
}

impl Output {
    /// Creates an output.
    pub fn new(format: OutputFormat) -> Self {
        Self { format }
    }

    /// Whether the output is JSON.
    pub fn is_json(self) -> bool {
        self.format == OutputFormat::Json
    }

    /// Whether standard output still has a reader.
    pub fn has_reader(self) -> bool {
        !STDOUT_CLOSED.load(Ordering::Relaxed)
    }

    /// Prints bytes, such as a script or an example file, unchanged in both formats.
    pub fn raw(self, text: &[u8]) -> Result<(), Failure> {
        self.write(|| io::stdout().lock().write_all(text))
    }

    /// Prints a line in text format; prints nothing in JSON format.
    pub fn line(self, text: impl Display) -> Result<(), Failure> {
        if self.is_json() {
            return Ok(());
        }
        let text = printable(&text.to_string());
        self.write(|| writeln!(io::stdout().lock(), "{text}"))
    }

    fn write(self, write: impl FnOnce() -> io::Result<()>) -> Result<(), Failure> {
        if !self.has_reader() {
            return Ok(());
        }
        match write() {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                STDOUT_CLOSED.store(true, Ordering::Relaxed);
                Ok(())
            }
            result => Ok(result?),
        }
    }

    /// Prints an object on one line in JSON format; prints nothing in text format.
    pub fn object(self, value: &impl Serialize) -> Result<(), Failure> {
        if !self.is_json() {
            return Ok(());
        }
        self.write(|| {
            let mut out = io::stdout().lock();
            serde_json::to_writer(&mut out, value)?;
            writeln!(out)?;
            // Flush, so that a reader receives each line immediately.
            out.flush()
        })
    }

    /// Prints a table in text format; prints nothing in JSON format or without rows. `right_aligned` has the indexes of the
    /// right-aligned columns, from 0.
    pub fn table(
        self,
        header: &[&str],
        right_aligned: &[usize],
        rows: Vec<Vec<String>>,
    ) -> Result<(), Failure> {
        if self.is_json() || rows.is_empty() {
            return Ok(());
        }
        let mut table = Table::new();
        table
            .load_style(presets::UTF8_FULL_CONDENSED)
            .set_content_arrangement(ContentArrangement::Disabled)
            .set_header(header.iter().copied());
        table.add_rows(rows);
        for column in right_aligned {
            if let Some(column) = table.column_mut(*column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        self.line(table.trim_fmt())
    }

    /// Prints names and aligned values in text format; prints nothing in JSON format.
    pub fn fields(self, fields: &[(&str, String)]) -> Result<(), Failure> {
        let width = fields
            .iter()
            .map(|(name, _)| name.chars().count())
            .max()
            .unwrap_or(0);
        for (name, value) in fields {
            self.line(format_args!("{name:width$}  {value}"))?;
        }
        Ok(())
    }

    /// A progress bar on standard error; hidden in JSON format and without a terminal.
    pub fn progress(self, total: u64, label: &'static str) -> ProgressBar {
        let target = if self.is_json() || !io::stderr().is_terminal() {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr()
        };
        let bar = ProgressBar::with_draw_target(Some(total), target).with_message(label);
        let style = "{msg} {wide_bar} {human_pos}/{human_len} {per_sec} {eta}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        bar
    }

    /// A spinner with a message on standard error; hidden in JSON format and without a terminal.
    pub fn spinner(self) -> ProgressBar {
        if self.is_json() || !io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(Duration::from_millis(200));
        bar
    }
}
