//! The device side on Linux: a PUF behind a trait, a socket, a lease kept alive.
