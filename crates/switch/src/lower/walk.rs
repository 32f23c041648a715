//! Visitor of all expressions in a statement.

use crate::program::action::{LValue, Statement};
use crate::program::expr::{Bool, Data, HeaderExpr, UnionExpr};

/// Calls `visit` for every integer expression in a statement.
pub fn statement(statement: &Statement, visit: &mut dyn FnMut(&Data)) {
    match statement {
        Statement::Assign(target, value) => {
            lvalue(target, visit);
            data(value, visit);
        }
        Statement::AssignVl(to, from) => {
            header(&to.header, visit);
            header(&from.header, visit);
        }
        Statement::AssignHeader(to, from) => {
            header(to, visit);
            header(from, visit);
        }
        Statement::AssignUnion(to, from) => {
            union(to, visit);
            union(from, visit);
        }
        Statement::Push(_, value)
        | Statement::Pop(_, value)
        | Statement::JumpIfZero(value, _)
        | Statement::Assert(value)
        | Statement::Digest(value)
        | Statement::Resubmit(value)
        | Statement::Recirculate(value)
        | Statement::Count(_, value)
        | Statement::Truncate(value) => data(value, visit),
        Statement::LogMsg(_, values) => values.iter().for_each(|value| data(value, visit)),
        Statement::AddHeader(target) | Statement::RemoveHeader(target) => header(target, visit),
        Statement::Clone(_, first, second) | Statement::RegisterWrite(_, first, second) => {
            data(first, visit);
            data(second, visit);
        }
        Statement::Hash {
            target, base, size, ..
        } => {
            lvalue(target, visit);
            data(base, visit);
            data(size, visit);
        }
        Statement::Meter(_, index, target) => {
            data(index, visit);
            lvalue(target, visit);
        }
        Statement::RegisterRead(target, _, index) => {
            lvalue(target, visit);
            data(index, visit);
        }
        Statement::Random(target, low, high) => {
            lvalue(target, visit);
            data(low, visit);
            data(high, visit);
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

fn lvalue(target: &LValue, visit: &mut dyn FnMut(&Data)) {
    match target {
        LValue::Field(_) => {}
        LValue::Access(inner, _) => header(inner, visit),
        LValue::Register(_, index) => data(index, visit),
    }
}

fn header(expression: &HeaderExpr, visit: &mut dyn FnMut(&Data)) {
    match expression {
        HeaderExpr::Header(_) | HeaderExpr::Last(_) => {}
        HeaderExpr::Element(_, index) => data(index, visit),
        HeaderExpr::Member(inner, _) => union(inner, visit),
    }
}

fn union(expression: &UnionExpr, visit: &mut dyn FnMut(&Data)) {
    if let UnionExpr::Element(_, index) = expression {
        data(index, visit);
    }
}

fn data(expression: &Data, visit: &mut dyn FnMut(&Data)) {
    visit(expression);
    match expression {
        Data::Binary(_, left, right) => {
            data(left, visit);
            data(right, visit);
        }
        Data::Not(value) | Data::Cast(_, value, _) | Data::Register(_, value) => data(value, visit),
        Data::Access(inner, _) => header(inner, visit),
        Data::FromBool(inner) => condition(inner, visit),
        Data::Select(choice, left, right) => {
            condition(choice, visit);
            data(left, visit);
            data(right, visit);
        }
        Data::Const(_)
        | Data::Field(_)
        | Data::StackLast(..)
        | Data::Param(_)
        | Data::LastIndex(_)
        | Data::Size(_) => {}
    }
}

fn condition(expression: &Bool, visit: &mut dyn FnMut(&Data)) {
    match expression {
        Bool::Const(_) => {}
        Bool::Compare(_, left, right) => {
            data(left, visit);
            data(right, visit);
        }
        Bool::HeaderEq(left, right) => {
            header(left, visit);
            header(right, visit);
        }
        Bool::UnionEq(left, right) => {
            union(left, visit);
            union(right, visit);
        }
        Bool::Eq(left, right) | Bool::And(left, right) | Bool::Or(left, right) => {
            condition(left, visit);
            condition(right, visit);
        }
        Bool::Not(inner) => condition(inner, visit),
        Bool::Valid(inner) => header(inner, visit),
        Bool::ValidUnion(inner) => union(inner, visit),
        Bool::FromData(inner) => data(inner, visit),
        Bool::Select(choice, left, right) => {
            condition(choice, visit);
            condition(left, visit);
            condition(right, visit);
        }
    }
}
