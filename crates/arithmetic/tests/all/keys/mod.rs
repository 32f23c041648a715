//! RSA private keys for tests.

use linewarden_arithmetic::rsa::{BLINDING_BYTES, KeyError, RsaPrivate, Size};
use num_bigint::BigUint;

pub const SIZES: [Size; 2] = [Size::Bits2048, Size::Bits3072];

/// The prime factors p and q of the test key of this size.
pub fn primes(size: Size) -> [BigUint; 2] {
    let digits = match size {
        Size::Bits2048 => [
            "d0ab97547594aa0636e7e776573961e286a6377408ab65ee2f463fbe0507f3e2243dc48807f69f489ee22c5beaad24fd
             50c0250a3add61ad24b5a60f237c236228721cfd2c01e5f9846441814dcd5717daf5edd85fdcd04e960efa6634af08b9
             6fdef91e478388d908d430e1d73c7c92e87dbb33406a8644ffae3221f76e18a5",
            "e60c76f623bf2b53a6d47b83ca40877686b20398ce99fd741a34694046a61aff13fbab83c34522aa73a324d99d402969
             372ae99e222379666597ceaebba9e6af86de8e6f7e3f78ea959339b2ed7b2c4a30e626662c7a3e0fe051b6f697694566
             bf71e11f1186cc8f6dd4165dd978b49b460f281d3749c3c14f2a31efdf44b109",
        ],
        Size::Bits3072 => [
            "c09ba7d7e717680a54f4266e25ed6fc76339e1d3f4bc7201235fd3f4eb09ebf324adbfa0fc88e8ffee1a055a1e91b31a
             f6127d9027df34d518d28715804738fed4b4a0970bf4401ce8dcf61b9bb03f6c9e9e3b615cf77551262b2f9c49e1ac20
             06e501ef1416858a1585f782e80f6f3bc691c8ce0e562d1afba0a9a0fc574dc8f953e9be07c241cd87c97b49b2909e14
             ed55aa190539ef12ecf6db4b2edc456c1fe5c1a4a4b45c31e445a5e1bcf071ce6a6c4be607499a073a08251df0a4662d",
            "d5b1541339b7be5bfb9210941b03538a5cc64145ba37e34155474bdadb97b1e4fda3d0043bfb86ba328f8b5ed77a2dcc
             3698041857d2a3f7c1167df9b34547d72adb1a848ca91476728a909605d8284d61fbc73e9f1b30bc378c4cdc629abe71
             12cf070456e32e4cdd29de6e57507571d903306f1e7c815e44fa478d3e6f5dc7473973e6db0fde2f3c00486d05f77d75
             f1a85b4e019dbb954c47fb4e48e9ab12f43b10b7b4864d00a3d37379ccb35219be31b00365791db513e4b621f46656df",
        ],
    };
    digits.map(|digits| BigUint::parse_bytes(digits.replace(char::is_whitespace, "").as_bytes(), 16).unwrap())
}

/// The numbers p, q, dp, dq and qinv of the test key of this size, as big-endian bytes.
pub fn parts(size: Size) -> [Vec<u8>; 5] {
    let [p, q] = primes(size);
    let one = BigUint::from(1u32);
    let e = BigUint::from(65_537u32);
    let exponent = |prime: &BigUint| e.modinv(&(prime - &one)).unwrap();
    let parts = [exponent(&p), exponent(&q), q.modinv(&p).unwrap()];
    let [dp, dq, qinv] = parts;
    [p, q, dp, dq, qinv].map(|part| super::testing::bytes(&part, size.bytes() / 2))
}

pub fn private([p, q, dp, dq, qinv]: &[Vec<u8>; 5]) -> Result<RsaPrivate, KeyError> {
    RsaPrivate::new(p, q, dp, dq, qinv, &[7; BLINDING_BYTES])
}
