//! The freshness value of the benchmarks.

use linewarden_dataplane::Store;

use crate::clock::monotonic_ns;

/// Sets the fixed freshness value again, so that it does not expire.
pub(super) fn refresh(store: &Store) {
    store.set_fresh(super::keys::FRESH, monotonic_ns());
}
