//! What a command prints: lines and tables for people, JSON for machines.

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::failure::Failure;

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

    /// A line for people only.
    pub fn line(self, text: impl Display) -> Result<(), Failure> {
        if !self.json {
            writeln!(anstream::stdout().lock(), "{text}")?;
        }
        Ok(())
    }

    /// A JSON object on one line, for machines only.
    pub fn object(self, value: &impl Serialize) -> Result<(), Failure> {
        if self.json {
            let mut out = io::stdout().lock();
            serde_json::to_writer(&mut out, value).map_err(|error| Failure::from(io::Error::from(error)))?;
            writeln!(out)?;
            // Whoever follows the output shall see each line when it is there.
            out.flush()?;
        }
        Ok(())
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
