//! The states of devices, and their transitions.

use super::*;
use crate::node::test_support::{DEVICE, context, provision, set_time};

/// Another device, which takes the only slot.
const OTHER: DeviceId = DeviceId(2);

/// The name of a device's state; `None` if the device is unknown.
fn state(cache: &DeviceCache, device: DeviceId) -> Option<&'static str> {
    cache.entries.get(&device).map(|entry| match entry.state {
        State::Waiting => "waiting",
        State::Installed => "installed",
        State::Leaving { .. } => "leaving",
        State::ReportingUnusedRows => "reporting",
        State::Revoked { .. } => "revoked",
    })
}

/// A cache with a device of this mode in this state.
fn cache_with(from: &str, mode: Mode) -> (DeviceCache, Context) {
    let mut context = context();
    let mut cache = DeviceCache::new(Eviction::default());
    if from == "waiting" {
        assert!(cache.admit(provision(OTHER, Mode::Pool), &mut context));
    }
    let is_installed = cache.admit(provision(DEVICE, mode), &mut context);
    assert_eq!(is_installed, from != "waiting");
    match from {
        "reporting" => cache.remove(DEVICE, true, &mut context),
        "revoked" => assert!(cache.revoke(DEVICE, &mut context)),
        _ => {}
    }
    assert_eq!(state(&cache, DEVICE), Some(from));
    (cache, context)
}

type Event = fn(&mut DeviceCache, &mut Context);

const EVENTS: [(&str, Event); 7] = [
    ("evicted", |cache, context| cache.remove(DEVICE, true, context)),
    ("credentials replaced", |cache, context| {
        cache.replace_credentials(DEVICE, 1, context);
    }),
    ("revoked", |cache, context| {
        cache.revoke(DEVICE, context);
    }),
    ("released", |cache, context| cache.release(DEVICE, context)),
    ("rows recorded", |cache, context| {
        cache.next_unused_rows(1, |_| true);
        cache.accept_unused_rows_response(context);
    }),
    ("leases dropped", |cache, context| cache.drop_leases(context)),
    ("a minute passed", |cache, context| {
        set_time(context, 100);
        cache.wipe_revoked(false, context);
    }),
];

/// The state after each of [`EVENTS`], from each state except `Leaving`, which needs a busy line.
const TRANSITIONS: [(&str, [Option<&str>; 7]); 4] = [
    (
        "waiting",
        [
            Some("reporting"),
            None,
            Some("revoked"),
            Some("waiting"),
            Some("waiting"),
            None,
            Some("waiting"),
        ],
    ),
    (
        "installed",
        [
            Some("reporting"),
            None,
            Some("revoked"),
            Some("installed"),
            Some("installed"),
            None,
            Some("installed"),
        ],
    ),
    (
        "reporting",
        [
            Some("reporting"),
            Some("reporting"),
            Some("revoked"),
            Some("reporting"),
            None,
            None,
            Some("reporting"),
        ],
    ),
    (
        "revoked",
        [
            Some("revoked"),
            Some("revoked"),
            Some("revoked"),
            Some("reporting"),
            Some("revoked"),
            Some("revoked"),
            Some("reporting"),
        ],
    ),
];

#[test]
fn each_event_leads_to_the_documented_state() {
    for mode in [Mode::Pool, Mode::Key] {
        for (from, expected) in TRANSITIONS {
            for ((event, apply), expected) in EVENTS.into_iter().zip(expected) {
                let (mut cache, mut context) = cache_with(from, mode);
                apply(&mut cache, &mut context);
                assert_eq!(
                    state(&cache, DEVICE),
                    expected,
                    "{mode:?} device, {from}, then {event}"
                );
            }
        }
    }
}

/// Otherwise, the last RESPONSE of the device could open a session again: its counter is in the data plane only.
#[test]
fn a_device_in_key_mode_stays_in_the_data_plane_until_its_counter_is_recorded() {
    for (mode, is_kept) in [(Mode::Key, true), (Mode::Pool, false)] {
        let (mut cache, mut context) = cache_with("reporting", mode);
        assert_eq!(context.data_plane.status(DEVICE).is_some(), is_kept, "{mode:?}");
        let unused_rows = cache.next_unused_rows(8, |_| true);
        assert_eq!((unused_rows.len(), unused_rows[0].unused_from), (1, RowIndex(10)));
        cache.accept_unused_rows_response(&mut context);
        assert!(context.data_plane.status(DEVICE).is_none());
    }
}

#[test]
fn a_waiting_device_evicts_a_device_and_takes_its_slot() {
    let (mut cache, mut context) = cache_with("waiting", Mode::Pool);
    let deadline_s = 1000;
    for now_s in 2..deadline_s {
        set_time(&mut context, now_s);
        cache.find_slots(&mut context);
        if state(&cache, DEVICE) == Some("installed") {
            break;
        }
    }
    assert_eq!(state(&cache, DEVICE), Some("installed"));
    assert_eq!(state(&cache, OTHER), Some("reporting"));
    assert_eq!((cache.counts.evicted, cache.slots.waiting_count()), (1, 0));
}

#[test]
fn unused_rows_are_reported_only_if_the_removal_requests_it() {
    for reports_unused_rows in [true, false] {
        for from in ["waiting", "installed"] {
            let (mut cache, mut context) = cache_with(from, Mode::Pool);
            cache.remove(DEVICE, reports_unused_rows, &mut context);
            let reported = cache.next_unused_rows(8, |_| true).len();
            assert_eq!(reported, usize::from(reports_unused_rows), "{from}");
        }
    }
}

#[test]
fn a_failed_report_of_unused_rows_is_repeated() {
    let (mut cache, _) = cache_with("reporting", Mode::Pool);
    assert!(cache.next_unused_rows(8, |_| false).is_empty());
    let first = cache.next_unused_rows(8, |_| true);
    assert_eq!(first.len(), 1);
    cache.repeat_unused_rows();
    assert_eq!(cache.next_unused_rows(8, |_| true), first);
}

#[test]
fn a_row_request_is_in_flight_until_its_response_or_failure() {
    let (mut cache, mut context) = cache_with("installed", Mode::Pool);
    context.settings.low_credit = 4;
    cache.request_rows(DEVICE, &mut context);
    let first = cache.next_row_requests(8, &mut context);
    assert_eq!(first.len(), 1);
    cache.request_rows(DEVICE, &mut context);
    assert!(
        cache.next_row_requests(8, &mut context).is_empty(),
        "one request of a device at a time"
    );
    let (mut cache, mut context) = cache_with("installed", Mode::Pool);
    context.settings.low_credit = 4;
    cache.request_rows(DEVICE, &mut context);
    assert_eq!(cache.next_row_requests(8, &mut context), first);
    cache.repeat_row_request();
    assert_eq!(cache.next_row_requests(8, &mut context), first);
    cache.accept_row_response(Vec::new(), &[], &mut context);
    assert!(cache.next_row_requests(8, &mut context).is_empty());
}
