//! Runs programs in executable form.

pub mod op;
