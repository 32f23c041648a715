//! Lowering of conditions to jumps: operands that cannot change the result are not computed.

use super::access;
use super::builder::{Builder, Label, LowerError};
use super::value::{Lane, Precision, lane_of};
use crate::executable::number::low_bits;
use crate::executable::op::{Op, Test};
use crate::program::expr::{Bool, Compare, Data, HeaderExpr, UnionExpr};
use crate::program::ids::FieldRef;

impl Builder<'_> {
    /// Emits a branch to the label, taken if the condition equals `expected`.
    pub fn branch(&mut self, condition: &Bool, expected: bool, to: Label) -> Result<(), LowerError> {
        let allocation = self.allocation();
        self.branch_inner(condition, expected, to)?;
        self.release(allocation);
        Ok(())
    }

    fn branch_inner(&mut self, condition: &Bool, expected: bool, to: Label) -> Result<(), LowerError> {
        match condition {
            Bool::Const(value) => {
                if *value == expected {
                    self.emit(Op::Jump {
                        to: Self::label_pc(to),
                    });
                }
                Ok(())
            }
            Bool::Not(inner) => self.branch(inner, !expected, to),
            Bool::And(left, right) => self.and_or(left, right, true, expected, to),
            Bool::Or(left, right) => self.and_or(left, right, false, expected, to),
            Bool::Compare(compare, left, right) => {
                self.compare(condition, (*compare, left, right), expected, to)
            }
            Bool::FromData(data) => {
                let zero = Data::Const(0.into());
                self.compare(condition, (Compare::Ne, data, &zero), expected, to)
            }
            Bool::Valid(header) => self.valid(condition, header, expected, to),
            Bool::ValidUnion(union) => self.valid_union(condition, union, expected, to),
            Bool::Select(choice, left, right) => {
                let (alternative, end) = (self.label()?, self.label()?);
                self.branch(choice, false, alternative)?;
                self.branch(left, expected, to)?;
                self.emit(Op::Jump {
                    to: Self::label_pc(end),
                });
                self.bind(alternative)?;
                self.branch(right, expected, to)?;
                self.bind(end)
            }
            Bool::Eq(..) | Bool::HeaderEq(..) | Bool::UnionEq(..) => {
                self.branch_tree(condition, expected, to)
            }
        }
    }

    fn branch_tree(&mut self, condition: &Bool, expected: bool, to: Label) -> Result<(), LowerError> {
        let condition = self.condition(condition)?;
        self.emit(Op::BranchTree {
            condition,
            expected,
            to: Self::label_pc(to),
        });
        Ok(())
    }

    /// Lowers `left and right` if `is_and`, else `left or right`.
    fn and_or(
        &mut self,
        left: &Bool,
        right: &Bool,
        is_and: bool,
        expected: bool,
        to: Label,
    ) -> Result<(), LowerError> {
        if is_and == expected {
            // If `left` differs from `expected`, the jump is not taken.
            let end = self.label()?;
            self.branch(left, !expected, end)?;
            self.branch(right, expected, to)?;
            self.bind(end)
        } else {
            self.branch(left, expected, to)?;
            self.branch(right, expected, to)
        }
    }

    fn valid(
        &mut self,
        condition: &Bool,
        header: &HeaderExpr,
        expected: bool,
        to: Label,
    ) -> Result<(), LowerError> {
        let layout =
            access::static_header(self.program, header).and_then(|header| self.layout.header(header));
        match layout {
            Some(layout) if layout.metadata => self.branch(&Bool::Const(true), expected, to),
            Some(layout) => {
                let at = layout.valid;
                self.emit(Op::BranchValid {
                    at,
                    valid: expected,
                    to: Self::label_pc(to),
                });
                Ok(())
            }
            None => self.branch_tree(condition, expected, to),
        }
    }

    fn valid_union(
        &mut self,
        condition: &Bool,
        union: &UnionExpr,
        expected: bool,
        to: Label,
    ) -> Result<(), LowerError> {
        let Some(union) = access::static_union(self.program, union) else {
            return self.branch_tree(condition, expected, to);
        };
        let headers = self
            .program
            .unions
            .get(union.index())
            .map_or(&[][..], |union| union.headers.as_slice());
        let offsets: Vec<u32> = headers
            .iter()
            .filter_map(|header| self.layout.header(*header))
            .map(|layout| layout.valid)
            .collect();
        if expected {
            for at in offsets {
                self.emit(Op::BranchValid {
                    at,
                    valid: true,
                    to: Self::label_pc(to),
                });
            }
            return Ok(());
        }
        let end = self.label()?;
        for at in offsets {
            self.emit(Op::BranchValid {
                at,
                valid: true,
                to: Self::label_pc(end),
            });
        }
        self.emit(Op::Jump {
            to: Self::label_pc(to),
        });
        self.bind(end)
    }

    fn compare(
        &mut self,
        condition: &Bool,
        (compare, left, right): (Compare, &Data, &Data),
        expected: bool,
        to: Label,
    ) -> Result<(), LowerError> {
        if let Some(op) = self.compare_bytes((compare, left, right), expected, to) {
            self.emit(op);
            return Ok(());
        }
        let ranges = (self.range(left), self.range(right));
        let joined = match &ranges {
            (Some(a), Some(b)) => Some(a.join(b)),
            _ => None,
        };
        let Some((joined, lane)) = joined.and_then(|range| lane_of(&range).map(|lane| (range, lane))) else {
            return self.branch_tree(condition, expected, to);
        };
        let (test, swap) = test(compare, expected, joined.is_negative());
        let to_pc = Self::label_pc(to);
        match lane {
            Lane::Narrow => {
                let Some(a) = self.narrow(left, Precision::Exact)? else {
                    return self.branch_tree(condition, expected, to);
                };
                if let (Data::Const(value), Test::Eq | Test::Ne) = (right, test) {
                    let value = low_bits(value) as u64;
                    self.emit(match test {
                        Test::Eq => Op::BranchEq { a, to: to_pc, value },
                        _ => Op::BranchNe { a, to: to_pc, value },
                    });
                    return Ok(());
                }
                let Some(b) = self.narrow(right, Precision::Exact)? else {
                    return self.branch_tree(condition, expected, to);
                };
                let (a, b) = if swap { (b, a) } else { (a, b) };
                self.emit(Op::Branch {
                    test,
                    a,
                    b,
                    to: to_pc,
                });
            }
            Lane::Wide => {
                let (Some(a), Some(b)) = (
                    self.wide_value(left, Precision::Exact)?,
                    self.wide_value(right, Precision::Exact)?,
                ) else {
                    return self.branch_tree(condition, expected, to);
                };
                let (a, b) = if swap { (b, a) } else { (a, b) };
                self.emit(Op::WideBranch {
                    test,
                    a,
                    b,
                    to: to_pc,
                });
            }
        }
        Ok(())
    }
}

impl Builder<'_> {
    /// Returns one operation that compares a field of up to two bytes with a constant; `None` for other operands.
    fn compare_bytes(
        &self,
        (compare, left, right): (Compare, &Data, &Data),
        expected: bool,
        to: Label,
    ) -> Option<Op> {
        let (Data::Field(field), Data::Const(value)) = (left, right) else {
            return None;
        };
        let value = u16::try_from(value).ok()?;
        let (low, high, inside) = match compare {
            Compare::Eq => (value, value, true),
            Compare::Ne => (value, value, false),
            Compare::Le => (0, value, true),
            Compare::Gt => (0, value, false),
            Compare::Lt => (0, value.checked_sub(1)?, true),
            Compare::Ge => (0, value.checked_sub(1)?, false),
        };
        self.branch_bytes(*field, (low, high), inside == expected, to)
    }

    /// Returns the operation that branches if a field of up to two bytes is inside (`inside`) or outside of inclusive bounds.
    /// Returns `None` for other fields or if `high` exceeds the field's maximum.
    pub fn branch_bytes(
        &self,
        field: FieldRef,
        (low, high): (u16, u16),
        inside: bool,
        to: Label,
    ) -> Option<Op> {
        let layout = self.layout.field(field)?;
        if layout.variable || layout.signed || layout.bits == 0 || layout.bits > 16 {
            return None;
        }
        let value_max = u16::MAX >> (16 - layout.bits);
        let to = Self::label_pc(to);
        if high > value_max {
            return None;
        }
        match layout.bits + u32::from(layout.shift) {
            ..=8 => Some(Op::BranchByte {
                at: layout.end - 1,
                mask: (value_max << layout.shift) as u8,
                low: (low << layout.shift) as u8,
                high: (high << layout.shift) as u8,
                inside,
                to,
            }),
            9..=16 => Some(Op::BranchPair {
                at: layout.end - 2,
                mask: value_max << layout.shift,
                low: low << layout.shift,
                high: high << layout.shift,
                inside,
                to,
            }),
            _ => None,
        }
    }
}

/// Returns the test for a comparison with the expected result, and whether the operands are swapped.
fn test(compare: Compare, expected: bool, signed: bool) -> (Test, bool) {
    let less = if signed { Test::Less } else { Test::Below };
    let less_eq = if signed { Test::LessEq } else { Test::BelowEq };
    match (compare, expected) {
        (Compare::Eq, true) | (Compare::Ne, false) => (Test::Eq, false),
        (Compare::Eq, false) | (Compare::Ne, true) => (Test::Ne, false),
        (Compare::Lt, true) | (Compare::Ge, false) => (less, false),
        (Compare::Le, true) | (Compare::Gt, false) => (less_eq, false),
        (Compare::Gt, true) | (Compare::Le, false) => (less, true),
        (Compare::Ge, true) | (Compare::Lt, false) => (less_eq, true),
    }
}
