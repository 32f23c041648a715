//! The judge: what the gateway's memory and the service's books say, compared with what the devices hold.

use std::collections::HashSet;
use std::net::IpAddr;

use linewarden_dataplane::LineStatus;
use linewarden_protocol::ids::DeviceId;

use super::DemoError;
use super::fleets::Fleets;
use super::report::Audit;
use super::site::Site;
use crate::address::{DeviceAddress, Family};
use crate::attackers::{ATTACK_PORT, PUPPETS, PUPPETS_FROM};
use crate::service::Reached;

/// What a line and its device say about each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Finding {
    /// Both have the same session, or both have none and nothing was spent.
    Agree { session: bool },
    /// A row was spent, or a session opened, of which the device knows nothing.
    Unexplained,
    /// The device has a session that its line has not.
    Lost,
}

/// Compares a line with the row that its device's session was opened with.
fn compare(line: Option<&LineStatus>, session_idx: Option<u32>) -> Finding {
    let spent = line.map_or(0, |line| line.commit.idx().0);
    let is_open = line.is_some_and(|line| line.has_session);
    let explained = session_idx.map_or(0, |idx| idx.saturating_add(1));
    if spent > explained || is_open && session_idx.is_none() {
        Finding::Unexplained
    } else if session_idx.is_some() && !is_open || spent < explained {
        Finding::Lost
    } else {
        Finding::Agree { session: is_open }
    }
}

/// Looks at the line of every honest and every absent device. `sessions` names, for every honest device, the row that
/// the session which it believes to have was opened with. Returns the books and how many have a session on both sides.
pub(super) fn audit(
    site: &Site,
    mut sessions: Vec<(DeviceId, Option<u32>)>,
    absent: &[DeviceId],
) -> Result<(Audit, u64), DemoError> {
    let honest = sessions.len() as u64;
    sessions.extend(absent.iter().map(|device| (*device, None)));
    let lines = site.lines(sessions.iter().map(|(device, _)| *device).collect())?;
    let mut audit = Audit::default();
    let mut authenticated = 0;
    for ((_, session_idx), line) in sessions.iter().zip(&lines) {
        audit.lines += 1;
        match compare(line.as_ref(), *session_idx) {
            Finding::Agree { session } => authenticated += u64::from(session),
            Finding::Unexplained => audit.unexplained += 1,
            Finding::Lost => {}
        }
    }
    audit.refused = honest.saturating_sub(authenticated);
    Ok((audit, authenticated))
}

/// Datagrams at the service from addresses that no honest device has, or from the attackers' port.
pub(super) fn strangers(reached: &Reached, honest: &HashSet<IpAddr>) -> u64 {
    let from_elsewhere: u64 = reached
        .sources
        .iter()
        .filter(|(source, _)| !source.is_loopback() && !honest.contains(source))
        .map(|(_, datagrams)| datagrams)
        .sum();
    let from_attackers = reached.ports.get(&ATTACK_PORT).copied().unwrap_or(0);
    from_elsewhere.max(from_attackers)
}

/// Addresses from which honest datagrams come: the fleet's, and those of the devices that attacks are tried on.
pub(super) fn honest_addresses(fleets: &Fleets) -> HashSet<IpAddr> {
    let puppets = PUPPETS_FROM..PUPPETS_FROM + PUPPETS;
    let puppets = puppets.map(|index| DeviceAddress::new(index).endpoint(Family::V4, 0).ip);
    fleets
        .all()
        .into_iter()
        .flat_map(|fleet| fleet.indices())
        .map(|index| fleets.ip(index))
        .chain(puppets)
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
            lease_until_s: 0,
        }
    }

    #[test]
    fn a_line_must_be_explained_by_its_device() {
        for (idx, has_session, device, expected) in [
            (0, false, None, Finding::Agree { session: false }),
            (1, true, Some(0), Finding::Agree { session: true }),
            (1, true, None, Finding::Unexplained),
            (1, false, None, Finding::Unexplained),
            (0, true, None, Finding::Unexplained),
            (2, true, Some(0), Finding::Unexplained),
            (1, false, Some(0), Finding::Lost),
            (0, true, Some(0), Finding::Lost),
        ] {
            let line = line(idx, has_session);
            assert_eq!(compare(Some(&line), device), expected, "{line:?} {device:?}");
        }
        assert_eq!(compare(None, None), Finding::Agree { session: false });
        assert_eq!(compare(None, Some(0)), Finding::Lost);
    }

    #[test]
    fn strangers_are_known_by_address_or_port() {
        let honest: IpAddr = DeviceAddress::new(3).v4().into();
        let other: IpAddr = DeviceAddress::new(4).v4().into();
        let mut reached = Reached::default();
        reached.sources.insert(honest, 7);
        reached.sources.insert("127.0.0.1".parse().unwrap(), 2);
        let known = HashSet::from([honest]);
        assert_eq!(strangers(&reached, &known), 0);
        // A victim's address under an attacker's MAC.
        reached.ports.insert(ATTACK_PORT, 2);
        assert_eq!(strangers(&reached, &known), 2);
        reached.sources.insert(other, 3);
        assert_eq!(strangers(&reached, &known), 3);
    }
}
