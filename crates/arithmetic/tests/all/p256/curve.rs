//! P-256 with num-bigint: Jacobian coordinates, `x = X / Z^2`, `y = Y / Z^3`.

use linewarden_arithmetic::p256::BASE_POINT;
use num_bigint::BigUint;

fn from_hex(digits: &str) -> BigUint {
    BigUint::parse_bytes(digits.as_bytes(), 16).unwrap()
}

/// The prime of the field.
fn p() -> BigUint {
    from_hex("ffffffff00000001000000000000000000000000ffffffffffffffffffffffff")
}

/// The order of the base point.
pub fn n() -> BigUint {
    from_hex("ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551")
}

/// A point with the Jacobian coordinates X, Y and Z. The point at infinity has Z = 0.
#[derive(Clone)]
pub struct Point([BigUint; 3]);

impl Point {
    pub fn base() -> Self {
        let [x, y] = [0..32, 32..64].map(|part| BigUint::from_bytes_be(&BASE_POINT[part]));
        Self([x, y, BigUint::from(1u32)])
    }

    fn infinity() -> Self {
        Self([BigUint::from(1u32), BigUint::from(1u32), BigUint::ZERO])
    }

    /// The affine coordinates x and y; `None` for the point at infinity.
    pub fn affine(&self) -> Option<(BigUint, BigUint)> {
        let (Self([x, y, z]), p) = (self, p());
        let inverse = z.modinv(&p)?;
        let square = &inverse * &inverse % &p;
        Some((x * &square % &p, y * square % &p * inverse % p))
    }

    fn double(&self) -> Self {
        let (Self([x, y, z]), p) = (self, p());
        let yy = y * y % &p;
        let s = 4u32 * x * &yy % &p;
        let zz = z * z % &p;
        let m = 3u32 * (x + &zz) * (x + &p - &zz) % &p;
        let double_x = (&m * &m + 2u32 * (&p - &s)) % &p;
        let double_y = (m * (s + &p - &double_x) + 8u32 * (&p - &yy * &yy % &p)) % &p;
        Self([double_x, double_y, 2u32 * y * z % p])
    }

    pub fn plus(&self, other: &Self) -> Self {
        let (Self([x1, y1, z1]), Self([x2, y2, z2]), p) = (self, other, p());
        if *z1 == BigUint::ZERO {
            return other.clone();
        }
        if *z2 == BigUint::ZERO {
            return self.clone();
        }
        let [zz1, zz2] = [z1, z2].map(|z| z * z % &p);
        let [u1, u2] = [x1 * &zz2 % &p, x2 * &zz1 % &p];
        let [s1, s2] = [y1 * z2 * zz2 % &p, y2 * z1 * zz1 % &p];
        if u1 == u2 {
            return if s1 == s2 { self.double() } else { Self::infinity() };
        }
        let (h, r) = ((u2 + &p - &u1) % &p, (s2 + &p - &s1) % &p);
        let hh = &h * &h % &p;
        let hhh = &h * &hh % &p;
        let v = u1 * hh % &p;
        let x = (&r * &r + 3u32 * &p - &hhh - 2u32 * &v) % &p;
        let y = (r * (v + &p - &x) + &p - s1 * &hhh % &p) % &p;
        Self([x, y, z1 * z2 * h % p])
    }

    pub fn times(&self, factor: &BigUint) -> Self {
        (0..factor.bits()).rev().fold(Self::infinity(), |sum, bit| {
            let sum = sum.double();
            if factor.bit(bit) { sum.plus(self) } else { sum }
        })
    }
}
