//! Helper data of a strong PUF (pool mode): many rows, each with its own challenge, offset and digest.

use std::path::Path;

use rand::CryptoRng;
use sha2::{Digest, Sha256};

use super::copies::refuse_equal_responses;
use super::{
    ExtractorError, Secret, code_offset,
    enroll::{check_readouts, require_entropy},
    format::{self, Cursor, FileError, FormatError, Problem},
    rebuild,
};
use crate::{
    bits::Bits,
    code::Profile,
    entropy::{self, EntropyAssessment},
    fingerprint,
    health::HealthTest,
    puf::{Challenge, Puf},
};

const MAGIC: &str = "LWHP";
const KIND: &str = "pool-mode helper data";
/// Prefix of the hash input of a row.
const ROW_DOMAIN: &[u8] = b"LWHR\x01";

/// Public helper data of a device in pool mode: rows `first_idx … first_idx + rows - 1`.
///
/// Canonical encoding, integers big-endian: `"LWHP" | version u8 = 1 | zero[3] | profile u32 | first_idx u32
/// | rows u32`, then for each row `challenge[8] | offset`, the offset packed as in [`super::HelperData`].
/// With [`Profile::POOL`] a row takes 232 bytes.
///
/// **Salt of row idx.** The digest of a row is SHA-256 of `"LWHR" | version u8 = 1 | profile u32 | idx u32 |
/// challenge[8] | offset`. The digest is the `SHA-256(helper)` of LAP/1 1.1 for this row. The digest does not depend
/// on the other rows, so rows can be added without a change of the enrolled rows. The digest covers the index, so
/// rows cannot be exchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolHelper {
    profile: Profile,
    first_idx: u32,
    rows: u32,
    /// `challenge[8] | offset` of each row.
    packed: Vec<u8>,
}

/// One row of a [`PoolHelper`].
#[derive(Clone, Copy, Debug)]
pub struct PoolRow<'a> {
    profile: Profile,
    /// The row's index.
    pub idx: u32,
    /// The challenge seed of the enrollment.
    pub challenge: [u8; 8],
    /// The code offset, packed.
    pub offset: &'a [u8],
}

impl PoolRow<'_> {
    /// The HKDF salt of this row; see [`PoolHelper`].
    pub fn digest(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(ROW_DOMAIN);
        hash.update(self.profile.id().to_be_bytes());
        hash.update(self.idx.to_be_bytes());
        hash.update(self.challenge);
        hash.update(self.offset);
        hash.finalize().into()
    }
}

impl PoolHelper {
    /// The error-correction profile of all rows.
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// The first row's index.
    pub fn first_idx(&self) -> u32 {
        self.first_idx
    }

    /// The number of rows, at least one.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// The index after the last row.
    pub fn end_idx(&self) -> u32 {
        // Every constructor has checked that the sum does not overflow.
        self.first_idx.saturating_add(self.rows)
    }

    /// Appends the rows of `others`, with unchanged digests; `None` if `others` has another profile or does not begin
    /// at [`Self::end_idx`].
    #[must_use]
    pub fn followed_by(&self, others: &Self) -> Option<Self> {
        let fits = others.profile == self.profile && others.first_idx == self.end_idx();
        let rows = self.rows.checked_add(others.rows).filter(|_| fits)?;
        rows_fit(self.first_idx, rows).then(|| Self {
            rows,
            packed: [self.packed.as_slice(), &others.packed].concat(),
            ..*self
        })
    }

    /// One row; `None` if there is no such row.
    pub fn row(&self, idx: u32) -> Option<PoolRow<'_>> {
        let position = idx.checked_sub(self.first_idx).filter(|&p| p < self.rows)? as usize;
        let packed = self.packed.chunks_exact(row_bytes(self.profile)).nth(position)?;
        let (challenge, offset) = packed.split_first_chunk()?;
        Some(PoolRow {
            profile: self.profile,
            idx,
            challenge: *challenge,
            offset,
        })
    }

    /// The HKDF salt of a row; `None` if there is no such row.
    pub fn digest(&self, idx: u32) -> Option<[u8; 32]> {
        self.row(idx).map(|row| row.digest())
    }

    /// The device's side: reads the PUF on the row's challenge and rebuilds the row's secret.
    ///
    /// `challenge` comes from the CHALLENGE message. Only the enrolled challenge is evaluated, so an attacker cannot
    /// make the device evaluate its PUF on other challenges.
    ///
    /// # Errors
    /// [`ExtractorError`] if there is no such row, the challenge differs, the PUF cannot be read, or the
    /// reading fails its health test or has too many errors.
    pub fn reproduce(
        &self,
        idx: u32,
        challenge: [u8; 8],
        puf: &mut dyn Puf,
        health: &HealthTest,
    ) -> Result<Secret, ExtractorError> {
        let last = self.first_idx.saturating_add(self.rows - 1);
        let unknown = ExtractorError::UnknownRow {
            idx,
            first: self.first_idx,
            last,
        };
        let row = self.row(idx).ok_or(unknown)?;
        if row.challenge != challenge {
            return Err(ExtractorError::ForeignChallenge { idx });
        }
        let reading = puf.read(Challenge::Pool(challenge), self.profile.response_bits())?;
        if reading.len() != self.profile.response_bits() {
            let (bits, expected) = (reading.len(), self.profile.response_bits());
            return Err(ExtractorError::WrongReadingLength { bits, expected });
        }
        health.check(&reading)?;
        rebuild(self.profile, &reading, &format::unpack(self.profile, row.offset))
    }

    /// The canonical encoding.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = format::header(MAGIC, self.profile);
        bytes.extend(self.first_idx.to_be_bytes());
        bytes.extend(self.rows.to_be_bytes());
        bytes.extend(&self.packed);
        bytes
    }

    /// Reads the canonical encoding and refuses any other.
    ///
    /// # Errors
    /// [`FormatError`] with the byte and the problem.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(bytes);
        let profile = cursor.header(MAGIC, KIND)?;
        let (first_idx, rows) = (cursor.u32()?, cursor.u32()?);
        if !rows_fit(first_idx, rows) {
            return cursor.fail(Problem::Rows {
                first: first_idx,
                rows,
            });
        }
        let body = bytes.get(HEADER_BYTES..).unwrap_or_default();
        for _ in 0..rows {
            cursor.take(8)?;
            cursor.offset_bytes(profile)?;
        }
        cursor.finish()?;
        Ok(Self {
            profile,
            first_idx,
            rows,
            packed: body.to_vec(),
        })
    }

    /// Writes the canonical encoding to a file.
    ///
    /// # Errors
    /// [`FileError`] with the file.
    pub fn write_to(&self, path: &Path) -> Result<(), FileError> {
        format::write_file(path, &self.to_bytes())
    }

    /// Reads a file that [`PoolHelper::write_to`] wrote.
    ///
    /// # Errors
    /// [`FileError`] with the file, and the byte and problem of a bad content.
    pub fn read_from(path: &Path) -> Result<Self, FileError> {
        format::read_file(path, Self::from_bytes)
    }
}

/// Size of the fields before the rows.
const HEADER_BYTES: usize = 20;

fn row_bytes(profile: Profile) -> usize {
    8 + profile.response_bits().div_ceil(8)
}

/// Whether there is at least one row and no index reaches the largest `u32`, at which LAP/1 stops.
fn rows_fit(first_idx: u32, rows: u32) -> bool {
    rows > 0 && first_idx.checked_add(rows).is_some()
}

/// Minimum number of response bits for the entropy estimate of a strong PUF. The estimate of the bias from `n` bits
/// has a standard deviation of `0.5 / sqrt(n)`, here 0.002, which is 2.6 bits of the secret's min-entropy near the
/// limit.
const ENTROPY_SAMPLE_BITS: usize = 65_536;
/// Min-entropy that a first enrollment requires in addition to the 128 bits of every enrollment (LAP/1 1.1): four
/// standard deviations of the difference between two estimates of one chip. A later enrollment refuses an accepted
/// chip with probability 3·10⁻⁵ if the chip is just at this limit, and with 10⁻⁸ averaged over all chips. Of
/// simulated chips (4-XOR arbiter, 64 stages), 1 in 1,000 is below this limit.
const FIRST_MARGIN_BITS: f64 = 15.0;

/// Options for the enrollment of a strong PUF.
#[derive(Clone, Debug)]
pub struct PoolEnrollment {
    /// The error-correction profile.
    pub profile: Profile,
    /// The index of the first row.
    pub first_idx: u32,
    /// The number of rows.
    pub rows: u32,
    /// How often each challenge is read; the majority counts. With 1, an enrollment error and a reading error
    /// add up, so the device sees nearly twice the PUF's bit error rate.
    pub reads: usize,
    /// Limits for each reading.
    pub health: HealthTest,
    /// Minimum number of response bits for the entropy estimate. If all rows together have fewer bits, the PUF is read
    /// on one more random challenge; these responses have no other use.
    pub entropy_sample_bits: usize,
    /// Min-entropy per response bit as seen across other devices of the kind, if known.
    pub fleet_min_entropy_per_bit: Option<f64>,
    /// Whether the PUF was enrolled before; then the margin of a first enrollment is not required.
    pub is_reenrollment: bool,
}

impl PoolEnrollment {
    /// `rows` rows from index 0 with the standard profile, three readings each, of a PUF that is enrolled for the first time.
    pub fn rows(rows: u32) -> Self {
        Self {
            profile: Profile::POOL,
            first_idx: 0,
            rows,
            reads: 3,
            health: HealthTest::default(),
            entropy_sample_bits: ENTROPY_SAMPLE_BITS,
            fleet_min_entropy_per_bit: None,
            is_reenrollment: false,
        }
    }
}

/// One enrolled row, as the registry stores it.
#[derive(Debug)]
pub struct EnrolledRow {
    /// The row's index.
    pub idx: u32,
    /// The challenge seed.
    pub challenge: [u8; 8],
    /// `R`; it never leaves enrollment (LAP/1 1.1).
    pub secret: Secret,
    /// The HKDF salt of this row.
    pub digest: [u8; 32],
}

/// An enrolled pool.
#[derive(Debug)]
pub struct EnrolledPool {
    /// The rows with their secrets.
    pub rows: Vec<EnrolledRow>,
    /// Public data that the device stores.
    pub helper: PoolHelper,
    /// The assessed min-entropy.
    pub entropy: EntropyAssessment,
}

/// Enrolls a strong PUF: draws a challenge for each row, reads the PUF on the challenge and creates the row's secret
/// and helper data.
///
/// # Errors
/// [`ExtractorError`] if the range of rows is not valid, the PUF cannot be read, a reading fails its health test, two
/// challenges have the same response, or a secret would keep less than 128 bits of min-entropy, 143 at a first
/// enrollment.
pub fn enroll_pool(
    puf: &mut dyn Puf,
    options: &PoolEnrollment,
    rng: &mut dyn CryptoRng,
) -> Result<EnrolledPool, ExtractorError> {
    let PoolEnrollment {
        profile,
        first_idx,
        rows,
        ..
    } = *options;
    if !rows_fit(first_idx, rows) {
        return Err(ExtractorError::BadRows {
            first: first_idx,
            rows,
        });
    }
    let mut sample = Vec::new();
    let mut references = Vec::with_capacity(rows as usize);
    for _ in 0..rows {
        let challenge = random_challenge(rng);
        let reference = read_reference(
            puf,
            challenge,
            profile.response_bits(),
            options.reads,
            &options.health,
        )?;
        sample.extend(reference.iter());
        references.push((challenge, reference));
    }
    refuse_equal_responses(
        references.iter().map(|(_, reference)| reference),
        options.health.distance_max,
    )?;
    if let Some(missing) = options
        .entropy_sample_bits
        .checked_sub(sample.len())
        .filter(|&m| m > 0)
    {
        sample.extend(puf.read(Challenge::Pool(random_challenge(rng)), missing)?.iter());
    }
    let fleet = options.fleet_min_entropy_per_bit;
    let assessed = entropy::assess_responses(profile, &Bits::from_bools(sample), fleet);
    let margin_bits = if options.is_reenrollment {
        0.0
    } else {
        FIRST_MARGIN_BITS
    };
    let entropy = require_entropy(assessed, margin_bits)?;

    let mut packed = Vec::with_capacity(rows as usize * row_bytes(profile));
    let mut enrolled = Vec::with_capacity(rows as usize);
    for (idx, (challenge, reference)) in (first_idx..).zip(&references) {
        let (secret, offset) = code_offset(profile, reference, rng)?;
        let offset = offset.to_bytes();
        let row = PoolRow {
            profile,
            idx,
            challenge: *challenge,
            offset: &offset,
        };
        enrolled.push(EnrolledRow {
            idx,
            challenge: *challenge,
            secret,
            digest: row.digest(),
        });
        packed.extend(challenge);
        packed.extend(offset);
    }
    Ok(EnrolledPool {
        rows: enrolled,
        helper: PoolHelper {
            profile,
            first_idx,
            rows,
            packed,
        },
        entropy,
    })
}

/// A random challenge, but never the challenge of fingerprints: its response must not contribute to a secret.
fn random_challenge(rng: &mut dyn CryptoRng) -> [u8; 8] {
    loop {
        let mut challenge = [0; 8];
        rng.fill_bytes(&mut challenge);
        if challenge != fingerprint::challenge() {
            return challenge;
        }
    }
}

/// The majority of `reads` readings of one challenge.
pub(crate) fn read_reference(
    puf: &mut dyn Puf,
    challenge: [u8; 8],
    bits: usize,
    reads: usize,
    health: &HealthTest,
) -> Result<Bits, ExtractorError> {
    let readings: Result<Vec<Bits>, _> = (0..reads)
        .map(|_| puf.read(Challenge::Pool(challenge), bits))
        .collect();
    let readings = readings?;
    check_readouts(&readings, health)?;
    let no_readings = ExtractorError::TooFewReadouts {
        given: 0,
        needed: 1,
        purpose: "enroll",
    };
    let reference = Bits::majority(&readings).ok_or(no_readings)?;
    if reference.len() != bits {
        return Err(ExtractorError::WrongReadingLength {
            bits: reference.len(),
            expected: bits,
        });
    }
    Ok(reference)
}
