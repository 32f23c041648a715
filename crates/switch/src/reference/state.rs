//! State of a packet during processing: headers, stacks and requests.

use num_bigint::{BigInt, BigUint};
use num_traits::Zero;

use super::STEPS_MAX;
use super::number::{self, Bits};
use crate::program::ids::{FieldRef, HeaderId, StackId, UnionId, UnionStackId};
use crate::program::{Field, Program};

/// Header of a packet.
#[derive(Clone, Debug)]
struct Header {
    valid: bool,
    /// Values of the fields; the last value is `$valid$`.
    fields: Vec<BigInt>,
    /// Current width of the variable-length field, if any, bits.
    variable_bits: u32,
}

/// Headers of a packet.
///
/// A header that may not exist is an `Option`: for `None`, reads give 0 and writes are ignored.
#[derive(Clone)]
pub struct Headers<'p> {
    program: &'p Program,
    headers: Vec<Header>,
    /// Current number of elements of each stack.
    stacks: Vec<usize>,
    union_stacks: Vec<usize>,
}

impl<'p> Headers<'p> {
    /// Creates the headers of a new packet.
    pub fn new(program: &'p Program) -> Self {
        let headers = (0u32..)
            .zip(&program.headers)
            .map(|(id, _)| Header {
                valid: false,
                fields: vec![BigInt::zero(); field_count(program, HeaderId(id)) + 1],
                variable_bits: 0,
            })
            .collect();
        Self {
            program,
            headers,
            stacks: vec![0; program.stacks.len()],
            union_stacks: vec![0; program.union_stacks.len()],
        }
    }

    fn header(&self, header: HeaderId) -> Option<&Header> {
        self.headers.get(header.index())
    }

    /// Declaration of a field; `None` for `$valid$`.
    pub fn declaration(&self, field: FieldRef) -> Option<&'p Field> {
        self.program.field(field)
    }

    fn metadata(&self, header: HeaderId) -> bool {
        let definition = self.program.headers.get(header.index());
        definition.is_some_and(|header| header.metadata)
    }

    /// Whether a header is valid; metadata is always valid.
    pub fn is_valid(&self, header: Option<HeaderId>) -> bool {
        header.is_some_and(|id| self.metadata(id) || self.header(id).is_some_and(|header| header.valid))
    }

    /// Current width of a field, bits.
    pub fn bits(&self, field: FieldRef) -> u32 {
        match self.declaration(field) {
            Some(declaration) if declaration.variable => {
                self.header(field.header).map_or(0, |header| header.variable_bits)
            }
            Some(declaration) => declaration.bits,
            None => 1,
        }
    }

    /// Value of a field.
    pub fn read(&self, header: Option<HeaderId>, field: u32) -> BigInt {
        let header = header.and_then(|id| self.header(id));
        let value = header.and_then(|header| header.fields.get(field as usize));
        value.cloned().unwrap_or_default()
    }

    /// Value of a field.
    pub fn field(&self, field: FieldRef) -> BigInt {
        self.read(Some(field.header), field.field)
    }

    /// Value of a field as unsigned bits.
    pub fn raw(&self, field: FieldRef) -> BigUint {
        number::low_bits(&self.field(field), self.bits(field))
    }

    /// Value of a field in whole bytes.
    pub fn bytes(&self, field: FieldRef) -> Vec<u8> {
        number::to_bytes(&self.raw(field), self.bits(field))
    }

    /// Stores a value, wrapped or saturated as the field requires.
    pub fn write(&mut self, header: Option<HeaderId>, field: u32, value: &BigInt) {
        let Some(header) = header else { return };
        let field = FieldRef { header, field };
        let bits = self.bits(field);
        let (signed, saturating) = self
            .declaration(field)
            .map_or((false, false), |field| (field.signed, field.saturating));
        let value = if saturating {
            let (low, high) = number::range(bits, signed);
            number::clamp(value, low, high)
        } else if signed {
            number::wrap_signed(value, bits)
        } else {
            BigInt::from(number::low_bits(value, bits))
        };
        self.put(field, value);
    }

    /// Same as [`Self::write`] for a field reference.
    pub fn set(&mut self, field: FieldRef, value: &BigInt) {
        self.write(Some(field.header), field.field, value);
    }

    /// Stores bits from a packet.
    pub fn load(&mut self, field: FieldRef, raw: &BigInt) {
        let signed = self.declaration(field).is_some_and(|field| field.signed);
        let value = if signed {
            number::wrap_signed(raw, self.bits(field))
        } else {
            raw.clone()
        };
        self.put(field, value);
    }

    fn put(&mut self, field: FieldRef, value: BigInt) {
        let header = self.headers.get_mut(field.header.index());
        if let Some(stored_value) = header.and_then(|header| header.fields.get_mut(field.field as usize)) {
            *stored_value = value;
        }
    }

    fn set_valid(&mut self, header: HeaderId, valid: bool) {
        if let Some(state) = self.headers.get_mut(header.index()) {
            state.valid = valid;
            if let Some(hidden) = state.fields.last_mut() {
                *hidden = BigInt::from(u8::from(valid));
            }
        }
    }

    /// Makes a header valid and the other members of its union invalid.
    pub fn mark_valid(&mut self, header: HeaderId) {
        let program = self.program;
        for union in program
            .unions
            .iter()
            .filter(|union| union.headers.contains(&header))
        {
            for member in union.headers.iter().filter(|member| **member != header) {
                if self.header(*member).is_some_and(|member| member.valid) {
                    self.set_valid(*member, false);
                }
            }
        }
        self.set_valid(header, true);
    }

    /// Makes a header invalid; its fields keep their values.
    pub fn mark_invalid(&mut self, header: HeaderId) {
        self.set_valid(header, false);
    }

    /// Sets all fields to 0; the width of a variable-length field stays.
    pub fn clear(&mut self, header: HeaderId) {
        if let Some(state) = self.headers.get_mut(header.index()) {
            state.fields.fill(BigInt::zero());
        }
    }

    /// Sets all metadata to 0.
    pub fn clear_metadata(&mut self) {
        for id in (0u32..).map(HeaderId).take(self.headers.len()) {
            if self.metadata(id) {
                self.clear(id);
            }
        }
    }

    /// Sets the width of the variable-length field, bits.
    pub fn set_variable_bits(&mut self, header: HeaderId, bits: u32) {
        if let Some(state) = self.headers.get_mut(header.index()) {
            state.variable_bits = bits;
        }
    }

    /// Fields of a header in order, without `$valid$`.
    pub fn fields(&self, header: HeaderId) -> impl Iterator<Item = FieldRef> + use<> {
        let count = field_count(self.program, header);
        (0u32..).take(count).map(move |field| FieldRef { header, field })
    }

    /// Appends the header in wire format.
    pub fn emit(&self, header: HeaderId, bits: &mut Bits) {
        for field in self.fields(header) {
            bits.push(&self.raw(field), self.bits(field));
        }
    }

    /// Length of a header in bytes.
    pub fn bytes_of(&self, header: HeaderId) -> u64 {
        let bits: u64 = self.fields(header).map(|field| u64::from(self.bits(field))).sum();
        bits / 8
    }

    /// Copies a variable-length field with its width.
    pub fn assign_variable(&mut self, to: Option<(HeaderId, u32)>, from: Option<(HeaderId, u32)>) {
        let Some((to, to_field)) = to else { return };
        let (bits, value) = match from {
            Some((header, field)) => (
                self.bits(FieldRef { header, field }),
                self.read(Some(header), field),
            ),
            None => (0, BigInt::zero()),
        };
        self.set_variable_bits(to, bits);
        self.write(Some(to), to_field, &value);
    }

    /// Copies a header including its validity; of an invalid header, copies only the validity.
    pub fn assign_header(&mut self, to: Option<HeaderId>, from: Option<HeaderId>) {
        let Some(to) = to else { return };
        let Some(from) = from.filter(|from| self.is_valid(Some(*from))) else {
            self.mark_invalid(to);
            return;
        };
        self.mark_valid(to);
        let hidden = field_count(self.program, to) as u32;
        for field in 0..=hidden {
            let declaration = self.declaration(FieldRef { header: to, field });
            if declaration.is_some_and(|field| field.variable) {
                self.assign_variable(Some((to, field)), Some((from, field)));
            } else {
                let value = self.read(Some(from), field);
                self.write(Some(to), field, &value);
            }
        }
    }

    fn members(&self, union: Option<UnionId>) -> &'p [HeaderId] {
        let program = self.program;
        let union = union.and_then(|union| program.unions.get(union.index()));
        union.map_or(&[][..], |union| &union.headers)
    }

    /// Index of the valid member of a union.
    pub fn valid_member(&self, union: Option<UnionId>) -> Option<usize> {
        let members = self.members(union);
        members
            .iter()
            .position(|member| self.header(*member).is_some_and(|header| header.valid))
    }

    /// Member of a union.
    pub fn member(&self, union: Option<UnionId>, member: u32) -> Option<HeaderId> {
        self.members(union).get(member as usize).copied()
    }

    /// Copies a union member by member.
    pub fn assign_union(&mut self, to: Option<UnionId>, from: Option<UnionId>) {
        for (index, to) in self.members(to).iter().enumerate() {
            let from = self.members(from).get(index).copied();
            self.assign_header(Some(*to), from);
        }
    }

    /// Whether two headers have the same type, are valid and equal. Widths of variable-length fields are not compared.
    pub fn header_eq(&self, left: Option<HeaderId>, right: Option<HeaderId>) -> bool {
        let (Some(left), Some(right)) = (left, right) else {
            return false;
        };
        let type_of = |header: HeaderId| {
            let header = self.program.headers.get(header.index());
            header.map(|header| header.header_type)
        };
        let fields = |header: HeaderId| self.header(header).map(|header| &header.fields);
        type_of(left) == type_of(right)
            && self.is_valid(Some(left))
            && self.is_valid(Some(right))
            && fields(left) == fields(right)
    }

    /// Whether two unions have the same valid member with equal values.
    pub fn union_eq(&self, left: Option<UnionId>, right: Option<UnionId>) -> bool {
        let (Some(first), Some(second)) = (self.valid_member(left), self.valid_member(right)) else {
            return false;
        };
        let member = |union, index| self.members(union).get(index).copied();
        first == second && self.header_eq(member(left, first), member(right, second))
    }

    fn swap(&mut self, left: HeaderId, right: HeaderId) {
        self.headers.swap(left.index(), right.index());
    }

    fn swap_unions(&mut self, left: UnionId, right: UnionId) {
        let (left, right) = (self.members(Some(left)), self.members(Some(right)));
        for (left, right) in left.iter().zip(right) {
            self.swap(*left, *right);
        }
    }
}

/// Header stacks.
impl<'p> Headers<'p> {
    /// Current number of elements.
    pub fn count(&self, stack: StackId) -> usize {
        self.stacks.get(stack.index()).copied().unwrap_or(0)
    }

    /// Current number of elements.
    pub fn union_count(&self, stack: UnionStackId) -> usize {
        self.union_stacks.get(stack.index()).copied().unwrap_or(0)
    }

    fn elements(&self, stack: StackId) -> &'p [HeaderId] {
        let program = self.program;
        let stack = program.stacks.get(stack.index());
        stack.map_or(&[][..], |stack| &stack.headers)
    }

    fn union_elements(&self, stack: UnionStackId) -> &'p [UnionId] {
        let program = self.program;
        let stack = program.union_stacks.get(stack.index());
        stack.map_or(&[][..], |stack| &stack.unions)
    }

    /// Element of a stack.
    pub fn element(&self, stack: StackId, index: usize) -> Option<HeaderId> {
        self.elements(stack).get(index).copied()
    }

    /// Element of a header union stack.
    pub fn union_element(&self, stack: UnionStackId, index: usize) -> Option<UnionId> {
        self.union_elements(stack).get(index).copied()
    }

    /// Last element.
    pub fn last(&self, stack: StackId) -> Option<HeaderId> {
        self.element(stack, self.count(stack).checked_sub(1)?)
    }

    /// Last element.
    pub fn union_last(&self, stack: UnionStackId) -> Option<UnionId> {
        self.union_element(stack, self.union_count(stack).checked_sub(1)?)
    }

    /// Counts an extracted element.
    pub fn grow(&mut self, stack: StackId) {
        if let Some(count) = self.stacks.get_mut(stack.index()) {
            *count += 1;
        }
    }

    /// Counts an extracted element.
    pub fn grow_unions(&mut self, stack: UnionStackId) {
        if let Some(count) = self.union_stacks.get_mut(stack.index()) {
            *count += 1;
        }
    }

    /// Copies a stack element by element.
    pub fn assign_stack(&mut self, to: StackId, from: StackId) {
        let count = self.count(from);
        if let Some(stack_count) = self.stacks.get_mut(to.index()) {
            *stack_count = count;
        }
        for (index, to) in self.elements(to).iter().enumerate() {
            let from = self.elements(from).get(index).copied();
            self.assign_header(Some(*to), from);
        }
    }

    /// Copies a header union stack element by element.
    pub fn assign_union_stack(&mut self, to: UnionStackId, from: UnionStackId) {
        let count = self.union_count(from);
        if let Some(stack_count) = self.union_stacks.get_mut(to.index()) {
            *stack_count = count;
        }
        for (index, to) in self.union_elements(to).iter().enumerate() {
            let from = self.union_elements(from).get(index).copied();
            self.assign_union(Some(*to), from);
        }
    }

    /// Shifts the elements to the back by swaps, and invalidates the first elements.
    pub fn push(&mut self, stack: StackId, distance: usize) {
        let elements = self.elements(stack);
        let size = elements.len();
        if let Some(count) = self.stacks.get_mut(stack.index()) {
            *count = size.min(count.saturating_add(distance));
        }
        for (from, to) in pairs_back(elements, distance) {
            self.swap(from, to);
        }
        for header in elements.iter().take(distance) {
            self.mark_invalid(*header);
        }
    }

    /// Shifts the elements to the front by swaps, and invalidates the last elements.
    pub fn pop(&mut self, stack: StackId, distance: usize) {
        let elements = self.elements(stack);
        if let Some(count) = self.stacks.get_mut(stack.index()) {
            *count = count.saturating_sub(distance);
        }
        for (to, from) in pairs_front(elements, distance) {
            self.swap(from, to);
        }
        for header in elements.iter().rev().take(distance) {
            self.mark_invalid(*header);
        }
    }

    /// Same as [`push`](Self::push) for unions.
    pub fn push_unions(&mut self, stack: UnionStackId, distance: usize) {
        let elements = self.union_elements(stack);
        let size = elements.len();
        if let Some(count) = self.union_stacks.get_mut(stack.index()) {
            *count = size.min(count.saturating_add(distance));
        }
        for (from, to) in pairs_back(elements, distance) {
            self.swap_unions(from, to);
        }
        for union in elements.iter().take(distance) {
            self.invalidate(*union);
        }
    }

    /// Same as [`pop`](Self::pop) for unions.
    pub fn pop_unions(&mut self, stack: UnionStackId, distance: usize) {
        let elements = self.union_elements(stack);
        if let Some(count) = self.union_stacks.get_mut(stack.index()) {
            *count = count.saturating_sub(distance);
        }
        for (to, from) in pairs_front(elements, distance) {
            self.swap_unions(from, to);
        }
        for union in elements.iter().rev().take(distance) {
            self.invalidate(*union);
        }
    }

    fn invalidate(&mut self, union: UnionId) {
        for member in self.members(Some(union)) {
            self.mark_invalid(*member);
        }
    }
}

/// Returns the swaps for a shift to the back in order, as pairs of source and destination.
fn pairs_back<T: Copy>(elements: &[T], distance: usize) -> Vec<(T, T)> {
    let later = elements.get(distance..).unwrap_or_default();
    elements
        .iter()
        .copied()
        .zip(later.iter().copied())
        .rev()
        .collect()
}

/// Returns the swaps for a shift to the front in order, as pairs of destination and source.
fn pairs_front<T: Copy>(elements: &[T], distance: usize) -> Vec<(T, T)> {
    let later = elements.get(distance..).unwrap_or_default();
    elements.iter().copied().zip(later.iter().copied()).collect()
}

fn field_count(program: &Program, header: HeaderId) -> usize {
    program
        .type_of(header)
        .map_or(0, |header_type| header_type.fields.len())
}

/// Requests to the traffic manager: simple_switch's packet registers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Requests {
    /// Clone: session and field list.
    pub clone: Option<(u16, u16)>,
    /// Digest id in the JSON; 0 for none.
    pub digest: u16,
    /// Field list of a resubmission; 0 for none.
    pub resubmit: u16,
    /// Field list of a recirculation; 0 for none.
    pub recirculate: u16,
}

/// Packet.
#[derive(Clone)]
pub struct Packet<'p> {
    /// Headers.
    pub headers: Headers<'p>,
    /// Received bytes; after parsing, the payload.
    pub data: Vec<u8>,
    /// Number of bytes of `data` that the parser has consumed.
    pub parsed: usize,
    /// Truncation length of `data`, bytes.
    pub bytes_max: usize,
    /// Ingress length for counters and meters, bytes.
    pub ingress_length: u64,
    /// Length including added and removed headers, bytes.
    pub length: u64,
    /// Requests.
    pub requests: Requests,
    /// Whether the pipeline ends.
    pub exit: bool,
    /// Code of the parser error.
    pub parser_error: BigInt,
    /// Whether a checksum verification failed.
    pub checksum_error: bool,
    /// Remaining steps.
    pub steps: u32,
}

impl<'p> Packet<'p> {
    /// Creates a packet from its bytes.
    pub fn new(program: &'p Program, data: Vec<u8>) -> Self {
        let length = data.len() as u64;
        Self {
            headers: Headers::new(program),
            data,
            parsed: 0,
            bytes_max: usize::MAX,
            ingress_length: length,
            length,
            requests: Requests::default(),
            exit: false,
            parser_error: BigInt::zero(),
            checksum_error: false,
            steps: STEPS_MAX,
        }
    }

    /// Copies the packet without its requests and truncation.
    pub fn copy(&self) -> Self {
        Self {
            bytes_max: usize::MAX,
            requests: Requests::default(),
            exit: false,
            ..self.clone()
        }
    }

    /// Payload for calculations.
    pub fn payload(&self) -> &[u8] {
        let unparsed = self.data.get(self.parsed..).unwrap_or_default();
        unparsed.get(..self.bytes_max).unwrap_or(unparsed)
    }

    /// Bytes of `data` up to the truncation length.
    pub fn visible(&self) -> &[u8] {
        let length = self.data.len().min(self.bytes_max);
        self.data.get(..length).unwrap_or_default()
    }
}
