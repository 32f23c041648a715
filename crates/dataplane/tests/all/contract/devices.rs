//! [`Devices`](linewarden_dataplane::Devices): rows and states of devices.

use linewarden_dataplane::{DataPlane, Row, StoreError};
use linewarden_protocol::ids::{DeviceId, Mode, RowIndex, SessionId};

use super::with_each;
use crate::support::device::{A, B, TestDevice};
use crate::support::test_config::{RING, TestConfig};

fn rows(device: TestDevice, mode: Mode, first: u32, count: u32) -> Vec<Row> {
    let row = |idx| Row {
        challenge: device.challenge(mode, RowIndex(idx)),
        auth_key: device.auth_key(mode, RowIndex(idx)),
    };
    (first..first + count).map(row).collect()
}

/// Installs a pool device with rows 0 and 1, of which row 0 may be spent.
fn install(data_plane: &mut dyn DataPlane, device: TestDevice) {
    data_plane
        .install(
            device.id(),
            Mode::Pool,
            RowIndex(0),
            &rows(device, Mode::Pool, 0, 2),
            Some(RowIndex(1)),
        )
        .unwrap();
}

#[test]
fn an_installed_device_has_the_given_rows_and_no_session() {
    with_each(TestConfig::OFF, |data_plane| {
        assert_eq!(data_plane.status(A.id()), None);
        install(data_plane, A);
        let line = data_plane.status(A.id()).unwrap();
        assert_eq!((line.commit.idx(), line.rows_left), (RowIndex(0), 2));
        assert!(!line.has_session && !line.commit.is_key_mode() && !line.commit.is_revoked());
        assert_eq!(line.commit.credit(), Some(1));
        assert!(data_plane.session(A.id()).is_none());
        assert_eq!(data_plane.statuses(&[B.id(), A.id()]), [None, Some(line)]);
        let sessions = data_plane.keyed_sessions(&[A.id(), B.id()]);
        assert!(sessions.len() == 2 && sessions.iter().all(Option::is_none));
    });
}

#[test]
fn a_device_in_key_mode_has_one_row_without_a_limit() {
    with_each(TestConfig::OFF, |data_plane| {
        let key = rows(A, Mode::Key, 0, 1);
        data_plane
            .install(A.id(), Mode::Key, RowIndex(0), &key, None)
            .unwrap();
        let line = data_plane.status(A.id()).unwrap();
        assert!(line.commit.is_key_mode());
        assert_eq!((line.rows_left, line.commit.credit()), (1, None));
    });
}

#[test]
fn invalid_installations_change_nothing() {
    with_each(TestConfig::OFF, |data_plane| {
        install(data_plane, A);
        let before = data_plane.status(A.id());
        let mut refuse = |device: DeviceId, mode, count: u32| {
            let rows = rows(B, mode, 5, count);
            data_plane.install(device, mode, RowIndex(5), &rows, None)
        };
        assert_eq!(
            refuse(A.id(), Mode::Pool, 1),
            Err(StoreError::AlreadyInstalled(A.id()))
        );
        assert_eq!(refuse(DeviceId(0), Mode::Pool, 1), Err(StoreError::DeviceZero));
        for (mode, count) in [(Mode::Pool, 0), (Mode::Pool, RING + 2), (Mode::Key, 2)] {
            assert!(matches!(
                refuse(B.id(), mode, count),
                Err(StoreError::RowCount { .. })
            ));
        }
        assert_eq!(data_plane.statuses(&[A.id(), B.id()]), [before, None]);
    });
}

#[test]
fn rows_and_marks_of_a_device_grow_up_to_the_ring() {
    with_each(TestConfig::OFF, |data_plane| {
        install(data_plane, A);
        data_plane.grant(A.id(), RowIndex(2)).unwrap();
        assert_eq!(data_plane.status(A.id()).unwrap().commit.credit(), Some(2));
        let more = rows(A, Mode::Pool, 2, 8);
        // The line has the current row and the ring.
        assert_eq!(
            data_plane.refill(A.id(), RowIndex(2), &more),
            Ok(RowIndex(RING + 1))
        );
        let line = data_plane.status(A.id()).unwrap();
        assert_eq!((line.rows_left, line.commit.credit()), (RING + 1, Some(2)));
        assert_eq!(
            data_plane.grant(B.id(), RowIndex(1)),
            Err(StoreError::NotInstalled(B.id()))
        );
        assert_eq!(
            data_plane.refill(B.id(), RowIndex(0), &more),
            Err(StoreError::NotInstalled(B.id()))
        );
    });
}

#[test]
fn a_revoked_device_keeps_its_row_number_until_it_is_wiped() {
    with_each(TestConfig::OFF, |data_plane| {
        install(data_plane, A);
        install(data_plane, B);
        data_plane.revoke(A.id()).unwrap();
        let line = data_plane.status(A.id()).unwrap();
        assert!(line.commit.is_revoked());
        assert_eq!(line.commit.idx(), RowIndex(0));
        assert!(!data_plane.status(B.id()).unwrap().commit.is_revoked());
        assert_eq!(
            data_plane.refill(A.id(), RowIndex(2), &rows(A, Mode::Pool, 2, 1)),
            Err(StoreError::Revoked(A.id()))
        );
        data_plane.wipe(A.id()).unwrap();
        assert_eq!(data_plane.status(A.id()), None);
        assert!(data_plane.status(B.id()).is_some());
    });
}

#[test]
fn closing_a_session_that_is_not_open_changes_nothing() {
    with_each(TestConfig::OFF, |data_plane| {
        let session = SessionId::from_wire([7; 8]).unwrap();
        install(data_plane, A);
        assert_eq!(data_plane.close_session(A.id(), session), Ok(false));
    });
}
