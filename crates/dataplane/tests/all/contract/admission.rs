//! [`Admission`](linewarden_dataplane::Admission): settings. The messages are compared with the oracle in `records`.

use super::with_each;
use crate::support::device::A;
use crate::support::test_config::TestConfig;

#[test]
fn a_data_plane_accepts_new_settings_while_it_runs() {
    with_each(TestConfig::SLOW, |data_plane| {
        let mut live = TestConfig::SLOW.config().live_settings();
        live.session_lifetime_s += 1;
        live.nak_per_s = 1;
        data_plane.reconfigure(&live, 1).unwrap();
        assert_eq!(data_plane.set_sources(&live.sources).len(), 0);
        data_plane.set_fresh([1; 8], 1);
        data_plane.set_stopping(true);
        data_plane.set_stopping(false);
        assert_eq!(data_plane.failure(), None);
    });
}

#[test]
fn without_packets_no_message_of_an_unknown_device_waits() {
    with_each(TestConfig::SLOW, |data_plane| {
        data_plane.enroll(A.id());
        data_plane.set_enrollment_filter(true);
        data_plane.arm_wake();
        data_plane.drain_misses(&mut |miss| panic!("{miss:?}")).unwrap();
        data_plane.housekeep();
        assert_eq!(data_plane.failure(), None);
    });
}
