//! The test vectors in docs/vectors: written and checked here, recomputed by independent code.

mod classic;
mod files;
mod lap1;
mod pair;
mod reference;
mod ticket;
