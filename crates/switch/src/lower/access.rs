//! Headers that expressions compute: known ones are resolved, of the others any has the right type.

use num_traits::ToPrimitive;

use crate::program::Program;
use crate::program::expr::{Data, HeaderExpr, UnionExpr};
use crate::program::ids::{HeaderId, UnionId};

/// The header, if it is the same for every packet.
pub fn known(program: &Program, header: &HeaderExpr) -> Option<HeaderId> {
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
            let union = known_union(program, union)?;
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

/// The union, if it is the same for every packet.
pub fn known_union(program: &Program, union: &UnionExpr) -> Option<UnionId> {
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

/// Some header that the expression can be: all of them have the same type.
pub fn sample(program: &Program, header: &HeaderExpr) -> Option<HeaderId> {
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
