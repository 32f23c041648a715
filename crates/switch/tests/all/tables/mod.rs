//! Compares match-action tables with a simple model of BMv2's rules, and tests the guarantees to control planes.

mod differential;
mod keys;
mod model;
mod prefixes;
mod profiles;
mod publishing;
