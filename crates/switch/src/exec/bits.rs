//! Loads, stores and copies of bits. Positions outside the bytes read as 0 and take no writes.

use std::ops::Range;

use num_bigint::BigUint;

/// The low `bits` bits, 1 to 64.
#[inline(always)]
pub fn mask64(bits: u8) -> u64 {
    u64::MAX >> (64 - u32::from(bits.clamp(1, 64)))
}

/// The low `bits` bits, 1 to 128.
#[inline(always)]
pub fn mask128(bits: u8) -> u128 {
    u128::MAX >> (128 - u32::from(bits.clamp(1, 128)))
}

macro_rules! access {
    ($load:ident, $store:ident, $type:ty, $bytes:literal) => {
        /// Loads most significant byte first.
        #[inline(always)]
        pub fn $load(bytes: &[u8], at: u32) -> $type {
            let found = bytes
                .get(at as usize..)
                .and_then(|rest| rest.first_chunk::<$bytes>());
            found.map_or(0, |chunk| <$type>::from_be_bytes(*chunk))
        }

        /// Stores most significant byte first.
        #[inline(always)]
        pub fn $store(bytes: &mut [u8], at: u32, value: $type) {
            if let Some(chunk) = bytes
                .get_mut(at as usize..)
                .and_then(|rest| rest.first_chunk_mut::<$bytes>())
            {
                *chunk = value.to_be_bytes();
            }
        }
    };
}

access!(load1, store1, u8, 1);
access!(load2, store2, u16, 2);
access!(load4, store4, u32, 4);
access!(load8, store8, u64, 8);
access!(load16, store16, u128, 16);

/// The low bits of a value as a signed number in 64 bits.
#[inline(always)]
pub fn sign_extend64(value: u64, bits: u8) -> u64 {
    let above = 64 - u32::from(bits.clamp(1, 64));
    (((value << above) as i64) >> above) as u64
}

/// The low bits of a value as a signed number in 128 bits.
#[inline(always)]
pub fn sign_extend128(value: u128, bits: u8) -> u128 {
    let above = 128 - u32::from(bits.clamp(1, 128));
    (((value << above) as i128) >> above) as u128
}

/// The bit at that position, counted from the first byte's most significant.
fn bit(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at / 8).map_or(0, |byte| (byte >> (7 - at % 8)) & 1)
}

/// Up to 64 bits from any position.
pub fn read64(bytes: &[u8], at: usize, bits: usize) -> u64 {
    let first = at / 8;
    let mut value: u128 = 0;
    for index in 0..9 {
        value = (value << 8) | u128::from(bytes.get(first + index).copied().unwrap_or(0));
    }
    let below = 72 - at % 8 - bits.min(64);
    ((value >> below) as u64) & (((1u128 << bits.min(64)) - 1) as u64)
}

/// Where bits lie that are whole bytes; nothing if they are not.
fn whole_bytes(at: usize, bits: usize) -> Option<Range<usize>> {
    (at.is_multiple_of(8) && bits.is_multiple_of(8)).then(|| at / 8..(at + bits) / 8)
}

/// Bits as bytes, padded at their front.
pub fn read(bytes: &[u8], at: usize, bits: usize) -> Vec<u8> {
    if let Some(whole) = whole_bytes(at, bits).and_then(|range| bytes.get(range)) {
        return whole.to_vec();
    }
    let mut out = Vec::with_capacity(bits.div_ceil(8));
    let head = bits % 8;
    let mut from = at;
    if head != 0 {
        out.push(read64(bytes, from, head) as u8);
        from += head;
    }
    for _ in 0..bits / 8 {
        out.push(read64(bytes, from, 8) as u8);
        from += 8;
    }
    out
}

/// Stores the last `bits` bits of bytes that are most significant first; missing ones are 0.
pub fn write(bytes: &mut [u8], at: usize, bits: usize, value: &[u8]) {
    if let Some(whole) = whole_bytes(at, bits).and_then(|range| bytes.get_mut(range)) {
        let (missing, there) = whole.split_at_mut(whole.len().saturating_sub(value.len()));
        missing.fill(0);
        there.copy_from_slice(value.split_at(value.len() - there.len()).1);
        return;
    }
    for index in 0..bits {
        // The bit that lies `bits - 1 - index` above the last one.
        let above = bits - 1 - index;
        let set = value.len() * 8 > above && bit(value, value.len() * 8 - 1 - above) == 1;
        if let Some(byte) = bytes.get_mut((at + index) / 8) {
            let position = 7 - (at + index) % 8;
            *byte = (*byte & !(1 << position)) | (u8::from(set) << position);
        }
    }
}

/// Stores the low bits of a number.
pub fn write_number(bytes: &mut [u8], at: usize, bits: usize, value: &BigUint) {
    let Some(whole) = whole_bytes(at, bits).and_then(|range| bytes.get_mut(range)) else {
        return write(bytes, at, bits, &value.to_bytes_be());
    };
    let mut left = whole;
    for digit in value.iter_u64_digits() {
        let digit = digit.to_be_bytes();
        let (rest, place) = left.split_at_mut(left.len().saturating_sub(digit.len()));
        place.copy_from_slice(digit.split_at(digit.len() - place.len()).1);
        left = rest;
    }
    left.fill(0);
}

/// Bytes that grow bit by bit.
#[derive(Debug, Default)]
pub struct BitVec {
    bytes: Vec<u8>,
    bits: usize,
}

impl BitVec {
    /// Forgets everything; keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bits = 0;
    }

    /// What there is, with zeros behind the last bit.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Appends bits of other bytes.
    pub fn append(&mut self, source: &[u8], at: usize, bits: usize) {
        if self.bits.is_multiple_of(8) && at.is_multiple_of(8) {
            let whole = bits / 8;
            let first = at / 8;
            match source.get(first..first + whole) {
                Some(part) => self.bytes.extend_from_slice(part),
                None => self
                    .bytes
                    .extend((0..whole).map(|i| source.get(first + i).copied().unwrap_or(0))),
            }
            if !bits.is_multiple_of(8) {
                let last = read64(source, at + whole * 8, bits % 8) as u8;
                self.bytes.push(last << (8 - bits % 8));
            }
            self.bits += bits;
            return;
        }
        let (mut from, mut left) = (at, bits);
        while left > 0 {
            let room = 8 - self.bits % 8;
            let take = room.min(left);
            let part = read64(source, from, take) as u8;
            if self.bits.is_multiple_of(8) {
                self.bytes.push(0);
            }
            if let Some(byte) = self.bytes.last_mut() {
                *byte |= part << (room - take);
            }
            self.bits += take;
            from += take;
            left -= take;
        }
    }

    /// Appends whole bytes behind the last byte, as BMv2 does with the payload.
    pub fn append_bytes(&mut self, source: &[u8]) {
        self.bytes.extend_from_slice(source);
        self.bits = self.bytes.len() * 8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_read_and_written_at_any_position() {
        let source = [0b1010_0101, 0b1100_0011, 0xff, 0x00];
        assert_eq!(read64(&source, 3, 7), 0b001_0111);
        assert_eq!(read(&source, 3, 10), vec![0b00, 0b1011_1000]);
        let mut target = [0u8; 4];
        write(&mut target, 5, 9, &[0x01, 0x55]);
        assert_eq!(read(&target, 5, 9), vec![0x01, 0x55]);
        assert_eq!(read64(&target, 0, 5), 0);
    }

    /// Whole bytes take a way of their own: a bit further on, it is the other one.
    #[test]
    fn whole_bytes_are_written_and_read_as_any_other_bits() {
        let value: [u8; 20] = std::array::from_fn(|i| 0xa1 + i as u8);
        for bits in (0..=200).step_by(8) {
            for length in 0..=value.len() {
                let (mut whole, mut other) = ([0xff; 27], [0xff; 28]);
                write(&mut whole, 8, bits, &value[..length]);
                write(&mut other, 9, bits, &value[..length]);
                let found = read(&whole, 8, bits);
                let number = BigUint::from_bytes_be(&value[..length]);
                for at in [8, 9] {
                    let mut numbers = [0xff; 28];
                    write_number(&mut numbers, at, bits, &number);
                    assert_eq!(read(&numbers, at, bits), found);
                    assert_eq!(numbers[0], 0xff);
                }
                assert_eq!(found, read(&other, 9, bits), "{bits} bits of {length} bytes");
                assert_eq!(found, whole[1..1 + bits / 8]);
                assert_eq!((whole[0], whole[26]), (0xff, 0xff));
            }
        }
        let mut short = [0; 2];
        write(&mut short, 8, 16, &[1, 2]);
        assert_eq!(short, [0, 1], "what lies outside takes no writes");
        assert_eq!(read(&short, 8, 16), [1, 0], "and reads as 0");
    }

    #[test]
    fn bits_are_appended_one_behind_the_other() {
        let mut out = BitVec::default();
        out.append(&[0b1110_0000], 0, 3);
        out.append(&[0x12, 0x34], 4, 12);
        assert_eq!(out.bytes(), &[0b1110_0100, 0b0110_1000]);
        out.append_bytes(&[9]);
        assert_eq!(out.bytes(), &[0b1110_0100, 0b0110_1000, 9]);
    }
}
