//! An interpreter that executes PTX as a warp: 32 lanes, each with its own next instruction after divergent branches.
//! The lanes with the lowest next instruction continue first, so that lanes reconverge. An instruction that exchanges
//! values between lanes fails the test if it is executed without all lanes.

use super::program::{
    BLOCK, CARRY, CarryOperation, Instruction, Location, Operand, Program, ShuffleMode, Space, THREAD,
};

const LANES: usize = 32;
/// Mask of the low 32 bits.
const LOW: u64 = 0xffff_ffff;

type Lanes = [u64; LANES];

/// Runs the warps for `threads` threads one after the other, in blocks of `block_threads`.
///
/// # Safety
/// The arguments match the program, and the addresses in them belong to this process and are valid for all items.
pub unsafe fn run(program: &Program, threads: usize, block_threads: usize, arguments: *const u8) {
    // SAFETY: the caller guarantees the arguments, whose length the program declares.
    let arguments = unsafe { std::slice::from_raw_parts(arguments, program.argument_bytes) };
    let mut shared = Vec::new();
    for first in (0..threads).step_by(LANES) {
        if first % block_threads == 0 {
            // On a device, shared memory has arbitrary content, which earlier kernels left.
            shared = vec![0xa5; program.shared_bytes];
        }
        let mut warp = Warp::new(program, arguments, &mut shared);
        warp.registers[THREAD] = std::array::from_fn(|lane| (first % block_threads + lane) as u64);
        warp.registers[BLOCK] = [(first / block_threads) as u64; LANES];
        warp.run();
    }
}

struct Warp<'a> {
    program: &'a Program,
    arguments: &'a [u8],
    shared: &'a mut [u8],
    registers: Vec<Lanes>,
    /// Next instruction of each lane; past the end for lanes that have returned.
    next: [usize; LANES],
    /// Whether each lane executes the current instruction.
    active: [bool; LANES],
    all_active: bool,
}

impl<'a> Warp<'a> {
    fn new(program: &'a Program, arguments: &'a [u8], shared: &'a mut [u8]) -> Self {
        let registers = vec![[0; LANES]; program.registers];
        Self {
            program,
            arguments,
            shared,
            registers,
            next: [0; LANES],
            active: [true; LANES],
            all_active: true,
        }
    }

    fn run(&mut self) {
        let end = self.program.instructions.len();
        loop {
            let mut index = *self.next.iter().min().unwrap();
            if index >= end {
                return;
            }
            self.active = self.next.map(|next| next == index);
            self.all_active = self.active == [true; LANES];
            // Continues until an instruction at which another lane waits, or a branch.
            let next_waiting = self
                .next
                .iter()
                .copied()
                .filter(|next| *next > index)
                .min()
                .unwrap_or(end);
            loop {
                if let Some(next) = self.step(index) {
                    for lane in (0..LANES).filter(|lane| self.active[*lane]) {
                        self.next[lane] = next[lane];
                    }
                    break;
                }
                index += 1;
                if index == next_waiting {
                    for lane in (0..LANES).filter(|lane| self.active[*lane]) {
                        self.next[lane] = index;
                    }
                    break;
                }
            }
        }
    }

    fn get(&self, operand: Operand) -> Lanes {
        match operand {
            Operand::Register(register) => self.registers[register],
            Operand::Number(number) => [number; LANES],
        }
    }

    fn set(&mut self, register: usize, values: Lanes) {
        if self.all_active {
            self.registers[register] = values;
            return;
        }
        let active = self.active;
        for ((target, value), active) in self.registers[register].iter_mut().zip(values).zip(active) {
            *target = if active { value } else { *target };
        }
    }

    /// Executes one instruction for the active lanes. For a branch or return, returns the next instruction of each lane.
    fn step(&mut self, index: usize) -> Option<[usize; LANES]> {
        let program = self.program;
        match &program.instructions[index] {
            Instruction::Chain {
                operation,
                has_carry_in,
                has_carry_out,
                to,
                from,
            } => self.chain(*operation, *has_carry_in, *has_carry_out, *to, *from),
            Instruction::Value { function, to, from } => {
                let [a, b, c] = from.map(|operand| self.get(operand));
                self.set(
                    *to,
                    std::array::from_fn(|lane| function([a[lane], b[lane], c[lane]])),
                );
            }
            Instruction::Load { to, location } => {
                for (word, register) in to.iter().enumerate() {
                    let values = self.load(location, word);
                    self.set(*register, values);
                }
            }
            Instruction::Store { location, from } => {
                for (word, operand) in from.iter().enumerate() {
                    self.store(location, word, self.get(*operand));
                }
            }
            Instruction::Branch {
                target,
                condition: None,
            } => return Some([*target; LANES]),
            Instruction::Branch {
                target,
                condition: Some((predicate, expected)),
            } => {
                let taken = self.registers[*predicate].map(|value| (value == 1) == *expected);
                return Some(taken.map(|taken| if taken { *target } else { index + 1 }));
            }
            Instruction::Return => return Some([usize::MAX; LANES]),
            Instruction::Synchronize => self.assert_all_active(index),
            Instruction::Shuffle {
                mode,
                to,
                is_inside,
                value,
                by,
                bounds,
            } => {
                self.assert_all_active(index);
                let [value, by, bounds] = [value, by, bounds].map(|operand| self.get(*operand));
                let from: [(usize, bool); LANES] = std::array::from_fn(|lane| {
                    shuffle_source(*mode, lane, by[lane] as usize, bounds[lane] as usize)
                });
                self.set(*to, from.map(|(lane, _)| value[lane]));
                self.set(*is_inside, from.map(|(_, is_inside)| u64::from(is_inside)));
            }
            Instruction::Ballot { to, from } => {
                self.assert_all_active(index);
                let bits = self.registers[*from]
                    .iter()
                    .rev()
                    .fold(0, |bits, bit| (bits << 1) | bit);
                self.set(*to, [bits; LANES]);
            }
            Instruction::Exchange { to, location, value } => {
                let (value, active) = (self.get(*value), self.active);
                for lane in (0..LANES).filter(|lane| active[*lane]) {
                    let previous = self.load(location, 0)[lane];
                    self.store_lane(location, 0, lane, value[lane]);
                    self.registers[*to][lane] = previous;
                }
            }
        }
        None
    }

    fn assert_all_active(&self, index: usize) {
        assert!(
            self.active == [true; LANES],
            "instruction {index} requires all lanes; active lanes: {:?}",
            self.active
        );
    }

    fn chain(
        &mut self,
        operation: CarryOperation,
        has_carry_in: bool,
        has_carry_out: bool,
        to: usize,
        from: [Operand; 3],
    ) {
        let [a, b, c] = from.map(|operand| self.get(operand).map(|value| value & LOW));
        let carry = if has_carry_in {
            self.registers[CARRY]
        } else {
            [0; LANES]
        };
        // A borrow makes the difference negative: bit 32 is then the borrow.
        let mut wide = match operation {
            CarryOperation::Add => map_lanes([a, b, c], |[a, b, _]| a + b),
            CarryOperation::Subtract => map_lanes([a, b, c], |[a, b, _]| a.wrapping_sub(b)),
            CarryOperation::MultiplyLow => map_lanes([a, b, c], |[a, b, c]| ((a * b) & LOW) + c),
            CarryOperation::MultiplyHigh => map_lanes([a, b, c], |[a, b, c]| ((a * b) >> 32) + c),
        };
        for (wide, carry) in wide.iter_mut().zip(carry) {
            *wide = if operation == CarryOperation::Subtract {
                wide.wrapping_sub(carry)
            } else {
                *wide + carry
            };
        }
        self.set(to, wide.map(|wide| wide & LOW));
        if has_carry_out {
            self.set(CARRY, wide.map(|wide| (wide >> 32) & 1));
        }
    }

    fn load(&self, location: &Location, word: usize) -> Lanes {
        let base = self.get(location.base);
        std::array::from_fn(|lane| match self.active[lane] {
            true => self.load_lane(location, word, base[lane]),
            false => 0,
        })
    }

    fn load_lane(&self, location: &Location, word: usize, base: u64) -> u64 {
        let address = address(location, word, base);
        let mut value = [0; 8];
        let memory = match location.space {
            Space::Argument => self.arguments,
            Space::Constant => &self.program.constants,
            Space::Shared => &*self.shared,
            Space::Global => {
                let pointer: *const u8 = std::ptr::with_exposed_provenance(address);
                // SAFETY: the caller of `run` guarantees the addresses in the arguments, and the kernels stay
                // within the arrays.
                unsafe { pointer.copy_to_nonoverlapping(value.as_mut_ptr(), location.bytes) };
                return u64::from_le_bytes(value);
            }
        };
        value[..location.bytes].copy_from_slice(&memory[address..address + location.bytes]);
        u64::from_le_bytes(value)
    }

    fn store(&mut self, location: &Location, word: usize, values: Lanes) {
        let active = self.active;
        for lane in (0..LANES).filter(|lane| active[*lane]) {
            self.store_lane(location, word, lane, values[lane]);
        }
    }

    fn store_lane(&mut self, location: &Location, word: usize, lane: usize, value: u64) {
        let address = address(location, word, self.get(location.base)[lane]);
        let value = value.to_le_bytes();
        match location.space {
            Space::Shared => {
                self.shared[address..address + location.bytes].copy_from_slice(&value[..location.bytes])
            }
            Space::Global => {
                let pointer: *mut u8 = std::ptr::with_exposed_provenance_mut(address);
                // SAFETY: the caller of `run` guarantees the addresses, as for loads.
                unsafe { pointer.copy_from_nonoverlapping(value.as_ptr(), location.bytes) };
            }
            Space::Argument | Space::Constant => panic!("a store to {:?}", location.space),
        }
    }
}

fn map_lanes([a, b, c]: [Lanes; 3], function: impl Fn([u64; 3]) -> u64) -> Lanes {
    std::array::from_fn(|lane| function([a[lane], b[lane], c[lane]]))
}

/// The address of a word. Fails for unaligned addresses, which a device refuses.
fn address(location: &Location, word: usize, base: u64) -> usize {
    let address = base.wrapping_add(location.offset) as usize + word * location.bytes;
    assert!(
        address.is_multiple_of(location.bytes),
        "{location:?}: unaligned address {address:#x}"
    );
    address
}

/// The lane from which `lane` reads in a shuffle, and whether the read lane is within the segment: PTX ISA, `shfl.sync`.
fn shuffle_source(mode: ShuffleMode, lane: usize, by: usize, bounds: usize) -> (usize, bool) {
    let (by, clamp, segment) = (by & 31, bounds & 31, (bounds >> 8) & 31);
    let last = (lane & segment) | (clamp & !segment);
    let (from, is_inside) = match mode {
        ShuffleMode::Up => (lane.wrapping_sub(by), lane >= by + last),
        ShuffleMode::Across => (lane ^ by, lane ^ by <= last),
        ShuffleMode::Down => (lane + by, lane + by <= last),
        ShuffleMode::From => {
            let from = (lane & segment) | (by & !segment);
            (from, from <= last)
        }
    };
    if is_inside { (from, true) } else { (lane, false) }
}
