//! Codewords in memory.

/// The bits of a codeword or message, the least significant word first; unused bits are zero.
pub(super) type Word = [u64; 4];
