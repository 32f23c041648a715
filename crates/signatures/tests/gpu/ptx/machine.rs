//! Interprets PTX as a warp: 32 lanes, each at its own instruction after divergent branches. Among waiting lanes,
//! those furthest behind continue, so that lanes reconverge; an exchange without all lanes fails the test.

use super::program::{
    BLOCK, CARRY, CarryOperation, Instruction, Operand, Place, Program, ShuffleMode, Space, THREAD,
};

const LANES: usize = 32;
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
            // Shared memory has arbitrary content of earlier kernels.
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
    /// The active lanes.
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
            let mut at = *self.next.iter().min().unwrap();
            if at >= end {
                return;
            }
            self.active = self.next.map(|next| next == at);
            self.all_active = self.active == [true; LANES];
            // Continues until an instruction at which another lane waits, or a branch.
            let meeting = self
                .next
                .iter()
                .copied()
                .filter(|next| *next > at)
                .min()
                .unwrap_or(end);
            loop {
                if let Some(next) = self.step(at) {
                    for lane in (0..LANES).filter(|lane| self.active[*lane]) {
                        self.next[lane] = next[lane];
                    }
                    break;
                }
                at += 1;
                if at == meeting {
                    for lane in (0..LANES).filter(|lane| self.active[*lane]) {
                        self.next[lane] = at;
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
        for ((place, value), active) in self.registers[register].iter_mut().zip(values).zip(active) {
            *place = if active { value } else { *place };
        }
    }

    /// Executes one instruction for the active lanes; for a branch, returns the next instruction of each lane.
    fn step(&mut self, at: usize) -> Option<[usize; LANES]> {
        let program = self.program;
        match &program.instructions[at] {
            Instruction::Chain {
                sum,
                takes,
                leaves,
                to,
                from,
            } => self.chain(*sum, *takes, *leaves, *to, *from),
            Instruction::Value { function, to, from } => {
                let [a, b, c] = from.map(|operand| self.get(operand));
                self.set(
                    *to,
                    std::array::from_fn(|lane| function([a[lane], b[lane], c[lane]])),
                );
            }
            Instruction::Load { to, place } => {
                for (word, register) in to.iter().enumerate() {
                    let values = self.load(place, word);
                    self.set(*register, values);
                }
            }
            Instruction::Store { place, from } => {
                for (word, operand) in from.iter().enumerate() {
                    self.store(place, word, self.get(*operand));
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
                return Some(taken.map(|taken| if taken { *target } else { at + 1 }));
            }
            Instruction::Return => return Some([usize::MAX; LANES]),
            Instruction::Synchronize => self.all_are_here(at),
            Instruction::Shuffle {
                mode,
                to,
                inside,
                value,
                by,
                bounds,
            } => {
                self.all_are_here(at);
                let [value, by, bounds] = [value, by, bounds].map(|operand| self.get(*operand));
                let from: [(usize, bool); LANES] =
                    std::array::from_fn(|lane| source(*mode, lane, by[lane] as usize, bounds[lane] as usize));
                self.set(*to, from.map(|(lane, _)| value[lane]));
                self.set(*inside, from.map(|(_, inside)| u64::from(inside)));
            }
            Instruction::Ballot { to, from } => {
                self.all_are_here(at);
                let bits = self.registers[*from]
                    .iter()
                    .rev()
                    .fold(0, |bits, bit| (bits << 1) | bit);
                self.set(*to, [bits; LANES]);
            }
            Instruction::Exchange { to, place, value } => {
                let (value, active) = (self.get(*value), self.active);
                for lane in (0..LANES).filter(|lane| active[*lane]) {
                    let before = self.load(place, 0)[lane];
                    self.store_lane(place, 0, lane, value[lane]);
                    self.registers[*to][lane] = before;
                }
            }
        }
        None
    }

    fn all_are_here(&self, at: usize) {
        assert!(
            self.active == [true; LANES],
            "exchange at {at} without all lanes: {:?}",
            self.active
        );
    }

    fn chain(&mut self, sum: CarryOperation, takes: bool, leaves: bool, to: usize, from: [Operand; 3]) {
        let [a, b, c] = from.map(|operand| self.get(operand).map(|value| value & LOW));
        let carry = if takes { self.registers[CARRY] } else { [0; LANES] };
        // A borrow makes the difference negative: bit 32 is then the borrow.
        let mut wide = match sum {
            CarryOperation::Add => each([a, b, c], |[a, b, _]| a + b),
            CarryOperation::Subtract => each([a, b, c], |[a, b, _]| a.wrapping_sub(b)),
            CarryOperation::MultiplyLow => each([a, b, c], |[a, b, c]| ((a * b) & LOW) + c),
            CarryOperation::MultiplyHigh => each([a, b, c], |[a, b, c]| ((a * b) >> 32) + c),
        };
        for (wide, carry) in wide.iter_mut().zip(carry) {
            *wide = if sum == CarryOperation::Subtract {
                wide.wrapping_sub(carry)
            } else {
                *wide + carry
            };
        }
        self.set(to, wide.map(|wide| wide & LOW));
        if leaves {
            self.set(CARRY, wide.map(|wide| (wide >> 32) & 1));
        }
    }

    fn load(&self, place: &Place, word: usize) -> Lanes {
        let base = self.get(place.base);
        std::array::from_fn(|lane| match self.active[lane] {
            true => self.load_lane(place, word, base[lane]),
            false => 0,
        })
    }

    fn load_lane(&self, place: &Place, word: usize, base: u64) -> u64 {
        let address = address(place, word, base);
        let mut value = [0; 8];
        let memory = match place.space {
            Space::Argument => self.arguments,
            Space::Constant => &self.program.constants,
            Space::Shared => &*self.shared,
            Space::Global => {
                let pointer: *const u8 = std::ptr::with_exposed_provenance(address);
                // SAFETY: the caller of `run` guarantees the addresses in the arguments, and the kernels stay
                // within the arrays.
                unsafe { pointer.copy_to_nonoverlapping(value.as_mut_ptr(), place.bytes) };
                return u64::from_le_bytes(value);
            }
        };
        value[..place.bytes].copy_from_slice(&memory[address..address + place.bytes]);
        u64::from_le_bytes(value)
    }

    fn store(&mut self, place: &Place, word: usize, values: Lanes) {
        let active = self.active;
        for lane in (0..LANES).filter(|lane| active[*lane]) {
            self.store_lane(place, word, lane, values[lane]);
        }
    }

    fn store_lane(&mut self, place: &Place, word: usize, lane: usize, value: u64) {
        let address = address(place, word, self.get(place.base)[lane]);
        let value = value.to_le_bytes();
        match place.space {
            Space::Shared => {
                self.shared[address..address + place.bytes].copy_from_slice(&value[..place.bytes])
            }
            Space::Global => {
                let pointer: *mut u8 = std::ptr::with_exposed_provenance_mut(address);
                // SAFETY: as for loads.
                unsafe { pointer.copy_from_nonoverlapping(value.as_ptr(), place.bytes) };
            }
            Space::Argument | Space::Constant => panic!("a store to {:?}", place.space),
        }
    }
}

fn each([a, b, c]: [Lanes; 3], function: impl Fn([u64; 3]) -> u64) -> Lanes {
    std::array::from_fn(|lane| function([a[lane], b[lane], c[lane]]))
}

/// A device refuses unaligned addresses.
fn address(place: &Place, word: usize, base: u64) -> usize {
    let address = base.wrapping_add(place.offset) as usize + word * place.bytes;
    assert!(
        address.is_multiple_of(place.bytes),
        "{place:?}: unaligned address {address:#x}"
    );
    address
}

/// The lane that a shuffle reads, and whether it is within the segment: PTX ISA, `shfl.sync`.
fn source(mode: ShuffleMode, lane: usize, by: usize, bounds: usize) -> (usize, bool) {
    let (by, clamp, segment) = (by & 31, bounds & 31, (bounds >> 8) & 31);
    let last = (lane & segment) | (clamp & !segment);
    let (from, inside) = match mode {
        ShuffleMode::Up => (lane.wrapping_sub(by), lane >= by + last),
        ShuffleMode::Across => (lane ^ by, lane ^ by <= last),
        ShuffleMode::Down => (lane + by, lane + by <= last),
        ShuffleMode::From => {
            let from = (lane & segment) | (by & !segment);
            (from, from <= last)
        }
    };
    if inside { (from, true) } else { (lane, false) }
}
