//! Cyclic redundancy checks of every width, polynomial and bit order that BMv2 supports.

/// Width of a CRC's remainder, bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CrcWidth {
    /// 8 bits.
    W8,
    /// 16 bits.
    W16,
    /// 32 bits.
    W32,
    /// 64 bits.
    W64,
}

impl CrcWidth {
    /// Bits of the remainder.
    pub const fn bits(self) -> u32 {
        match self {
            Self::W8 => 8,
            Self::W16 => 16,
            Self::W32 => 32,
            Self::W64 => 64,
        }
    }
}

/// Parameters of a CRC, as in BMv2's `crc_config_t`. In all values the coefficient of the highest power is the
/// most significant bit, for reflected and for forward data. Bits above the width are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CrcParameters {
    /// Width of the remainder.
    pub width: CrcWidth,
    /// Generator polynomial without its highest coefficient.
    pub polynomial: u64,
    /// Remainder before the first byte.
    pub initial_remainder: u64,
    /// XORed with the remainder after the last byte and after the reflection.
    pub final_xor: u64,
    /// Whether each byte is processed with its least significant bit first.
    pub data_reflected: bool,
    /// Whether the bits of the remainder are reversed before `final_xor`.
    pub remainder_reflected: bool,
}

impl CrcParameters {
    /// Parameters in the order of BMv2's tables; `reflected` applies to data and remainder.
    pub const fn new(
        width: CrcWidth,
        polynomial: u64,
        initial_remainder: u64,
        final_xor: u64,
        reflected: bool,
    ) -> Self {
        Self {
            width,
            polynomial,
            initial_remainder,
            final_xor,
            data_reflected: reflected,
            remainder_reflected: reflected,
        }
    }
}

type Table = [u64; 256];

/// Bytes per step (slicing-by-8).
const SLICES: usize = 8;

/// CRC parameters with their precomputed tables (16 KiB).
///
/// The shift register has 64 bits for every width. Reflected data shift the register right and leave the
/// reflected remainder in the low bits; otherwise the register shifts left and the remainder is in the high
/// bits. So two loops handle all widths.
#[derive(Debug)]
pub struct Crc {
    parameters: CrcParameters,
    initial_register: u64,
    tables: [Table; SLICES],
}

impl Crc {
    /// Computes the tables.
    pub const fn new(parameters: CrcParameters) -> Self {
        let unused = 64 - parameters.width.bits();
        let (initial_register, tables) = if parameters.data_reflected {
            let polynomial = reflect(parameters.polynomial, parameters.width);
            (
                reflect(parameters.initial_remainder, parameters.width),
                reflected_tables(polynomial),
            )
        } else {
            (
                parameters.initial_remainder << unused,
                forward_tables(parameters.polynomial << unused),
            )
        };
        Self {
            parameters,
            initial_register,
            tables,
        }
    }

    /// Parameters of the CRC.
    pub const fn parameters(&self) -> &CrcParameters {
        &self.parameters
    }

    /// Computes the CRC of `input`. For empty input the result is the initial remainder after reflection and XOR.
    pub fn compute(&self, input: &[u8]) -> u64 {
        let CrcParameters {
            width,
            data_reflected,
            remainder_reflected,
            final_xor,
            ..
        } = self.parameters;
        let remainder = if data_reflected {
            let reflected = self.run_reflected(input);
            if remainder_reflected {
                reflected
            } else {
                reflect(reflected, width)
            }
        } else {
            let forward = self.run_forward(input) >> (64 - width.bits());
            if remainder_reflected {
                reflect(forward, width)
            } else {
                forward
            }
        };
        remainder ^ low_bits(final_xor, width)
    }

    fn run_reflected(&self, input: &[u8]) -> u64 {
        let [t0, t1, t2, t3, t4, t5, t6, t7] = &self.tables;
        let (words, rest) = input.as_chunks::<SLICES>();
        let register = words.iter().fold(self.initial_register, |register, word| {
            let [a, b, c, d, e, f, g, h] = (register ^ u64::from_le_bytes(*word)).to_le_bytes();
            at(t7, a) ^ at(t6, b) ^ at(t5, c) ^ at(t4, d) ^ at(t3, e) ^ at(t2, f) ^ at(t1, g) ^ at(t0, h)
        });
        rest.iter().fold(register, |register, byte| {
            let [low, ..] = register.to_le_bytes();
            (register >> 8) ^ at(t0, low ^ byte)
        })
    }

    fn run_forward(&self, input: &[u8]) -> u64 {
        let [t0, t1, t2, t3, t4, t5, t6, t7] = &self.tables;
        let (words, rest) = input.as_chunks::<SLICES>();
        let register = words.iter().fold(self.initial_register, |register, word| {
            let [a, b, c, d, e, f, g, h] = (register ^ u64::from_be_bytes(*word)).to_be_bytes();
            at(t7, a) ^ at(t6, b) ^ at(t5, c) ^ at(t4, d) ^ at(t3, e) ^ at(t2, f) ^ at(t1, g) ^ at(t0, h)
        });
        rest.iter().fold(register, |register, byte| {
            let [high, ..] = register.to_be_bytes();
            (register << 8) ^ at(t0, high ^ byte)
        })
    }
}

// A byte is always a valid index into a table of 256 entries.
#[allow(clippy::indexing_slicing)]
fn at(table: &Table, byte: u8) -> u64 {
    table[byte as usize]
}

const fn low_bits(value: u64, width: CrcWidth) -> u64 {
    value & (u64::MAX >> (64 - width.bits()))
}

/// Reverses the low `width` bits.
const fn reflect(value: u64, width: CrcWidth) -> u64 {
    low_bits(value, width).reverse_bits() >> (64 - width.bits())
}

// The loop bounds keep every index below the constant length of its array.
#[allow(clippy::indexing_slicing)]
const fn reflected_tables(polynomial: u64) -> [Table; SLICES] {
    let mut tables = [[0; 256]; SLICES];
    let mut byte = 0;
    while byte < 256 {
        let mut register = byte as u64;
        let mut bit = 0;
        while bit < 8 {
            register = if register & 1 == 1 {
                (register >> 1) ^ polynomial
            } else {
                register >> 1
            };
            bit += 1;
        }
        tables[0][byte] = register;
        byte += 1;
    }
    let mut slice = 1;
    while slice < SLICES {
        byte = 0;
        while byte < 256 {
            let previous = tables[slice - 1][byte];
            tables[slice][byte] = (previous >> 8) ^ tables[0][(previous & 0xff) as usize];
            byte += 1;
        }
        slice += 1;
    }
    tables
}

// The loop bounds keep every index below the constant length of its array.
#[allow(clippy::indexing_slicing)]
const fn forward_tables(polynomial: u64) -> [Table; SLICES] {
    let mut tables = [[0; 256]; SLICES];
    let mut byte = 0;
    while byte < 256 {
        let mut register = (byte as u64) << 56;
        let mut bit = 0;
        while bit < 8 {
            register = if register >> 63 == 1 {
                (register << 1) ^ polynomial
            } else {
                register << 1
            };
            bit += 1;
        }
        tables[0][byte] = register;
        byte += 1;
    }
    let mut slice = 1;
    while slice < SLICES {
        byte = 0;
        while byte < 256 {
            let previous = tables[slice - 1][byte];
            tables[slice][byte] = (previous << 8) ^ tables[0][(previous >> 56) as usize];
            byte += 1;
        }
        slice += 1;
    }
    tables
}
