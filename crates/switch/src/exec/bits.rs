//! Loads, stores and copies of bits. Bit positions count from the most significant bit of the first byte. Positions outside
//! the bytes read as 0 and ignore writes.

use std::ops::Range;

use num_bigint::BigUint;

/// Mask of the low `bits` bits, 1 to 64.
#[inline(always)]
pub fn mask64(bits: u8) -> u64 {
    u64::MAX >> (64 - u32::from(bits.clamp(1, 64)))
}

/// Mask of the low `bits` bits, 1 to 128.
#[inline(always)]
pub fn mask128(bits: u8) -> u128 {
    u128::MAX >> (128 - u32::from(bits.clamp(1, 128)))
}

macro_rules! access {
    ($load:ident, $store:ident, $type:ty, $bytes:literal) => {
        /// Loads an integer from big-endian bytes at byte offset `at`.
        #[inline(always)]
        pub fn $load(bytes: &[u8], at: u32) -> $type {
            let chunk = bytes
                .get(at as usize..)
                .and_then(|rest| rest.first_chunk::<$bytes>());
            chunk.map_or(0, |chunk| <$type>::from_be_bytes(*chunk))
        }

        /// Stores an integer as big-endian bytes at byte offset `at`.
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

/// Sign-extends the low bits of a value to 64 bits.
#[inline(always)]
pub fn sign_extend64(value: u64, bits: u8) -> u64 {
    let shift = 64 - u32::from(bits.clamp(1, 64));
    (((value << shift) as i64) >> shift) as u64
}

/// Sign-extends the low bits of a value to 128 bits.
#[inline(always)]
pub fn sign_extend128(value: u128, bits: u8) -> u128 {
    let shift = 128 - u32::from(bits.clamp(1, 128));
    (((value << shift) as i128) >> shift) as u128
}

fn bit(bytes: &[u8], position: usize) -> u8 {
    bytes
        .get(position / 8)
        .map_or(0, |byte| (byte >> (7 - position % 8)) & 1)
}

/// Reads up to 64 bits.
pub fn read64(bytes: &[u8], first_bit: usize, bits: usize) -> u64 {
    let first_byte = first_bit / 8;
    let mut value: u128 = 0;
    for index in 0..9 {
        value = (value << 8) | u128::from(bytes.get(first_byte + index).copied().unwrap_or(0));
    }
    let shift = 72 - first_bit % 8 - bits.min(64);
    ((value >> shift) as u64) & (((1u128 << bits.min(64)) - 1) as u64)
}

/// Returns the byte range of the bits; `None` if start or length is not a multiple of 8.
fn aligned_bytes(first_bit: usize, bits: usize) -> Option<Range<usize>> {
    (first_bit.is_multiple_of(8) && bits.is_multiple_of(8)).then(|| first_bit / 8..(first_bit + bits) / 8)
}

/// Reads bits as bytes, padded in front.
pub fn read(bytes: &[u8], first_bit: usize, bits: usize) -> Vec<u8> {
    if let Some(aligned) = aligned_bytes(first_bit, bits).and_then(|range| bytes.get(range)) {
        return aligned.to_vec();
    }
    let mut out = Vec::with_capacity(bits.div_ceil(8));
    let head = bits % 8;
    let mut position = first_bit;
    if head != 0 {
        out.push(read64(bytes, position, head) as u8);
        position += head;
    }
    for _ in 0..bits / 8 {
        out.push(read64(bytes, position, 8) as u8);
        position += 8;
    }
    out
}

/// Stores the last `bits` bits of a big-endian value; missing bits are 0.
pub fn write(bytes: &mut [u8], first_bit: usize, bits: usize, value: &[u8]) {
    if let Some(aligned) = aligned_bytes(first_bit, bits).and_then(|range| bytes.get_mut(range)) {
        let (padding, target) = aligned.split_at_mut(aligned.len().saturating_sub(value.len()));
        padding.fill(0);
        target.copy_from_slice(value.split_at(value.len() - target.len()).1);
        return;
    }
    for index in 0..bits {
        // Distance to the last bit.
        let distance = bits - 1 - index;
        let set = value.len() * 8 > distance && bit(value, value.len() * 8 - 1 - distance) == 1;
        if let Some(byte) = bytes.get_mut((first_bit + index) / 8) {
            let position = 7 - (first_bit + index) % 8;
            *byte = (*byte & !(1 << position)) | (u8::from(set) << position);
        }
    }
}

/// Stores the low bits of a number.
pub fn write_number(bytes: &mut [u8], first_bit: usize, bits: usize, value: &BigUint) {
    let Some(aligned) = aligned_bytes(first_bit, bits).and_then(|range| bytes.get_mut(range)) else {
        return write(bytes, first_bit, bits, &value.to_bytes_be());
    };
    let mut remaining = aligned;
    for digit in value.iter_u64_digits() {
        let digit = digit.to_be_bytes();
        let (front, target) = remaining.split_at_mut(remaining.len().saturating_sub(digit.len()));
        target.copy_from_slice(digit.split_at(digit.len() - target.len()).1);
        remaining = front;
    }
    remaining.fill(0);
}

/// Growable bit string.
#[derive(Debug, Default)]
pub struct BitVec {
    bytes: Vec<u8>,
    bits: usize,
}

impl BitVec {
    /// Clears the content and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bits = 0;
    }

    /// Content as bytes, with zero bits after the last bit.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Appends bits of other bytes.
    pub fn append(&mut self, source: &[u8], first_bit: usize, bits: usize) {
        if self.bits.is_multiple_of(8) && first_bit.is_multiple_of(8) {
            let full_bytes = bits / 8;
            let first_byte = first_bit / 8;
            match source.get(first_byte..first_byte + full_bytes) {
                Some(part) => self.bytes.extend_from_slice(part),
                None => self
                    .bytes
                    .extend((0..full_bytes).map(|i| source.get(first_byte + i).copied().unwrap_or(0))),
            }
            if !bits.is_multiple_of(8) {
                let last = read64(source, first_bit + full_bytes * 8, bits % 8) as u8;
                self.bytes.push(last << (8 - bits % 8));
            }
            self.bits += bits;
            return;
        }
        let (mut position, mut remaining) = (first_bit, bits);
        while remaining > 0 {
            let free_bits = 8 - self.bits % 8;
            let count = free_bits.min(remaining);
            let part = read64(source, position, count) as u8;
            if self.bits.is_multiple_of(8) {
                self.bytes.push(0);
            }
            if let Some(byte) = self.bytes.last_mut() {
                *byte |= part << (free_bits - count);
            }
            self.bits += count;
            position += count;
            remaining -= count;
        }
    }

    /// Appends whole bytes after the last byte, as BMv2 does with the payload.
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

    /// Whole bytes use a separate code path. The same bytes, shifted by one bit, use the general path.
    #[test]
    fn aligned_bytes_are_written_and_read_as_unaligned_bits() {
        let value: [u8; 20] = std::array::from_fn(|i| 0xa1 + i as u8);
        for bits in (0..=200).step_by(8) {
            for length in 0..=value.len() {
                let (mut aligned, mut shifted) = ([0xff; 27], [0xff; 28]);
                write(&mut aligned, 8, bits, &value[..length]);
                write(&mut shifted, 9, bits, &value[..length]);
                let read_back = read(&aligned, 8, bits);
                let number = BigUint::from_bytes_be(&value[..length]);
                for at in [8, 9] {
                    let mut numbers = [0xff; 28];
                    write_number(&mut numbers, at, bits, &number);
                    assert_eq!(read(&numbers, at, bits), read_back);
                    assert_eq!(numbers[0], 0xff);
                }
                assert_eq!(
                    read_back,
                    read(&shifted, 9, bits),
                    "{bits} bits of {length} bytes"
                );
                assert_eq!(read_back, aligned[1..1 + bits / 8]);
                assert_eq!((aligned[0], aligned[26]), (0xff, 0xff));
            }
        }
        let mut short = [0; 2];
        write(&mut short, 8, 16, &[1, 2]);
        assert_eq!(short, [0, 1], "writes outside the bytes are ignored");
        assert_eq!(
            read(&short, 8, 16),
            [1, 0],
            "positions outside the bytes read as 0"
        );
    }

    #[test]
    fn bits_are_appended_contiguously() {
        let mut out = BitVec::default();
        out.append(&[0b1110_0000], 0, 3);
        out.append(&[0x12, 0x34], 4, 12);
        assert_eq!(out.bytes(), &[0b1110_0100, 0b0110_1000]);
        out.append_bytes(&[9]);
        assert_eq!(out.bytes(), &[0b1110_0100, 0b0110_1000, 9]);
    }
}
