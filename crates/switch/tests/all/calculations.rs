//! Hash algorithms: compared with BMv2's test vectors and with their definitions.

use linewarden_switch::calculations::{
    Algorithm, Calculation, CalculationError, Crc, CrcParameters, CrcWidth, checksum16,
};
use proptest::prelude::*;

fn calculation(name: &str) -> Calculation {
    Calculation::new(Algorithm::from_name(name).expect(name))
}

const PORTS: [u8; 4] = [0x0b, 0xb8, 0x1f, 0x90];

/// Calculation that a line of the test data describes: custom CRCs with parameters, a Toeplitz hash with its key.
fn calculation_of(description: &str) -> Calculation {
    let words: Vec<_> = description.split(':').collect();
    let number = |index: usize| u64::from_str_radix(words[index], 16).unwrap();
    match words[0] {
        "toeplitz" => {
            let mut toeplitz = calculation("toeplitz");
            toeplitz
                .set_toeplitz_key(&hex::decode(words[1]).unwrap())
                .unwrap();
            toeplitz
        }
        "custom" => {
            let mut crc = calculation(&format!("crc{}_custom", words[1]));
            let Algorithm::CustomCrc(CrcParameters { width, .. }) = crc.algorithm() else {
                unreachable!()
            };
            crc.set_crc(CrcParameters {
                width,
                polynomial: number(2),
                initial_remainder: number(3),
                final_xor: number(4),
                data_reflected: number(5) == 1,
                remainder_reflected: number(6) == 1,
            })
            .unwrap();
            crc
        }
        name => calculation(name),
    }
}

#[test]
fn results_match_bmv2_code() {
    let lines = include_str!("../data/bmv2_calculations.txt")
        .lines()
        .filter(|line| !line.starts_with('#'));
    let mut checked = 0;
    for line in lines {
        let words: Vec<_> = line.split(' ').collect();
        let expected = u64::from_str_radix(words[2], 16).unwrap();
        let actual = calculation_of(words[0]).compute(&hex::decode(words[1]).unwrap());
        assert_eq!(actual, expected, "{line}: {actual:#x}");
        checked += 1;
    }
    assert_eq!(checked, 221);
}

/// Name, input, result expected by BMv2's tests.
const BMV2: &[(&str, &[u8], u64)] = &[
    ("identity", &[1, 2, 3, 4, 5], 0x01_0203_0405),
    ("identity", &[1, 2, 3, 4, 5, 6, 7, 8, 9], 0x0102_0304_0506_0708),
    ("xor16", &PORTS, 0x1428),
    ("xor16", &[0x0b, 0xb8, 0x1f, 0x90, 0x5a], 0x4e28),
    (
        "xor32",
        &[0x0b, 0x0b, 0xb8, 0xb8, 0x1f, 0x1f, 0x90, 0x90],
        0x1414_2828,
    ),
    (
        "xor32",
        &[0x0b, 0x0b, 0xb8, 0xb8, 0x1f, 0x1f, 0x90, 0x90, 0x5a],
        0x4e14_2828,
    ),
    (
        "xor32",
        &[0x0b, 0x0b, 0xb8, 0xb8, 0x1f, 0x1f, 0x90, 0x90, 0x5a, 0x5a],
        0x4e4e_2828,
    ),
    (
        "xor32",
        &[0x0b, 0x0b, 0xb8, 0xb8, 0x1f, 0x1f, 0x90, 0x90, 0x5a, 0x5a, 0xbd],
        0x4e4e_9528,
    ),
    (
        "cksum16",
        &[
            0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7,
        ],
        0xb861,
    ),
    ("crc16", &PORTS, 0x5d8a),
    ("crcCCITT", &PORTS, 0x5d75),
    ("crc32", &PORTS, 0x005d_6a6f),
    ("crc16_custom", &PORTS, 0x5d8a),
    ("crc32_custom", &PORTS, 0x005d_6a6f),
];

#[test]
fn test_vectors_of_bmv2_match() {
    for (name, input, expected) in BMV2 {
        let actual = calculation(name).compute(input);
        assert_eq!(actual, *expected, "{name} of {input:02x?}: {actual:#x}");
    }
}

/// Check values of BMv2's named CRCs: the CRC of the text `123456789`.
const NAMED_CRCS: [(&str, u64); 38] = [
    ("crc_8", 0xf4),
    ("crc_8_darc", 0x15),
    ("crc_8_i_code", 0x7e),
    ("crc_8_itu", 0xa1),
    ("crc_8_maxim", 0xa1),
    ("crc_8_rohc", 0xd0),
    ("crc_8_wcdma", 0x25),
    ("crc_16", 0xbb3d),
    ("crc_16_buypass", 0xfee8),
    ("crc_16_dds_110", 0x9ecf),
    ("crc_16_dect", 0x007e),
    ("crc_16_dnp", 0xea82),
    ("crc_16_en_13757", 0xc2b7),
    ("crc_16_genibus", 0xd64e),
    ("crc_16_maxim", 0x44c2),
    ("crc_16_mcrf4xx", 0x6f91),
    ("crc_16_riello", 0x63d0),
    ("crc_16_t10_dif", 0xd0db),
    ("crc_16_teledisk", 0x0fb3),
    ("crc_16_usb", 0xb4c8),
    ("x_25", 0x906e),
    ("xmodem", 0x31c3),
    ("modbus", 0x4b37),
    ("kermit", 0x2189),
    ("crc_ccitt_false", 0x29b1),
    ("crc_aug_ccitt", 0xe5cc),
    ("crc_32", 0xcbf4_3926),
    ("crc_32_bzip2", 0xfc89_1918),
    ("crc_32c", 0xe306_9283),
    ("crc_32d", 0x8731_5576),
    ("crc_32_mpeg", 0x0376_e6e7),
    ("posix", 0x765e_7680),
    ("crc_32q", 0x3010_bf7f),
    ("jamcrc", 0x340b_c6d9),
    ("xfer", 0xbd0b_e338),
    ("crc_64", 0x46a5_a938_8a5b_effe),
    ("crc_64_we", 0x62ec_59e3_f1a4_f00a),
    ("crc_64_jones", 0xcaa7_1716_8609_f281),
];

#[test]
fn named_crcs_have_their_check_values() {
    for (name, check) in NAMED_CRCS {
        let actual = calculation(name).compute(b"123456789");
        assert_eq!(actual, check, "{name}: {actual:#x}");
    }
}

#[test]
fn name_can_contain_crc_parameters() {
    let named = calculation("poly_0x104c11db7_init_0xffffffff_xout_0xffffffff_not_rev");
    assert_eq!(named.compute(b"123456789"), 0xfc89_1918);
    assert_eq!(calculation("poly_0x18005").compute(b"123456789"), 0xbb3d);
    let invalid_names = [
        "",
        "poly",
        "poly_0x04c11db7",
        "poly_0x1123",
        "init_0xff",
        "poly_0x107_lsb",
        "poly_0x107_not",
        "crc7",
    ];
    for name in invalid_names {
        assert_eq!(Algorithm::from_name(name), None, "{name}");
    }
}

#[test]
fn custom_crcs_take_parameters_of_their_width() {
    let mut crc16 = calculation("crc16_custom");
    for (initial, expected) in [(0xffff, 0x5d75), (0, 0xd9b5)] {
        crc16
            .set_crc(CrcParameters::new(CrcWidth::W16, 0x1021, initial, 0, false))
            .unwrap();
        assert_eq!(crc16.compute(&PORTS), expected);
    }
    let mut crc32 = calculation("crc32_custom");
    crc32
        .set_crc(CrcParameters::new(
            CrcWidth::W32,
            0x04c1_1db7,
            0xffff_ffff,
            0,
            false,
        ))
        .unwrap();
    assert_eq!(crc32.compute(&PORTS), 0x125e_1592);

    let wide = CrcParameters::new(CrcWidth::W32, 0, 0, 0, true);
    assert_eq!(
        crc16.set_crc(wide),
        Err(CalculationError::WrongCrcWidth {
            expected_bits: 16,
            actual_bits: 32
        })
    );
    assert!(matches!(
        calculation("crc16").set_crc(CrcParameters::new(CrcWidth::W16, 0x1021, 0, 0, false)),
        Err(CalculationError::WrongAlgorithm { .. })
    ));
}

/// Key and flow of Microsoft's verification suite for receive-side scaling.
#[test]
fn toeplitz_agrees_with_the_verification_suite() {
    let key = hex::decode("6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b477cb2da38030f20c6a42b73bbeac01fa");
    let mut toeplitz = calculation("toeplitz");
    assert_eq!(toeplitz.compute(&[0xff; 12]), 0, "the default key is zero");
    toeplitz.set_toeplitz_key(&key.unwrap()).unwrap();
    let flow = [66, 9, 149, 187, 161, 142, 100, 80, 0x0a, 0xea, 0x06, 0xe6];
    assert_eq!(toeplitz.compute(&flow), 0x51cc_c178);
    assert_eq!(toeplitz.compute(&flow[..8]), 0x323e_8fc2);
    for bytes in [0, 3, 5] {
        let error = toeplitz.set_toeplitz_key(&vec![1; bytes]);
        assert_eq!(error, Err(CalculationError::ToeplitzKeyLength { bytes }));
    }
}

#[test]
fn round_robins_count_independently() {
    let (first, second) = (calculation("round_robin"), calculation("round_robin"));
    for turn in 0..64 {
        assert_eq!((first.compute(b"same"), second.compute(b"same")), (turn, turn));
    }
    let consistent = calculation("round_robin_consistent");
    let turns = [b"a", b"b", b"a", b"c", b"b"].map(|input| consistent.compute(input));
    assert_eq!(turns, [0, 1, 0, 2, 1]);
}

/// Values of the reference implementation of xxHash, and of BMv2's unmodified source of `hash_ex`.
#[test]
fn xxhash_and_hash_ex_match_simple_switch() {
    assert_eq!(calculation("xxh64").compute(b""), 0xef46_db37_51d8_e999);
    assert_eq!(calculation("bmv2_hash").compute(b"abc"), 0x44bc_2cf5_ad77_0999);
    let hash_ex = calculation("hash_ex");
    for (input, expected) in HASH_EX {
        assert_eq!(hash_ex.compute(input), *expected, "{input:02x?}");
    }
}

const HASH_EX: &[(&[u8], u64)] = &[(b"", 0x5902879e), (b"abc", 0x02062503), (&PORTS, 0xfcc22c29)];

#[test]
fn empty_input_has_a_hash() {
    let expected = [
        ("crc16", 0),
        ("crc32", 0),
        ("crcCCITT", 0xffff),
        ("cksum16", 0xffff),
        ("csum16", 0xffff),
        ("xor16", 0),
        ("xor32", 0),
        ("identity", 0),
        ("toeplitz", 0),
        ("crc8_custom", 0),
        ("crc64_custom", 0),
        ("crc_8_i_code", 0xfd),
        ("crc_16_riello", 0x554d),
    ];
    for (name, hash) in expected {
        assert_eq!(calculation(name).compute(&[]), hash, "{name}");
    }
}

/// CRC by definition: remainder of the message, processed bit by bit from the top.
fn by_definition(parameters: &CrcParameters, input: &[u8]) -> u64 {
    let bits = parameters.width.bits();
    let mask = u64::MAX >> (64 - bits);
    let mut remainder = parameters.initial_remainder & mask;
    for byte in input {
        let byte = if parameters.data_reflected {
            byte.reverse_bits()
        } else {
            *byte
        };
        for bit in (0..8).rev() {
            let top = ((remainder >> (bits - 1)) ^ (u64::from(byte) >> bit)) & 1;
            remainder = ((remainder << 1) ^ (top * parameters.polynomial)) & mask;
        }
    }
    if parameters.remainder_reflected {
        remainder = remainder.reverse_bits() >> (64 - bits);
    }
    remainder ^ (parameters.final_xor & mask)
}

fn parameters() -> impl Strategy<Value = CrcParameters> {
    let width = prop::sample::select(vec![CrcWidth::W8, CrcWidth::W16, CrcWidth::W32, CrcWidth::W64]);
    (width, any::<[u64; 3]>(), any::<[bool; 2]>()).prop_map(|(width, numbers, reflected)| CrcParameters {
        width,
        polynomial: numbers[0],
        initial_remainder: numbers[1],
        final_xor: numbers[2],
        data_reflected: reflected[0],
        remainder_reflected: reflected[1],
    })
}

/// One's complement sum by definition: 16-bit words in network byte order with end-around carry.
fn checksum_by_definition(input: &[u8]) -> u16 {
    let sum = input.chunks(2).fold(0_u32, |sum, word| {
        let byte = |index| u32::from(word.get(index).copied().unwrap_or(0));
        let sum = sum + (byte(0) << 8) + byte(1);
        (sum & 0xffff) + (sum >> 16)
    });
    !(sum as u16)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn crc_tables_compute_the_remainder_of_the_division(
        parameters in parameters(),
        input in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        prop_assert_eq!(Crc::new(parameters).compute(&input), by_definition(&parameters, &input));
    }

    #[test]
    fn checksums_are_sums_of_words(input in prop::collection::vec(any::<u8>(), 0..2000)) {
        prop_assert_eq!(checksum16(&input), checksum_by_definition(&input));
    }

    #[test]
    fn checksums_carry_when_all_bits_are_set(length in 0..2000_usize, last: u8) {
        let mut input = vec![0xff; length];
        input.push(last);
        prop_assert_eq!(checksum16(&input), checksum_by_definition(&input));
    }

    #[test]
    fn every_algorithm_accepts_every_input(input in prop::collection::vec(any::<u8>(), 0..64)) {
        for name in ["crc16", "crc32", "crcCCITT", "cksum16", "xor16", "xor32", "hash_ex", "toeplitz"] {
            prop_assert!(calculation(name).compute(&input) <= u64::from(u32::MAX), "{}", name);
        }
        calculation("xxh64").compute(&input);
    }
}
