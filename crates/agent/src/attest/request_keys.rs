//! Keys under which gateways ask without a session: made once each, and where each costs something only a few a second for gateways
//! that nobody has heard of.

use std::collections::VecDeque;

use linewarden_protocol::attest::RequestKey;
use linewarden_protocol::ids::{GatewayId, Period};

/// Gateways whose tags have been right. As many as a device may have home gateways, and more than ask one at a time.
const FAMILIAR_MAX: usize = 4;
/// Of a familiar gateway at most three periods pass the rules at a time: the last, the one before and the next.
const KEYS_MAX: usize = 3 * FAMILIAR_MAX + STRANGERS_MAX;
const STRANGERS_MAX: usize = 8;
/// Keys that are waited for.
const WANTED_MAX: usize = 3 * FAMILIAR_MAX + STRANGERS_MAX;
/// Keys for strangers: so many at once, and then one in so long, ms.
const STRANGERS_AT_ONCE: u64 = 4;
const STRANGER_EVERY_MS: u64 = 500;

type Asks = (GatewayId, Period);

/// The keys, and who may have more made.
pub(crate) struct RequestKeys {
    /// The one that was used last stands last.
    keys: Vec<(Asks, RequestKey)>,
    wanted: VecDeque<Asks>,
    /// The one that was heard last stands last.
    familiar: VecDeque<GatewayId>,
    /// Up to here strangers have had their turns, ms.
    strangers_ms: u64,
    /// Whether a key costs more than the check of a tag under it.
    are_costly: bool,
}

impl RequestKeys {
    /// `familiar`: gateways whose tags were right before; of too many the last are remembered.
    pub(crate) fn new(familiar: impl IntoIterator<Item = GatewayId>, are_costly: bool) -> Self {
        let mut keys = Self {
            keys: Vec::new(),
            wanted: VecDeque::new(),
            familiar: VecDeque::new(),
            strangers_ms: 0,
            are_costly,
        };
        familiar
            .into_iter()
            .for_each(|gateway| keys.note_genuine(gateway));
        keys
    }

    /// Gateways whose tags have been right, in no order that tells which was heard last.
    pub(crate) fn familiar(&self) -> Vec<GatewayId> {
        let mut familiar: Vec<GatewayId> = self.familiar.iter().copied().collect();
        familiar.sort_unstable();
        familiar
    }

    pub(crate) fn get(&self, asks: Asks) -> Option<&RequestKey> {
        self.keys.iter().find(|(of, _)| *of == asks).map(|(_, key)| key)
    }

    /// Has a key made, unless it is asked for already; `false`: not now. Anybody can name a familiar gateway with a period that
    /// is not due, so that one counts as a stranger's.
    pub(crate) fn want(&mut self, asks: Asks, is_expected: bool, now_ms: u64) -> bool {
        if self.wanted.contains(&asks) {
            return true;
        }
        if is_expected && self.familiar.contains(&asks.0) {
            // Ahead of strangers.
            self.wanted.push_front(asks);
            self.wanted.truncate(WANTED_MAX);
            return true;
        }
        if !self.are_costly {
            self.wanted.push_back(asks);
            return true;
        }
        let earliest_ms = now_ms.saturating_sub((STRANGERS_AT_ONCE - 1) * STRANGER_EVERY_MS);
        let turn_ms = self.strangers_ms.max(earliest_ms);
        if turn_ms > now_ms || self.wanted.len() >= WANTED_MAX {
            return false;
        }
        self.strangers_ms = turn_ms.saturating_add(STRANGER_EVERY_MS);
        self.wanted.push_back(asks);
        true
    }

    /// The next to be made.
    pub(crate) fn wanted(&self) -> Option<Asks> {
        self.wanted.front().copied()
    }

    /// Forgets what nobody waits for any more.
    pub(crate) fn keep_wanted(&mut self, is_waited_for: impl Fn(Asks) -> bool) {
        self.wanted.retain(|asks| is_waited_for(*asks));
    }

    /// Takes a key that was made. Of those that are too many a stranger's goes first, the oldest.
    pub(crate) fn put(&mut self, asks: Asks, key: RequestKey) {
        self.wanted.retain(|wanted| *wanted != asks);
        self.keys.retain(|(of, _)| *of != asks);
        self.keys.push((asks, key));
        if self.keys.len() > KEYS_MAX {
            let familiar = &self.familiar;
            let stranger = self
                .keys
                .iter()
                .position(|((gateway, _), _)| !familiar.contains(gateway));
            self.keys.remove(stranger.unwrap_or_default());
        }
    }

    /// This gateway's tag was right.
    pub(crate) fn note_genuine(&mut self, gateway: GatewayId) {
        self.familiar.retain(|familiar| *familiar != gateway);
        self.familiar.push_back(gateway);
        if self.familiar.len() > FAMILIAR_MAX {
            self.familiar.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u8) -> RequestKey {
        RequestKey::from_bytes([n; 16])
    }

    #[test]
    fn strangers_get_a_few_keys_at_once_and_then_two_a_second() {
        let mut keys = RequestKeys::new([], true);
        let mut made = 0;
        for ms in 0..10_000u64 {
            // A thousand gateways a second that nobody has heard of.
            let asks = (GatewayId(ms as u32 + 1), Period(1));
            made += usize::from(keys.want(asks, true, 100_000 + ms));
            keys.put(asks, key(1));
        }
        assert_eq!(made, 4 + 19);
        assert_eq!(keys.keys.len(), KEYS_MAX);
    }

    #[test]
    fn a_flood_takes_nothing_from_gateways_whose_tags_were_right() {
        let mut keys = RequestKeys::new([], true);
        let home = GatewayId(9);
        keys.note_genuine(home);
        keys.put((home, Period(1)), key(9));
        for n in 100..200 {
            keys.want((GatewayId(n), Period(1)), true, 100_000 + u64::from(n) * 1_000);
            keys.put((GatewayId(n), Period(1)), key(1));
        }
        assert_eq!(keys.get((home, Period(1))).map(|key| key.as_bytes()[0]), Some(9));
        while keys.want(
            (GatewayId(keys.wanted.len() as u32 + 500), Period(1)),
            true,
            u64::MAX / 2,
        ) {}
        assert!(keys.want((home, Period(2)), true, 0), "though there is a queue");
        assert_eq!(keys.wanted(), Some((home, Period(2))), "ahead of it");
    }

    #[test]
    fn a_familiar_gateways_name_buys_no_keys_of_periods_that_are_not_due() {
        let mut keys = RequestKeys::new([], true);
        let home = GatewayId(9);
        keys.note_genuine(home);
        let far = (10..1_000).filter(|period| keys.want((home, Period(*period)), false, 100_000));
        assert_eq!(far.count() as u64, STRANGERS_AT_ONCE);
    }

    #[test]
    fn gateways_that_were_familiar_before_a_restart_are_no_strangers() {
        let home = GatewayId(9);
        let mut before = RequestKeys::new([], true);
        (1..=9).for_each(|gateway| before.note_genuine(GatewayId(gateway)));
        assert_eq!(before.familiar(), [6, 7, 8, 9].map(GatewayId));
        let mut keys = RequestKeys::new(before.familiar(), true);
        let strangers = (100..200).filter(|n| keys.want((GatewayId(*n), Period(1)), true, 100_000));
        assert_eq!(strangers.count() as u64, STRANGERS_AT_ONCE);
        assert!(keys.want((home, Period(1)), true, 100_000));
        assert_eq!(keys.wanted(), Some((home, Period(1))), "ahead of them");
    }

    #[test]
    fn keys_that_cost_nothing_are_made_for_everybody() {
        let mut keys = RequestKeys::new([], false);
        for n in 1..=1_000 {
            let asks = (GatewayId(n), Period(1));
            assert!(keys.want(asks, false, 0));
            assert_eq!(keys.wanted(), Some(asks));
            keys.put(asks, key(1));
        }
        assert_eq!(keys.keys.len(), KEYS_MAX);
    }

    #[test]
    fn what_nobody_waits_for_is_not_made() {
        let mut keys = RequestKeys::new([], true);
        assert!(keys.want((GatewayId(1), Period(1)), true, 10_000));
        assert!(keys.want((GatewayId(1), Period(1)), true, 10_000), "once");
        assert_eq!(keys.wanted.len(), 1);
        keys.keep_wanted(|_| false);
        assert_eq!(keys.wanted(), None);
    }
}
