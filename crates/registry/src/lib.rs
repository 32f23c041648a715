//! Devices and their sealed credentials on SQLite.
