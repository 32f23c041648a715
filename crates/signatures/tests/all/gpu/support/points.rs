//! P-256 with affine coordinates and big numbers: slow and simple, for signatures that no signer makes.

use num_bigint::BigUint;

pub struct Curve {
    pub p: BigUint,
    pub n: BigUint,
    b: BigUint,
    pub g: Point,
}

/// `None` is infinity.
pub type Point = Option<(BigUint, BigUint)>;

fn hex(digits: &str) -> BigUint {
    BigUint::parse_bytes(digits.as_bytes(), 16).unwrap()
}

impl Curve {
    pub fn new() -> Self {
        Self {
            p: hex("ffffffff00000001000000000000000000000000ffffffffffffffffffffffff"),
            n: hex("ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551"),
            b: hex("5ac635d8aa3a93e7b3ebbd55769886bc651d06b0cc53b0f63bce3c3e27d2604b"),
            g: Some((
                hex("6b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296"),
                hex("4fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5"),
            )),
        }
    }

    pub fn add(&self, a: &Point, b: &Point) -> Point {
        let (Some((x1, y1)), Some((x2, y2))) = (a, b) else {
            return a.clone().or_else(|| b.clone());
        };
        let p = &self.p;
        let (numerator, denominator) = if x1 != x2 {
            (y2 + p - y1, x2 + p - x1)
        } else if y1 == y2 {
            (x1 * x1 * 3u8 + p - 3u8, y1 * 2u8)
        } else {
            return None;
        };
        let slope = numerator * (denominator % p).modinv(p).unwrap() % p;
        let x = (&slope * &slope + p + p - x1 - x2) % p;
        let y = (slope * (x1 + p - &x) + p - y1) % p;
        Some((x, y))
    }

    pub fn multiply(&self, point: &Point, scalar: &BigUint) -> Point {
        let mut sum = None;
        for bit in (0..scalar.bits()).rev() {
            sum = self.add(&sum, &sum);
            if scalar.bit(bit) {
                sum = self.add(&sum, point);
            }
        }
        sum
    }

    pub fn negate(&self, point: &Point) -> Point {
        point.clone().map(|(x, y)| (x, &self.p - y))
    }

    /// A point with this x, if there is one. Because p is 3 modulo 4, y is the power (p + 1) / 4 of y squared.
    pub fn with_x(&self, x: &BigUint) -> Option<Point> {
        let square = (x.modpow(&3u8.into(), &self.p) + &self.b + &self.p * 3u8 - x * 3u8) % &self.p;
        let y = square.modpow(&((&self.p + 1u8) >> 2), &self.p);
        (&y * &y % &self.p == square).then(|| Some((x.clone(), y)))
    }

    /// Whether a signature is valid by FIPS 186-4, 6.4.2.
    pub fn verifies(&self, key: &Point, digest: &BigUint, r: &BigUint, s: &BigUint) -> bool {
        let is_in_range = |number: &BigUint| *number > BigUint::ZERO && number < &self.n;
        if !is_in_range(r) || !is_in_range(s) {
            return false;
        }
        let inverse = s.modinv(&self.n).unwrap();
        let multiple_of_g = self.multiply(&self.g, &(digest * &inverse % &self.n));
        let multiple_of_key = self.multiply(key, &(r * inverse % &self.n));
        self.add(&multiple_of_g, &multiple_of_key)
            .is_some_and(|(x, _)| x % &self.n == *r)
    }
}
