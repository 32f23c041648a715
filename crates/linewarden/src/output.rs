//! What a command prints: lines and tables for people, JSON for machines.
//!
//! A reader that goes away (`| head`) changes nothing of what a command does, nor its exit code: what is printed from
//! then on is thrown away. Only listings, which are nothing but output, end early ([`Output::is_read`]).

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use linewarden_registry::Progress;
use serde::Serialize;

use crate::failure::Failure;

/// Text without what steers a terminal: control characters but the line break, and marks that turn the direction of
/// writing, are shown as escapes. File and device names, and messages of parsers, hold what others wrote.
pub fn printable(text: &str) -> String {
    let steers = |character: char| {
        character.is_control() && character != '\n'
            || matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if steers(character) {
            shown.extend(character.escape_unicode());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// A number of things: "1 device", "2 devices".
pub fn counted(count: u64, thing: &str) -> String {
    match count {
        1 => format!("1 {thing}"),
        _ => format!("{count} {thing}s"),
    }
}

/// Puts a bar to where a long operation is.
pub fn show(bar: &ProgressBar, progress: Progress) {
    if let Some(total) = progress.total {
        bar.set_length(total);
    }
    bar.set_position(progress.done);
}

/// A line on standard error; lost if nobody reads that either.
pub fn tell(text: impl Display) {
    writeln!(anstream::stderr().lock(), "{text}").ok();
}

/// Whether a write has told that nobody reads standard output any more.
static READER_GONE: AtomicBool = AtomicBool::new(false);

/// Standard output in one of its two forms.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    json: bool,
}

impl Output {
    /// JSON, or text.
    pub fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether machines read it.
    pub fn is_json(self) -> bool {
        self.json
    }

    /// Whether somebody still reads.
    pub fn is_read(self) -> bool {
        !READER_GONE.load(Ordering::Relaxed)
    }

    /// Text in both forms, as it is: a script, an example file.
    pub fn raw(self, text: &[u8]) -> Result<(), Failure> {
        self.write(|| io::stdout().lock().write_all(text))
    }

    /// A line for people only.
    pub fn line(self, text: impl Display) -> Result<(), Failure> {
        if self.json {
            return Ok(());
        }
        let text = printable(&text.to_string());
        self.write(|| writeln!(io::stdout().lock(), "{text}"))
    }

    fn write(self, write: impl FnOnce() -> io::Result<()>) -> Result<(), Failure> {
        if !self.is_read() {
            return Ok(());
        }
        match write() {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                READER_GONE.store(true, Ordering::Relaxed);
                Ok(())
            }
            other => Ok(other?),
        }
    }

    /// A JSON object on one line, for machines only.
    pub fn object(self, value: &impl Serialize) -> Result<(), Failure> {
        if !self.json {
            return Ok(());
        }
        self.write(|| {
            let mut out = io::stdout().lock();
            serde_json::to_writer(&mut out, value)?;
            writeln!(out)?;
            // Whoever follows the output shall see each line when it is there.
            out.flush()
        })
    }

    /// A table for people only. `right` are the columns of numbers.
    pub fn table(self, header: &[&str], right: &[usize], rows: Vec<Vec<String>>) -> Result<(), Failure> {
        if self.json || rows.is_empty() {
            return Ok(());
        }
        let mut table = Table::new();
        table
            .load_style(presets::UTF8_FULL_CONDENSED)
            .set_content_arrangement(ContentArrangement::Disabled)
            .set_header(header.iter().copied());
        table.add_rows(rows);
        for column in right {
            if let Some(column) = table.column_mut(*column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        self.line(table.trim_fmt())
    }

    /// Names and values for people only, the values aligned.
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

    /// A progress bar on standard error; none for machines and where nobody looks.
    pub fn progress(self, total: u64, what: &'static str) -> ProgressBar {
        let target = if self.json || !io::stderr().is_terminal() {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr()
        };
        let bar = ProgressBar::with_draw_target(Some(total), target).with_message(what);
        let style = "{msg} {wide_bar} {human_pos}/{human_len} {per_sec} {eta}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        bar
    }

    /// A message on standard error that changes; none for machines and where nobody looks.
    pub fn spinner(self) -> ProgressBar {
        if self.json || !io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(Duration::from_millis(200));
        bar
    }
}
