//! Which gateways are trusted: those whose data plane shows, again and again, that it runs what it should (RATS, RFC 9334).
//!
//! ```text
//!              registered            a statement that matches
//!   (unknown) ───────────► Unproven ──────────────────────────► Trusted
//!                              │                                 ▲    │ another content, an older one,
//!                              │ likewise, or nothing in time    │    │ or nothing in time
//!                              ▼                                 │    ▼
//!                          Distrusted ───────────────────────────┴─ Distrusted: the fence is raised
//! ```
//!
//! A [`Trust`] asks with a nonce of its own each time and takes one answer. What it does not believe (a wrong signature, another nonce)
//! changes nothing: whoever forges statements must not be able to shut a gateway out. What the gateway's own key has signed counts,
//! for it or against it. While a gateway is not trusted, its link gives no rows and no keys.

mod book;

use std::sync::Arc;

use linewarden_evidence::appraisal::{Appraisal, Reference, ReferenceError, appraise};
use linewarden_evidence::keys::PublicKey;
use linewarden_evidence::state::Snapshot;
use linewarden_evidence::statement::{Evidence, Inventory, InventoryError, Nonce, StatementError, verify};
use linewarden_evidence::{BootCount, Sequence};

pub(crate) use self::book::Book;
pub use self::book::{Times, Verdict};

/// Lines of a reason that are told; it says how many more there are.
const TOLD_MAX: usize = 20;
/// From one question for a statement to the next of the same gateway at least, ns: it begins anew as often as it likes.
const ASKED_EVERY_NS: u64 = 1_000_000_000;

/// What a gateway must show.
#[derive(Clone, Debug)]
pub struct TrustPolicy {
    /// What its data plane is to run.
    pub reference: Reference,
    /// Its key.
    pub key: PublicKey,
    /// From one look to the next, ns.
    pub every_ns: u64,
    /// How long a statement may take, ns.
    pub answer_ns: u64,
}

/// How a gateway stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has shown nothing since it was registered.
    Unproven,
    /// It runs what it should.
    Trusted,
    /// It does not, or does not show it.
    Distrusted {
        /// What differs, or what was wrong.
        why: String,
    },
}

/// What a controller wants of a gateway, and what it makes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scrutiny {
    /// A statement is wanted in answer to this; the same until it has come, or the time for it is over.
    pub nonce: Option<Nonce>,
    /// How the gateway stands.
    pub standing: Standing,
}

/// What a gateway's key has signed last, as it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The state.
    pub snapshot: Snapshot,
    /// Whether it was what it should be.
    pub is_affirmed: bool,
}

/// How a gateway stands, for who notes it and who shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// How it stands.
    pub standing: Standing,
    /// What it has shown last, to this controller, and when: seconds since 1970-01-01 UTC.
    pub shown: Option<(Shown, u64)>,
    /// What another controller has to know of it.
    pub memory: Memory,
    /// What its reference values are called.
    pub reference: String,
    /// It is trusted for no longer after what it has shown, ns.
    pub good_for_ns: u64,
}

/// What one controller leaves to another that goes on with a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Of which key ([`PublicKey::fingerprint`]) it is; with another one its states are counted anew.
    pub key: [u8; 32],
    /// The newest state that this key has signed.
    pub seen: Option<(BootCount, Sequence)>,
}

/// Why a statement is not taken. It changes nothing of how the gateway stands.
#[derive(Debug, thiserror::Error)]
pub enum Unbelieved {
    /// Nobody has asked, or not any more.
    #[error("nobody waits for a statement of this gateway: it comes too late, or a second time")]
    Unasked,
    /// It is not signed by the gateway, or answers another question.
    #[error(transparent)]
    Statement(#[from] StatementError),
    /// The reference values say two things at once.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// The controller stops.
    #[error("the controller stops, and judges nothing any more")]
    Stopping,
}

/// What a gateway was asked.
#[derive(Clone, Copy, Debug)]
struct Asked {
    nonce: Nonce,
    at_ns: u64,
}

/// All that a statement is judged by: judging takes long, and what is known of a gateway is not held for it meanwhile.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    policy: Arc<TrustPolicy>,
    nonce: Nonce,
    seen: Option<(BootCount, Sequence)>,
}

/// What a statement comes to that its gateway has signed for the nonce that it was asked with.
#[derive(Debug)]
pub(crate) struct Found {
    snapshot: Snapshot,
    /// What speaks against it.
    reason: Option<String>,
}

/// What is known of one gateway. Times are of one clock that only goes forward.
#[derive(Debug)]
pub struct Trust {
    policy: Arc<TrustPolicy>,
    standing: Standing,
    /// How often it was found that it is not to be trusted.
    distrusted: u64,
    asked: Option<Asked>,
    /// When it was asked last.
    asked_ns: Option<u64>,
    /// When it is asked next.
    due_ns: u64,
    /// The newest state that its key has signed.
    seen: Option<(BootCount, Sequence)>,
    /// What it has signed last.
    shown: Option<Shown>,
    /// What was not believed since it was asked.
    refused: Option<String>,
}

impl Trust {
    /// Of a gateway that has shown nothing yet.
    #[must_use]
    pub fn new(policy: TrustPolicy) -> Self {
        Self {
            policy: Arc::new(policy),
            standing: Standing::Unproven,
            distrusted: 0,
            asked: None,
            asked_ns: None,
            due_ns: 0,
            seen: None,
            shown: None,
            refused: None,
        }
    }

    /// The gateway was registered anew: what it showed before was another process's. What it did wrong stays. It is asked at once, unless
    /// it was a moment ago.
    pub fn begin(&mut self) {
        if self.standing == Standing::Trusted {
            self.standing = Standing::Unproven;
        }
        self.asked = None;
        self.due_ns = self
            .asked_ns
            .map_or(0, |asked_ns| asked_ns.saturating_add(ASKED_EVERY_NS));
    }

    /// Another controller went on with it before, and has left this.
    pub fn recall(&mut self, memory: &Memory) {
        if memory.key == self.policy.key.fingerprint() {
            self.seen = self.seen.max(memory.seen);
        }
    }

    /// What it has shown last.
    #[must_use]
    pub const fn shown(&self) -> Option<Shown> {
        self.shown
    }

    /// The newest state that its key has signed.
    #[must_use]
    pub const fn seen(&self) -> Option<(BootCount, Sequence)> {
        self.seen
    }

    /// What it must show.
    #[must_use]
    pub fn policy(&self) -> &TrustPolicy {
        &self.policy
    }

    /// How it stands.
    #[must_use]
    pub const fn standing(&self) -> &Standing {
        &self.standing
    }

    /// Whether it gets rows at that moment: it is trusted, and neither an answer nor the question is overdue. Who does not ask what
    /// is wanted of it is not trusted for longer than who is asked.
    #[must_use]
    pub fn gives_rows(&self, now_ns: u64) -> bool {
        let is_unasked = self.asked.is_none() && now_ns.saturating_sub(self.due_ns) >= self.policy.answer_ns;
        self.standing == Standing::Trusted && self.overdue(now_ns).is_none() && !is_unasked
    }

    fn overdue(&self, now_ns: u64) -> Option<Asked> {
        self.asked
            .filter(|asked| now_ns.saturating_sub(asked.at_ns) >= self.policy.answer_ns)
    }

    /// What is wanted of it now. `random` gives 32 random bytes, or `None` where the source fails: then it is asked later, and time
    /// goes against it.
    pub fn look(&mut self, now_ns: u64, random: &mut dyn FnMut() -> Option<[u8; 32]>) -> Scrutiny {
        if self.overdue(now_ns).is_some() {
            self.asked = None;
            self.due_ns = now_ns;
            self.distrust(self.silence());
        }
        if self.asked.is_none() && self.due_ns <= now_ns {
            match random() {
                Some(nonce) => {
                    let nonce = Nonce(nonce);
                    self.asked = Some(Asked { nonce, at_ns: now_ns });
                    self.asked_ns = Some(now_ns);
                    self.refused = None;
                }
                None if now_ns.saturating_sub(self.due_ns) >= self.policy.answer_ns => {
                    self.distrust("nothing could be asked: no random bytes for a nonce".to_owned());
                }
                None => {}
            }
        }
        Scrutiny {
            nonce: self.asked.map(|asked| asked.nonce),
            standing: self.standing.clone(),
        }
    }

    fn silence(&self) -> String {
        let seconds = self.policy.answer_ns / 1_000_000_000;
        match &self.refused {
            None => format!("it has not answered for {seconds} s"),
            Some(refused) => {
                format!("no statement that can be believed for {seconds} s; the last was refused: {refused}")
            }
        }
    }

    /// Judges a statement, with the entries behind it if they came along.
    ///
    /// # Errors
    /// It is not believed.
    pub fn judge(
        &mut self,
        statement: &[u8],
        inventory: Option<&[u8]>,
        now_ns: u64,
    ) -> Result<(), Unbelieved> {
        let question = self.question(now_ns)?;
        self.settle(question.nonce, question.judge(statement, inventory), now_ns)
    }

    /// By what a statement that has come now is judged.
    ///
    /// # Errors
    /// Nobody waits for one.
    pub(crate) fn question(&self, now_ns: u64) -> Result<Question, Unbelieved> {
        let asked = match self.overdue(now_ns) {
            None => self.asked.ok_or(Unbelieved::Unasked)?,
            Some(_) => return Err(Unbelieved::Unasked),
        };
        Ok(Question {
            policy: Arc::clone(&self.policy),
            nonce: asked.nonce,
            seen: self.seen,
        })
    }

    /// What came of a statement that came at `now_ns` in answer to `nonce`.
    ///
    /// # Errors
    /// It is not believed, or another question has taken that one's place since.
    pub(crate) fn settle(
        &mut self,
        nonce: Nonce,
        found: Result<Found, Unbelieved>,
        now_ns: u64,
    ) -> Result<(), Unbelieved> {
        if self.asked.is_none_or(|asked| asked.nonce != nonce) {
            return Err(Unbelieved::Unasked);
        }
        let Found { snapshot, reason } = found.inspect_err(|error| self.refused = Some(error.to_string()))?;
        self.asked = None;
        self.due_ns = now_ns.saturating_add(self.policy.every_ns);
        self.shown = Some(Shown {
            snapshot,
            is_affirmed: reason.is_none(),
        });
        match reason {
            None => self.standing = Standing::Trusted,
            Some(reason) => self.distrust(reason),
        }
        self.seen = self.seen.max(Some((snapshot.boot_count, snapshot.sequence)));
        Ok(())
    }

    fn distrust(&mut self, why: String) {
        self.distrusted += 1;
        self.standing = Standing::Distrusted { why };
    }
}

impl Question {
    /// What it asks with.
    pub(crate) const fn nonce(&self) -> Nonce {
        self.nonce
    }

    /// Judges a statement, with the entries behind it if they came along: of 32 MiB, for seconds.
    ///
    /// # Errors
    /// It is not believed.
    pub(crate) fn judge(&self, statement: &[u8], inventory: Option<&[u8]>) -> Result<Found, Unbelieved> {
        let evidence = verify(statement, &self.policy.key, self.nonce)?;
        Ok(Found {
            snapshot: *evidence.snapshot(),
            reason: self.reason(&evidence, inventory)?,
        })
    }

    /// What speaks against what it has signed.
    fn reason(
        &self,
        evidence: &Evidence,
        inventory: Option<&[u8]>,
    ) -> Result<Option<String>, ReferenceError> {
        let snapshot = evidence.snapshot();
        if let Some((boot_count, sequence)) = self.seen
            && (snapshot.boot_count, snapshot.sequence) < (boot_count, sequence)
        {
            return Ok(Some(format!(
                "it says that this is state {} of its start {}, and has shown state {sequence} of its start {boot_count} \
                 before: its state directory was put back, or somebody else has its key",
                snapshot.sequence, snapshot.boot_count
            )));
        }
        let proven = inventory
            .map(|bytes| Inventory::read(bytes)?.prove(evidence))
            .transpose();
        let (proven, problem) = match proven {
            Ok(proven) => (proven, None),
            Err(error) => (None, Some(error)),
        };
        let appraisal = appraise(evidence, &self.policy.reference, proven.as_ref())?;
        Ok((!appraisal.is_affirmed()).then(|| told(&appraisal, problem.as_ref())))
    }
}

/// What differs, in few enough lines.
fn told(appraisal: &Appraisal, problem: Option<&InventoryError>) -> String {
    let text = appraisal.to_string();
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut told = lines
        .iter()
        .take(TOLD_MAX)
        .copied()
        .collect::<Vec<_>>()
        .join("; ");
    if let Some(more) = lines.len().checked_sub(TOLD_MAX).filter(|more| *more > 0) {
        told.push_str(&format!("; and {more} more"));
    }
    if let Some(problem) = problem {
        told.push_str(&format!("; {problem}"));
    }
    told
}
