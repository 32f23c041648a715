//! [`Evidence`](linewarden_dataplane::Evidence): the source of the measurement of a data plane.

use linewarden_dataplane::MeasurementSource;

use super::with_each;
use crate::support::test_config::TestConfig;

#[test]
fn each_data_plane_names_the_source_of_its_measurement() {
    with_each(TestConfig::OFF, |data_plane| {
        let source = data_plane.measure().unwrap();
        let is_expected = match data_plane.name() {
            "xdp" => matches!(source, MeasurementSource::Kernel(_)),
            "p4" => matches!(source, MeasurementSource::SelfSigned),
            _ => matches!(source, MeasurementSource::Unavailable),
        };
        assert!(is_expected, "{}: {source:?}", data_plane.name());
    });
}

#[test]
fn without_evidence_in_packets_no_packet_is_counted() {
    with_each(TestConfig::OFF, |data_plane| {
        data_plane.set_stamp(None);
        assert_eq!(data_plane.stamp_counts().unwrap(), None);
    });
}
