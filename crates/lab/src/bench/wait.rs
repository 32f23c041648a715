//! Clocks of the benches.

use linewarden_dataplane::Store;

use crate::clock::monotonic_ns;

/// Draws the benches' frozen value once more, so that it does not age.
pub(super) fn keep_fresh(store: &Store) {
    store.set_fresh(super::keys::FRESH, monotonic_ns());
}
