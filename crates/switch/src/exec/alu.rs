//! Arithmetic of operations in both lanes.

use crate::executable::op::{Alu, Test};

/// 64-bit operation, modulo 2^64.
#[inline(always)]
pub fn alu64(op: Alu, a: u64, b: u64) -> u64 {
    let shift = u32::try_from(b).unwrap_or(u32::MAX);
    match op {
        Alu::Add => a.wrapping_add(b),
        Alu::Sub => a.wrapping_sub(b),
        Alu::Mul => a.wrapping_mul(b),
        Alu::Div => a.checked_div(b).unwrap_or(0),
        Alu::Mod => a.checked_rem(b).unwrap_or(0),
        Alu::And => a & b,
        Alu::Or => a | b,
        Alu::Xor => a ^ b,
        Alu::Shl => a.checked_shl(shift).unwrap_or(0),
        Alu::Shr => a.checked_shr(shift).unwrap_or(0),
        Alu::Sar => ((a as i64) >> shift.min(63)) as u64,
    }
}

/// 128-bit operation, modulo 2^128.
pub fn alu128(op: Alu, a: u128, b: u128) -> u128 {
    let shift = u32::try_from(b).unwrap_or(u32::MAX);
    match op {
        Alu::Add => a.wrapping_add(b),
        Alu::Sub => a.wrapping_sub(b),
        Alu::Mul => a.wrapping_mul(b),
        Alu::Div => a.checked_div(b).unwrap_or(0),
        Alu::Mod => a.checked_rem(b).unwrap_or(0),
        Alu::And => a & b,
        Alu::Or => a | b,
        Alu::Xor => a ^ b,
        Alu::Shl => a.checked_shl(shift).unwrap_or(0),
        Alu::Shr => a.checked_shr(shift).unwrap_or(0),
        Alu::Sar => ((a as i128) >> shift.min(127)) as u128,
    }
}

/// Evaluates a comparison of two 64-bit registers.
#[inline(always)]
pub fn test64(test: Test, a: u64, b: u64) -> bool {
    match test {
        Test::Eq => a == b,
        Test::Ne => a != b,
        Test::Below => a < b,
        Test::BelowEq => a <= b,
        Test::Less => (a as i64) < (b as i64),
        Test::LessEq => (a as i64) <= (b as i64),
    }
}

/// Evaluates a comparison of two 128-bit registers.
pub fn test128(test: Test, a: u128, b: u128) -> bool {
    match test {
        Test::Eq => a == b,
        Test::Ne => a != b,
        Test::Below => a < b,
        Test::BelowEq => a <= b,
        Test::Less => (a as i128) < (b as i128),
        Test::LessEq => (a as i128) <= (b as i128),
    }
}

/// Minimum and maximum of a number of up to 64 bits.
pub fn bounds(bits: u8, signed: bool) -> (i128, i128) {
    let bits = u32::from(bits.clamp(1, 64));
    match signed {
        true => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
        false => (0, (1i128 << bits) - 1),
    }
}

/// Clamps a value to a range; value and range must fit in the 128-bit lane.
pub fn clamp128(value: u128, signed: bool, bits: u8, to_signed: bool) -> u128 {
    let bits = u32::from(bits.clamp(1, 128));
    let negative = signed && (value as i128) < 0;
    let high = match to_signed {
        true => (u128::MAX >> 1) >> (128 - bits),
        false => u128::MAX >> (128 - bits),
    };
    if negative {
        let low = if to_signed { i128::MIN >> (128 - bits) } else { 0 };
        return (value as i128).max(low) as u128;
    }
    value.min(high)
}
