//! Binomial tails without loss of precision.

/// `ln n!`: a sum of logarithms below 256, and Stirling's series from 256 on (relative error below 1e-15).
pub fn ln_factorial(n: u64) -> f64 {
    if n < 256 {
        return (2..=n).map(|i| (i as f64).ln()).sum();
    }
    let x = n as f64;
    let series = 1.0 / (12.0 * x) - 1.0 / (360.0 * x.powi(3)) + 1.0 / (1260.0 * x.powi(5));
    x * x.ln() - x + 0.5 * (2.0 * std::f64::consts::PI * x).ln() + series
}

/// `P(X = i)` for `X` binomial with `n` trials of probability `p`.
pub fn probability(n: u64, p: f64, i: u64) -> f64 {
    if i > n {
        return 0.0;
    }
    if p <= 0.0 {
        return f64::from(u8::from(i == 0));
    }
    if p >= 1.0 {
        return f64::from(u8::from(i == n));
    }
    let ln_combinations = ln_factorial(n) - ln_factorial(i) - ln_factorial(n - i);
    (ln_combinations + i as f64 * p.ln() + (n - i) as f64 * (-p).ln_1p()).exp()
}

/// `P(X > i)`, summed from the term next to `i` outwards, so small tails keep full relative precision.
pub fn upper_tail(n: u64, p: f64, i: u64) -> f64 {
    if p <= 0.0 {
        return 0.0;
    }
    if p >= 1.0 {
        return f64::from(u8::from(n > i));
    }
    let mut term = probability(n, p, i + 1);
    let mut sum = 0.0;
    let odds = p / (1.0 - p);
    for j in i + 1..=n {
        sum += term;
        let ratio = (n - j) as f64 / (j + 1) as f64 * odds;
        if ratio < 1.0 && term < sum * 1e-18 {
            break;
        }
        // Left of the mode the first terms may underflow although later terms do not.
        term = if term == 0.0 {
            probability(n, p, j + 1)
        } else {
            term * ratio
        };
    }
    sum.min(1.0)
}

/// `P(X <= i)`.
pub fn lower_tail(n: u64, p: f64, i: u64) -> f64 {
    if i >= n {
        1.0
    } else {
        upper_tail(n, 1.0 - p, n - i - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tails_match_exact_values() {
        // Bin(5, 0.1): P(X > 2) = 0.00856 exactly.
        assert!((upper_tail(5, 0.1, 2) - 0.00856).abs() < 1e-15);
        assert!((lower_tail(5, 0.1, 2) - 0.99144).abs() < 1e-15);
        // Computed with exact rationals: Bin(255, 0.00856), P(X > 18).
        assert!((upper_tail(255, 0.00856, 18) / 1.670_668_215_167_907_7e-12 - 1.0).abs() < 1e-9);
        assert_eq!(upper_tail(10, 0.0, 0), 0.0);
        assert_eq!(upper_tail(10, 1.0, 9), 1.0);
        assert_eq!(lower_tail(10, 0.3, 10), 1.0);
    }

    #[test]
    fn tails_and_point_probability_add_up() {
        for (n, p, i) in [(1000, 0.3, 280), (3_000_000, 1e-6, 4), (100_000, 0.5, 50_100)] {
            let total = upper_tail(n, p, i) + lower_tail(n, p, i);
            assert!((total - 1.0).abs() < 1e-7, "n {n} p {p}: {total}");
        }
    }
}
