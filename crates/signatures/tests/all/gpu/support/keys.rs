//! RSA keys whose prime factors have long runs of ones or zeros; one key also has a random factor.

use linewarden_arithmetic::rsa::Size;
use linewarden_signatures::gpu::RsaSecret;
use num_bigint::BigUint;

use super::numbers::to_bytes;

/// A key; numbers have their most significant byte first.
pub struct Key {
    pub n: BigUint,
    pub d: BigUint,
    pub e: BigUint,
    pub p: BigUint,
    pub q: BigUint,
    /// Modulus, p, q, dp, dq, qinv.
    bytes: [Vec<u8>; 6],
    pub size: Size,
}

impl Key {
    fn new(size: Size, p: BigUint, q: BigUint) -> Self {
        let (n, e) = (&p * &q, BigUint::from(65_537u32));
        let (p1, q1) = (&p - 1u8, &q - 1u8);
        let d = e.modinv(&(&p1 * &q1)).unwrap();
        let half = size.bytes() / 2;
        let [dp, dq] = [&d % p1, &d % q1].map(|exponent| to_bytes(&exponent, half));
        let qinv = to_bytes(&q.modinv(&p).unwrap(), half);
        let bytes = [
            to_bytes(&n, size.bytes()),
            to_bytes(&p, half),
            to_bytes(&q, half),
            dp,
            dq,
            qinv,
        ];
        Self {
            n,
            d,
            e,
            p,
            q,
            bytes,
            size,
        }
    }

    pub fn modulus(&self) -> &[u8] {
        &self.bytes[0]
    }

    pub fn secret(&self) -> RsaSecret<'_> {
        let [_, p, q, dp, dq, qinv] = &self.bytes;
        RsaSecret { p, q, dp, dq, qinv }
    }

    pub fn private(&self, number: &BigUint) -> BigUint {
        number.modpow(&self.d, &self.n)
    }

    /// RSAPrivateKey of RFC 8017, A.1.2.
    pub fn der(&self) -> Vec<u8> {
        let [_, p, q, dp, dq, qinv] = self.bytes.each_ref().map(|bytes| BigUint::from_bytes_be(bytes));
        let numbers = [
            BigUint::ZERO,
            self.n.clone(),
            self.e.clone(),
            self.d.clone(),
            p,
            q,
            dp,
            dq,
            qinv,
        ];
        let integers: Vec<u8> = numbers
            .iter()
            .flat_map(|number| {
                let mut bytes = number.to_bytes_be();
                if bytes[0] >= 0x80 {
                    bytes.insert(0, 0);
                }
                tagged(0x02, &bytes)
            })
            .collect();
        tagged(0x30, &integers)
    }
}

fn tagged(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let head = match length {
        0..=0x7f => vec![tag, length as u8],
        0x80..=0xff => vec![tag, 0x81, length as u8],
        _ => vec![tag, 0x82, (length >> 8) as u8, length as u8],
    };
    [head.as_slice(), content].concat()
}

/// Three keys with factors of k bits. The factors of the first key are 2^k - c, so that n begins with a long run of ones.
/// The factors of the second key are 3/4 2^k + c, so that n has long runs of zeros; the smaller factor is p. The factors
/// of the third key are 2^k - 2^(k/2) - c and a random prime.
pub fn keys(size: Size) -> [Key; 3] {
    let (k, ones, zeros, middle, random) = match size {
        Size::Bits2048 => (1024usize, [105u32, 179], [1037u32, 1697], 2657u32, RANDOM_1024),
        Size::Bits3072 => (1536, [3453, 4977], [1837, 2617], 443, RANDOM_1536),
    };
    let power = |k: usize| BigUint::from(1u8) << k;
    let [p0, q0] = ones.map(|c| power(k) - c);
    let [p1, q1] = zeros.map(|c| power(k - 2) * 3u8 + c);
    let p2 = power(k) - power(k / 2) - middle;
    let q2 = BigUint::parse_bytes(random.as_bytes(), 16).unwrap();
    [
        Key::new(size, p0, q0),
        Key::new(size, p1, q1),
        Key::new(size, p2, q2),
    ]
}

const RANDOM_1024: &str = "fa529ba3fe3bfada7cf20724d953ee261d87cec31f7296ab7961fd925d39d0a89a2ef80f58ee8571f4998d7c4093f6de\
                           a268aa872607679d6050914a9d33a01c353c631cdfd43f371200339d068739fa9d1de2a05d158a2ff2ee4e4519f9919c\
                           895fd7b326b94c7f9118bb16000f49c81a358ca00d75985d99c94309570dc195";
const RANDOM_1536: &str = "fdf65b9e153d8f64fd1fb212ec42e89edbc3e763466db73ef3b9e79e7d1e37e98bc853d7db905b0592d823e228907c27\
                           5639b9419c62e34ccd12667d43256b898f525c79c1ef1ec5a47a1869517a5d205388d75cb02162679473e3dafda3ecf1\
                           0118a26fd23cda4b9d56e087c9c30bc4aa06c354cace0ef83601685fe75e3a57fe56c3fa44d9c8f330dc63ee6068ca6f\
                           e52126e550fc016f2948d82b9d7d83e7faa9ef41edcf0cd4947f4d65f49bbdc17ac466fcf5bef4465571335068a6277b";
