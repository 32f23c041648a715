//! One packet on its way through the pipeline.

use super::bits::BitVec;
use super::op::{Pc, R, W};
use std::hint::black_box;

/// Why a packet is dropped by the switch itself, not by the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The program ran in a circle for too long.
    Fuel,
    /// An assertion of the program failed.
    Assertion,
    /// The packet was resubmitted or recirculated too often.
    Passes,
    /// The packet made too many copies of itself.
    Copies,
    /// The queue of packets that come back is full.
    Queue,
}

/// What a program asked for with this packet; numbers as in simple_switch, where 0 is "nothing".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// A clone: session and field list.
    pub clone: Option<(u16, u16)>,
    /// Another pass with the packet as received: its field list.
    pub resubmit: u16,
    /// Another pass with the packet as sent: its field list.
    pub recirculate: u16,
    /// A digest by its number.
    pub digest: u16,
}

/// A packet's state.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// Headers and metadata.
    pub arena: Vec<u8>,
    /// How many bytes of the packet the parser took.
    pub parsed: usize,
    /// The length that `packet_length` shows in egress: headers that are added and removed change it.
    pub length: i64,
    /// Bytes as it came in, which counters and meters count.
    pub ingress_length: u64,
    /// What the program asked for.
    pub requests: Requests,
    /// It is sent with at most so many bytes.
    pub bytes_max: usize,
    /// Whether the pipeline ends after this action.
    pub exit: bool,
    /// The error that ended the parser; 0 is none.
    pub parser_error: u32,
    /// Whether a checksum was wrong.
    pub checksum_error: bool,
    /// Why the switch drops it.
    pub fault: Option<Fault>,
    /// The port that it came in by.
    pub ingress_port: u32,
}

impl Context {
    /// Makes it that of a new packet; keeps the memory.
    pub fn reset(&mut self, arena_bytes: usize) {
        self.arena.clear();
        self.arena.resize(arena_bytes, 0);
        self.parsed = 0;
        self.length = 0;
        self.ingress_length = 0;
        self.requests = Requests::default();
        self.bytes_max = usize::MAX;
        self.exit = false;
        self.parser_error = 0;
        self.checksum_error = false;
        self.fault = None;
        self.ingress_port = 0;
    }
}

/// Memory that every packet uses in turn.
#[derive(Debug)]
pub struct Scratch {
    r: [u64; 256],
    w: [u128; 256],
    /// A table's key.
    pub key: Vec<u8>,
    /// A calculation's input.
    pub input: BitVec,
    guesses: [Onto; GUESSES],
}

/// Tables whose last outcome is remembered; a power of two.
const GUESSES: usize = 64;

/// Where a table leads: its action, and what comes after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Onto {
    /// Where the action begins.
    pub start: Pc,
    /// Where to go on behind it.
    pub then: Pc,
}

impl Default for Scratch {
    fn default() -> Self {
        Self {
            r: [0; 256],
            w: [0; 256],
            key: Vec::new(),
            input: BitVec::default(),
            guesses: [Onto::default(); GUESSES],
        }
    }
}

impl Scratch {
    /// The same as it is given, but for most packets the processor need not wait for it: it comes from what the table led to last, and
    /// that both are equal is a branch, which is predicted. So the operations of the action begin while the entry is still
    /// looked up.
    #[inline(always)]
    pub fn guess(&mut self, table: u32, found: Onto) -> Onto {
        // A remainder is always within the array.
        #[allow(clippy::indexing_slicing)]
        let last = &mut self.guesses[table as usize % GUESSES];
        // Hidden from the compiler, which would take the one for the other where both are equal.
        let guess = black_box(*last);
        if *last == found {
            return guess;
        }
        *last = found;
        black_box(found)
    }

    /// A register of 64 bits.
    #[inline(always)]
    pub fn r(&self, r: R) -> u64 {
        // A number of 8 bits is always within 256 registers.
        #[allow(clippy::indexing_slicing)]
        self.r[r as usize]
    }

    /// Sets a register of 64 bits.
    #[inline(always)]
    pub fn set_r(&mut self, r: R, value: u64) {
        // As above.
        #[allow(clippy::indexing_slicing)]
        {
            self.r[r as usize] = value;
        }
    }

    /// A register of 128 bits.
    #[inline(always)]
    pub fn w(&self, w: W) -> u128 {
        // As above.
        #[allow(clippy::indexing_slicing)]
        self.w[w as usize]
    }

    /// Sets a register of 128 bits.
    #[inline(always)]
    pub fn set_w(&mut self, w: W, value: u128) {
        // As above.
        #[allow(clippy::indexing_slicing)]
        {
            self.w[w as usize] = value;
        }
    }
}
