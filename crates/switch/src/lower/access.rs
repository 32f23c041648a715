//! Resolves header expressions: a static expression to its header, a dynamic expression to one header of the same type.

use num_traits::ToPrimitive;

use crate::program::Program;
use crate::program::expr::{Bool, Data, HeaderExpr, UnionExpr};
use crate::program::ids::{FieldRef, HeaderId, UnionId};

/// Returns the header of an expression; `None` if the header may differ between packets.
pub fn static_header(program: &Program, header: &HeaderExpr) -> Option<HeaderId> {
    match header {
        HeaderExpr::Header(header) => Some(*header),
        HeaderExpr::Element(stack, index) => {
            let Data::Const(index) = index.as_ref() else {
                return None;
            };
            program
                .stacks
                .get(stack.index())?
                .headers
                .get(index.to_usize()?)
                .copied()
        }
        HeaderExpr::Member(union, member) => {
            let union = static_union(program, union)?;
            program
                .unions
                .get(union.index())?
                .headers
                .get(*member as usize)
                .copied()
        }
        HeaderExpr::Last(_) => None,
    }
}

/// Returns the union of an expression; `None` if the union may differ between packets.
pub fn static_union(program: &Program, union: &UnionExpr) -> Option<UnionId> {
    match union {
        UnionExpr::Union(union) => Some(*union),
        UnionExpr::Element(stack, index) => {
            let Data::Const(index) = index.as_ref() else {
                return None;
            };
            program
                .union_stacks
                .get(stack.index())?
                .unions
                .get(index.to_usize()?)
                .copied()
        }
    }
}

/// Returns one of the possible headers of an expression; all possible headers have the same type.
pub fn representative_header(program: &Program, header: &HeaderExpr) -> Option<HeaderId> {
    match header {
        HeaderExpr::Header(header) => Some(*header),
        HeaderExpr::Element(stack, _) | HeaderExpr::Last(stack) => {
            program.stacks.get(stack.index())?.headers.first().copied()
        }
        HeaderExpr::Member(union, member) => {
            let union = match union.as_ref() {
                UnionExpr::Union(union) => *union,
                UnionExpr::Element(stack, _) => *program.union_stacks.get(stack.index())?.unions.first()?,
            };
            program
                .unions
                .get(union.index())?
                .headers
                .get(*member as usize)
                .copied()
        }
    }
}

/// Converts an expression over the fields of a header type to an expression over the fields of one header.
pub fn with_fields(data: &Data, header: HeaderId) -> Data {
    let inner = |data: &Data| Box::new(with_fields(data, header));
    match data {
        Data::Param(field) => Data::Field(FieldRef {
            header,
            field: *field,
        }),
        Data::Binary(op, left, right) => Data::Binary(*op, inner(left), inner(right)),
        Data::Not(value) => Data::Not(inner(value)),
        Data::Cast(cast, value, bits) => Data::Cast(*cast, inner(value), *bits),
        Data::Select(condition, left, right) => Data::Select(
            Box::new(condition_with_fields(condition, header)),
            inner(left),
            inner(right),
        ),
        Data::FromBool(condition) => Data::FromBool(Box::new(condition_with_fields(condition, header))),
        other => other.clone(),
    }
}

fn condition_with_fields(condition: &Bool, header: HeaderId) -> Bool {
    let data = |data: &Data| Box::new(with_fields(data, header));
    let inner = |condition: &Bool| Box::new(condition_with_fields(condition, header));
    match condition {
        Bool::Compare(compare, left, right) => Bool::Compare(*compare, data(left), data(right)),
        Bool::FromData(value) => Bool::FromData(data(value)),
        Bool::Eq(left, right) => Bool::Eq(inner(left), inner(right)),
        Bool::And(left, right) => Bool::And(inner(left), inner(right)),
        Bool::Or(left, right) => Bool::Or(inner(left), inner(right)),
        Bool::Not(value) => Bool::Not(inner(value)),
        Bool::Select(choice, left, right) => Bool::Select(inner(choice), inner(left), inner(right)),
        other => other.clone(),
    }
}
