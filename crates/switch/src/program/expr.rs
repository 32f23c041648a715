//! Typed expressions: integers, conditions, headers and unions.
//!
//! Values are signed arbitrary-precision integers, as in BMv2. Values are reduced to a width only where the compiler
//! requests it (`&` with a mask, or a [`Cast`]) and when a value is stored in a field.

use num_bigint::BigInt;

use serde::Serialize;

use super::ids::{FieldRef, HeaderId, RegisterId, StackId, UnionId, UnionStackId};

/// Operation on two integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Binary {
    /// Sum.
    Add,
    /// Difference.
    Sub,
    /// Product.
    Mul,
    /// Quotient; 0 if the divisor is 0 or an operand is negative. P4 leaves both cases undefined.
    Div,
    /// Remainder; 0 in the same cases as [`Binary::Div`].
    Mod,
    /// Bitwise AND.
    And,
    /// Bitwise OR.
    Or,
    /// Bitwise XOR.
    Xor,
    /// Left shift; 0 for a negative shift.
    Shl,
    /// Right shift rounding down; 0 for a negative shift.
    Shr,
}

/// Comparison of two integers.
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

/// Conversion to a width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Cast {
    /// Two's complement of this width.
    TwoCompMod,
    /// Saturation to a signed number of this width.
    Saturate,
    /// Saturation to an unsigned number of this width.
    SaturateUnsigned,
}

/// Integer expression.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Data {
    /// Constant.
    Const(BigInt),
    /// Field.
    Field(FieldRef),
    /// Field of a stack's last element.
    StackLast(StackId, u32),
    /// Field (by index) of the header that an expression yields.
    Access(Box<HeaderExpr>, u32),
    /// Argument of the action.
    Param(u32),
    /// Cell of a register array.
    Register(RegisterId, Box<Data>),
    /// Operation.
    Binary(Binary, Box<Data>, Box<Data>),
    /// Bitwise complement with infinite sign extension.
    Not(Box<Data>),
    /// Cast to this width, bits.
    Cast(Cast, Box<Data>, u32),
    /// 1 if true, else 0.
    FromBool(Box<Bool>),
    /// Index of a stack's last element; -1 if the stack is empty.
    LastIndex(StackId),
    /// Current number of elements of a stack.
    Size(StackId),
    /// Conditional expression.
    Select(Box<Bool>, Box<Data>, Box<Data>),
}

/// Boolean expression.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Bool {
    /// Constant.
    Const(bool),
    /// Comparison of integers.
    Compare(Compare, Box<Data>, Box<Data>),
    /// Whether two headers are both valid and equal.
    HeaderEq(Box<HeaderExpr>, Box<HeaderExpr>),
    /// Whether both unions have the same valid member, and these members are equal.
    UnionEq(Box<UnionExpr>, Box<UnionExpr>),
    /// Equality of two conditions.
    Eq(Box<Bool>, Box<Bool>),
    /// Logical AND.
    And(Box<Bool>, Box<Bool>),
    /// Logical OR.
    Or(Box<Bool>, Box<Bool>),
    /// Logical NOT.
    Not(Box<Bool>),
    /// Whether a header is valid.
    Valid(Box<HeaderExpr>),
    /// Whether a member of a union is valid.
    ValidUnion(Box<UnionExpr>),
    /// Whether a number is nonzero.
    FromData(Box<Data>),
    /// Conditional expression.
    Select(Box<Bool>, Box<Bool>, Box<Bool>),
}

/// Header expression.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum HeaderExpr {
    /// Header instance.
    Header(HeaderId),
    /// Element of a stack. An index out of range yields an invalid header of zeros that ignores writes.
    Element(StackId, Box<Data>),
    /// Member of a union.
    Member(Box<UnionExpr>, u32),
    /// Last element of a stack.
    Last(StackId),
}

/// Header union expression.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum UnionExpr {
    /// Union instance.
    Union(UnionId),
    /// Element of a header union stack.
    Element(UnionStackId, Box<Data>),
}

/// Expression of any type, as an argument of a primitive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Expr {
    /// Integer.
    Data(Data),
    /// Condition.
    Bool(Bool),
    /// Header.
    Header(HeaderExpr),
    /// Header union.
    Union(UnionExpr),
    /// Header stack.
    Stack(StackId),
    /// Header union stack.
    UnionStack(UnionStackId),
}

impl Expr {
    /// Name of the type in messages.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Data(_) => "an integer",
            Self::Bool(_) => "a condition",
            Self::Header(_) => "a header",
            Self::Union(_) => "a header union",
            Self::Stack(_) => "a header stack",
            Self::UnionStack(_) => "a header union stack",
        }
    }
}
