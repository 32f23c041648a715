//! The match-action tables against a plain reading of BMv2's rules, and what control planes rely on.

mod differential;
mod model;
mod prefixes;
