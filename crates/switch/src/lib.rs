//! The attesting P4 switch: runs what p4c compiles for BMv2 (v1model) with the semantics of simple_switch.

pub mod calculations;
pub mod clock;
pub mod control;
pub mod engine;
pub mod evidence;
pub mod exec;
pub mod externs;
pub mod forwarding;
pub mod hosted;
pub mod layout;
pub mod load;
pub mod lower;
pub mod meter;
pub mod ports;
pub mod program;
pub mod reference;
pub mod serve;
pub mod setup;
pub mod stf;
pub mod switch;
pub mod tables;
