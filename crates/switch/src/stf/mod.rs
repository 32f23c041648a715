//! Packet tests in p4c's STF format.
