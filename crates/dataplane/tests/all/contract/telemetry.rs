//! [`Telemetry`](linewarden_dataplane::Telemetry): events and counters. The counts of packets are compared with the oracle in
//! `records`.

use super::with_each;
use crate::support::test_config::TestConfig;

#[test]
fn without_packets_nothing_is_counted_and_no_event_waits() {
    with_each(TestConfig::OFF, |data_plane| {
        let counters = data_plane.counters().unwrap();
        assert_eq!(counters.nonzero().count(), 0);
        assert_eq!((counters.events_lost, counters.kernel_drops), (0, 0));
        data_plane.drain_events(&mut |event| panic!("{event:?}")).unwrap();
        let handling = data_plane.handling_times().unwrap();
        assert!(handling.is_none_or(|handling| handling.per_mille_ns(500).is_none()));
        assert_eq!(data_plane.failure(), None);
    });
}
