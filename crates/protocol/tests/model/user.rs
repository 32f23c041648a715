//! What user space does to lines while CPUs use them (LAP/1 1.4.3): refill rings, fill empty lines, revoke, and clear
//! up after its own crash. One such process runs per gateway, and does one thing after the other.

use std::cell::RefCell;
use std::rc::Rc;

use linewarden_protocol::commit::{self, CommitWord};
use linewarden_protocol::gateway::Row;
use linewarden_protocol::ids::{Mode, RowIndex};

use super::cpu::Config;
use super::memory::{Memory, Word, split};
use super::rules::Rule;

/// The process's own memory, lost when it crashes.
#[derive(Clone)]
pub struct User {
    pub memory: Memory,
    pub config: Config,
    /// By line: the next row to write into the ring.
    ring_next: Rc<RefCell<Vec<u32>>>,
    /// By line: rows from here on are not this gateway's to use (yet).
    pub rows_until: Rc<RefCell<Vec<u32>>>,
}

impl User {
    pub fn new(memory: Memory, config: Config, rows_until: Vec<u32>) -> Self {
        let lines = rows_until.len();
        Self {
            memory,
            config,
            ring_next: Rc::new(RefCell::new(vec![0; lines])),
            rows_until: Rc::new(RefCell::new(rows_until)),
        }
    }

    /// The same process, acting through that handle.
    pub fn with_memory(&self, memory: Memory) -> Self {
        Self {
            memory,
            ..self.clone()
        }
    }

    fn row(&self, line: usize, idx: u32) -> Row {
        let ledger = self.memory.ledger();
        let mut ledger = ledger.borrow_mut();
        let enrolment = ledger.enrolments[line];
        ledger.row(self.config.gateway, &enrolment, RowIndex(idx))
    }

    fn slot(&self, idx: u32) -> usize {
        idx as usize % self.config.ring_rows
    }

    /// Loads the commit word; `None` while user space may not touch the line.
    async fn free(&self, line: usize) -> Option<CommitWord> {
        let commit = CommitWord(self.memory.load(line, Word::Commit).await);
        let kept = commit.is_busy() && self.config.rules.keep(Rule::BusyOwnership);
        (!commit.is_revoked() && !kept).then_some(commit)
    }

    /// Writes rows ahead into the ring: up to one ring beyond a commit word that was seen without BUSY.
    pub async fn refill(self, line: usize) {
        let Some(commit) = self.free(line).await.filter(|commit| !commit.is_key_mode()) else {
            return;
        };
        let current = commit.idx().0;
        let first = self.ring_next.borrow()[line].max(current + 1);
        let beyond = (current + 1 + self.config.ring_rows as u32).min(self.rows_until.borrow()[line]);
        for idx in first..beyond {
            let (row, slot) = (self.row(line, idx), self.slot(idx));
            let [first_half, second_half] = split(row.auth_key.as_bytes());
            let last = self.config.rules.keep(Rule::SecondHalfLast);
            if !last {
                self.memory.store(line, Word::RingKey(slot, 1), second_half).await;
            }
            let challenge = u64::from_be_bytes(row.challenge);
            self.memory
                .store(line, Word::RingChallenge(slot), challenge)
                .await;
            self.memory.store(line, Word::RingKey(slot, 0), first_half).await;
            if last {
                self.memory.store(line, Word::RingKey(slot, 1), second_half).await;
            }
            self.ring_next.borrow_mut()[line] = idx + 1;
        }
    }

    /// Fills a line with neither VALID nor BUSY with the row of its idx: that in the ring, or else the registry's.
    pub async fn fill(self, line: usize) {
        let Some(commit) = self.free(line).await.filter(|commit| !commit.is_valid()) else {
            return;
        };
        let idx = commit.idx().0;
        if !commit.is_key_mode() && idx >= self.rows_until.borrow()[line] {
            return;
        }
        let row = match commit.is_key_mode() {
            true => self.row(line, idx),
            false => self.take(line, idx).await,
        };
        let memory = &self.memory;
        memory
            .store(line, Word::Challenge, u64::from_be_bytes(row.challenge))
            .await;
        memory.store_pair(line, Word::Key, row.auth_key.as_bytes()).await;
        let mut seen = commit;
        while let Some(filled) = seen.filled(RowIndex(idx)) {
            if memory
                .compare_and_swap(line, Word::Commit, seen.0, filled.0)
                .await
            {
                return;
            }
            seen = CommitWord(memory.load(line, Word::Commit).await);
        }
    }

    /// Takes the row out of the ring, so that it cannot come up again a ring later.
    async fn take(&self, line: usize, idx: u32) -> Row {
        let slot = self.slot(idx);
        self.memory.exchange(line, Word::RingKey(slot, 1), 0).await;
        let mut next = self.ring_next.borrow_mut();
        next[line] = next[line].max(idx + 1);
        drop(next);
        self.row(line, idx)
    }

    /// Sets REVOKED, by compare-and-swap, as user space changes the word in no other way.
    pub async fn revoke(self, line: usize) {
        loop {
            let seen = CommitWord(self.memory.load(line, Word::Commit).await);
            let revoked = seen.revoked();
            if self
                .memory
                .compare_and_swap(line, Word::Commit, seen.0, revoked.0)
                .await
            {
                return;
            }
        }
    }

    /// Draws a new freshness value: previous before current.
    pub async fn rotate_fresh(self, value: u64, now_monotonic_ms: u64) {
        let control = self.memory.control().await;
        self.memory
            .arrange(|state| state.control.fresh_previous = control.fresh_current);
        self.memory.control().await;
        self.memory.arrange(|state| {
            state.control.fresh_current = value;
            state.control.drawn_at_monotonic_ms = now_monotonic_ms;
        });
    }

    /// A new process after a crash of the old one, with the data plane detached and the memory kept: winners that
    /// never finished lose their session, rings are emptied, since nobody knows how far they were written.
    pub fn recover(&mut self) {
        let ring_rows = self.config.ring_rows;
        self.memory.arrange(|state| {
            for line in &mut state.lines {
                let commit = CommitWord(line.get(Word::Commit));
                if commit.is_busy() {
                    line.set(Word::SessionId, 0);
                    line.set(Word::Commit, commit.released(false).0);
                }
                for slot in 0..ring_rows {
                    line.set(Word::RingKey(slot, 1), 0);
                }
            }
        });
        let rows_until = self.rows_until.borrow().clone();
        *self = Self::new(self.memory.clone(), self.config, rows_until);
    }

    /// Puts a device into an untouched line: its mode, the number to start at and, in key mode, its key.
    pub fn install(&self, line: usize, mode: Mode, idx: u32) {
        let flags = match mode {
            Mode::Pool => commit::UNLIMITED,
            Mode::Key => commit::KEY | commit::UNLIMITED,
        };
        let commit = CommitWord::new(RowIndex(idx), 0, flags);
        self.memory.arrange(|state| {
            state.lines[line].set(Word::Commit, commit.0);
            state.installed[line] = true;
        });
    }
}
