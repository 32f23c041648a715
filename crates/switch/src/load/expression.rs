//! Loading of expressions: from operator trees to typed expressions.

use num_bigint::BigInt;
use num_traits::{ToPrimitive, Zero};

use super::cursor::{LoadResult, Node};
use super::number;
use super::scope::Scope;
use crate::program::expr::{Binary, Bool, Cast, Compare, Data, Expr, HeaderExpr, UnionExpr};

/// Maximum depth of an expression: deeper expressions would exhaust the stack of the thread that reads them.
const DEPTH_MAX: usize = 400;

/// Meaning of `local` in an expression.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Locals {
    /// Not allowed.
    None,
    /// Arguments of an action or fields of a header, with their number.
    Count(usize),
}

/// Reader of expressions.
pub struct ExpressionReader<'s> {
    pub scope: &'s Scope,
    pub locals: Locals,
}

impl ExpressionReader<'_> {
    /// Reads an integer expression.
    pub fn data(&self, node: &Node<'_>) -> LoadResult<Data> {
        self.data_at(node, 0)
    }

    /// Reads a condition.
    pub fn bool(&self, node: &Node<'_>) -> LoadResult<Bool> {
        self.bool_at(node, 0)
    }

    /// Reads an expression of any type.
    pub fn expression(&self, node: &Node<'_>) -> LoadResult<Expr> {
        self.expression_at(node, 0)
    }

    fn data_at(&self, node: &Node<'_>, depth: usize) -> LoadResult<Data> {
        match self.expression_at(node, depth)? {
            Expr::Data(data) => Ok(data),
            other => Err(node.error(format_args!("is {}: expected an integer", other.kind()))),
        }
    }

    fn bool_at(&self, node: &Node<'_>, depth: usize) -> LoadResult<Bool> {
        match self.expression_at(node, depth)? {
            Expr::Bool(condition) => Ok(condition),
            other => Err(node.error(format_args!("is {}: expected a condition", other.kind()))),
        }
    }

    fn header_at(&self, node: &Node<'_>, depth: usize) -> LoadResult<HeaderExpr> {
        match self.expression_at(node, depth)? {
            Expr::Header(header) => Ok(header),
            other => Err(node.error(format_args!("is {}: expected a header", other.kind()))),
        }
    }

    fn union_at(&self, node: &Node<'_>, depth: usize) -> LoadResult<UnionExpr> {
        match self.expression_at(node, depth)? {
            Expr::Union(union) => Ok(union),
            other => Err(node.error(format_args!("is {}: expected a header union", other.kind()))),
        }
    }

    fn expression_at(&self, node: &Node<'_>, depth: usize) -> LoadResult<Expr> {
        if depth > DEPTH_MAX {
            return Err(node.error(format_args!(
                "expression nesting exceeds the maximum of {DEPTH_MAX} levels"
            )));
        }
        if node.is_null() {
            return Ok(Expr::Data(Data::Const(BigInt::zero())));
        }
        let kind = node.str_at("type")?;
        let value = node.field("value")?;
        Ok(match kind {
            "expression" if value.value().get("op").is_some() => self.operation(&value, depth)?,
            "expression" => self.expression_at(&value, depth + 1)?,
            "header" => Expr::Header(HeaderExpr::Header(self.scope.header(value.str()?, &value)?)),
            "field" => Expr::Data(Data::Field(self.scope.field(&value)?)),
            "bool" => Expr::Bool(Bool::Const(value.bool()?)),
            "hexstr" => Expr::Data(Data::Const(constant(&value)?)),
            "local" | "runtime_data" => Expr::Data(self.local(&value)?),
            "register" => {
                let name = value.item(0)?;
                let register = self.scope.register(name.str()?, &name)?;
                let index = self.data_at(&value.item(1)?, depth + 1)?;
                Expr::Data(Data::Register(register, Box::new(index)))
            }
            "header_stack" => Expr::Stack(self.scope.stack(value.str()?, &value)?),
            "stack_field" => {
                let (stack, field) = self.scope.stack_field(&value)?;
                Expr::Data(Data::StackLast(stack, field))
            }
            "header_union" => Expr::Union(UnionExpr::Union(self.scope.union(value.str()?, &value)?)),
            "header_union_stack" => Expr::UnionStack(self.scope.union_stack(value.str()?, &value)?),
            other => return Err(node.error(format_args!("unknown expression type {other:?}"))),
        })
    }

    fn local(&self, value: &Node<'_>) -> LoadResult<Data> {
        let index = value.u32()?;
        match self.locals {
            Locals::None => Err(value.error("refers to an action parameter outside of an action")),
            Locals::Count(count) if (index as usize) < count => Ok(Data::Param(index)),
            Locals::Count(count) => Err(value.error(format_args!(
                "parameter index {index} is out of range: there are {count} parameters"
            ))),
        }
    }

    fn operation(&self, node: &Node<'_>, depth: usize) -> LoadResult<Expr> {
        let op = node.str_at("op")?;
        let depth = depth + 1;
        let right = node.field("right")?;
        let left = || node.field("left");
        let data = |side: &Node<'_>| self.data_at(side, depth).map(Box::new);
        let bool = |side: &Node<'_>| self.bool_at(side, depth).map(Box::new);
        if let Some(binary) = binary(op) {
            // Unary sign: the missing left side counts as 0.
            let left = match node.optional("left") {
                Some(left) => data(&left)?,
                None if matches!(binary, Binary::Add | Binary::Sub) => Box::new(Data::Const(BigInt::zero())),
                None => data(&left()?)?,
            };
            return Ok(Expr::Data(Data::Binary(binary, left, data(&right)?)));
        }
        if let Some(compare) = ordering(op) {
            return Ok(Expr::Bool(Bool::Compare(compare, data(&left()?)?, data(&right)?)));
        }
        if let Some(cast) = cast(op) {
            return self.cast(cast, &left()?, &right, depth);
        }
        Ok(match op {
            "==" | "!=" | "==h" | "!=h" | "==u" | "!=u" | "==b" | "!=b" => {
                let equal = self.equality(node, &left()?, &right, depth)?;
                Expr::Bool(if op.starts_with('=') {
                    equal
                } else {
                    Bool::Not(Box::new(equal))
                })
            }
            "~" => Expr::Data(Data::Not(data(&right)?)),
            "and" => Expr::Bool(Bool::And(bool(&left()?)?, bool(&right)?)),
            "or" => Expr::Bool(Bool::Or(bool(&left()?)?, bool(&right)?)),
            "not" => Expr::Bool(Bool::Not(bool(&right)?)),
            "valid" => Expr::Bool(Bool::Valid(Box::new(self.header_at(&right, depth)?))),
            "valid_union" => Expr::Bool(Bool::ValidUnion(Box::new(self.union_at(&right, depth)?))),
            "d2b" => Expr::Bool(Bool::FromData(data(&right)?)),
            "b2d" => Expr::Data(Data::FromBool(bool(&right)?)),
            "?" => self.select(node, &left()?, &right, depth)?,
            "dereference_stack" | "dereference_header_stack" | "dereference_union_stack" => {
                let index = data(&right)?;
                match self.expression_at(&left()?, depth)? {
                    Expr::Stack(stack) => Expr::Header(HeaderExpr::Element(stack, index)),
                    Expr::UnionStack(stack) => Expr::Union(UnionExpr::Element(stack, index)),
                    other => return Err(node.error(format_args!("is {}: expected a stack", other.kind()))),
                }
            }
            "last_stack_index" => Expr::Data(Data::LastIndex(self.stack(&right, depth)?)),
            "size_stack" => Expr::Data(Data::Size(self.stack(&right, depth)?)),
            "access_field" => {
                let header = Box::new(self.header_at(&left()?, depth)?);
                Expr::Data(Data::Access(header, right.u32()?))
            }
            "access_union_header" => {
                let union = Box::new(self.union_at(&left()?, depth)?);
                Expr::Header(HeaderExpr::Member(union, right.u32()?))
            }
            other => return Err(node.error(format_args!("unknown operator {other:?}"))),
        })
    }

    fn stack(&self, node: &Node<'_>, depth: usize) -> LoadResult<crate::program::ids::StackId> {
        match self.expression_at(node, depth)? {
            Expr::Stack(stack) => Ok(stack),
            other => Err(node.error(format_args!("is {}: expected a header stack", other.kind()))),
        }
    }

    fn cast(&self, cast: Cast, left: &Node<'_>, right: &Node<'_>, depth: usize) -> LoadResult<Expr> {
        let value = Box::new(self.data_at(left, depth)?);
        let Data::Const(width) = self.data_at(right, depth)? else {
            return Err(right.error("width of the cast is not a constant"));
        };
        let bits = width
            .to_u32()
            .filter(|bits| (1..=BITS_MAX).contains(bits))
            .ok_or_else(|| {
                right.error(format_args!(
                    "width of the cast is {width}: expected 1 to {BITS_MAX} bits"
                ))
            })?;
        Ok(Expr::Data(Data::Cast(cast, value, bits)))
    }

    fn equality(&self, node: &Node<'_>, left: &Node<'_>, right: &Node<'_>, depth: usize) -> LoadResult<Bool> {
        Ok(
            match (
                self.expression_at(left, depth)?,
                self.expression_at(right, depth)?,
            ) {
                (Expr::Data(a), Expr::Data(b)) => Bool::Compare(Compare::Eq, Box::new(a), Box::new(b)),
                (Expr::Bool(a), Expr::Bool(b)) => Bool::Eq(Box::new(a), Box::new(b)),
                (Expr::Header(a), Expr::Header(b)) => Bool::HeaderEq(Box::new(a), Box::new(b)),
                (Expr::Union(a), Expr::Union(b)) => Bool::UnionEq(Box::new(a), Box::new(b)),
                (a, b) => {
                    let problem = format!("cannot compare {} with {}", a.kind(), b.kind());
                    return Err(node.error(problem));
                }
            },
        )
    }

    fn select(&self, node: &Node<'_>, left: &Node<'_>, right: &Node<'_>, depth: usize) -> LoadResult<Expr> {
        let condition = Box::new(self.bool_at(&node.field("cond")?, depth)?);
        Ok(
            match (
                self.expression_at(left, depth)?,
                self.expression_at(right, depth)?,
            ) {
                (Expr::Data(a), Expr::Data(b)) => {
                    Expr::Data(Data::Select(condition, Box::new(a), Box::new(b)))
                }
                (Expr::Bool(a), Expr::Bool(b)) => {
                    Expr::Bool(Bool::Select(condition, Box::new(a), Box::new(b)))
                }
                (a, b) => {
                    return Err(node.error(format_args!(
                        "branches of the conditional differ in type: {} and {}",
                        a.kind(),
                        b.kind()
                    )));
                }
            },
        )
    }
}

/// Maximum width of a field, register or cast, bits: far above the widths in real programs.
pub const BITS_MAX: u32 = 1 << 16;

fn constant(value: &Node<'_>) -> LoadResult<BigInt> {
    let text = value.str()?;
    if text.len() > (BITS_MAX / 4) as usize {
        return Err(value.error("constant has too many digits"));
    }
    number::signed(text).ok_or_else(|| value.error(format_args!("{text:?} is not a hexadecimal number")))
}

fn binary(op: &str) -> Option<Binary> {
    Some(match op {
        "+" => Binary::Add,
        "-" => Binary::Sub,
        "*" => Binary::Mul,
        "/" => Binary::Div,
        "%" => Binary::Mod,
        "&" => Binary::And,
        "|" => Binary::Or,
        "^" => Binary::Xor,
        "<<" => Binary::Shl,
        ">>" => Binary::Shr,
        _ => return None,
    })
}

fn ordering(op: &str) -> Option<Compare> {
    Some(match op {
        "<" => Compare::Lt,
        "<=" => Compare::Le,
        ">" => Compare::Gt,
        ">=" => Compare::Ge,
        _ => return None,
    })
}

fn cast(op: &str) -> Option<Cast> {
    Some(match op {
        "two_comp_mod" => Cast::TwoCompMod,
        "sat_cast" => Cast::Saturate,
        "usat_cast" => Cast::SaturateUnsigned,
        _ => return None,
    })
}
