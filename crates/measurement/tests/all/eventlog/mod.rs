//! Event logs: which logs are accepted or rejected at which entry, and the proven parts of their data.

mod machines;
mod parse;
mod replay;
