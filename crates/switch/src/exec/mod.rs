//! Runs programs in executable form, one packet at a time, without a byte outside its bounds whatever the program
//! and the packet are: all memory is reached through checked slices.

mod alu;
mod bits;
mod context;
mod deparse;
mod lookup;
mod machine;
pub mod op;
mod place;
mod statement;
mod tree;

pub use self::bits::{read as read_bits, write as write_bits};
pub use self::context::{Context, Fault, Requests, Scratch};
pub use self::machine::{CoreErrors, FUEL, Machine, RandomSource, World};
pub use self::place::{get, put, set};
