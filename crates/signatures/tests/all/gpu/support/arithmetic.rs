//! Tests of single operations of the multipliers.

use linewarden_signatures::gpu::kernels::{Kernel, probes};
use linewarden_signatures::gpu::layouts::ProbeArgs;
use linewarden_signatures::gpu::{Gpu, ProbeOperands, ProbeOperation};
use num_bigint::BigUint;
use rand_chacha::ChaCha20Rng;

use super::numbers::{from_limbs, modulus, negative_inverse, number_near, to_limbs};

/// Number of rows: more than one block of each kernel processes, and not a multiple of a warp.
const ROWS: usize = 203;

/// Operands of an operation: each row has a, b, a modulus and `-n^-1 mod 2^32`.
struct Rows {
    limbs: usize,
    a: Vec<u32>,
    b: Vec<u32>,
    moduli: Vec<u32>,
    n0: Vec<u32>,
}

impl Rows {
    fn new(rng: &mut ChaCha20Rng, limbs: usize) -> Self {
        let mut rows = Self {
            limbs,
            a: vec![],
            b: vec![],
            moduli: vec![],
            n0: vec![],
        };
        for _ in 0..ROWS {
            let n = modulus(rng, limbs);
            let value = from_limbs(&n);
            rows.a.extend(number_near(rng, &value, limbs));
            rows.b.extend(number_near(rng, &value, limbs));
            rows.n0.push(negative_inverse(&value));
            rows.moduli.extend(n);
        }
        rows
    }

    fn operands(&self) -> ProbeOperands<'_> {
        ProbeOperands {
            a: &self.a,
            b: &self.b,
            moduli: &self.moduli,
            n0: &self.n0,
        }
    }

    fn values(&self) -> impl Iterator<Item = [BigUint; 3]> {
        let [a, b, n] =
            [&self.a, &self.b, &self.moduli].map(|array| array.chunks(self.limbs).map(from_limbs));
        a.zip(b).zip(n).map(|((a, b), n)| [a, b, n])
    }
}

/// Computes the result of an operation on a, b and n, reduced modulo n.
type Expected = fn(&BigUint, &BigUint, &BigUint, limbs: usize) -> BigUint;

/// `value / 2^bits mod n`.
fn divided(value: BigUint, bits: usize, n: &BigUint) -> BigUint {
    let power = (BigUint::from(1u8) << bits) % n;
    value * power.modinv(n).unwrap() % n
}

/// An operation, whether its result must be below n, and its result modulo n. If the flag is false, a device can return
/// any congruent number of `limbs` limbs.
const OPERATIONS: [(ProbeOperation, bool, Expected); 6] = [
    (ProbeOperation::Multiply, false, |a, b, n, limbs| {
        divided(a * b, 32 * limbs, n)
    }),
    (ProbeOperation::MultiplyFour, false, |a, b, n, limbs| {
        divided(a * (b >> (32 * limbs - 128)), 128, n)
    }),
    (ProbeOperation::MultiplyHalf, false, |a, b, n, limbs| {
        let half = BigUint::from(1u8) << (16 * limbs);
        divided(a * (b % half), 16 * limbs, n)
    }),
    (ProbeOperation::Add, false, |a, b, n, _| (a + b) % n),
    (ProbeOperation::Subtract, false, |a, b, n, _| (a + n + n - b) % n),
    (ProbeOperation::Canonical, true, |a, _, n, _| a % n),
];

/// Tests all operations for all divisions of numbers among lanes that kernels use, with operands up to 2^bits - 1.
pub fn multipliers(gpu: &mut Gpu, rng: &mut ChaCha20Rng) {
    let divisions: [(Kernel<ProbeArgs>, usize); 10] = [
        (probes::PROBE_32X1, 32),
        (probes::PROBE_32X2, 64),
        (probes::PROBE_24X2, 48),
        (probes::PROBE_24X4, 96),
        (probes::PROBE_16X4, 64),
        (probes::PROBE_12X4, 48),
        (probes::PROBE_12X8, 96),
        (probes::PROBE_8X4, 32),
        (probes::PROBE_8X8, 64),
        (probes::PROBE_8X1, 8),
    ];
    for (kernel, limbs) in divisions {
        let rows = Rows::new(rng, limbs);
        for (operation, is_reduced, expected) in OPERATIONS {
            let results = gpu.probe(kernel, operation, &rows.operands()).unwrap();
            for (row, ([a, b, n], result)) in rows
                .values()
                .zip(results.chunks(limbs).map(from_limbs))
                .enumerate()
            {
                let name = kernel.info.name;
                let description =
                    || format!("{name} {operation:?} row {row}: a={a:x} b={b:x} n={n:x} gave {result:x}");
                assert_eq!(&result % &n, expected(&a, &b, &n, limbs), "{}", description());
                let stays_below = is_reduced || operation == ProbeOperation::Subtract && a < n;
                assert!(!stays_below || result < n, "{}", description());
            }
        }
    }
}

fn p256_prime() -> BigUint {
    let power = |k: usize| BigUint::from(1u8) << k;
    power(256) - power(224) + power(192) + power(96) - 1u8
}

/// The field of P-256, whose operands and results are below its prime.
pub fn p256_field(gpu: &mut Gpu, rng: &mut ChaCha20Rng) {
    let p = p256_prime();
    let below = |rng: &mut ChaCha20Rng| to_limbs(&(from_limbs(&number_near(rng, &p, 8)) % &p), 8);
    let mut rows = Rows {
        limbs: 8,
        a: vec![],
        b: vec![],
        moduli: vec![],
        n0: vec![],
    };
    for _ in 0..2_000 {
        rows.a.extend(below(rng));
        rows.b.extend(below(rng));
        rows.moduli.extend(to_limbs(&p, 8));
        rows.n0.push(1);
    }
    let operations: [(ProbeOperation, Expected); 4] = [
        (ProbeOperation::Multiply, |a, b, p, _| divided(a * b, 256, p)),
        (ProbeOperation::MultiplyHalf, |a, _, p, _| divided(a * a, 256, p)),
        (ProbeOperation::Add, |a, b, p, _| (a + b) % p),
        (ProbeOperation::Subtract, |a, b, p, _| (a + p - b) % p),
    ];
    for (operation, expected) in operations {
        let results = gpu
            .probe(probes::PROBE_P256, operation, &rows.operands())
            .unwrap();
        for ([a, b, _], result) in rows.values().zip(results.chunks(8).map(from_limbs)) {
            assert_eq!(result, expected(&a, &b, &p, 8), "{operation:?}: a={a:x} b={b:x}");
        }
    }
}
