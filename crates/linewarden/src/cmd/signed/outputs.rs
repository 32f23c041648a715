//! What a receiver prints and hands on. Nothing here waits for who reads it, until the end, and not for long then.

use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use linewarden_signatures::receive::Verified;
use linewarden_signatures::scheduler::Span;
use linewarden_signatures::scheduler::engine::Snapshot;
use linewarden_signatures::service::{Delivery, Report};
use nix::errno::Errno;
use serde_json::Value;

use super::latency;
use super::lines::{Counts, LAST_WORDS, Lines, WAITING_DEFAULT};
use super::payload;
use super::way::Way;
use crate::failure::Failure;
use crate::output::{Output, counted, printable};

/// How long verified messages that wait are written at the end.
const DRAIN: Duration = Duration::from_secs(2);

/// All of them.
pub struct Outputs {
    /// `--out`.
    out: String,
    messages: Arc<Lines>,
    /// Standard output, with JSON for machines; where messages go there too, in one order with them.
    events: Option<Arc<Lines>>,
    /// Standard error.
    told: Arc<Lines>,
    /// Lists of revoked signers that could not be read.
    pub failed_reloads: u64,
}

impl Outputs {
    /// Opens what `--out` names; so many lines wait for who reads them.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(out: &str, backlog: u32, output: Output) -> Result<Self, Failure> {
        // Nobody is told of errors where they are told.
        let told = Lines::start("standard error".to_owned(), Way::stderr()?, WAITING_DEFAULT, None)?;
        let told = Arc::new(told);
        let start = |name: String, way, waiting_max| {
            Lines::start(name, way, waiting_max, Some(Arc::clone(&told))).map(Arc::new)
        };
        let messages = start(format!("--out {out}"), Way::open(out)?, backlog)?;
        let events = match (output.is_json(), out) {
            (false, _) => None,
            (true, "-") => Some(Arc::clone(&messages)),
            (true, _) => Some(start(
                "standard output".to_owned(),
                Way::stdout()?,
                WAITING_DEFAULT,
            )?),
        };
        Ok(Self {
            out: out.to_owned(),
            messages,
            events,
            told,
            failed_reloads: 0,
        })
    }

    /// Where verified messages are handed on.
    pub fn messages(&self) -> Arc<dyn Delivery> {
        Arc::<Lines>::clone(&self.messages)
    }

    /// For machines.
    pub fn event(&self, event: &Value) {
        if let Some(events) = &self.events {
            events.push(event.to_string().into_bytes());
        }
    }

    /// For people.
    pub fn tell(&self, text: impl Display) {
        if self.events.is_none() {
            self.told.push(printable(&text.to_string()).into_bytes());
        }
    }

    /// The counters so far.
    pub fn report(&self, report: &Report, kernel_drops: u64) {
        let counts = self.counts(kernel_drops);
        self.event(&json(report, &counts, "counters"));
        for line in lines(report, &counts) {
            self.tell(line);
        }
    }

    /// Writes what waits, as long as [`DRAIN`] allows, and the last counters.
    ///
    /// # Errors
    /// Lines that have not arrived.
    pub fn end(&self, report: &Report, kernel_drops: u64) -> Result<(), Failure> {
        self.messages.drain(Instant::now() + DRAIN);
        let until = Instant::now() + LAST_WORDS;
        let counts = self.counts(kernel_drops);
        let last = json(report, &counts, "ended");
        let written = |events: &Arc<Lines>| events.counts().written;
        let before = self.events.as_ref().map(written);
        self.event(&last);
        if self.events.as_ref().is_some_and(|events| !events.drain(until))
            || before.is_some_and(|before| self.events.as_ref().map(written) == Some(before))
        {
            // Nobody reads them where they should be.
            self.told.push(last.to_string().into_bytes());
        }
        for line in lines(report, &counts) {
            self.tell(line);
        }
        self.told.drain(Instant::now() + LAST_WORDS);
        for (what, count) in undelivered(report) {
            if count > 0 {
                return Err(Failure::failed(format!("{}: {what}", counted(count, "time"))));
            }
        }
        match self.missing(&counts.lines) {
            0 => Ok(()),
            missing => {
                let most = counts.lines.failed.iter().max_by_key(|(_, count)| **count);
                let why = most.map_or("nobody took them, or not as fast as they came", |(why, _)| why);
                Err(Failure::failed(format!(
                    "--out {}: {} did not arrive: {why}",
                    self.out,
                    counted(missing, "line")
                )))
            }
        }
    }

    fn counts(&self, kernel_drops: u64) -> Totals {
        Totals {
            kernel_drops,
            lines: self.messages.counts(),
            failed_reloads: self.failed_reloads,
        }
    }

    /// Lines that have not arrived. A reader of standard output that went away is no failure, as with every command.
    fn missing(&self, counts: &Counts) -> u64 {
        let gone = Errno::EPIPE.desc();
        let failed = counts
            .failed
            .iter()
            .filter(|(why, _)| self.out != "-" || *why != gone);
        counts.dropped + counts.lost + failed.map(|(_, count)| count).sum::<u64>()
    }
}

/// What is counted outside of the service.
struct Totals {
    /// Datagrams that the kernel has dropped.
    kernel_drops: u64,
    /// Verified messages, as lines.
    lines: Counts,
    failed_reloads: u64,
}

impl Delivery for Lines {
    /// Who cannot take a message has lost it, as with any datagram.
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

/// What must not happen: faults of this program.
fn undelivered(report: &Report) -> [(&'static str, u64); 2] {
    [
        (
            "handing on a batch's messages panicked",
            report.engine.sink_panics,
        ),
        ("the scheduler contradicted itself", report.engine.errors),
    ]
}

fn json(report: &Report, totals: &Totals, event: &str) -> serde_json::Value {
    let outputs = &totals.lines;
    let refused = report
        .refused
        .iter()
        .map(|(refusal, count)| (refusal.key(), *count));
    let shed = report.shed();
    let shed = shed.iter().map(|(why, count)| (why.name(), *count));
    serde_json::json!({
        "event": event,
        "kernel_drops": totals.kernel_drops,
        "received": report.received,
        "verified": report.verified,
        "refused": refused.collect::<std::collections::BTreeMap<_, _>>(),
        "shed": shed.collect::<std::collections::BTreeMap<_, _>>(),
        "outputs": {
            "written": outputs.written,
            "dropped": outputs.dropped,
            "lost": outputs.lost,
            "failed": outputs.failed,
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
            "lost": lane.lost,
        })).collect::<Vec<_>>(),
    })
}

/// What waits, and what was not dealt with as it asked for or as it was begun.
fn work(engine: &Snapshot) -> Vec<String> {
    let (immediate, other) = engine.waiting;
    let mut lines = vec![format!(
        "waiting {immediate} immediate, {other} others, {} being verified",
        engine.in_batches
    )];
    for (count, what) in [
        (
            engine.counters.demoted,
            "claimed to be immediate, beyond the quota",
        ),
        (
            engine.counters.returned,
            "verified by another lane, since one was lost",
        ),
    ] {
        if count > 0 {
            lines.push(format!("{count} {what}"));
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
    for (why, count) in report.shed() {
        lines.push(format!("shed {count} {}: {}", why.name(), why.description()));
    }
    lines.extend(work(&report.engine));
    let Counts {
        written,
        dropped,
        lost,
        failed,
    } = &totals.lines;
    lines.push(format!(
        "handed on {written}, dropped {dropped}, lost at the end {lost}"
    ));
    for (why, count) in failed {
        lines.push(format!("not handed on {count}: {why}"));
    }
    for (what, count) in undelivered(report) {
        if count > 0 {
            lines.push(format!("{what} {count}"));
        }
    }
    if totals.failed_reloads > 0 {
        lines.push(format!(
            "lists of revoked signers that could not be read {}",
            totals.failed_reloads
        ));
    }
    lines
}
