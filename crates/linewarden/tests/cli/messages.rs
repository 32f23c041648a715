//! What is told, and what is advised, where something else was meant or there is one of a thing only.

use super::*;

/// `debug` is for who looks for a fault; statements of the database would hide it.
#[test]
fn debug_shows_no_statements() {
    let site = Site::new();
    assert_eq!(site.on_registry("device list --log debug").err, "");
    let traced = site.on_registry("device list --log trace").err;
    assert!(traced.contains("SELECT"), "{traced}");
}
