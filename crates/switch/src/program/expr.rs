//! Expressions, typed: a value, a condition, a header or a union.
//!
//! Values are integers of any size and sign, as in BMv2: nothing wraps but where the compiler wrote it (`&` with a
//! mask, [`Cast::TwoCompMod`], the saturating casts) and where a value is stored in a field.

use num_bigint::BigInt;

use serde::Serialize;

use super::ids::{FieldRef, HeaderId, RegisterId, StackId, UnionId, UnionStackId};

/// An operation on two integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Binary {
    /// Sum.
    Add,
    /// Difference.
    Sub,
    /// Product.
    Mul,
    /// Quotient; 0 where the divisor is 0 or an operand is negative, which P4 leaves undefined.
    Div,
    /// Remainder; 0 as with [`Binary::Div`].
    Mod,
    /// Bits of both.
    And,
    /// Bits of either.
    Or,
    /// Bits of one of them.
    Xor,
    /// Left shift; by a negative number: 0.
    Shl,
    /// Right shift that rounds down; by a negative number: 0.
    Shr,
}

/// A comparison of two integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Compare {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Less.
    Lt,
    /// Less or equal.
    Le,
    /// Greater.
    Gt,
    /// Greater or equal.
    Ge,
}

/// How a value is brought into a width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Cast {
    /// Two's complement of that many bits.
    TwoCompMod,
    /// The nearest signed number of that many bits.
    Saturate,
    /// The nearest unsigned number of that many bits.
    SaturateUnsigned,
}

/// An expression that is an integer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Data {
    /// A constant.
    Const(BigInt),
    /// A field.
    Field(FieldRef),
    /// A field of a stack's last element.
    StackLast(StackId, u32),
    /// A field of a header that is computed.
    Access(Box<HeaderExpr>, u32),
    /// An argument of the action.
    Param(u32),
    /// A cell of a register array.
    Register(RegisterId, Box<Data>),
    /// An operation.
    Binary(Binary, Box<Data>, Box<Data>),
    /// All bits turned over, of infinitely many.
    Not(Box<Data>),
    /// A value cast to so many bits.
    Cast(Cast, Box<Data>, u32),
    /// 1 if true, else 0.
    FromBool(Box<Bool>),
    /// Position of a stack's last element; -1 if it is empty.
    LastIndex(StackId),
    /// Number of elements that a stack has now.
    Size(StackId),
    /// One of two values.
    Select(Box<Bool>, Box<Data>, Box<Data>),
}

/// An expression that is true or false.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Bool {
    /// A constant.
    Const(bool),
    /// A comparison of integers.
    Compare(Compare, Box<Data>, Box<Data>),
    /// Whether two headers are both valid and equal.
    HeaderEq(Box<HeaderExpr>, Box<HeaderExpr>),
    /// Whether two unions are both valid, with the same member, and equal.
    UnionEq(Box<UnionExpr>, Box<UnionExpr>),
    /// Whether two conditions agree.
    Eq(Box<Bool>, Box<Bool>),
    /// Both.
    And(Box<Bool>, Box<Bool>),
    /// At least one.
    Or(Box<Bool>, Box<Bool>),
    /// Not.
    Not(Box<Bool>),
    /// Whether a header is valid.
    Valid(Box<HeaderExpr>),
    /// Whether a member of a union is valid.
    ValidUnion(Box<UnionExpr>),
    /// Whether a number is not 0.
    FromData(Box<Data>),
    /// One of two conditions.
    Select(Box<Bool>, Box<Bool>, Box<Bool>),
}

/// An expression that is a header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum HeaderExpr {
    /// A header by name.
    Header(HeaderId),
    /// An element of a stack. Outside the stack there is an invalid header of zeros, which takes no writes.
    Element(StackId, Box<Data>),
    /// A member of a union.
    Member(Box<UnionExpr>, u32),
    /// The element of a stack that was added last.
    Last(StackId),
}

/// An expression that is a header union.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum UnionExpr {
    /// A union by name.
    Union(UnionId),
    /// An element of a stack of unions.
    Element(UnionStackId, Box<Data>),
}

/// An expression of any of these types, as a compiled program may pass it to a primitive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Expr {
    /// An integer.
    Data(Data),
    /// A condition.
    Bool(Bool),
    /// A header.
    Header(HeaderExpr),
    /// A union.
    Union(UnionExpr),
    /// A stack of headers.
    Stack(StackId),
    /// A stack of unions.
    UnionStack(UnionStackId),
}

impl Expr {
    /// The type's name in messages.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Data(_) => "an integer",
            Self::Bool(_) => "a condition",
            Self::Header(_) => "a header",
            Self::Union(_) => "a header union",
            Self::Stack(_) => "a header stack",
            Self::UnionStack(_) => "a stack of header unions",
        }
    }
}
