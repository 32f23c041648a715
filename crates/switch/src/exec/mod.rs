//! Execution of programs in executable form, one packet at a time. All memory accesses use checked slices, so no
//! program and no packet can access memory out of bounds.

mod alu;
mod bits;
mod context;
mod deparse;
mod environment;
mod field_access;
mod lookup;
mod machine;
mod statement;
mod tree;

pub use self::bits::{read as read_bits, write as write_bits};
pub use self::context::{Context, Fault, Requests, Scratch};
pub use self::environment::{CoreErrors, Environment, RandomSource};
pub use self::field_access::{get, set, set_optional};
pub use self::machine::{FUEL, Machine};
