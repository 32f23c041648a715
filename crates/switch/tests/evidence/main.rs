//! Evidence of a running switch: the six aspects that the attesting BMv2's paper validates (its section 3), the states
//! that it takes for one another, and programs that try to forge.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod aspects;
mod collisions;
mod fixture;
mod forging;
mod running;
