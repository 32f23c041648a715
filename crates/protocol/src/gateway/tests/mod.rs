//! Black-box tests of the reference gateway: frames in, frames and lines out.

mod attacks;
mod attest;
mod coverage;
mod gate;
mod handshake;
mod ownership;
mod p4dra;
mod provisioning;
mod races;
mod sealed;
mod sources;
mod support;
mod table;
