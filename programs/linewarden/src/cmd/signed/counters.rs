//! Output of a sender: counters and notices.

use linewarden_cli::failure::Failure;
use linewarden_cli::output::{Output, counted, printable};
use std::time::Instant;

use linewarden_signatures::scheduler::LatencyHistograms;
use linewarden_signatures::signing::SigningCounts;
use nix::errno::Errno;

use super::latency;
use super::line_writer::LineWriter;
use super::lines::{BACKLOG_LINES_DEFAULT, FINAL_FLUSH_TIMEOUT, LineQueue};

/// Prints counters on standard output from a separate thread, so that a slow reader does not delay sending.
pub struct CounterPrinter {
    /// Lines for standard output.
    lines: LineQueue,
    /// Lines for standard error.
    error_lines: LineQueue,
    is_json: bool,
    /// Counters at the latest notice about missing masks.
    reported_counts: SigningCounts,
}

/// The sender's counters at one moment.
pub struct CounterSnapshot<'a> {
    /// Numbers of signed messages by method (plain, RA with a mask, RA without a mask), and of messages that were not
    /// signed.
    pub counts: SigningCounts,
    /// Number of messages that the kernel did not accept.
    pub unsent: u64,
    /// Latency from payload to signature.
    pub latencies: &'a LatencyHistograms,
    /// Number of masks left in the file.
    pub masks_left: u64,
}

impl CounterPrinter {
    /// Starts the output threads.
    ///
    /// # Errors
    /// A thread or standard output is not available.
    pub fn start(output: Output) -> Result<Self, Failure> {
        let lines = LineQueue::start(
            "standard output".to_owned(),
            LineWriter::stdout()?,
            BACKLOG_LINES_DEFAULT,
            None,
        )?;
        let error_lines = LineQueue::start(
            "standard error".to_owned(),
            LineWriter::stderr()?,
            BACKLOG_LINES_DEFAULT,
            None,
        )?;
        Ok(Self {
            lines,
            error_lines,
            is_json: output.is_json(),
            reported_counts: SigningCounts::default(),
        })
    }

    /// Prints a notice if messages were signed without masks. The notice is repeated only if masks were available in the
    /// meantime.
    pub fn warn_without_masks(&mut self, counts: SigningCounts) {
        let is_new_shortage =
            self.reported_counts.unmasked == 0 || counts.masked > self.reported_counts.masked;
        if counts.unmasked > self.reported_counts.unmasked && is_new_shortage {
            self.reported_counts = counts;
            self.print_error("no masks left: messages without a mask need a full RSA signature each");
        }
    }

    /// Prints a line on standard error.
    pub fn print_error(&self, text: &str) {
        self.error_lines.push(printable(text).into_bytes());
    }

    /// Prints the counters.
    pub fn print(&self, event: &str, snapshot: &CounterSnapshot<'_>) {
        let lines = match self.is_json {
            true => vec![snapshot.json(event).to_string()],
            false => snapshot.lines(),
        };
        for line in lines {
            self.lines.push(line.into_bytes());
        }
    }

    /// Waits at most [`FINAL_FLUSH_TIMEOUT`] for the reader of each output.
    ///
    /// # Errors
    /// The counters were not read. A closed standard output is not an error, as in all commands.
    pub fn finish(self) -> Result<(), Failure> {
        self.error_lines.drain(Instant::now() + FINAL_FLUSH_TIMEOUT);
        self.lines.drain(Instant::now() + FINAL_FLUSH_TIMEOUT);
        let closed_pipe = Errno::EPIPE.desc();
        let counts = self.lines.counts();
        match counts.failed.keys().find(|reason| *reason != closed_pipe) {
            Some(reason) => Err(Failure::failed(format!("standard output: {reason}"))),
            None if counts.lost > 0 => Err(Failure::failed(
                "writing counters failed: standard output was not read",
            )),
            None => Ok(()),
        }
    }
}

impl CounterSnapshot<'_> {
    fn sent(&self) -> u64 {
        self.counts.signed().saturating_sub(self.unsent)
    }

    fn json(&self, event: &str) -> serde_json::Value {
        serde_json::json!({
            "event": event,
            "sent": self.sent(),
            "unsent": self.unsent + self.counts.failed,
            "signed_with_masks": self.counts.masked,
            "signed_without_masks": self.counts.unmasked,
            "masks_left": self.masks_left,
            "latency_by_priority": latency::json(self.latencies),
        })
    }

    fn lines(&self) -> Vec<String> {
        let SigningCounts { masked, unmasked, .. } = self.counts;
        let mut lines = vec![format!("sent {}", counted(self.sent(), "message"))];
        if masked + unmasked > 0 {
            lines.push(format!(
                "{masked} with masks, {unmasked} without; {} masks left in the file",
                self.masks_left
            ));
        }
        lines.extend(latency::lines(self.latencies));
        lines.iter().map(|line| printable(line)).collect()
    }
}
