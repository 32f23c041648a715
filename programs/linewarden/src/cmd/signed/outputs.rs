//! Output of a receiver: verified messages, events and notices.
//!
//! A slow reader blocks the receiver only for a short time at the end.

use linewarden_cli::failure::Failure;
use linewarden_cli::output::{Output, counted, printable};
use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use linewarden_signatures::receive::Verified;
use linewarden_signatures::scheduler::Span;
use linewarden_signatures::scheduler::engine::Snapshot;
use linewarden_signatures::service::{Report, VerifiedMessageSink};
use nix::errno::Errno;
use serde_json::Value;

use super::latency;
use super::line_writer::LineWriter;
use super::lines::{BACKLOG_LINES_DEFAULT, Counts, FINAL_FLUSH_TIMEOUT, LineQueue};
use super::payload;

/// Time limit for writing verified messages at the end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// All outputs.
pub struct Outputs {
    /// Value of `--out`.
    out: String,
    messages: Arc<LineQueue>,
    /// Queue of standard output; `None` in text format. If messages also go to standard output, `events` and `messages`
    /// are the same queue.
    events: Option<Arc<LineQueue>>,
    /// Queue of standard error.
    error_lines: Arc<LineQueue>,
    /// Number of revocation lists that could not be read.
    pub failed_reloads: u64,
}

impl Outputs {
    /// Opens the destination of `--out` with a queue of `backlog` lines.
    ///
    /// # Errors
    /// The destination cannot be opened.
    pub fn open(out: &str, backlog: u32, output: Output) -> Result<Self, Failure> {
        // Errors of standard error itself are not reported.
        let error_lines = LineQueue::start(
            "standard error".to_owned(),
            LineWriter::stderr()?,
            BACKLOG_LINES_DEFAULT,
            None,
        )?;
        let error_lines = Arc::new(error_lines);
        let start = |name: String, writer, lines_max| {
            LineQueue::start(name, writer, lines_max, Some(Arc::clone(&error_lines))).map(Arc::new)
        };
        let messages = start(format!("--out {out}"), LineWriter::open(out)?, backlog)?;
        let events = match (output.is_json(), out) {
            (false, _) => None,
            (true, "-") => Some(Arc::clone(&messages)),
            (true, _) => Some(start(
                "standard output".to_owned(),
                LineWriter::stdout()?,
                BACKLOG_LINES_DEFAULT,
            )?),
        };
        Ok(Self {
            out: out.to_owned(),
            messages,
            events,
            error_lines,
            failed_reloads: 0,
        })
    }

    /// The queue of verified messages.
    pub fn messages(&self) -> Arc<dyn VerifiedMessageSink> {
        Arc::<LineQueue>::clone(&self.messages)
    }

    /// Prints an event in JSON format; prints nothing in text format.
    pub fn event(&self, event: &Value) {
        if let Some(events) = &self.events {
            events.push(event.to_string().into_bytes());
        }
    }

    /// Prints a notice in text format; prints nothing in JSON format.
    pub fn print(&self, text: impl Display) {
        if self.events.is_none() {
            self.error_lines.push(printable(&text.to_string()).into_bytes());
        }
    }

    /// Prints the counters.
    pub fn report(&self, report: &Report, kernel_drops: u64) {
        let totals = self.totals(kernel_drops);
        self.event(&json(report, &totals, "counters"));
        for line in lines(report, &totals) {
            self.print(line);
        }
    }

    /// Waits until the queued messages are written, at most for [`DRAIN_TIMEOUT`]; then prints the final counters.
    ///
    /// # Errors
    /// Lines were lost, or an internal error occurred.
    pub fn finish(&self, report: &Report, kernel_drops: u64) -> Result<(), Failure> {
        self.messages.drain(Instant::now() + DRAIN_TIMEOUT);
        let deadline = Instant::now() + FINAL_FLUSH_TIMEOUT;
        let totals = self.totals(kernel_drops);
        let final_report = json(report, &totals, "ended");
        let written_count = |events: &Arc<LineQueue>| events.counts().written;
        let written_before = self.events.as_ref().map(written_count);
        self.event(&final_report);
        if self.events.as_ref().is_some_and(|events| !events.drain(deadline))
            || written_before
                .is_some_and(|written_before| self.events.as_ref().map(written_count) == Some(written_before))
        {
            // Standard output was not read, so the final counters go to standard error.
            self.error_lines.push(final_report.to_string().into_bytes());
        }
        for line in lines(report, &totals) {
            self.print(line);
        }
        self.error_lines.drain(Instant::now() + FINAL_FLUSH_TIMEOUT);
        for (fault, count) in internal_faults(report) {
            if count > 0 {
                return Err(Failure::failed(format!("{}: {fault}", counted(count, "time"))));
            }
        }
        match self.undelivered_lines(&totals.lines) {
            0 => Ok(()),
            missing => {
                let most_frequent = totals.lines.failed.iter().max_by_key(|(_, count)| **count);
                let cause =
                    most_frequent.map_or("no reader, or a reader that was too slow", |(cause, _)| cause);
                Err(Failure::failed(format!(
                    "--out {}: {} not delivered: {cause}",
                    self.out,
                    counted(missing, "line")
                )))
            }
        }
    }

    fn totals(&self, kernel_drops: u64) -> Totals {
        Totals {
            kernel_drops,
            lines: self.messages.counts(),
            failed_reloads: self.failed_reloads,
        }
    }

    /// Number of lines that were not delivered. A closed standard output is not an error, as in all commands.
    fn undelivered_lines(&self, counts: &Counts) -> u64 {
        let closed_pipe = Errno::EPIPE.desc();
        let failed = counts
            .failed
            .iter()
            .filter(|(cause, _)| self.out != "-" || *cause != closed_pipe);
        counts.dropped + counts.lost + failed.map(|(_, count)| count).sum::<u64>()
    }
}

/// Counters that the service's report does not contain.
struct Totals {
    /// Number of datagrams that the kernel dropped while no flood filter was attached.
    kernel_drops: u64,
    /// Counters of lines of verified messages.
    lines: Counts,
    failed_reloads: u64,
}

impl VerifiedMessageSink for LineQueue {
    /// Queues a message; drops the message if the queue is full.
    fn verified(&self, message: Verified, latency: Span) {
        self.push(to_json(&message, latency).to_string().into_bytes());
    }
}

fn to_json(message: &Verified, latency: Span) -> serde_json::Value {
    let checked = message.message();
    serde_json::json!({
        "event": "verified",
        "signer": message.signer().to_string(),
        "scheme": checked.key().scheme().name(),
        "signed_unix_ms": checked.stamp().time.unix_ms(),
        "priority": checked.stamp().priority.number(),
        "latency_us": latency.as_nanos() / 1000,
        "payload": payload::to_json(checked.key(), message.kind(), checked.payload()),
    })
}

/// Internal errors, which must never occur.
fn internal_faults(report: &Report) -> [(&'static str, u64); 2] {
    [
        ("panics while delivering messages", report.engine.sink_panics),
        ("scheduler inconsistencies", report.engine.errors),
    ]
}

fn json(report: &Report, totals: &Totals, event: &str) -> serde_json::Value {
    let line_counts = &totals.lines;
    let refused = report
        .refused
        .iter()
        .map(|(refusal, count)| (refusal.key(), *count));
    let shed = report.shed();
    let shed = shed.iter().map(|(cause, count)| (cause.name(), *count));
    serde_json::json!({
        "event": event,
        "kernel_drops": totals.kernel_drops,
        "received": report.received,
        "verified": report.verified,
        "refused": refused.collect::<std::collections::BTreeMap<_, _>>(),
        "shed": shed.collect::<std::collections::BTreeMap<_, _>>(),
        "outputs": {
            "written": line_counts.written,
            "dropped": line_counts.dropped,
            "lost": line_counts.lost,
            "failed": line_counts.failed,
        },
        "waiting": {
            "immediate": report.engine.waiting.0,
            "other": report.engine.waiting.1,
            "in_batches": report.engine.in_batches,
        },
        "demoted": report.engine.counters.demoted,
        "returned": report.engine.counters.returned,
        "lanes_lost": report.engine.counters.lanes_lost,
        "failed_reloads": totals.failed_reloads,
        "panics": report.engine.sink_panics,
        "faults": report.engine.errors,
        "latency_by_priority": latency::json(&report.engine.latencies),
        "lanes": report.engine.lanes.iter().map(|lane| serde_json::json!({
            "name": lane.name,
            "batches": lane.batches,
            "messages": lane.jobs,
            "lost": lane.last_loss,
        })).collect::<Vec<_>>(),
    })
}

/// Returns lines about queued messages, demoted messages and messages that other lanes verified.
fn work_lines(engine: &Snapshot) -> Vec<String> {
    let (immediate, other) = engine.waiting;
    let mut lines = vec![format!(
        "queued {immediate} immediate and {other} other messages, {} being verified",
        engine.in_batches
    )];
    for (count, text) in [
        (
            engine.counters.demoted,
            "demoted: claimed to be immediate, beyond the quota",
        ),
        (
            engine.counters.returned,
            "verified by another lane after a lane failed",
        ),
    ] {
        if count > 0 {
            lines.push(format!("{count} {text}"));
        }
    }
    lines
}

fn lines(report: &Report, totals: &Totals) -> Vec<String> {
    let mut lines = vec![format!(
        "received {}, verified {}",
        report.received, report.verified
    )];
    if totals.kernel_drops > 0 {
        lines.push(format!(
            "kernel dropped {}: receive buffer full",
            counted(totals.kernel_drops, "datagram")
        ));
    }
    lines.extend(latency::lines(&report.engine.latencies));
    for (refusal, count) in &report.refused {
        lines.push(format!("refused {count} {}: {refusal}", refusal.key()));
    }
    for (cause, count) in report.shed() {
        lines.push(format!("shed {count} {}: {}", cause.name(), cause.description()));
    }
    lines.extend(work_lines(&report.engine));
    let Counts {
        written,
        dropped,
        lost,
        failed,
    } = &totals.lines;
    lines.push(format!(
        "delivered {written}, dropped {dropped}, lost at the end {lost}"
    ));
    for (cause, count) in failed {
        lines.push(format!("not delivered {count}: {cause}"));
    }
    for (fault, count) in internal_faults(report) {
        if count > 0 {
            lines.push(format!("{fault} {count}"));
        }
    }
    if totals.failed_reloads > 0 {
        lines.push(format!("unreadable revocation lists {}", totals.failed_reloads));
    }
    lines
}
