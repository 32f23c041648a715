//! The match-action tables against a plain reading of BMv2's rules, and what control planes rely on.

mod differential;
mod keys;
mod model;
mod prefixes;
mod profiles;
mod publishing;
