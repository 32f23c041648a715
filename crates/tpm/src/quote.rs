//! Quotes, verified.

use linewarden_measurement::HashAlgorithm;
use linewarden_measurement::pcr::{PcrSelection, PcrValues};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq as _;

use crate::attest::{ClockInfo, Quote};
use crate::policy::digest;
use crate::signature::{Signature, SignatureError};
use crate::template::AttestationSigner;
use crate::wire::ParseError;

/// A nonce: what makes a quote new. 32 random bytes, used once.
pub type Nonce = [u8; 32];

/// Why a quote does not count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuoteError {
    /// Not a quote at all.
    #[error("no quote: {0}")]
    Attest(ParseError),
    /// Not a signature.
    #[error("the quote's signature: {0}")]
    SignatureForm(ParseError),
    /// Not signed by the key.
    #[error("the quote: {0}")]
    Signature(#[from] SignatureError),
    /// Signed over another nonce: an old quote, or one for somebody else.
    #[error("the quote is over another nonce: it is an old one, or was made for somebody else")]
    Nonce,
    /// Other PCRs or another bank than asked for.
    #[error("the quote is not of PCRs {selection} of {bank}")]
    Selection {
        /// The bank that was asked for.
        bank: HashAlgorithm,
        /// The PCRs that were asked for.
        selection: PcrSelection,
    },
    /// The values that came with it are of other PCRs than asked for.
    #[error("the values with the quote are not those of PCRs {selection} of {bank}")]
    Values {
        /// The bank that was asked for.
        bank: HashAlgorithm,
        /// The PCRs that were asked for.
        selection: PcrSelection,
    },
    /// The values are not those that were quoted.
    #[error(
        "the values with the quote are not those that the TPM quoted: they are wrong, or changed in between"
    )]
    Digest,
}

/// What a verified quote tells besides its PCRs. Only [`verify_quote`] makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuoteVerified {
    /// The TPM's clock and counts of starts.
    pub clock: ClockInfo,
    /// The TPM's firmware.
    pub firmware_version: u64,
}

/// Verifies that the TPM with the key `signer` held just these `values` in just the PCRs `selection` of `bank` when it was
/// given `nonce`.
///
/// # Errors
/// Each way in which that is not shown.
pub fn verify_quote(
    signer: &AttestationSigner,
    attest: &[u8],
    signature: &[u8],
    nonce: &Nonce,
    (bank, selection): (HashAlgorithm, PcrSelection),
    values: &PcrValues,
) -> Result<QuoteVerified, QuoteError> {
    let signature = Signature::from_bytes(signature).map_err(QuoteError::SignatureForm)?;
    let quote = Quote::from_bytes(attest).map_err(QuoteError::Attest)?;
    signature.verify(signer.public(), attest)?;
    if !bool::from(quote.extra_data.ct_eq(nonce)) {
        return Err(QuoteError::Nonce);
    }
    match &quote.selections[..] {
        [only] if only.is(bank, selection) => {}
        _ => return Err(QuoteError::Selection { bank, selection }),
    }
    if values.bank() != bank || values.selection() != selection {
        return Err(QuoteError::Values { bank, selection });
    }
    if quote.pcr_digest != digest(values) {
        return Err(QuoteError::Digest);
    }
    Ok(QuoteVerified {
        clock: quote.clock,
        firmware_version: quote.firmware_version,
    })
}
