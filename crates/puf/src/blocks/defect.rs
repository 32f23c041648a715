//! Why a block is not power-up state.

use std::fmt;

use serde::Serialize;

/// Why a block is not power-up state.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum Defect {
    /// No cell changed between the readouts.
    Constant,
    /// Far fewer cells changed than in other blocks.
    LowNoise,
    /// Far more cells changed than noise changes: the content is rewritten each time, or belongs to another chip.
    Unrelated,
    /// Too many cells have the same value.
    Weight,
    /// Cells at equal positions of bytes, words or rows have the same value: pointers, counters, text.
    Columns,
    /// Cells a byte, a word or a row apart depend on each other.
    Dependence,
    /// Words occur more than once.
    RepeatedWords,
    /// Byte values occur together more often than their bits allow: code, text, tables.
    ByteValues,
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Constant => "no cell changes between readouts",
            Self::LowNoise => "far fewer cells change between readouts than elsewhere",
            Self::Unrelated => "readouts differ by more than noise",
            Self::Weight => "nearly all cells have one value",
            Self::Columns => "bits of words are constant, as in pointers, counters or text",
            Self::Dependence => "cells depend on each other",
            Self::RepeatedWords => "words are repeated, as in code or data",
            Self::ByteValues => "byte values are those of code, data or text",
        })
    }
}
