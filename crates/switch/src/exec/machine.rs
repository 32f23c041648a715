//! Interpreter of operations.

use smallvec::SmallVec;
use std::hint::black_box;
use std::sync::MutexGuard;

use super::alu::{alu64, alu128, bounds, clamp128, test64, test128};
use super::bits::{
    load1, load2, load4, load8, load16, mask64, mask128, read64, sign_extend64, sign_extend128, store1,
    store2, store4, store8, store16,
};
use super::context::{Context, Fault, Scratch};
use super::environment::{Environment, RandomSource};
use super::field_access::{copy_arg, read_wide, set, set_optional};
use crate::executable::number::low64;
use crate::executable::op::{Op, PacketRequest, Pc};
use crate::externs::Registers;
use crate::layout::FieldLayout;
use crate::meter::MeterKind;
use crate::program::MeterUnit;
use crate::program::ids::{CounterId, MeterId, RegisterId};

/// Maximum number of [`Op::Fuel`] operations of a packet in parser and ingress together, in egress, or in the deparser.
/// Programs need fewer.
pub const FUEL: u32 = 1_000_000;

/// Execution of operations for one packet.
pub struct Machine<'a> {
    pub(super) environment: &'a Environment<'a>,
    pub(super) context: &'a mut Context,
    pub(super) scratch: &'a mut Scratch,
    /// Bytes of the packet; the payload starts after the parsed bytes.
    pub(super) packet: &'a [u8],
    /// Arguments of the current action, encoded as [`layout_args`](crate::executable::layout_args) defines.
    pub(super) args: &'a [u8],
    /// Offset and length of each argument in `args`.
    pub(super) arg_layout: &'a [(u32, u32)],
    pub(super) locked_registers: SmallVec<[(RegisterId, MutexGuard<'a, Registers>); 4]>,
    pub(super) random: &'a mut dyn RandomSource,
    return_pc: Pc,
    fuel: u32,
}

impl<'a> Machine<'a> {
    /// Creates a machine for one packet.
    pub fn new(
        environment: &'a Environment<'a>,
        context: &'a mut Context,
        scratch: &'a mut Scratch,
        packet: &'a [u8],
        random: &'a mut dyn RandomSource,
    ) -> Self {
        Self {
            environment,
            context,
            scratch,
            packet,
            args: &[],
            arg_layout: &[],
            locked_registers: SmallVec::new(),
            random,
            return_pc: 0,
            fuel: FUEL,
        }
    }

    /// Bytes after the parsed headers.
    pub(super) fn payload(&self) -> &'a [u8] {
        self.packet.get(self.context.parsed..).unwrap_or(&[])
    }

    /// Parses the packet and verifies its checksums.
    pub fn parse(&mut self) {
        let executable = self.environment.executable;
        self.context.parser_error = self.environment.errors.none;
        self.context.checksum_error = false;
        self.context.parsed = 0;
        self.run(executable.parser);
        // As in BMv2, a parser without states verifies no checksum.
        if executable.program.parser.init.is_some() {
            self.run(executable.verify);
        }
    }

    /// Stores the parser and checksum errors in the standard metadata.
    pub fn store_parser_errors(&mut self) {
        let standard = &self.environment.executable.standard_metadata;
        let Context {
            arena,
            parser_error,
            checksum_error,
            ..
        } = &mut *self.context;
        set_optional(arena, standard.parser_error, u64::from(*parser_error));
        set_optional(arena, standard.checksum_error, u64::from(*checksum_error));
    }

    /// Whether processing ends: exit, or a fault.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.context.exit || self.context.fault.is_some()
    }

    /// Executes operations from `start` to the end.
    pub fn run(&mut self, start: Pc) {
        let mut pc = start as usize;
        let executable = self.environment.executable;
        let code = executable.code.as_slice();
        while let Some(op) = code.get(pc) {
            pc += 1;
            match *op {
                Op::Const { r, value } => self.scratch.set_r(r, value),
                Op::Load1 { r, at } => self.scratch.set_r(r, u64::from(load1(&self.context.arena, at))),
                Op::Load2 { r, at } => self.scratch.set_r(r, u64::from(load2(&self.context.arena, at))),
                Op::Load4 { r, at } => self.scratch.set_r(r, u64::from(load4(&self.context.arena, at))),
                Op::Load8 { r, at } => self.scratch.set_r(r, load8(&self.context.arena, at)),
                Op::Load { r, at, shift, bits } => {
                    let value = (load8(&self.context.arena, at) >> shift) & mask64(bits);
                    self.scratch.set_r(r, value);
                }
                Op::Store1 { r, at } => {
                    let value = self.scratch.r(r);
                    store1(&mut self.context.arena, at, value as u8);
                }
                Op::Store2 { r, at } => {
                    let value = self.scratch.r(r);
                    store2(&mut self.context.arena, at, value as u16);
                }
                Op::Store4 { r, at } => {
                    let value = self.scratch.r(r);
                    store4(&mut self.context.arena, at, value as u32);
                }
                Op::Store8 { r, at, bits } => {
                    let value = self.scratch.r(r) & mask64(bits);
                    store8(&mut self.context.arena, at, value);
                }
                Op::Store { r, at, shift, bits } => {
                    let mask = mask64(bits);
                    let other_bits = load8(&self.context.arena, at) & !(mask << shift);
                    let value = (self.scratch.r(r) & mask) << shift;
                    store8(&mut self.context.arena, at, other_bits | value);
                }
                Op::Copy { from, to, bytes } => {
                    let from = from as usize;
                    let arena = &mut self.context.arena;
                    // Both ranges are within the arena by construction.
                    if from + bytes as usize <= arena.len() && (to as usize + bytes as usize) <= arena.len() {
                        arena.copy_within(from..from + bytes as usize, to as usize);
                    }
                }
                Op::Alu { op, r, a, b } => {
                    let value = alu64(op, self.scratch.r(a), self.scratch.r(b));
                    self.scratch.set_r(r, value);
                }
                Op::AluConst { op, r, a, value } => {
                    let value = alu64(op, self.scratch.r(a), value);
                    self.scratch.set_r(r, value);
                }
                Op::AddMasked { r, a, bits, value } => {
                    let sum = self.scratch.r(a).wrapping_add(value) & mask64(bits);
                    self.scratch.set_r(r, sum);
                }
                Op::AddToByte { at, value } => {
                    let sum = load1(&self.context.arena, at).wrapping_add(value);
                    store1(&mut self.context.arena, at, sum);
                }
                Op::Not { r, a } => self.scratch.set_r(r, !self.scratch.r(a)),
                Op::Move { r, a } => self.scratch.set_r(r, self.scratch.r(a)),
                Op::SignExtend { r, bits } => {
                    let value = sign_extend64(self.scratch.r(r), bits);
                    self.scratch.set_r(r, value);
                }
                Op::Arg { r, at } => self.scratch.set_r(r, load8(self.args, at)),
                Op::StoreArg { arg, at, bits } => {
                    let value = load8(self.args, arg) & mask64(bits);
                    store8(&mut self.context.arena, at, value);
                }
                Op::CopyArg { arg, at, bytes } => {
                    copy_arg(self.args, arg, &mut self.context.arena, at, bytes)
                }
                Op::Jump { to } => pc = to as usize,
                Op::Branch { test, a, b, to } => {
                    if test64(test, self.scratch.r(a), self.scratch.r(b)) {
                        pc = branch_target(to);
                    }
                }
                Op::BranchEq { a, to, value } => {
                    if self.scratch.r(a) == value {
                        pc = branch_target(to);
                    }
                }
                Op::BranchNe { a, to, value } => {
                    if self.scratch.r(a) != value {
                        pc = branch_target(to);
                    }
                }
                Op::BranchMasked { a, to, pair } => {
                    let (value, mask) = executable
                        .side_tables
                        .pairs
                        .get(pair as usize)
                        .copied()
                        .unwrap_or_default();
                    if self.scratch.r(a) & mask == value {
                        pc = branch_target(to);
                    }
                }
                Op::BranchByte {
                    at,
                    mask,
                    low,
                    high,
                    inside,
                    to,
                } => {
                    let difference = (load1(&self.context.arena, at) & mask).wrapping_sub(low);
                    if (difference <= high.wrapping_sub(low)) == inside {
                        pc = branch_target(to);
                    }
                }
                Op::BranchPair {
                    at,
                    mask,
                    low,
                    high,
                    inside,
                    to,
                } => {
                    let difference = (load2(&self.context.arena, at) & mask).wrapping_sub(low);
                    if (difference <= high.wrapping_sub(low)) == inside {
                        pc = branch_target(to);
                    }
                }
                Op::BranchValid { at, valid, to } => {
                    if (load1(&self.context.arena, at) != 0) == valid {
                        pc = branch_target(to);
                    }
                }
                Op::Extract { header } => {
                    if !self.extract(header) {
                        return;
                    }
                }
                Op::Peek {
                    r,
                    offset,
                    bits,
                    strict,
                } => {
                    let bytes = (offset as usize + usize::from(bits)).div_ceil(8);
                    if strict && self.payload().len() < bytes {
                        return self.set_parser_error(self.environment.errors.packet_too_short);
                    }
                    let value = read64(self.payload(), offset as usize, usize::from(bits));
                    self.scratch.set_r(r, value);
                }
                Op::Skip { bytes } => {
                    if self.payload().len() < bytes as usize {
                        return self.set_parser_error(self.environment.errors.packet_too_short);
                    }
                    self.context.parsed += bytes as usize;
                }
                Op::Apply { table } => pc = self.apply(table) as usize,
                Op::Return => {
                    self.locked_registers.clear();
                    if self.has_ended() {
                        return;
                    }
                    pc = self.return_pc as usize;
                }
                Op::Call { action, then } => {
                    self.return_pc = then;
                    self.args = &[];
                    pc = action as usize;
                }
                Op::End => return,
                Op::Fuel => {
                    if self.fuel == 0 {
                        self.context.fault = Some(Fault::FuelExhausted);
                        self.locked_registers.clear();
                        return;
                    }
                    self.fuel -= 1;
                }
                _ => match self.execute_rare(op) {
                    Flow::Continue if self.context.fault.is_some() => {
                        self.locked_registers.clear();
                        return;
                    }
                    Flow::Continue => {}
                    Flow::Jump(to) => pc = to as usize,
                    Flow::Stop => return,
                },
            }
        }
    }

    /// Executes operations that are too rare for the hot loop.
    fn execute_rare(&mut self, op: &'a Op) -> Flow {
        let side = &self.environment.executable.side_tables;
        match *op {
            Op::WideLoad { w, at, shift, bits } => {
                let value = (load16(&self.context.arena, at) >> shift) & mask128(bits);
                self.scratch.set_w(w, value);
            }
            Op::WideStore { w, at, shift, bits } => {
                let mask = mask128(bits);
                let other_bits = load16(&self.context.arena, at) & !(mask << shift);
                let value = (self.scratch.w(w) & mask) << shift;
                store16(&mut self.context.arena, at, other_bits | value);
            }
            Op::Fill { at, constant } => {
                if let Some(bytes) = side.bytes.get(constant as usize)
                    && let Some(target) = self.context.arena.get_mut(at as usize..at as usize + bytes.len())
                {
                    target.copy_from_slice(bytes);
                }
            }
            Op::WideArg { w, at, bytes } => {
                let argument = self
                    .args
                    .get(at as usize..at as usize + usize::from(bytes))
                    .unwrap_or(&[]);
                let value = argument
                    .iter()
                    .fold(0u128, |value, byte| (value << 8) | u128::from(*byte));
                self.scratch.set_w(w, value);
            }
            Op::Clamp {
                r,
                signed,
                bits,
                to_signed,
            } => {
                let value = self.scratch.r(r);
                let wide = if signed {
                    i128::from(value as i64)
                } else {
                    i128::from(value)
                };
                let (low, high) = bounds(bits, to_signed);
                self.scratch.set_r(r, wide.clamp(low, high) as u64);
            }
            Op::WideAlu { op, w, a, b } => {
                let value = alu128(op, self.scratch.w(a), self.scratch.w(b));
                self.scratch.set_w(w, value);
            }
            Op::WideConst { w, constant } => {
                let value = side.wide.get(constant as usize).copied().unwrap_or(0);
                self.scratch.set_w(w, value);
            }
            Op::WideNot { w, a } => self.scratch.set_w(w, !self.scratch.w(a)),
            Op::WideMove { w, a } => self.scratch.set_w(w, self.scratch.w(a)),
            Op::WideSignExtend { w, bits } => {
                let value = sign_extend128(self.scratch.w(w), bits);
                self.scratch.set_w(w, value);
            }
            Op::WideClamp {
                w,
                signed,
                bits,
                to_signed,
            } => {
                let value = clamp128(self.scratch.w(w), signed, bits, to_signed);
                self.scratch.set_w(w, value);
            }
            Op::Widen { w, a, signed } => {
                let value = self.scratch.r(a);
                self.scratch.set_w(
                    w,
                    if signed {
                        value as i64 as u128
                    } else {
                        u128::from(value)
                    },
                );
            }
            Op::Narrow { r, a } => self.scratch.set_r(r, self.scratch.w(a) as u64),
            Op::WideBranch { test, a, b, to } => {
                let holds = test128(test, self.scratch.w(a), self.scratch.w(b));
                return if holds { Flow::Jump(to) } else { Flow::Continue };
            }
            Op::BranchTree {
                condition,
                expected,
                to,
            } => {
                if let Some(condition) = side.conditions.get(condition as usize)
                    && self.condition(condition) == expected
                {
                    return Flow::Jump(to);
                }
            }
            Op::Tree { r, expression } => {
                if let Some(expression) = side.expressions.get(expression as usize) {
                    let value = self.data(expression);
                    self.scratch.set_r(r, low64(&value));
                }
            }
            Op::Statement { statement } => {
                if let Some(statement) = side.statements.get(statement as usize) {
                    self.statement(statement);
                }
                return self.check_assertion();
            }
            Op::ParserTree { op } => {
                if let Some(op) = side.parser_ops.get(op as usize)
                    && let Err(error) = self.parser_op(op)
                {
                    self.set_parser_error(error);
                    return Flow::Stop;
                }
                return self.check_assertion();
            }
            Op::Select { state } => {
                let to = self.select(state);
                return Flow::Jump(to);
            }
            Op::AddHeader { header } => self.add_header(header),
            Op::RemoveHeader { header } => self.remove_header(header),
            Op::MarkToDrop { spec } => self.mark_to_drop(crate::program::ids::HeaderId(spec)),
            Op::Exit => self.context.exit = true,
            Op::Lock { set } => self.lock(set),
            Op::RegisterRead {
                r,
                index,
                lock_index,
                missing,
            } => {
                let array = self.locked_registers.get(usize::from(lock_index));
                match array.and_then(|(_, array)| array.narrow(self.scratch.r(index))) {
                    Some(value) => self.scratch.set_r(r, value),
                    None => return Flow::Jump(missing),
                }
            }
            Op::RegisterWrite { r, index, lock_index } => {
                let (index, value) = (self.scratch.r(index), self.scratch.r(r));
                if let Some((_, array)) = self.locked_registers.get_mut(usize::from(lock_index)) {
                    array.set_narrow(index, value);
                }
            }
            Op::CellRead {
                index,
                lock_index,
                bit,
                bits,
            } => {
                if let Some((_, array)) = self.locked_registers.get(usize::from(lock_index)) {
                    let (index, bit, bits) = (self.scratch.r(index), bit as usize, bits as usize);
                    read_wide(array, index, &mut self.context.arena, bit, bits);
                }
            }
            Op::Count { counter, index } => {
                if let Some(counter) = self
                    .environment
                    .externs
                    .counter(CounterId(counter), self.scratch.r(index))
                {
                    counter.count(self.context.ingress_length);
                }
            }
            Op::Meter {
                r,
                index,
                meter,
                missing,
            } => {
                let index = self.scratch.r(index);
                match self.meter(MeterId(u32::from(meter)), index) {
                    Some(color) => self.scratch.set_r(r, color),
                    None => return Flow::Jump(missing),
                }
            }
            Op::Hash { r, calculation } => {
                let value = self.hash(calculation as usize);
                self.scratch.set_r(r, value);
            }
            Op::Random {
                r,
                low,
                high,
                missing,
            } => {
                let (low, high) = (self.scratch.r(low), self.scratch.r(high));
                if low > high {
                    return Flow::Jump(missing);
                }
                let value = self.random.between(low, high);
                self.scratch.set_r(r, value);
            }
            Op::Verify { checksum } => self.verify(checksum),
            Op::Update { checksum } => self.update(checksum),
            Op::Request {
                request,
                value: r,
                second: b,
            } => {
                let (value, second) = (self.scratch.r(r), self.scratch.r(b));
                self.request(request, value, second);
                return self.check_assertion();
            }
            _ => {}
        }
        Flow::Continue
    }

    /// Returns [`Flow::Stop`] after a fault, such as a failed assertion.
    fn check_assertion(&self) -> Flow {
        if self.context.fault.is_some() {
            Flow::Stop
        } else {
            Flow::Continue
        }
    }

    /// Stores a request. As in simple_switch, clone sessions, field lists and digest ids are truncated to 16 bits.
    pub(super) fn request(&mut self, packet_request: PacketRequest, value: u64, second: u64) {
        let requests = &mut self.context.requests;
        match packet_request {
            // In simple_switch, the top bit only indicates that the session is set. The session id has 15 bits.
            PacketRequest::Clone => requests.clone = Some((value as u16 & 0x7fff, second as u16)),
            PacketRequest::Resubmit => requests.resubmit = value as u16,
            PacketRequest::Recirculate => requests.recirculate = value as u16,
            PacketRequest::Digest => requests.digest = value as u16,
            PacketRequest::Truncate => {
                let bytes = usize::try_from(value).unwrap_or(usize::MAX);
                self.context.bytes_max = self.context.bytes_max.min(bytes);
            }
            PacketRequest::Assert => {
                if value == 0 {
                    self.context.fault = Some(Fault::Assertion);
                }
            }
        }
    }

    fn lock(&mut self, set: u32) {
        let externs = self.environment.externs;
        if let Some(set) = self.environment.executable.side_tables.locks.get(set as usize) {
            for id in set {
                if let Some(array) = externs.registers(*id) {
                    self.locked_registers.push((*id, array));
                }
            }
        }
    }

    /// Executes a meter; returns the color, or `None` if the meter does not exist.
    pub(super) fn meter(&mut self, id: MeterId, index: u64) -> Option<u64> {
        let kind = self.meter_kind(id);
        let mut meter = self.environment.externs.meter(id, index)?;
        let color = meter.execute(
            kind,
            self.environment.now_us,
            self.context.ingress_length,
            crate::meter::Color::Green,
        );
        Some(u64::from(color.value()))
    }

    pub(super) fn meter_kind(&self, id: MeterId) -> MeterKind {
        match self
            .environment
            .executable
            .program
            .meters
            .get(id.index())
            .map(|array| array.unit)
        {
            Some(MeterUnit::Bytes) => MeterKind::Bytes,
            _ => MeterKind::Packets,
        }
    }

    pub(super) fn set_parser_error(&mut self, error: u32) {
        self.context.parser_error = error;
    }

    /// Extracts a header of fixed size; false if the packet is too short.
    fn extract(&mut self, header: u32) -> bool {
        let Some(layout) = self.environment.executable.layout.headers.get(header as usize) else {
            return true;
        };
        let from = self.context.parsed;
        let Some(bytes) = self.packet.get(from..from + layout.bytes as usize) else {
            self.set_parser_error(self.environment.errors.packet_too_short);
            return false;
        };
        let start = layout.start as usize;
        if let Some(target) = self.context.arena.get_mut(start..start + bytes.len()) {
            target.copy_from_slice(bytes);
        }
        store1(&mut self.context.arena, layout.valid, 1);
        self.context.parsed += bytes.len();
        true
    }

    fn add_header(&mut self, header: u32) {
        let Some(layout) = self.environment.executable.layout.headers.get(header as usize) else {
            return;
        };
        if load1(&self.context.arena, layout.valid) != 0 {
            return;
        }
        let range = layout.start as usize..(layout.start + layout.bytes) as usize;
        if let Some(bytes) = self.context.arena.get_mut(range) {
            bytes.fill(0);
        }
        store1(&mut self.context.arena, layout.valid, 1);
        self.context.length += i64::from(layout.bytes);
    }

    fn remove_header(&mut self, header: u32) {
        let Some(layout) = self.environment.executable.layout.headers.get(header as usize) else {
            return;
        };
        if load1(&self.context.arena, layout.valid) != 0 {
            store1(&mut self.context.arena, layout.valid, 0);
            self.context.length -= i64::from(layout.bytes);
        }
    }

    /// Stores a value of at most 64 bits in a field.
    pub fn store_field(&mut self, field: FieldLayout, value: u64) {
        set(&mut self.context.arena, field, value);
    }

    /// Sets the return position and the arguments of an action call.
    pub(super) fn call(&mut self, return_pc: Pc, args: &'a [u8], arg_layout: &'a [(u32, u32)]) {
        self.return_pc = return_pc;
        self.args = args;
        self.arg_layout = arg_layout;
    }
}

/// Returns the target of a taken branch.
///
/// Without `black_box` the compiler would use a conditional move, so all later operations would wait for the compared
/// bytes. A branch is predicted and avoids this wait, which is a tenth of the cost of routing a packet.
#[inline(always)]
fn branch_target(to: Pc) -> usize {
    black_box(to as usize)
}

enum Flow {
    Continue,
    Jump(Pc),
    Stop,
}
