//! How a gateway stands that has to show what it runs, as controllers note it for others.

use linewarden_controller::trust::{Memory, Report, Standing};
use linewarden_evidence::{BootCount, Sequence};
use linewarden_registry::NOTED_AHEAD_MS;
use serde::{Deserialize, Serialize};

/// Of a reason that is kept, bytes.
const WHY_BYTES_MAX: usize = 1_024;
/// Of the name of reference values, bytes.
const NAME_BYTES_MAX: usize = 128;

/// How it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    /// It has shown nothing to the controller that it is with.
    #[default]
    Unproven,
    /// It runs what it should.
    Trusted,
    /// It does not, or does not show it.
    Distrusted,
}

/// What its key has signed last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Evidence {
    pub(crate) at_s: u64,
    pub(crate) is_affirmed: bool,
    pub(crate) boot_count: u64,
    pub(crate) sequence: u64,
    /// Digests, in hexadecimal.
    pub(crate) program: String,
    pub(crate) tables: String,
    pub(crate) registers: String,
}

/// What is kept of it. Fields that an older controller has not written are as if nothing were known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Trust {
    pub(crate) state: State,
    /// Since when it stands so.
    pub(crate) since_ms: u64,
    /// Why it is not trusted.
    pub(crate) why: String,
    /// What its reference values are called.
    pub(crate) reference: String,
    /// It is trusted for no longer after what it has shown.
    pub(crate) good_for_s: u64,
    pub(crate) evidence: Option<Evidence>,
    /// Of its key, SHA-256 in hexadecimal.
    pub(crate) key: String,
    /// The newest state that this key has signed: start and number.
    pub(crate) seen: Option<(u64, u64)>,
    /// Whether it was trusted when that was judged last, by whichever controller: what the journal has.
    pub(crate) was_trusted: Option<bool>,
}

impl Trust {
    /// What is to be kept after this report, where `before` was kept.
    pub(crate) fn of(report: &Report, before: Option<&Self>, now_ms: u64) -> Self {
        let (state, why) = match &report.standing {
            Standing::Unproven => (State::Unproven, String::new()),
            Standing::Trusted => (State::Trusted, String::new()),
            Standing::Distrusted { why } => (State::Distrusted, bounded(why, WHY_BYTES_MAX)),
        };
        let evidence = report.shown.map(|(shown, at_s)| Evidence {
            at_s,
            is_affirmed: shown.is_affirmed,
            boot_count: shown.snapshot.boot_count.0,
            sequence: shown.snapshot.sequence.0,
            program: shown.snapshot.digests.program.to_string(),
            tables: shown.snapshot.digests.tables.to_string(),
            registers: shown.snapshot.digests.registers.to_string(),
        });
        let key = hex::encode(report.memory.key);
        let of_key = before.filter(|before| before.key == key);
        let was_so = before.filter(|before| before.state == state && before.why == why);
        let was_trusted = match state {
            State::Unproven => before.and_then(|before| before.was_trusted),
            State::Trusted => Some(true),
            State::Distrusted => Some(false),
        };
        Self {
            state,
            since_ms: was_so.map_or(now_ms, |before| before.since_ms),
            why,
            reference: bounded(&report.reference, NAME_BYTES_MAX),
            good_for_s: report.good_for_ns / 1_000_000_000,
            // What it has shown to another controller may be newer than what it has shown here.
            evidence: [evidence, of_key.and_then(|before| before.evidence.clone())]
                .into_iter()
                .flatten()
                .filter(|evidence| !is_ahead(evidence, now_ms / 1000))
                .max_by_key(|evidence| evidence.at_s),
            // Whoever notes it last, nothing that was seen is forgotten.
            seen: report
                .memory
                .seen
                .map(|(start, number)| (start.0, number.0))
                .max(of_key.and_then(|before| before.seen)),
            key,
            was_trusted,
        }
    }

    /// What is kept of it by a controller that it comes to, to which it has shown nothing yet.
    pub(crate) fn left(self, now_ms: u64) -> Self {
        Self {
            state: State::Unproven,
            since_ms: now_ms,
            why: String::new(),
            ..self
        }
    }

    /// Whether others are to know at once: all but that the same was shown once more.
    pub(crate) fn differs(&self, before: Option<&Self>) -> bool {
        let of = |trust: &Self| (trust.state, trust.why.clone(), trust.seen, trust.key.clone());
        before.map(of) != Some(of(self))
    }

    /// What another controller has to know, if it can be read.
    pub(crate) fn memory(&self) -> Option<Memory> {
        let key = hex::decode(&self.key).ok()?.try_into().ok()?;
        let seen = self
            .seen
            .map(|(start, number)| (BootCount(start), Sequence(number)));
        Some(Memory { key, seen })
    }

    /// How it stands by now: nobody is trusted for longer by a statement than until the next one is overdue.
    pub(crate) fn said(&self, now_s: u64) -> &'static str {
        match self.state {
            State::Unproven => "unproven",
            State::Distrusted => "untrusted",
            State::Trusted if self.is_good(now_s) => "trusted",
            State::Trusted => "overdue",
        }
    }

    fn is_good(&self, now_s: u64) -> bool {
        let evidence = self.evidence.as_ref();
        evidence.is_some_and(|evidence| {
            !is_ahead(evidence, now_s) && now_s.saturating_sub(evidence.at_s) <= self.good_for_s
        })
    }
}

/// It was shown by a clock that was wrong.
fn is_ahead(evidence: &Evidence, now_s: u64) -> bool {
    evidence.at_s > now_s.saturating_add(NOTED_AHEAD_MS / 1000)
}

/// What fits, on one line: a gateway's words are among it.
fn bounded(text: &str, bytes_max: usize) -> String {
    let mut line: String = text
        .chars()
        .map(|character| if character.is_control() { ' ' } else { character })
        .collect();
    if line.len() > bytes_max {
        let end = line.floor_char_boundary(bytes_max - '…'.len_utf8());
        line.truncate(end);
        line.push('…');
    }
    line
}
