//! Random expressions.

use linewarden_switch::program::Program;
use linewarden_switch::program::expr::{Binary, Bool, Cast, Compare, Data, HeaderExpr, UnionExpr};
use linewarden_switch::program::ids::{FieldRef, HeaderId, RegisterId, StackId, TypeId, UnionId};
use num_bigint::BigInt;

use super::shape::{self, USER};
use super::source::Source;

/// Generates expressions over a program's headers.
pub struct Expressions<'e> {
    /// Source of choices.
    pub source: &'e mut Source,
    /// Program, possibly incomplete.
    pub program: &'e Program,
    /// Number of action parameters.
    pub params: usize,
}

impl Expressions<'_> {
    /// Constant.
    pub fn constant(&mut self) -> BigInt {
        let power = |bits: usize| BigInt::from(1) << bits;
        match self.source.below(9) {
            0 => BigInt::from(0),
            1 => BigInt::from(1),
            2 => BigInt::from(self.source.below(16)),
            3 => BigInt::from(self.source.below(1 << 16)),
            4 => -BigInt::from(self.source.below(300)),
            5 => power(self.source.below(210)),
            6 => power(self.source.below(210)) - 1,
            7 => -power(self.source.below(210)) + BigInt::from(self.source.below(2)),
            _ => {
                let len = self.source.between(1, 26);
                let bytes: Vec<u8> = (0..len).map(|_| self.source.below(256) as u8).collect();
                BigInt::from_bytes_be(num_bigint::Sign::Plus, &bytes)
            }
        }
    }

    /// Field of fixed length: in one of three cases a user metadata field, else any field.
    pub fn field(&mut self) -> FieldRef {
        let fields = match self.source.below(3) {
            0 => shape::fixed_fields_of(self.program, USER),
            _ => shape::fixed_fields(self.program),
        };
        self.source.pick(&fields).unwrap()
    }

    fn leaf(&mut self) -> Data {
        match self.source.below(12) {
            0..=2 => Data::Const(self.constant()),
            3..=6 => Data::Field(self.field()),
            7 if self.params > 0 => Data::Param(self.source.below(self.params) as u32),
            8 => {
                let register = RegisterId(self.source.below(self.program.registers.len()) as u32);
                Data::Register(register, Box::new(self.index()))
            }
            9 => match self.source.pick(&shape::stacks(self.program)) {
                Some(stack) => match self.source.below(3) {
                    0 => Data::Size(stack),
                    1 => Data::LastIndex(stack),
                    _ => {
                        let header = self.program.stacks[stack.index()].headers[0];
                        Data::StackLast(stack, self.field_of(header))
                    }
                },
                None => Data::Const(self.constant()),
            },
            10 => match self.any_header() {
                Some((header, header_id)) => Data::Access(Box::new(header), self.field_of(header_id)),
                None => Data::Field(self.field()),
            },
            _ if self.source.percent(20) => {
                // The hidden `$valid$` field.
                let headers = shape::packet_headers(self.program);
                let header = self.source.pick(&headers).unwrap();
                let hidden = self.program.type_of(header).unwrap().fields.len();
                Data::Field(FieldRef {
                    header,
                    field: hidden as u32,
                })
            }
            _ => Data::Field(self.field()),
        }
    }

    fn field_of(&mut self, header: HeaderId) -> u32 {
        let fields = shape::fixed_fields_of(self.program, header);
        self.source.pick(&fields).unwrap().field
    }

    /// Index, mostly a small constant.
    pub fn index(&mut self) -> Data {
        match self.source.below(8) {
            0..=5 => Data::Const(BigInt::from(self.source.below(5))),
            6 => Data::Field(self.field()),
            _ => self.data(1),
        }
    }

    /// Integer expression.
    pub fn data(&mut self, depth: usize) -> Data {
        if depth == 0 {
            return self.leaf();
        }
        match self.source.below(10) {
            0..=2 => self.leaf(),
            3..=5 => self.binary(depth - 1),
            6 => Data::Not(Box::new(self.data(depth - 1))),
            7 => {
                let cast = [Cast::TwoCompMod, Cast::Saturate, Cast::SaturateUnsigned][self.source.below(3)];
                let bits = shape::width(self.source);
                Data::Cast(cast, Box::new(self.data(depth - 1)), bits)
            }
            8 => Data::FromBool(Box::new(self.bool(depth - 1))),
            _ => Data::Select(
                Box::new(self.bool(depth - 1)),
                Box::new(self.data(depth - 1)),
                Box::new(self.data(depth - 1)),
            ),
        }
    }

    fn binary(&mut self, depth: usize) -> Data {
        const ALL: [Binary; 10] = [
            Binary::Add,
            Binary::Sub,
            Binary::And,
            Binary::Or,
            Binary::Xor,
            Binary::Mul,
            Binary::Shl,
            Binary::Shr,
            Binary::Div,
            Binary::Mod,
        ];
        let binary = ALL[self.source.below(ALL.len())];
        let left = self.data(depth);
        let right = match binary {
            Binary::Shl | Binary::Shr => self.shift(depth),
            // p4c truncates results this way.
            Binary::And if self.source.percent(50) => {
                Data::Const((BigInt::from(1) << shape::width(self.source)) - 1)
            }
            _ => self.data(depth),
        };
        Data::Binary(binary, Box::new(left), Box::new(right))
    }

    /// Shift distance, limited so that the result fits into memory.
    fn shift(&mut self, depth: usize) -> Data {
        match self.source.below(4) {
            0 | 1 => Data::Const(BigInt::from(self.source.below(140))),
            2 => Data::Binary(
                Binary::And,
                Box::new(self.data(depth)),
                Box::new(Data::Const(BigInt::from(255))),
            ),
            _ => match self.source.below(4) {
                0 => Data::Const(-BigInt::from(self.source.below(3))),
                1 => Data::Cast(Cast::TwoCompMod, Box::new(self.data(depth)), 8),
                2 => Data::Binary(
                    Binary::And,
                    Box::new(self.data(depth)),
                    Box::new(Data::Const(BigInt::from(0xffff))),
                ),
                _ => Data::Field(self.field()),
            },
        }
    }

    /// Boolean expression.
    pub fn bool(&mut self, depth: usize) -> Bool {
        let leaf = depth == 0;
        match self.source.below(if leaf { 5 } else { 10 }) {
            0 => Bool::Const(self.source.below(2) == 0),
            1 => match self.any_header() {
                Some((header, _)) => Bool::Valid(Box::new(header)),
                None => Bool::Const(false),
            },
            2 => match self.union() {
                Some((union, _)) => Bool::ValidUnion(Box::new(union)),
                None => Bool::Const(true),
            },
            3 | 4 if leaf => self.compare(0),
            3 | 4 => self.compare(depth - 1),
            5 => {
                let (left, right) = (self.bool(depth - 1), self.bool(depth - 1));
                match self.source.below(3) {
                    0 => Bool::And(Box::new(left), Box::new(right)),
                    1 => Bool::Or(Box::new(left), Box::new(right)),
                    _ => Bool::Eq(Box::new(left), Box::new(right)),
                }
            }
            6 => Bool::Not(Box::new(self.bool(depth - 1))),
            7 => Bool::FromData(Box::new(self.data(depth - 1))),
            8 => self.equal(),
            _ => Bool::Select(
                Box::new(self.bool(depth - 1)),
                Box::new(self.bool(depth - 1)),
                Box::new(self.bool(depth - 1)),
            ),
        }
    }

    fn compare(&mut self, depth: usize) -> Bool {
        const ALL: [Compare; 6] = [
            Compare::Eq,
            Compare::Ne,
            Compare::Lt,
            Compare::Le,
            Compare::Gt,
            Compare::Ge,
        ];
        let compare = ALL[self.source.below(ALL.len())];
        let (left, right) = (self.data(depth), self.data(depth));
        Bool::Compare(compare, Box::new(left), Box::new(right))
    }

    fn equal(&mut self) -> Bool {
        if self.source.percent(30)
            && let (Some((left, _)), Some((right, _))) = (self.union(), self.union())
        {
            return Bool::UnionEq(Box::new(left), Box::new(right));
        }
        let Some((left, header_id)) = self.any_header() else {
            return Bool::Const(true);
        };
        let right = self.header_of(self.program.headers[header_id.index()].header_type);
        Bool::HeaderEq(Box::new(left), Box::new(right))
    }

    /// Header expression, and a header of the same type.
    pub fn any_header(&mut self) -> Option<(HeaderExpr, HeaderId)> {
        let headers = shape::packet_headers(self.program);
        match self.source.below(4) {
            0 | 1 => {
                let header = self.source.pick(&headers)?;
                Some((HeaderExpr::Header(header), header))
            }
            2 => {
                let stack = self.source.pick(&shape::stacks(self.program))?;
                Some((self.element(stack), self.program.stacks[stack.index()].headers[0]))
            }
            _ => {
                let (union, union_id) = self.union()?;
                let members = &self.program.unions[union_id.index()].headers;
                let member = self.source.below(members.len());
                let expr = HeaderExpr::Member(Box::new(union), member as u32);
                Some((expr, members[member]))
            }
        }
    }

    fn element(&mut self, stack: StackId) -> HeaderExpr {
        match self.source.below(3) {
            0 => HeaderExpr::Last(stack),
            _ => HeaderExpr::Element(stack, Box::new(self.index())),
        }
    }

    /// Header expression of a type.
    pub fn header_of(&mut self, header_type: TypeId) -> HeaderExpr {
        let stacks: Vec<StackId> = shape::stacks(self.program)
            .into_iter()
            .filter(|stack| self.program.stacks[stack.index()].header_type == header_type)
            .collect();
        if self.source.percent(40)
            && let Some(stack) = self.source.pick(&stacks)
        {
            return self.element(stack);
        }
        let headers: Vec<HeaderId> = shape::packet_headers(self.program)
            .into_iter()
            .filter(|header| self.program.headers[header.index()].header_type == header_type)
            .collect();
        HeaderExpr::Header(self.source.pick(&headers).unwrap())
    }

    /// Header union expression, and a union: all unions have the same member types.
    pub fn union(&mut self) -> Option<(UnionExpr, UnionId)> {
        if self.source.percent(40)
            && let Some(stack) = self.source.pick(&shape::union_stacks(self.program))
        {
            let union_id = self.program.union_stacks[stack.index()].unions[0];
            return Some((UnionExpr::Element(stack, Box::new(self.index())), union_id));
        }
        let count = self.program.unions.len();
        if count == 0 {
            return None;
        }
        let union = UnionId(self.source.below(count) as u32);
        Some((UnionExpr::Union(union), union))
    }
}
