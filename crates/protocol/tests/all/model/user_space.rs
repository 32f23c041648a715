//! Operations of user space on lines while CPUs use them (LAP/1 1.4.3): refill rings, fill empty lines, revoke, and
//! recover after a crash of user space. One such process runs per gateway, and does one operation after the other.

use std::cell::RefCell;
use std::rc::Rc;

use linewarden_protocol::commit::{self, CommitWord};
use linewarden_protocol::gateway::Row;
use linewarden_protocol::ids::{Mode, RowIndex};

use super::cpu::Config;
use super::memory::{Memory, Word, split};
use super::rules::Rule;

/// The process's own memory, which is lost when the process crashes.
#[derive(Clone)]
pub struct UserSpace {
    pub memory: Memory,
    pub config: Config,
    /// By line: the next row to write into the ring.
    ring_next: Rc<RefCell<Vec<u32>>>,
    /// By line: the first row that this gateway may not use (yet).
    pub rows_until: Rc<RefCell<Vec<u32>>>,
}

impl UserSpace {
    pub fn new(memory: Memory, config: Config, rows_until: Vec<u32>) -> Self {
        let lines = rows_until.len();
        Self {
            memory,
            config,
            ring_next: Rc::new(RefCell::new(vec![0; lines])),
            rows_until: Rc::new(RefCell::new(rows_until)),
        }
    }

    /// Returns the same process with another memory handle.
    pub fn with_memory(&self, memory: Memory) -> Self {
        Self {
            memory,
            ..self.clone()
        }
    }

    fn row(&self, line: usize, idx: u32) -> Row {
        let invariants = self.memory.invariants();
        let mut invariants = invariants.borrow_mut();
        let enrollment = invariants.enrollments[line];
        invariants.row(self.config.gateway, &enrollment, RowIndex(idx))
    }

    fn slot(&self, idx: u32) -> usize {
        idx as usize % self.config.ring_rows
    }

    /// Loads the commit word; `None` while user space may not touch the line.
    async fn load_writable_commit(&self, line: usize) -> Option<CommitWord> {
        let commit = CommitWord(self.memory.load(line, Word::Commit).await);
        let is_reserved = commit.is_busy() && self.config.rules.contains(Rule::BusyOwnership);
        (!commit.is_revoked() && !is_reserved).then_some(commit)
    }

    /// Writes rows ahead into the ring: up to one ring beyond a commit word that was loaded without BUSY.
    pub async fn refill(self, line: usize) {
        let Some(commit) = self
            .load_writable_commit(line)
            .await
            .filter(|commit| !commit.is_key_mode())
        else {
            return;
        };
        let current = commit.idx().0;
        let first = self.ring_next.borrow()[line].max(current + 1);
        let end = (current + 1 + self.config.ring_rows as u32).min(self.rows_until.borrow()[line]);
        for idx in first..end {
            let (row, slot) = (self.row(line, idx), self.slot(idx));
            let [first_half, second_half] = split(row.auth_key.as_bytes());
            let is_second_half_last = self.config.rules.contains(Rule::SecondHalfLast);
            if !is_second_half_last {
                self.memory.store(line, Word::RingKey(slot, 1), second_half).await;
            }
            let challenge = u64::from_be_bytes(row.challenge);
            self.memory
                .store(line, Word::RingChallenge(slot), challenge)
                .await;
            self.memory.store(line, Word::RingKey(slot, 0), first_half).await;
            if is_second_half_last {
                self.memory.store(line, Word::RingKey(slot, 1), second_half).await;
            }
            self.ring_next.borrow_mut()[line] = idx + 1;
        }
    }

    /// If a line is neither VALID nor BUSY, fills the line with the row of its idx. Removes this row from the ring.
    pub async fn fill(self, line: usize) {
        let Some(commit) = self
            .load_writable_commit(line)
            .await
            .filter(|commit| !commit.is_valid())
        else {
            return;
        };
        let idx = commit.idx().0;
        if !commit.is_key_mode() && idx >= self.rows_until.borrow()[line] {
            return;
        }
        let row = match commit.is_key_mode() {
            true => self.row(line, idx),
            false => self.drain(line, idx).await,
        };
        let memory = &self.memory;
        memory
            .store(line, Word::Challenge, u64::from_be_bytes(row.challenge))
            .await;
        memory.store_pair(line, Word::Key, row.auth_key.as_bytes()).await;
        let mut word = commit;
        while let Some(filled) = word.with_row_filled(RowIndex(idx)) {
            if memory
                .compare_and_swap(line, Word::Commit, word.0, filled.0)
                .await
            {
                return;
            }
            word = CommitWord(memory.load(line, Word::Commit).await);
        }
    }

    /// Removes the row from the ring, and returns the row. Otherwise a CPU would find the row again one ring length later.
    async fn drain(&self, line: usize, idx: u32) -> Row {
        let slot = self.slot(idx);
        self.memory.exchange(line, Word::RingKey(slot, 1), 0).await;
        let mut next = self.ring_next.borrow_mut();
        next[line] = next[line].max(idx + 1);
        drop(next);
        self.row(line, idx)
    }

    /// Sets REVOKED by compare-and-swap, the only way in which user space changes the word.
    pub async fn revoke(self, line: usize) {
        loop {
            let word = CommitWord(self.memory.load(line, Word::Commit).await);
            let revoked = word.with_revoked();
            if self
                .memory
                .compare_and_swap(line, Word::Commit, word.0, revoked.0)
                .await
            {
                return;
            }
        }
    }

    /// Sets a new freshness value: writes the previous value before the current value.
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

    /// Starts a new process after a crash, with the data plane detached and the memory kept: unfinished winners lose
    /// their session, and rings are emptied, because the state of the rings is unknown.
    pub fn recover(&mut self) {
        let ring_rows = self.config.ring_rows;
        self.memory.arrange(|state| {
            for line in &mut state.lines {
                let commit = CommitWord(line.get(Word::Commit));
                if commit.is_busy() {
                    line.set(Word::SessionId, 0);
                    line.set(Word::Commit, commit.with_busy_cleared(false).0);
                }
                for slot in 0..ring_rows {
                    line.set(Word::RingKey(slot, 1), 0);
                }
            }
        });
        let rows_until = self.rows_until.borrow().clone();
        *self = Self::new(self.memory.clone(), self.config, rows_until);
    }

    /// Installs a device in an empty line: its mode, its first row and, in key mode, its key.
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
