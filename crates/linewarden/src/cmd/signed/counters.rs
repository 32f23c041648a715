//! What a sender says of itself.

use std::time::Instant;

use linewarden_signatures::scheduler::LatencyBook;
use linewarden_signatures::signing::Counts;
use nix::errno::Errno;

use super::latency;
use super::lines::{LAST_WORDS, Lines, WAITING_DEFAULT};
use super::way::Way;
use crate::failure::Failure;
use crate::output::{Output, counted, printable};

/// Counters on standard output, by a thread of their own: nobody who reads them slowly, or not at all, stops what is sent.
pub struct Counters {
    lines: Lines,
    /// Standard error.
    told: Lines,
    json: bool,
    /// What was counted when it was said last that there was no mask.
    said: Counts,
}

/// What there is to say.
pub struct Told<'a> {
    /// What was signed.
    pub counts: Counts,
    /// How many of these the kernel did not take.
    pub unsent: u64,
    /// From a payload's coming to its being signed.
    pub latencies: &'a LatencyBook,
    /// Masks that are left in the file.
    pub masks: u64,
}

impl Counters {
    /// Starts the thread.
    ///
    /// # Errors
    /// There is none, or no standard output.
    pub fn start(output: Output) -> Result<Self, Failure> {
        let lines = Lines::start(
            "standard output".to_owned(),
            Way::stdout()?,
            WAITING_DEFAULT,
            None,
        )?;
        let told = Lines::start("standard error".to_owned(), Way::stderr()?, WAITING_DEFAULT, None)?;
        Ok(Self {
            lines,
            told,
            json: output.is_json(),
            said: Counts::default(),
        })
    }

    /// Says on standard error that messages were signed without masks; again only when there have been masks in between.
    pub fn tell_if_dry(&mut self, counts: Counts) {
        let again = self.said.dry == 0 || counts.masked > self.said.masked;
        if counts.dry > self.said.dry && again {
            self.said = counts;
            self.tell("there was no mask left: what is sent without one takes an RSA signature");
        }
    }

    /// Says something on standard error.
    pub fn tell(&self, text: &str) {
        self.told.push(printable(text).into_bytes());
    }

    /// Prints them.
    pub fn print(&self, event: &str, told: &Told<'_>) {
        let lines = match self.json {
            true => vec![told.json(event).to_string()],
            false => told.lines(),
        };
        for line in lines {
            self.lines.push(line.into_bytes());
        }
    }

    /// Waits a moment for who reads them.
    ///
    /// # Errors
    /// They were not taken; a reader that went away is none, as with every command.
    pub fn end(self) -> Result<(), Failure> {
        self.told.drain(Instant::now() + LAST_WORDS);
        self.lines.drain(Instant::now() + LAST_WORDS);
        let gone = Errno::EPIPE.desc();
        let counts = self.lines.counts();
        match counts.failed.keys().find(|why| *why != gone) {
            Some(why) => Err(Failure::failed(format!("standard output: {why}"))),
            None if counts.lost > 0 => Err(Failure::failed("standard output: nobody took the counters")),
            None => Ok(()),
        }
    }
}

impl Told<'_> {
    fn sent(&self) -> u64 {
        self.counts.total().saturating_sub(self.unsent)
    }

    fn json(&self, event: &str) -> serde_json::Value {
        serde_json::json!({
            "event": event,
            "sent": self.sent(),
            "unsent": self.unsent + self.counts.lost,
            "signed_with_masks": self.counts.masked,
            "signed_without_masks": self.counts.dry,
            "masks_left": self.masks,
            "latency_by_priority": latency::json(self.latencies),
        })
    }

    fn lines(&self) -> Vec<String> {
        let Counts { masked, dry, .. } = self.counts;
        let mut lines = vec![format!("sent {}", counted(self.sent(), "message"))];
        if masked + dry > 0 {
            let left = self.masks;
            lines.push(format!(
                "{masked} with masks, {dry} without; {left} left in the file"
            ));
        }
        lines.extend(latency::lines(self.latencies));
        lines.iter().map(|line| printable(line)).collect()
    }
}
