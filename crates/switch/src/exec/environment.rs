//! Environment of packet processing.

use crate::calculations::Calculation;
use crate::executable::Executable;
use crate::externs::Externs;
use crate::forwarding::Forwarding;

/// Source of random numbers for programs.
pub trait RandomSource {
    /// Returns a random number from `low` to `high`, both inclusive.
    fn between(&mut self, low: u64, high: u64) -> u64;
}

/// Environment of packet processing.
#[derive(Clone, Copy)]
pub struct Environment<'a> {
    /// Program.
    pub executable: &'a Executable,
    /// Forwarding state.
    pub forwarding: &'a Forwarding,
    /// Externs.
    pub externs: &'a Externs,
    /// Calculations, in the order of the program.
    pub calculations: &'a [Calculation],
    /// Codes of the errors that the switch itself raises.
    pub errors: CoreErrors,
    /// Drop port.
    pub drop_port: u32,
    /// Time since the start of the switch, µs.
    pub now_us: u64,
}

/// Codes of the errors that the switch itself raises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreErrors {
    /// `NoError`.
    pub none: u32,
    /// `PacketTooShort`.
    pub packet_too_short: u32,
    /// `StackOutOfBounds`.
    pub stack_out_of_bounds: u32,
    /// `HeaderTooShort`.
    pub header_too_short: u32,
    /// `ParserInvalidArgument`.
    pub invalid_argument: u32,
}

impl CoreErrors {
    /// Reads the codes of a program.
    #[must_use]
    pub fn of(program: &crate::program::Program) -> Self {
        let code = |name: &str, default: u32| program.errors.get(name).copied().unwrap_or(default);
        // A program that declares no errors cannot distinguish errors, so the codes of core.p4 are used.
        Self {
            none: code("NoError", 0),
            packet_too_short: code("PacketTooShort", 1),
            stack_out_of_bounds: code("StackOutOfBounds", 3),
            header_too_short: code("HeaderTooShort", 4),
            invalid_argument: code("ParserInvalidArgument", 6),
        }
    }
}
