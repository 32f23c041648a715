//! A bounded map that drops old entries: two hash maps, of which the older is dropped when the younger is
//! full or has expired.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};

use super::time::{Span, Time};

/// Holds at least the latest `size_max` keys that were inserted within the last `age_max`. Holds at most twice as many
/// keys, and no key for longer than twice `age_max`.
pub(super) struct Generations<K, V, S> {
    recent_entries: HashMap<K, V, S>,
    old_entries: HashMap<K, V, S>,
    size_max: usize,
    age_max: Span,
    started_at: Time,
}

impl<K: Hash + Eq, V, S: BuildHasher + Default> Generations<K, V, S> {
    pub(super) fn new(size_max: usize, age_max: Span) -> Self {
        let (recent_entries, old_entries) = (HashMap::default(), HashMap::default());
        Self {
            recent_entries,
            old_entries,
            size_max: size_max.max(1),
            age_max,
            started_at: Time::ZERO,
        }
    }

    pub(super) fn get(&mut self, key: &K, now: Time) -> Option<&V> {
        self.rotate(now);
        self.recent_entries.get(key).or_else(|| self.old_entries.get(key))
    }

    pub(super) fn insert(&mut self, key: K, value: V, now: Time) {
        self.rotate(now);
        self.recent_entries.insert(key, value);
    }

    pub(super) fn remove(&mut self, key: &K) {
        self.recent_entries.remove(key);
        self.old_entries.remove(key);
    }

    /// The value of a key, inserted if missing; the key counts as inserted now.
    pub(super) fn touch(&mut self, key: K, now: Time, make: impl FnOnce() -> V) -> &mut V {
        self.rotate(now);
        let old_entries = &mut self.old_entries;
        self.recent_entries
            .entry(key)
            .or_insert_with_key(|key| old_entries.remove(key).unwrap_or_else(make))
    }

    /// The value of a key, if present; the key then counts as inserted now.
    pub(super) fn refresh(&mut self, key: K, now: Time) -> Option<&mut V>
    where
        K: Copy,
    {
        self.rotate(now);
        if let Some(value) = self.old_entries.remove(&key) {
            self.recent_entries.insert(key, value);
        }
        self.recent_entries.get_mut(&key)
    }

    /// The value of a key, without changing the key's age.
    pub(super) fn get_mut(&mut self, key: &K, now: Time) -> Option<&mut V> {
        self.rotate(now);
        self.recent_entries
            .get_mut(key)
            .or_else(|| self.old_entries.get_mut(key))
    }

    /// Starts a new generation if the recent generation is full or too old. Drops both generations if both are too old.
    fn rotate(&mut self, now: Time) {
        let age = now.saturating_since(self.started_at);
        if self.recent_entries.len() < self.size_max && age < self.age_max {
            return;
        }
        std::mem::swap(&mut self.recent_entries, &mut self.old_entries);
        self.recent_entries.clear();
        if age >= self.age_max.times(2) {
            self.old_entries.clear();
        }
        self.started_at = now;
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.recent_entries.len() + self.old_entries.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::hash_map::RandomState;

    use super::*;

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    fn holds(map: &mut Generations<u32, u32, RandomState>, key: u32, now: u64) -> bool {
        map.get(&key, at(now)).is_some()
    }

    #[test]
    fn entries_are_dropped_by_number() {
        let mut map = Generations::<_, _, RandomState>::new(10, Span::MAX);
        for key in 0..1_000_u32 {
            map.insert(key, key, at(0));
            assert!(map.len() <= 20);
            assert!((key.saturating_sub(9)..=key).all(|key| holds(&mut map, key, 0)));
        }
        assert!(!holds(&mut map, 900, 0));
    }

    #[test]
    fn entries_are_dropped_by_age() {
        let mut map = Generations::<_, _, RandomState>::new(10, Span::from_nanos(100));
        map.insert(1, 1, at(0));
        map.insert(2, 2, at(99));
        map.insert(3, 3, at(150));
        assert!(holds(&mut map, 1, 199) && holds(&mut map, 2, 199));
        assert!(!holds(&mut map, 1, 250) && holds(&mut map, 3, 250));
        assert!(!holds(&mut map, 3, 10_000), "even without insertions in between");
        assert_eq!(map.len(), 0);
    }

    #[test]
    fn get_does_not_refresh_an_entry() {
        let mut map = Generations::<_, _, RandomState>::new(4, Span::MAX);
        map.insert(7, 70, at(0));
        for key in 100..120 {
            map.insert(key, key, at(0));
            map.get_mut(&7, at(0));
        }
        assert!(!holds(&mut map, 7, 0));
    }

    #[test]
    fn touch_refreshes_an_entry() {
        let mut map = Generations::<_, _, RandomState>::new(4, Span::MAX);
        map.insert(7, 70, at(0));
        for key in 100..200 {
            map.insert(key, key, at(0));
            if key % 2 == 0 {
                assert_eq!(map.get_mut(&7, at(0)).copied(), Some(70));
                assert_eq!(*map.touch(7, at(0), || 0), 70);
            }
        }
        assert_eq!(map.get_mut(&100, at(0)), None);
        for key in 200..300 {
            map.insert(key, key, at(0));
            assert!(map.refresh(7, at(0)).is_some());
            assert_eq!(map.get(&7, at(0)), Some(&70));
        }
        assert!(
            map.refresh(100, at(0)).is_none() && !holds(&mut map, 100, 0),
            "a forgotten entry is not refreshed"
        );
        assert_eq!(*map.touch(100, at(0), || 1), 1);
        map.remove(&7);
        assert!(!holds(&mut map, 7, 0));
    }
}
