//! Keys for attestation requests without a session. Each key is made once. Keys that are expensive to make are
//! rate-limited for unknown gateways.

use std::collections::VecDeque;

use linewarden_protocol::attest::RequestKey;
use linewarden_protocol::ids::{GatewayId, Period};

/// Maximum number of verified gateways: gateways whose tags were valid. A configuration can name as many gateways, and fewer
/// gateways attest one device at a time.
const VERIFIED_GATEWAYS_MAX: usize = 4;
/// Maximum number of keys. For each verified gateway, at most three periods are accepted at a time: the last confirmed
/// period, the period before, and the period after.
const KEYS_MAX: usize = 3 * VERIFIED_GATEWAYS_MAX + UNKNOWN_GATEWAYS_MAX;
const UNKNOWN_GATEWAYS_MAX: usize = 8;
/// Maximum number of pending keys.
const PENDING_MAX: usize = 3 * VERIFIED_GATEWAYS_MAX + UNKNOWN_GATEWAYS_MAX;
/// Rate limit of keys for unknown gateways: a burst of keys, and then one key per interval, ms.
const UNKNOWN_BURST: u64 = 4;
const UNKNOWN_INTERVAL_MS: u64 = 500;

type KeyId = (GatewayId, Period);

/// The request keys, and the rate limit for new ones.
pub(crate) struct RequestKeys {
    /// The keys; the most recently stored key is last.
    keys: Vec<(KeyId, RequestKey)>,
    pending: VecDeque<KeyId>,
    /// Gateways with valid tags; the most recently verified gateway is last.
    verified_gateways: VecDeque<GatewayId>,
    /// Token bucket of unknown gateways: time up to which its tokens are used, ms.
    unknown_budget_ms: u64,
    /// Whether making a key costs more than checking a tag with a key.
    is_expensive: bool,
}

impl RequestKeys {
    /// `known_gateways`: gateways whose tags were valid before a restart. If there are too many gateways, only the last
    /// [`VERIFIED_GATEWAYS_MAX`] are kept.
    pub(crate) fn new(known_gateways: impl IntoIterator<Item = GatewayId>, is_expensive: bool) -> Self {
        let mut keys = Self {
            keys: Vec::new(),
            pending: VecDeque::new(),
            verified_gateways: VecDeque::new(),
            unknown_budget_ms: 0,
            is_expensive,
        };
        known_gateways
            .into_iter()
            .for_each(|gateway| keys.record_verified(gateway));
        keys
    }

    /// Gateways with valid tags, sorted by ID.
    pub(crate) fn verified_gateways(&self) -> Vec<GatewayId> {
        let mut gateways: Vec<GatewayId> = self.verified_gateways.iter().copied().collect();
        gateways.sort_unstable();
        gateways
    }

    pub(crate) fn get(&self, key_id: KeyId) -> Option<&RequestKey> {
        self.keys.iter().find(|(id, _)| *id == key_id).map(|(_, key)| key)
    }

    /// Requests a key, if the key is not pending already; returns false if the request is rate-limited. `is_expected` states
    /// whether the period is the gateway's last period or the next period. Any sender can name a verified gateway with another
    /// period, so a request for another period counts like a request of an unknown gateway.
    pub(crate) fn request(&mut self, key_id: KeyId, is_expected: bool, now_ms: u64) -> bool {
        if self.pending.contains(&key_id) {
            return true;
        }
        if is_expected && self.verified_gateways.contains(&key_id.0) {
            // This key is made before the keys of unknown gateways.
            self.pending.push_front(key_id);
            self.pending.truncate(PENDING_MAX);
            return true;
        }
        if !self.is_expensive {
            self.pending.push_back(key_id);
            return true;
        }
        let earliest_ms = now_ms.saturating_sub((UNKNOWN_BURST - 1) * UNKNOWN_INTERVAL_MS);
        let turn_ms = self.unknown_budget_ms.max(earliest_ms);
        if turn_ms > now_ms || self.pending.len() >= PENDING_MAX {
            return false;
        }
        self.unknown_budget_ms = turn_ms.saturating_add(UNKNOWN_INTERVAL_MS);
        self.pending.push_back(key_id);
        true
    }

    /// The next key to make.
    pub(crate) fn next_pending(&self) -> Option<KeyId> {
        self.pending.front().copied()
    }

    /// Drops pending keys that no request waits for.
    pub(crate) fn retain_pending(&mut self, is_waited_for: impl Fn(KeyId) -> bool) {
        self.pending.retain(|key_id| is_waited_for(*key_id));
    }

    /// Stores a key. If there are too many keys, drops the oldest key of an unknown gateway.
    pub(crate) fn insert(&mut self, key_id: KeyId, key: RequestKey) {
        self.pending.retain(|pending_request| *pending_request != key_id);
        self.keys.retain(|(id, _)| *id != key_id);
        self.keys.push((key_id, key));
        if self.keys.len() > KEYS_MAX {
            let verified = &self.verified_gateways;
            let oldest_unknown = self
                .keys
                .iter()
                .position(|((gateway, _), _)| !verified.contains(gateway));
            self.keys.remove(oldest_unknown.unwrap_or_default());
        }
    }

    /// Records a gateway with a valid tag.
    pub(crate) fn record_verified(&mut self, gateway: GatewayId) {
        self.verified_gateways
            .retain(|known_gateway| *known_gateway != gateway);
        self.verified_gateways.push_back(gateway);
        if self.verified_gateways.len() > VERIFIED_GATEWAYS_MAX {
            self.verified_gateways.pop_front();
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
    fn unknown_gateways_get_a_burst_of_keys_and_then_two_a_second() {
        let mut keys = RequestKeys::new([], true);
        let mut request_keys = 0;
        for ms in 0..10_000u64 {
            // A thousand unknown gateways a second.
            let key_id = (GatewayId(ms as u32 + 1), Period(1));
            request_keys += usize::from(keys.request(key_id, true, 100_000 + ms));
            keys.insert(key_id, key(1));
        }
        assert_eq!(request_keys, 4 + 19);
        assert_eq!(keys.keys.len(), KEYS_MAX);
    }

    #[test]
    fn a_flood_does_not_affect_verified_gateways() {
        let mut keys = RequestKeys::new([], true);
        let verified_gateway = GatewayId(9);
        keys.record_verified(verified_gateway);
        keys.insert((verified_gateway, Period(1)), key(9));
        for n in 100..200 {
            keys.request((GatewayId(n), Period(1)), true, 100_000 + u64::from(n) * 1_000);
            keys.insert((GatewayId(n), Period(1)), key(1));
        }
        assert_eq!(
            keys.get((verified_gateway, Period(1)))
                .map(|key| key.as_bytes()[0]),
            Some(9)
        );
        while keys.request(
            (GatewayId(keys.pending.len() as u32 + 500), Period(1)),
            true,
            u64::MAX / 2,
        ) {}
        assert!(
            keys.request((verified_gateway, Period(2)), true, 0),
            "although there is a queue"
        );
        assert_eq!(
            keys.next_pending(),
            Some((verified_gateway, Period(2))),
            "ahead of it"
        );
    }

    #[test]
    fn periods_that_are_not_due_are_rate_limited_for_verified_gateways() {
        let mut keys = RequestKeys::new([], true);
        let verified_gateway = GatewayId(9);
        keys.record_verified(verified_gateway);
        let far =
            (10..1_000).filter(|period| keys.request((verified_gateway, Period(*period)), false, 100_000));
        assert_eq!(far.count() as u64, UNKNOWN_BURST);
    }

    #[test]
    fn gateways_stay_verified_across_a_restart() {
        let verified_gateway = GatewayId(9);
        let mut before = RequestKeys::new([], true);
        (1..=9).for_each(|gateway| before.record_verified(GatewayId(gateway)));
        assert_eq!(before.verified_gateways(), [6, 7, 8, 9].map(GatewayId));
        let mut keys = RequestKeys::new(before.verified_gateways(), true);
        let new_gateways = (100..200).filter(|n| keys.request((GatewayId(*n), Period(1)), true, 100_000));
        assert_eq!(new_gateways.count() as u64, UNKNOWN_BURST);
        assert!(keys.request((verified_gateway, Period(1)), true, 100_000));
        assert_eq!(
            keys.next_pending(),
            Some((verified_gateway, Period(1))),
            "ahead of them"
        );
    }

    #[test]
    fn cheap_keys_are_not_rate_limited() {
        let mut keys = RequestKeys::new([], false);
        for n in 1..=1_000 {
            let key_id = (GatewayId(n), Period(1));
            assert!(keys.request(key_id, false, 0));
            assert_eq!(keys.next_pending(), Some(key_id));
            keys.insert(key_id, key(1));
        }
        assert_eq!(keys.keys.len(), KEYS_MAX);
    }

    #[test]
    fn a_key_without_a_waiting_request_is_dropped() {
        let mut keys = RequestKeys::new([], true);
        assert!(keys.request((GatewayId(1), Period(1)), true, 10_000));
        assert!(keys.request((GatewayId(1), Period(1)), true, 10_000), "once");
        assert_eq!(keys.pending.len(), 1);
        keys.retain_pending(|_| false);
        assert_eq!(keys.next_pending(), None);
    }
}
