//! Public areas of TPM objects (TPMT_PUBLIC) and their names.

use linewarden_measurement::HashAlgorithm;

use crate::wire::{ParseError, Reader, Writer, sized_content};

pub(crate) const ALG_NULL: u16 = 0x0010;
const ALG_RSA: u16 = 0x0001;
const ALG_HMAC: u16 = 0x0005;
const ALG_AES: u16 = 0x0006;
const ALG_KEYEDHASH: u16 = 0x0008;
pub(crate) const ALG_RSASSA: u16 = 0x0014;
pub(crate) const ALG_RSAPSS: u16 = 0x0016;
pub(crate) const ALG_ECDSA: u16 = 0x0018;
const ALG_ECC: u16 = 0x0023;
const ALG_CFB: u16 = 0x0043;
const ECC_NIST_P256: u16 = 0x0003;
const RSA_EXPONENT: u32 = 65_537;
/// Maximum length of the supported public areas.
const PUBLIC_BYTES_MAX: usize = 1_024;

/// TPMA_OBJECT: the allowed uses of an object (TPM 2.0 Library, Part 2, 8.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes(u32);

impl Attributes {
    /// The object and its ancestors never leave their TPM.
    pub const FIXED_TPM: Self = Self(1 << 1);
    /// Saved contexts of the object become invalid at a restart.
    pub const ST_CLEAR: Self = Self(1 << 2);
    /// The object never gets another parent.
    pub const FIXED_PARENT: Self = Self(1 << 4);
    /// The TPM generated the secret part.
    pub const SENSITIVE_DATA_ORIGIN: Self = Self(1 << 5);
    /// The object may be used with its password.
    pub const USER_WITH_AUTH: Self = Self(1 << 6);
    /// The object may be administered only by its policy.
    pub const ADMIN_WITH_POLICY: Self = Self(1 << 7);
    /// The object is not subject to dictionary attack protection.
    pub const NO_DA: Self = Self(1 << 10);
    /// The object leaves the TPM only under a second encryption.
    pub const ENCRYPTED_DUPLICATION: Self = Self(1 << 11);
    /// The key signs or decrypts only structures that the TPM has generated.
    pub const RESTRICTED: Self = Self(1 << 16);
    /// The key decrypts.
    pub const DECRYPT: Self = Self(1 << 17);
    /// The key signs.
    pub const SIGN: Self = Self(1 << 18);

    /// All bits defined by the specification (version 1.84).
    const KNOWN: u32 = 0b1111 << 16 | 0b1111 << 8 | 0b1111_0110;

    /// All attributes of `self` and `other`.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `others` are set.
    pub const fn contains(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }

    /// The bits.
    pub const fn bits(self) -> u32 {
        self.0
    }
}

/// The signature scheme of an asymmetric key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// None: the key does not sign.
    Null,
    /// RSASSA-PKCS1-v1_5.
    Rsassa(HashAlgorithm),
    /// RSASSA-PSS.
    Rsapss(HashAlgorithm),
    /// ECDSA.
    Ecdsa(HashAlgorithm),
}

/// The cipher with which a storage key protects its children: AES in CFB mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symmetric {
    /// Not a storage key.
    Null,
    /// AES-CFB with a key of this number of bits.
    AesCfb(u16),
}

/// The type of an object, with its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An RSA key; its exponent is 65,537.
    Rsa {
        /// The cipher for children.
        symmetric: Symmetric,
        /// The signature scheme.
        scheme: Scheme,
        /// The modulus without leading zeros: 256, 384 or 512 bytes.
        modulus: Vec<u8>,
        /// Whether the exponent is encoded as 65,537 and not as 0. Both encodings mean the same, but result in different names.
        is_exponent_explicit: bool,
    },
    /// A key on the curve P-256.
    EccP256 {
        /// The cipher for children.
        symmetric: Symmetric,
        /// The signature scheme.
        scheme: Scheme,
        /// The x-coordinate, at most 32 bytes: some TPMs omit leading zeros.
        x: Vec<u8>,
        /// The y-coordinate, at most 32 bytes, as `x`.
        y: Vec<u8>,
    },
    /// An HMAC key, or sealed data.
    KeyedHash {
        /// The hash of the HMAC; `None` for sealed data.
        hmac: Option<HashAlgorithm>,
        /// Digest of the secret part.
        unique: Vec<u8>,
    },
}

/// A public area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Public {
    /// The hash algorithm of the object's name and policy.
    pub name_alg: HashAlgorithm,
    /// The allowed uses.
    pub attributes: Attributes,
    /// The digest that a policy session must have; empty without a policy.
    pub auth_policy: Vec<u8>,
    /// The type.
    pub kind: Kind,
}

/// The name of an object, which identifies the object: the id of the name algorithm, then the digest of the public area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(Vec<u8>);

impl Name {
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Public {
    /// Parses a TPMT_PUBLIC.
    ///
    /// # Errors
    /// The bytes are not exactly one TPMT_PUBLIC, or have a type, curve, exponent, cipher or scheme that LAP/1 does not
    /// use.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ParseError> {
        let mut reader = Reader::new("TPMT_PUBLIC", bytes);
        let kind = reader.u16("type")?;
        let name_alg = hash(&mut reader, "nameAlg")?;
        let attributes = reader.u32("objectAttributes")?;
        if attributes & !Attributes::KNOWN != 0 {
            return Err(reader.refuse("objectAttributes", 4, attributes));
        }
        let auth_policy = policy(&mut reader, name_alg)?;
        let kind = match kind {
            ALG_RSA => rsa(&mut reader)?,
            ALG_ECC => ecc(&mut reader)?,
            ALG_KEYEDHASH => keyed_hash(&mut reader, name_alg)?,
            value => return Err(Reader::new("TPMT_PUBLIC", bytes).refuse("type", 0, value)),
        };
        reader.finish()?;
        Ok(Self {
            name_alg,
            attributes: Attributes(attributes),
            auth_policy,
            kind,
        })
    }

    /// Parses a TPM2B_PUBLIC.
    ///
    /// # Errors
    /// As [`Public::from_bytes`].
    pub fn from_sized(bytes: &[u8]) -> Result<Self, ParseError> {
        Self::from_bytes(sized_content("TPM2B_PUBLIC", bytes, PUBLIC_BYTES_MAX)?)
    }

    /// Encodes the public area as TPMT_PUBLIC. A parsed public area yields exactly the parsed bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let writer = Writer::new()
            .u16(match self.kind {
                Kind::Rsa { .. } => ALG_RSA,
                Kind::EccP256 { .. } => ALG_ECC,
                Kind::KeyedHash { .. } => ALG_KEYEDHASH,
            })
            .u16(self.name_alg.tcg_id())
            .u32(self.attributes.bits())
            .sized_buffer(&self.auth_policy);
        match &self.kind {
            Kind::Rsa {
                symmetric,
                scheme,
                modulus,
                is_exponent_explicit,
            } => write_scheme(write_symmetric(writer, *symmetric), *scheme)
                .u16(u16::try_from(modulus.len() * 8).unwrap_or(u16::MAX))
                .u32(if *is_exponent_explicit { RSA_EXPONENT } else { 0 })
                .sized_buffer(modulus),
            Kind::EccP256 {
                symmetric,
                scheme,
                x,
                y,
            } => write_scheme(write_symmetric(writer, *symmetric), *scheme)
                .u16(ECC_NIST_P256)
                .u16(ALG_NULL)
                .sized_buffer(x)
                .sized_buffer(y),
            Kind::KeyedHash { hmac, unique } => match hmac {
                Some(hash) => writer.u16(ALG_HMAC).u16(hash.tcg_id()),
                None => writer.u16(ALG_NULL),
            }
            .sized_buffer(unique),
        }
        .into_bytes()
    }

    /// Encodes the public area as TPM2B_PUBLIC: [`Self::to_bytes`] with the length in front.
    pub fn to_sized(&self) -> Vec<u8> {
        Writer::new().sized_buffer(&self.to_bytes()).into_bytes()
    }

    /// The object's name.
    pub fn name(&self) -> Name {
        let digest = self.name_alg.digest(&[&self.to_bytes()]);
        let name = Writer::new().u16(self.name_alg.tcg_id()).bytes(digest.as_bytes());
        Name(name.into_bytes())
    }

    /// The public area of an HMAC-SHA-256 key.
    pub(crate) const fn hmac_key(attributes: Attributes, auth_policy: Vec<u8>, unique: Vec<u8>) -> Self {
        Self {
            name_alg: HashAlgorithm::Sha256,
            attributes,
            auth_policy,
            kind: Kind::KeyedHash {
                hmac: Some(HashAlgorithm::Sha256),
                unique,
            },
        }
    }
}

pub(crate) fn hash(reader: &mut Reader<'_>, field: &'static str) -> Result<HashAlgorithm, ParseError> {
    let id = reader.u16(field)?;
    HashAlgorithm::from_tcg_id(id).ok_or_else(|| reader.refuse(field, 2, id))
}

fn policy(reader: &mut Reader<'_>, name_alg: HashAlgorithm) -> Result<Vec<u8>, ParseError> {
    let length = name_alg.digest_bytes();
    let policy = reader.sized_buffer("authPolicy", length)?;
    match policy.len() {
        0 => Ok(Vec::new()),
        actual if actual == length => Ok(policy.to_vec()),
        actual => Err(reader.refuse("authPolicy", actual + 2, actual as u64)),
    }
}

fn symmetric(reader: &mut Reader<'_>) -> Result<Symmetric, ParseError> {
    match reader.u16("symmetric.algorithm")? {
        ALG_NULL => Ok(Symmetric::Null),
        ALG_AES => {
            let bits = reader.u16("symmetric.keyBits")?;
            if !matches!(bits, 128 | 192 | 256) {
                return Err(reader.refuse("symmetric.keyBits", 2, bits));
            }
            match reader.u16("symmetric.mode")? {
                ALG_CFB => Ok(Symmetric::AesCfb(bits)),
                value => Err(reader.refuse("symmetric.mode", 2, value)),
            }
        }
        value => Err(reader.refuse("symmetric.algorithm", 2, value)),
    }
}

fn write_symmetric(writer: Writer, symmetric: Symmetric) -> Writer {
    match symmetric {
        Symmetric::Null => writer.u16(ALG_NULL),
        Symmetric::AesCfb(bits) => writer.u16(ALG_AES).u16(bits).u16(ALG_CFB),
    }
}

fn write_scheme(writer: Writer, scheme: Scheme) -> Writer {
    match scheme {
        Scheme::Null => writer.u16(ALG_NULL),
        Scheme::Rsassa(hash) => writer.u16(ALG_RSASSA).u16(hash.tcg_id()),
        Scheme::Rsapss(hash) => writer.u16(ALG_RSAPSS).u16(hash.tcg_id()),
        Scheme::Ecdsa(hash) => writer.u16(ALG_ECDSA).u16(hash.tcg_id()),
    }
}

fn rsa(reader: &mut Reader<'_>) -> Result<Kind, ParseError> {
    let symmetric = symmetric(reader)?;
    let scheme = match reader.u16("scheme")? {
        ALG_NULL => Scheme::Null,
        ALG_RSASSA => Scheme::Rsassa(hash(reader, "scheme.hashAlg")?),
        ALG_RSAPSS => Scheme::Rsapss(hash(reader, "scheme.hashAlg")?),
        value => return Err(reader.refuse("scheme", 2, value)),
    };
    let bits = reader.u16("keyBits")?;
    if !matches!(bits, 2_048 | 3_072 | 4_096) {
        return Err(reader.refuse("keyBits", 2, bits));
    }
    let is_exponent_explicit = match reader.u32("exponent")? {
        0 => false,
        RSA_EXPONENT => true,
        value => return Err(reader.refuse("exponent", 4, value)),
    };
    let modulus = reader.sized_buffer_exact("unique", usize::from(bits / 8))?;
    match modulus.first() {
        Some(0) | None => Err(reader.refuse("unique", modulus.len(), 0u8)),
        Some(_) => Ok(Kind::Rsa {
            symmetric,
            scheme,
            modulus: modulus.to_vec(),
            is_exponent_explicit,
        }),
    }
}

fn ecc(reader: &mut Reader<'_>) -> Result<Kind, ParseError> {
    let symmetric = symmetric(reader)?;
    let scheme = match reader.u16("scheme")? {
        ALG_NULL => Scheme::Null,
        ALG_ECDSA => Scheme::Ecdsa(hash(reader, "scheme.hashAlg")?),
        value => return Err(reader.refuse("scheme", 2, value)),
    };
    match reader.u16("curveID")? {
        ECC_NIST_P256 => {}
        value => return Err(reader.refuse("curveID", 2, value)),
    }
    match reader.u16("kdf")? {
        ALG_NULL => {}
        value => return Err(reader.refuse("kdf", 2, value)),
    }
    Ok(Kind::EccP256 {
        symmetric,
        scheme,
        x: reader.sized_buffer("unique.x", 32)?.to_vec(),
        y: reader.sized_buffer("unique.y", 32)?.to_vec(),
    })
}

fn keyed_hash(reader: &mut Reader<'_>, name_alg: HashAlgorithm) -> Result<Kind, ParseError> {
    let hmac = match reader.u16("scheme")? {
        ALG_NULL => None,
        ALG_HMAC => Some(hash(reader, "scheme.hashAlg")?),
        value => return Err(reader.refuse("scheme", 2, value)),
    };
    let unique = reader.sized_buffer_exact("unique", name_alg.digest_bytes())?;
    Ok(Kind::KeyedHash {
        hmac,
        unique: unique.to_vec(),
    })
}

/// A P-256 coordinate, padded with the leading zeros that some TPMs omit; `None` if `bytes` has more than 32 bytes.
pub(crate) fn coordinate(bytes: &[u8]) -> Option<[u8; 32]> {
    let mut padded = [0; 32];
    let start = padded.len().checked_sub(bytes.len())?;
    padded.get_mut(start..)?.copy_from_slice(bytes);
    Some(padded)
}

/// A point in the uncompressed form of SEC 1.
pub(crate) fn sec1(x: &[u8], y: &[u8]) -> Option<[u8; 65]> {
    let mut point = [4; 65];
    point.get_mut(1..33)?.copy_from_slice(&coordinate(x)?);
    point.get_mut(33..)?.copy_from_slice(&coordinate(y)?);
    Some(point)
}
