//! The Linewarden command line.

fn main() {}
