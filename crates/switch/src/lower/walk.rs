//! Visitor of all expressions in a statement.

use crate::program::action::{LValue, Statement};
use crate::program::expr::{Bool, Data, HeaderExpr, UnionExpr};

/// Calls `see` for every integer expression in a statement.
pub fn statement(statement: &Statement, see: &mut dyn FnMut(&Data)) {
    match statement {
        Statement::Assign(target, value) => {
            place(target, see);
            data(value, see);
        }
        Statement::AssignVl(to, from) => {
            header(&to.header, see);
            header(&from.header, see);
        }
        Statement::AssignHeader(to, from) => {
            header(to, see);
            header(from, see);
        }
        Statement::AssignUnion(to, from) => {
            union(to, see);
            union(from, see);
        }
        Statement::Push(_, value)
        | Statement::Pop(_, value)
        | Statement::JumpIfZero(value, _)
        | Statement::Assert(value)
        | Statement::Digest(value)
        | Statement::Resubmit(value)
        | Statement::Recirculate(value)
        | Statement::Count(_, value)
        | Statement::Truncate(value) => data(value, see),
        Statement::LogMsg(_, values) => values.iter().for_each(|value| data(value, see)),
        Statement::AddHeader(target) | Statement::RemoveHeader(target) => header(target, see),
        Statement::Clone(_, first, second) | Statement::RegisterWrite(_, first, second) => {
            data(first, see);
            data(second, see);
        }
        Statement::Hash {
            target, base, size, ..
        } => {
            place(target, see);
            data(base, see);
            data(size, see);
        }
        Statement::Meter(_, index, target) => {
            data(index, see);
            place(target, see);
        }
        Statement::RegisterRead(target, _, index) => {
            place(target, see);
            data(index, see);
        }
        Statement::Random(target, low, high) => {
            place(target, see);
            data(low, see);
            data(high, see);
        }
        Statement::AssignStack(..)
        | Statement::AssignUnionStack(..)
        | Statement::Jump(_)
        | Statement::Exit
        | Statement::Drop
        | Statement::MarkToDrop(_)
        | Statement::Noop => {}
    }
}

fn place(target: &LValue, see: &mut dyn FnMut(&Data)) {
    match target {
        LValue::Field(_) => {}
        LValue::Access(inner, _) => header(inner, see),
        LValue::Register(_, index) => data(index, see),
    }
}

fn header(expression: &HeaderExpr, see: &mut dyn FnMut(&Data)) {
    match expression {
        HeaderExpr::Header(_) | HeaderExpr::Last(_) => {}
        HeaderExpr::Element(_, index) => data(index, see),
        HeaderExpr::Member(inner, _) => union(inner, see),
    }
}

fn union(expression: &UnionExpr, see: &mut dyn FnMut(&Data)) {
    if let UnionExpr::Element(_, index) = expression {
        data(index, see);
    }
}

fn data(expression: &Data, see: &mut dyn FnMut(&Data)) {
    see(expression);
    match expression {
        Data::Binary(_, left, right) => {
            data(left, see);
            data(right, see);
        }
        Data::Not(value) | Data::Cast(_, value, _) | Data::Register(_, value) => data(value, see),
        Data::Access(inner, _) => header(inner, see),
        Data::FromBool(inner) => condition(inner, see),
        Data::Select(choice, left, right) => {
            condition(choice, see);
            data(left, see);
            data(right, see);
        }
        Data::Const(_)
        | Data::Field(_)
        | Data::StackLast(..)
        | Data::Param(_)
        | Data::LastIndex(_)
        | Data::Size(_) => {}
    }
}

fn condition(expression: &Bool, see: &mut dyn FnMut(&Data)) {
    match expression {
        Bool::Const(_) => {}
        Bool::Compare(_, left, right) => {
            data(left, see);
            data(right, see);
        }
        Bool::HeaderEq(left, right) => {
            header(left, see);
            header(right, see);
        }
        Bool::UnionEq(left, right) => {
            union(left, see);
            union(right, see);
        }
        Bool::Eq(left, right) | Bool::And(left, right) | Bool::Or(left, right) => {
            condition(left, see);
            condition(right, see);
        }
        Bool::Not(inner) => condition(inner, see),
        Bool::Valid(inner) => header(inner, see),
        Bool::ValidUnion(inner) => union(inner, see),
        Bool::FromData(inner) => data(inner, see),
        Bool::Select(choice, left, right) => {
            condition(choice, see);
            condition(left, see);
            condition(right, see);
        }
    }
}
