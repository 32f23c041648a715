//! State of one packet in the pipeline.

use super::bits::BitVec;
use crate::executable::op::{Pc, R, W};
use std::hint::black_box;

/// Reason why the switch, not the program, drops a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The program exceeded the step limit.
    FuelExhausted,
    /// An assertion failed.
    Assertion,
    /// The packet exceeded the limit of resubmitted and recirculated passes.
    PassLimit,
    /// The packet exceeded the limit of copies.
    CopyLimit,
    /// The queue of resubmitted and recirculated packets is full, or no queue has the priority of the packet.
    QueueFull,
}

/// Requests of the program for this packet. As in simple_switch, a value of 0 for resubmit, recirculate or digest is no
/// request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// Clone: session and field list.
    pub clone: Option<(u16, u16)>,
    /// Resubmit: field list.
    pub resubmit: u16,
    /// Recirculate: field list.
    pub recirculate: u16,
    /// Digest id.
    pub digest: u16,
}

/// State of a packet.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// Headers and metadata.
    pub arena: Vec<u8>,
    /// Number of bytes consumed by the parser.
    pub parsed: usize,
    /// Value of `packet_length` in egress, bytes; added and removed headers change the value.
    pub length: i64,
    /// Length at ingress, bytes, for counters and meters.
    pub ingress_length: u64,
    /// Requests of the program.
    pub requests: Requests,
    /// Maximum length of the sent packet, bytes (truncate).
    pub bytes_max: usize,
    /// Whether the pipeline ends after this action.
    pub exit: bool,
    /// Parser error; 0 is none.
    pub parser_error: u32,
    /// Whether a checksum verification failed.
    pub checksum_error: bool,
    /// Fault for which the switch drops the packet.
    pub fault: Option<Fault>,
    /// Ingress port.
    pub ingress_port: u32,
}

impl Context {
    /// Resets the state for a new packet and keeps the memory.
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

/// Memory shared by consecutive packets.
#[derive(Debug)]
pub struct Scratch {
    r: [u64; 256],
    w: [u128; 256],
    /// Table key.
    pub key: Vec<u8>,
    /// Input of a calculation.
    pub input: BitVec,
    predictions: [TableContinuation; PREDICTIONS],
}

/// Number of predicted table results; a power of two.
const PREDICTIONS: usize = 64;

/// Continuation after a table lookup: action and next operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableContinuation {
    /// First operation of the action.
    pub action_start: Pc,
    /// Operation after the action.
    pub next: Pc,
}

impl Default for Scratch {
    fn default() -> Self {
        Self {
            r: [0; 256],
            w: [0; 256],
            key: Vec::new(),
            input: BitVec::default(),
            predictions: [TableContinuation::default(); PREDICTIONS],
        }
    }
}

impl Scratch {
    /// Returns `actual`, but for most packets without a data dependency on `actual`: the returned value is the previous result
    /// of the table, and a predicted branch checks that `actual` equals the previous result. So the processor starts the
    /// action while the lookup is still in progress.
    #[inline(always)]
    pub fn predict(&mut self, table: u32, actual: TableContinuation) -> TableContinuation {
        // A remainder is always a valid index.
        #[allow(clippy::indexing_slicing)]
        let previous = &mut self.predictions[table as usize % PREDICTIONS];
        // Without `black_box`, the compiler would return `actual` in both cases.
        let guess = black_box(*previous);
        if *previous == actual {
            return guess;
        }
        *previous = actual;
        black_box(actual)
    }

    /// Reads a 64-bit register.
    #[inline(always)]
    pub fn r(&self, r: R) -> u64 {
        // An 8-bit index is always valid for 256 registers.
        #[allow(clippy::indexing_slicing)]
        self.r[r as usize]
    }

    /// Sets a 64-bit register.
    #[inline(always)]
    pub fn set_r(&mut self, r: R, value: u64) {
        // An 8-bit index is always valid for 256 registers.
        #[allow(clippy::indexing_slicing)]
        {
            self.r[r as usize] = value;
        }
    }

    /// Reads a 128-bit register.
    #[inline(always)]
    pub fn w(&self, w: W) -> u128 {
        // An 8-bit index is always valid for 256 registers.
        #[allow(clippy::indexing_slicing)]
        self.w[w as usize]
    }

    /// Sets a 128-bit register.
    #[inline(always)]
    pub fn set_w(&mut self, w: W, value: u128) {
        // An 8-bit index is always valid for 256 registers.
        #[allow(clippy::indexing_slicing)]
        {
            self.w[w as usize] = value;
        }
    }
}
