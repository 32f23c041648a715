//! CRCs by BMv2's predefined names, and custom CRCs whose name contains the parameters.

use super::crc::{CrcParameters, CrcWidth};
use CrcWidth::{W8, W16, W32, W64};

/// Name, width, polynomial, initial remainder, final XOR, whether reflected.
type NamedCrc = (&'static str, CrcWidth, u64, u64, u64, bool);

/// Predefined algorithms of the Python package crcmod (`-` becomes `_`), with BMv2's
/// parameters.
#[rustfmt::skip]
const NAMED: [NamedCrc; 38] = [
    ("crc_8", W8, 0x07, 0x00, 0x00, false),
    ("crc_8_darc", W8, 0x39, 0x00, 0x00, true),
    ("crc_8_i_code", W8, 0x1d, 0xfd, 0x00, false),
    ("crc_8_itu", W8, 0x07, 0x00, 0x55, false),
    ("crc_8_maxim", W8, 0x31, 0x00, 0x00, true),
    ("crc_8_rohc", W8, 0x07, 0xff, 0x00, true),
    ("crc_8_wcdma", W8, 0x9b, 0x00, 0x00, true),
    ("crc_16", W16, 0x8005, 0x0000, 0x0000, true),
    ("crc_16_buypass", W16, 0x8005, 0x0000, 0x0000, false),
    ("crc_16_dds_110", W16, 0x8005, 0x800d, 0x0000, false),
    ("crc_16_dect", W16, 0x0589, 0x0000, 0x0001, false),
    ("crc_16_dnp", W16, 0x3d65, 0x0000, 0xffff, true),
    ("crc_16_en_13757", W16, 0x3d65, 0x0000, 0xffff, false),
    ("crc_16_genibus", W16, 0x1021, 0xffff, 0xffff, false),
    ("crc_16_maxim", W16, 0x8005, 0x0000, 0xffff, true),
    ("crc_16_mcrf4xx", W16, 0x1021, 0xffff, 0x0000, true),
    ("crc_16_riello", W16, 0x1021, 0xb2aa, 0x0000, true),
    ("crc_16_t10_dif", W16, 0x8bb7, 0x0000, 0x0000, false),
    ("crc_16_teledisk", W16, 0xa097, 0x0000, 0x0000, false),
    ("crc_16_usb", W16, 0x8005, 0xffff, 0xffff, true),
    ("x_25", W16, 0x1021, 0xffff, 0xffff, true),
    ("xmodem", W16, 0x1021, 0x0000, 0x0000, false),
    ("modbus", W16, 0x8005, 0xffff, 0x0000, true),
    ("kermit", W16, 0x1021, 0x0000, 0x0000, true),
    ("crc_ccitt_false", W16, 0x1021, 0xffff, 0x0000, false),
    ("crc_aug_ccitt", W16, 0x1021, 0x1d0f, 0x0000, false),
    ("crc_32", W32, 0x04c11db7, 0xffffffff, 0xffffffff, true),
    ("crc_32_bzip2", W32, 0x04c11db7, 0xffffffff, 0xffffffff, false),
    ("crc_32c", W32, 0x1edc6f41, 0xffffffff, 0xffffffff, true),
    ("crc_32d", W32, 0xa833982b, 0xffffffff, 0xffffffff, true),
    ("crc_32_mpeg", W32, 0x04c11db7, 0xffffffff, 0x00000000, false),
    ("posix", W32, 0x04c11db7, 0x00000000, 0xffffffff, false),
    ("crc_32q", W32, 0x814141ab, 0x00000000, 0x00000000, false),
    ("jamcrc", W32, 0x04c11db7, 0xffffffff, 0x00000000, true),
    ("xfer", W32, 0x000000af, 0x00000000, 0x00000000, false),
    ("crc_64", W64, 0x000000000000001b, 0x0000000000000000, 0x0000000000000000, true),
    ("crc_64_we", W64, 0x42f0e1eba9ea3693, 0xffffffffffffffff, 0xffffffffffffffff, false),
    ("crc_64_jones", W64, 0xad93d23594c935a9, 0xffffffffffffffff, 0x0000000000000000, true),
];

/// Parameters of a predefined CRC, or of a name like `poly_0x1<hex>[_init_<hex>][_xout_<hex>][_not_rev]`.
///
/// The polynomial includes its highest coefficient, the leading 1, so its length determines the width: 8, 16,
/// 32 or 64 bits. Data and remainder are reflected unless `not_rev` is present. This function and BMv2 reject the
/// options `lsb`, `msb` and `extend`, although BMv2 lists them.
pub(super) fn by_name(name: &str) -> Option<CrcParameters> {
    let predefined = NAMED.iter().find(|entry| entry.0 == name);
    match predefined {
        Some(&(_, width, polynomial, initial, xor, reflected)) => {
            Some(CrcParameters::new(width, polynomial, initial, xor, reflected))
        }
        None => parse_custom(name),
    }
}

fn parse_custom(name: &str) -> Option<CrcParameters> {
    let mut words = name.split('_');
    let (mut polynomial, mut initial, mut xor, mut reflected) = (None, 0, 0, true);
    while let Some(word) = words.next() {
        match word {
            "poly" => polynomial = Some(words.next()?),
            "init" => initial = parse_hex(words.next()?)?,
            "xout" => xor = parse_hex(words.next()?)?,
            "not" if words.next()? == "rev" => reflected = false,
            _ => return None,
        }
    }
    let digits = polynomial?.strip_prefix("0x1")?;
    let width = match digits.len() {
        2 => W8,
        4 => W16,
        8 => W32,
        16 => W64,
        _ => return None,
    };
    Some(CrcParameters::new(
        width,
        parse_hex(digits)?,
        initial,
        xor,
        reflected,
    ))
}

fn parse_hex(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    if digits.starts_with('+') {
        return None;
    }
    u64::from_str_radix(digits, 16).ok()
}
