//! What the node asks its controller, one question of a kind at a time, and what the answers bring.

use linewarden_controller::{Changes, Chunk, Want};
use linewarden_registry::{Change, Revision, Settlement};

use super::channel::Channel;
use super::{LinkState, Node};
use crate::audit::Happening;
use crate::exchange::{Answer, Ask, LinkError};
use crate::time::Clock;

/// Devices for which rows are asked at once, or of which it is told at once where they stood.
pub(super) const WANTS_PER_ASK: usize = 256;

impl Node {
    /// Takes an answer of the controller.
    pub fn answer(&mut self, answer: Answer, clock: Clock) {
        let now_ns = clock.monotonic_ns;
        match answer {
            Answer::Entered(result) => {
                if let Some(number) = self.unwrap_answer(result, now_ns, |node| &mut node.enter) {
                    self.enter.done = true;
                    self.confirm(number);
                }
            }
            Answer::Chunk(result) => {
                if let Some(chunk) = self.unwrap_answer(result, now_ns, |node| &mut node.resume) {
                    self.take_chunk(chunk);
                }
            }
            Answer::Rows(result) => match self.unwrap_answer(result, now_ns, |node| &mut node.lease) {
                Some((provisions, refused)) => {
                    self.clear_asked();
                    provisions.into_iter().for_each(|rows| self.provide(rows));
                    refused.iter().for_each(|refused| self.refuse(refused));
                }
                None => self.ask_again(),
            },
            Answer::Receptions(result) => {
                let asked = self.visitors.asked();
                match self.unwrap_answer(result, now_ns, |node| &mut node.receive) {
                    Some(receptions) => {
                        for (miss, reception) in asked.into_iter().zip(receptions) {
                            self.receive(miss, reception);
                        }
                    }
                    None => asked.iter().for_each(|miss| self.turn_away(miss)),
                }
            }
            Answer::Settled(result) => match self.unwrap_answer(result, now_ns, |node| &mut node.settle) {
                Some(back) => {
                    self.status.rows_given_back += back;
                    self.settled();
                }
                None => self.settlements.append(&mut self.settling),
            },
            Answer::Reported { result, at_ns } => {
                let answers = self.unwrap_answer(result, now_ns, |node| &mut node.report);
                self.take_reported(answers, at_ns);
            }
            Answer::Plan(result) => self.take_plan(result, clock),
            Answer::Provers(result) => self.take_provers(result, clock),
            Answer::Appraised(result) => self.take_appraised(result, clock),
            Answer::ProverIds(result) => self.take_prover_ids(result, clock),
            Answer::Judged(result) => self.take_judged(result, now_ns),
            Answer::Changes {
                result,
                at_ns,
                scrutiny,
            } => {
                self.take_scrutiny(scrutiny);
                if let Some(changes) = self.unwrap_answer(result, now_ns, |node| &mut node.feed) {
                    self.take_changes(&changes, now_ns, at_ns);
                }
            }
        }
        if !self.is_expecting() {
            self.meanwhile.clear();
        }
        self.status.rows_waited_for = self.wants.len() as u64;
    }

    /// What to ask the controller now.
    pub(super) fn asks(&mut self, clock: Clock) -> Vec<Ask> {
        let mut asks = Vec::new();
        if self.stopping || self.status.replaced {
            return asks;
        }
        asks.extend(self.ask_to_enter(clock));
        if self.enter.done {
            asks.extend(self.ask_what_changed(clock));
            asks.extend(self.ask_to_judge(clock));
        }
        if !self.is_following() || !self.may_have_rows() {
            return asks;
        }
        asks.extend(self.ask_what_was_held(clock));
        asks.extend(self.ask_to_settle(clock));
        asks.extend(self.ask_to_report(clock));
        asks.extend(self.ask_for_rows(clock));
        asks.extend(self.ask_about_visitors(clock));
        asks.extend(self.ask_to_attest(clock));
        asks.extend(self.ask_about_strays(clock));
        self.status.rows_waited_for = self.wants.len() as u64;
        asks
    }

    fn ask_to_enter(&mut self, clock: Clock) -> Option<Ask> {
        self.enter.try_ask(clock).then_some(Ask::Enter)
    }

    fn ask_what_changed(&mut self, clock: Clock) -> Option<Ask> {
        let is_due = self.feed_due_ns <= clock.monotonic_ns;
        (is_due && self.feed.try_ask(clock)).then_some(Ask::Changes {
            since: self.feed_from,
        })
    }

    fn ask_what_was_held(&mut self, clock: Clock) -> Option<Ask> {
        self.resume.try_ask(clock).then_some(Ask::Resume)
    }

    /// Not while what was held before is on its way, nor while the device is asked about: what was said before a settlement
    /// would bring the device back afterwards, with rows that are no longer this gateway's.
    fn ask_to_settle(&mut self, clock: Clock) -> Option<Ask> {
        if !self.resume.done || !self.settle.is_free(clock.monotonic_ns) {
            return None;
        }
        let visitors = &self.visitors;
        let due = |settlement: &mut Settlement| !visitors.is_asked(settlement.device);
        // A few at a time: thousands that were shut out together are wiped together, and one transaction keeps others waiting.
        let some = self.settlements.extract_if(.., due).take(WANTS_PER_ASK);
        self.settling = some.collect();
        (!self.settling.is_empty() && self.settle.try_ask(clock)).then(|| Ask::Settle(self.settling.clone()))
    }

    fn ask_to_report(&mut self, clock: Clock) -> Option<Ask> {
        (!self.reports.is_empty() && self.report.try_ask(clock)).then(|| Ask::Report(self.reports.ask()))
    }

    fn ask_for_rows(&mut self, clock: Clock) -> Option<Ask> {
        if !self.lease.is_free(clock.monotonic_ns) {
            return None;
        }
        let wants = self.next_wants(clock.monotonic_ns);
        self.asked = wants.iter().map(|want| want.device).collect();
        (!wants.is_empty() && self.lease.try_ask(clock)).then_some(Ask::Lease(wants))
    }

    fn ask_about_visitors(&mut self, clock: Clock) -> Option<Ask> {
        let fresh = self.fresh?;
        if self.visitors.is_empty() || !self.receive.is_free(clock.monotonic_ns) {
            return None;
        }
        let knocks = self.visitors.knocks(|device| self.devices.contains_key(&device));
        (!knocks.is_empty() && self.receive.try_ask(clock)).then_some(Ask::Receive { knocks, fresh })
    }

    fn next_wants(&mut self, now_ns: u64) -> Vec<Want> {
        let mut wants = Vec::new();
        while wants.len() < WANTS_PER_ASK
            && let Some(device) = self.wants.pop_front()
        {
            match self.want_of(device, now_ns) {
                Some(want) => wants.push(want),
                None => {
                    if let Some(held) = self.devices.get_mut(&device) {
                        held.asking = false;
                    }
                }
            }
        }
        wants
    }

    fn take_chunk(&mut self, chunk: Chunk) {
        if !self.may_have_rows() {
            // Of what was held before the leases were lost.
            return;
        }
        for damaged in &chunk.damaged {
            tracing::error!(record = damaged, "left out");
        }
        self.status.damaged += chunk.damaged.len() as u64;
        self.status.resumed = chunk.progress;
        for provision in chunk.provisions {
            self.admit(provision);
        }
        if chunk.last {
            self.resume.done = true;
            self.status.loaded = true;
            if self.status.devices > 0 {
                tracing::info!(
                    devices = self.status.devices,
                    "what was held before is here again"
                );
            }
        }
    }

    fn take_changes(&mut self, changes: &Changes, now_ns: u64, at_ns: u64) {
        for change in &changes.changes {
            self.take_change(*change, now_ns);
        }
        for elsewhere in &changes.elsewhere {
            self.take_elsewhere(elsewhere, at_ns);
        }
        self.feed_from = changes.upto;
        if changes.more {
            self.feed_due_ns = now_ns;
            return;
        }
        self.feed_due_ns = now_ns.saturating_add(self.settings.feed_poll_ms.saturating_mul(1_000_000));
        if !self.is_following() {
            self.plane.set_filtering(true);
        }
        self.link_ok_ns = self.link_ok_ns.max(Some(self.feed.asked_ns));
    }

    fn take_change(&mut self, change: Change, now_ns: u64) {
        if self.is_expecting() {
            self.meanwhile.insert(change.device, change.epoch);
        }
        if !change.active {
            self.record_let_in(Some(change.device));
            let is_news = self.barred.bar(&change);
            if is_news || self.devices.contains_key(&change.device) {
                self.revoke(change.device, now_ns);
            }
            return;
        }
        // What was so before this gateway began is none of its business.
        if self.barred.admit(&change) && self.is_following() {
            self.barred.put_off(&change);
            if !self.attestation.awaits_decisions() {
                self.record_let_in(None);
            }
        }
        self.plane.enrol(change.device);
        self.readmit(change.device);
        self.renew(change.device, change.epoch);
    }

    /// The answer's content, or `None` after a failure; keeps the books and the log about the link's state.
    pub(super) fn unwrap_answer<T>(
        &mut self,
        result: Result<T, LinkError>,
        now_ns: u64,
        channel: impl Fn(&mut Self) -> &mut Channel,
    ) -> Option<T> {
        if !channel(self).close() {
            return None;
        }
        match result {
            Ok(content) => {
                if channel(self).backoff.succeed() {
                    tracing::info!("the controller answers again");
                }
                self.status.link = LinkState::Reachable;
                Some(content)
            }
            Err(LinkError::Failed(error)) => {
                if channel(self).backoff.fail(now_ns) {
                    tracing::error!(
                        error,
                        "the controller does not answer; going on with what is here"
                    );
                }
                self.status.link = LinkState::Lost { error };
                None
            }
            Err(LinkError::NotShown(error)) => {
                if channel(self).backoff.fail(now_ns) {
                    tracing::error!(error, "the controller wants evidence, and gets none");
                }
                self.status.unmeasured += 1;
                None
            }
            Err(LinkError::Restored(error)) => {
                self.lose_registry(&error);
                None
            }
            // The controller says why with its scrutiny.
            Err(LinkError::Untrusted(_)) => {
                channel(self).backoff.fail(now_ns);
                None
            }
            Err(LinkError::Replaced(error)) => {
                if !std::mem::replace(&mut self.status.replaced, true) {
                    self.trail.note(Happening::Replaced);
                    tracing::error!(
                        error,
                        "this process has been replaced: it answers nothing any more"
                    );
                    self.plane.set_stopping(true);
                }
                self.status.link = LinkState::Lost { error };
                None
            }
        }
    }

    /// The registry was put back to an earlier state, and leases to others what lies here. All devices begin anew, at a process that has
    /// just started: what was leased by the registry of before, and is still on its way, counts for nothing.
    fn lose_registry(&mut self, error: &str) {
        tracing::error!(
            error,
            devices = self.status.devices,
            action = "repeat revocations, quarantines and closed pairs since the backup",
            "registry restored; devices authenticate anew"
        );
        self.trail.note(Happening::RegistryRestored);
        self.lose_leases();
        for channel in [
            &mut self.enter,
            &mut self.resume,
            &mut self.lease,
            &mut self.receive,
            &mut self.settle,
            &mut self.report,
            &mut self.feed,
        ] {
            channel.void();
        }
        self.showing.void();
        self.attestation.void();
        self.strays.void();
        self.feed_from = Revision::ZERO;
        self.link_ok_ns = None;
    }

    /// Whether an answer is out that may bring devices. None is asked for before the feed has been read to its end.
    pub(super) fn is_expecting(&self) -> bool {
        self.receive.out || self.is_following() && !self.resume.done
    }

    /// Whether the feed has been read to its end once.
    pub(super) fn is_following(&self) -> bool {
        self.link_ok_ns.is_some()
    }
}
