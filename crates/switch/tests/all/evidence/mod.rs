//! Evidence of a running switch: the six aspects that the paper about the attesting BMv2 validates (its section 3), the
//! states that this BMv2 cannot distinguish, and programs that try to forge evidence.

mod aspects;
mod collisions;
mod fixture;
mod forging;
mod running;
