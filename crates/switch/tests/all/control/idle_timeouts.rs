//! Idle entries with a clock that the test controls.

use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use linewarden_p4runtime::entity::*;
use linewarden_p4runtime::target::{Atomicity, Event, EventReceiver, Target, events};
use linewarden_switch::control::Control;
use linewarden_switch::engine::Sink;
use linewarden_switch::exec::{Fault, RandomSource};
use linewarden_switch::switch::{Settings, Slot, Worker};

use crate::control::support::{bits, exact, frame, packets};

const SECOND_NS: u64 = 1_000_000_000;

struct NullSink;

impl Sink for NullSink {
    fn send(&mut self, _port: u32, _headers: &[u8], _payload: &[u8]) {}
    fn digest(&mut self, _number: u32, _values: Vec<Vec<u8>>) {}
    fn fault(&mut self, _fault: Fault) {}
    fn dropped(&mut self) {}
}

impl RandomSource for NullSink {
    fn between(&mut self, low: u64, _high: u64) -> u64 {
        low
    }
}

struct IdleTimeoutFixture {
    now_us: Arc<AtomicU64>,
    control: Control,
    events: EventReceiver,
    worker: Worker,
}

impl IdleTimeoutFixture {
    fn new() -> Self {
        let (sender, events) = events(16);
        let (slot, now_us) = (Slot::default(), Arc::new(AtomicU64::new(0)));
        let clock = {
            let now_us = Arc::clone(&now_us);
            Box::new(move || now_us.load(Ordering::Relaxed))
        };
        let control = Control::new(slot.clone(), Settings::default(), clock, sender);
        control.save(&packets()).unwrap();
        control.commit().unwrap();
        Self {
            now_us,
            control,
            events,
            worker: slot.worker(),
        }
    }

    fn entry(&self, dst: u64, timeout_ms: u64) -> TableEntry {
        let info = packets().info;
        let (table, action) = (
            info.tables().by_name_or_alias("In.flows"),
            info.actions().by_name_or_alias("In.to_port"),
        );
        let key = EntryKey {
            table: table.unwrap().id,
            fields: vec![exact(48, dst.into())],
            priority: 0,
        };
        let action = Action {
            id: action.unwrap().id,
            params: vec![bits(9, 1)],
        };
        let mut entry = TableEntry::new(key, EntryAction::Action(action));
        entry.idle_timeout_ns = timeout_ms * 1_000_000;
        entry.metadata = b"noted".to_vec();
        entry
    }

    fn write(&self, change: Change<TableEntry, EntryKey>) {
        let update = Update::TableEntry(Box::new(change));
        let results = self.control.write(&[update], Atomicity::ContinueOnError).unwrap();
        assert_eq!(results, [Ok(())]);
    }

    fn set_time_ms(&self, now_ms: u64) {
        self.now_us.store(now_ms * 1000, Ordering::Relaxed);
    }

    fn hit(&mut self, dst: u64) {
        let now_us = self.now_us.load(Ordering::Relaxed);
        let frame = frame(dst, 0x1234, b"hit");
        self.worker.batch(now_us, |batch| {
            batch.packet(0, &frame, &mut NullSink, &mut NullSink)
        });
    }

    /// Searches for idle entries; returns the entries in the notification, if the control sends one.
    fn idle_entries(&mut self) -> Vec<TableEntry> {
        self.control.notify_idle_entries();
        let notification = poll_once(self.events.next());
        match notification {
            Some(Some(Event::IdleTimeout(entries))) => entries,
            None => Vec::new(),
            other => panic!("{other:?}"),
        }
    }
}

/// Result of a future, or `None` if it is not ready.
fn poll_once<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(value) => Some(value),
        std::task::Poll::Pending => None,
    }
}

#[test]
fn idle_entry_is_notified_after_each_timeout() {
    let mut fixture = IdleTimeoutFixture::new();
    let (short, long, never) = (
        fixture.entry(1, 1000),
        fixture.entry(2, 5000),
        fixture.entry(3, 0),
    );
    for entry in [&short, &long, &never] {
        fixture.write(Change::Insert(entry.clone()));
    }
    fixture.set_time_ms(999);
    assert_eq!(fixture.idle_entries(), []);
    fixture.set_time_ms(1000);
    assert_eq!(fixture.idle_entries(), from_ref(&short));
    assert_eq!(fixture.idle_entries(), []);
    fixture.set_time_ms(1999);
    assert_eq!(fixture.idle_entries(), []);
    fixture.set_time_ms(2000);
    assert_eq!(fixture.idle_entries(), from_ref(&short));
    // A hit restarts the timeout.
    fixture.set_time_ms(2500);
    fixture.hit(1);
    fixture.set_time_ms(3400);
    assert_eq!(fixture.idle_entries(), []);
    fixture.set_time_ms(3500);
    assert_eq!(fixture.idle_entries(), from_ref(&short));
    fixture.set_time_ms(5000);
    assert_eq!(fixture.idle_entries(), [short.clone(), long.clone()]);
    fixture.write(Change::Delete(short.key));
    // A modified entry starts its new timeout now.
    let longer = fixture.entry(2, 10_000);
    fixture.write(Change::Modify(longer.clone()));
    fixture.set_time_ms(14_999);
    assert_eq!(fixture.idle_entries(), []);
    fixture.set_time_ms(15_000);
    assert_eq!(fixture.idle_entries(), [longer]);
}

#[test]
fn controller_reads_the_time_since_the_last_hit() {
    let mut fixture = IdleTimeoutFixture::new();
    fixture.write(Change::Insert(fixture.entry(1, 60_000)));
    fixture.set_time_ms(7000);
    fixture.hit(1);
    fixture.set_time_ms(9500);
    let query = Query::Entries {
        table: packets().info.tables().by_name_or_alias("In.flows").unwrap().id,
        key: None,
        options: ReadOptions {
            since_hit: true,
            ..ReadOptions::default()
        },
    };
    let mut times_since_hit = Vec::new();
    let result = fixture.control.read(&query, &mut |entity| match entity {
        Entity::TableEntry(entry) => times_since_hit.push(entry.since_hit_ns),
        other => panic!("{other:?}"),
    });
    result.unwrap();
    assert_eq!(times_since_hit, [Some(2 * SECOND_NS + SECOND_NS / 2)]);
}
