//! Compares the gateway's lines and the service's counters with the state of the devices.

use std::collections::HashSet;
use std::net::IpAddr;

use linewarden_dataplane::LineStatus;
use linewarden_protocol::ids::DeviceId;

use super::DemoError;
use super::fleets::Fleets;
use super::gateway::DemoGateway;
use super::report::LineCheck;
use crate::address::{DeviceAddress, Family};
use crate::attackers::{ATTACK_PORT, CONTROLLED_DEVICES, FIRST_CONTROLLED_DEVICE};
use crate::service::ServiceTraffic;

/// Result of comparing a line with its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Comparison {
    /// Line and device have the same session, or both have none and no row was spent.
    Consistent { session: bool },
    /// A row was spent or a session was opened that the device does not have.
    Unexplained,
    /// The device has a session that its line does not have.
    SessionLost,
}

/// Compares a line with its device; `session_idx` is the row that opened the device's session.
fn compare(line: Option<&LineStatus>, session_idx: Option<u32>) -> Comparison {
    let spent_rows = line.map_or(0, |line| line.commit.idx().0);
    let is_open = line.is_some_and(|line| line.has_session);
    let expected_rows = session_idx.map_or(0, |idx| idx.saturating_add(1));
    if spent_rows > expected_rows || is_open && session_idx.is_none() {
        Comparison::Unexplained
    } else if session_idx.is_some() && !is_open || spent_rows < expected_rows {
        Comparison::SessionLost
    } else {
        Comparison::Consistent { session: is_open }
    }
}

/// Compares the lines of all legitimate and all absent devices. `sessions` gives, for every legitimate device, the row that
/// opened its session. Returns the counts and the number of devices with a session on both sides.
pub(super) fn check_lines(
    demo_gateway: &DemoGateway,
    mut sessions: Vec<(DeviceId, Option<u32>)>,
    absent_devices: &[DeviceId],
) -> Result<(LineCheck, u64), DemoError> {
    let legitimate = sessions.len() as u64;
    sessions.extend(absent_devices.iter().map(|device| (*device, None)));
    let lines = demo_gateway.lines(sessions.iter().map(|(device, _)| *device).collect())?;
    let mut counts = LineCheck::default();
    let mut authenticated = 0;
    for ((_, session_idx), line) in sessions.iter().zip(&lines) {
        counts.lines += 1;
        match compare(line.as_ref(), *session_idx) {
            Comparison::Consistent { session } => authenticated += u64::from(session),
            Comparison::Unexplained => counts.unexplained += 1,
            Comparison::SessionLost => {}
        }
    }
    counts.without_session = legitimate.saturating_sub(authenticated);
    Ok((counts, authenticated))
}

/// Number of unauthorized datagrams at the service: the larger of the number of datagrams from unknown addresses and the
/// number of datagrams from the attackers' port.
pub(super) fn unauthorized_datagrams(traffic: &ServiceTraffic, legitimate: &HashSet<IpAddr>) -> u64 {
    let from_unknown: u64 = traffic
        .sources
        .iter()
        .filter(|(source, _)| !source.is_loopback() && !legitimate.contains(source))
        .map(|(_, datagrams)| datagrams)
        .sum();
    let from_attackers = traffic.ports.get(&ATTACK_PORT).copied().unwrap_or(0);
    from_unknown.max(from_attackers)
}

/// Addresses of legitimate datagrams: the addresses of the fleet and of the controlled devices.
pub(super) fn legitimate_addresses(fleets: &Fleets) -> HashSet<IpAddr> {
    let controlled = FIRST_CONTROLLED_DEVICE..FIRST_CONTROLLED_DEVICE + CONTROLLED_DEVICES;
    let controlled = controlled.map(|index| DeviceAddress::new(index).endpoint(Family::V4, 0).ip);
    fleets
        .all_fleets()
        .into_iter()
        .flat_map(|fleet| fleet.indices())
        .map(|index| fleets.ip(index))
        .chain(controlled)
        .collect()
}

#[cfg(test)]
mod tests {
    use linewarden_protocol::commit::{CommitWord, UNLIMITED, VALID};
    use linewarden_protocol::ids::RowIndex;

    use super::*;

    fn line(idx: u32, has_session: bool) -> LineStatus {
        LineStatus {
            commit: CommitWord::new(RowIndex(idx), 0, VALID | UNLIMITED),
            rows_left: 1,
            has_session,
            session_until_s: 0,
        }
    }

    #[test]
    fn a_line_without_a_matching_device_state_is_reported() {
        for (idx, has_session, device, expected) in [
            (0, false, None, Comparison::Consistent { session: false }),
            (1, true, Some(0), Comparison::Consistent { session: true }),
            (1, true, None, Comparison::Unexplained),
            (1, false, None, Comparison::Unexplained),
            (0, true, None, Comparison::Unexplained),
            (2, true, Some(0), Comparison::Unexplained),
            (1, false, Some(0), Comparison::SessionLost),
            (0, true, Some(0), Comparison::SessionLost),
        ] {
            let line = line(idx, has_session);
            assert_eq!(compare(Some(&line), device), expected, "{line:?} {device:?}");
        }
        assert_eq!(compare(None, None), Comparison::Consistent { session: false });
        assert_eq!(compare(None, Some(0)), Comparison::SessionLost);
    }

    #[test]
    fn unauthorized_datagrams_are_counted_by_address_or_port() {
        let legitimate: IpAddr = DeviceAddress::new(3).v4().into();
        let other: IpAddr = DeviceAddress::new(4).v4().into();
        let mut reached = ServiceTraffic::default();
        reached.sources.insert(legitimate, 7);
        reached.sources.insert("127.0.0.1".parse().unwrap(), 2);
        let known = HashSet::from([legitimate]);
        assert_eq!(unauthorized_datagrams(&reached, &known), 0);
        // A victim's IP address with an attacker's MAC address.
        reached.ports.insert(ATTACK_PORT, 2);
        assert_eq!(unauthorized_datagrams(&reached, &known), 2);
        reached.sources.insert(other, 3);
        assert_eq!(unauthorized_datagrams(&reached, &known), 3);
    }
}
