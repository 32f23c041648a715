//! Verification of quotes.

use linewarden_measurement::HashAlgorithm;
use linewarden_measurement::pcr::{PcrSelection, PcrValues};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq as _;

use crate::attest::{ClockInfo, Quote};
use crate::policy::digest;
use crate::signature::{Signature, SignatureError};
use crate::template::AttestationSigner;
use crate::wire::ParseError;

/// A nonce that makes a quote fresh: 32 random bytes, used once.
pub type Nonce = [u8; 32];

/// Why a quote does not verify.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuoteError {
    /// The bytes are not a quote.
    #[error("invalid quote: {0}")]
    InvalidAttest(ParseError),
    /// The bytes are not a signature.
    #[error("invalid signature of the quote: {0}")]
    InvalidSignature(ParseError),
    /// The quote is not signed by this key.
    #[error("quote rejected: {0}")]
    Signature(#[from] SignatureError),
    /// The quote has another nonce: an old quote, or a quote for another verifier.
    #[error("quote rejected: its nonce differs; the quote is old or for another verifier")]
    NonceMismatch,
    /// The quote covers other PCRs or another bank than requested.
    #[error("quote rejected: it does not cover exactly PCRs {selection} of {bank}")]
    SelectionMismatch {
        /// The requested bank.
        bank: HashAlgorithm,
        /// The requested PCRs.
        selection: PcrSelection,
    },
    /// The accompanying values are of other PCRs than requested.
    #[error("quote rejected: the accompanying values are not those of PCRs {selection} of {bank}")]
    ValuesSelectionMismatch {
        /// The requested bank.
        bank: HashAlgorithm,
        /// The requested PCRs.
        selection: PcrSelection,
    },
    /// The values differ from the quoted values.
    #[error(
        "quote rejected: the accompanying values differ from the quoted values; the values are wrong, or the PCRs changed in between"
    )]
    DigestMismatch,
}

/// The content of a verified quote besides its PCRs. Created only by [`verify_quote`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerifiedQuote {
    /// The TPM's clock and start counters.
    pub clock: ClockInfo,
    /// The TPM's firmware version.
    pub firmware_version: u64,
}

/// Verifies that the TPM with the key `signer` had exactly these `values` in exactly the PCRs `selection` of `bank`
/// when it received `nonce`.
///
/// # Errors
/// The quote or its signature is invalid, or the nonce, the selected PCRs or their values differ.
pub fn verify_quote(
    signer: &AttestationSigner,
    attest: &[u8],
    signature: &[u8],
    nonce: &Nonce,
    (bank, selection): (HashAlgorithm, PcrSelection),
    values: &PcrValues,
) -> Result<VerifiedQuote, QuoteError> {
    let signature = Signature::from_bytes(signature).map_err(QuoteError::InvalidSignature)?;
    let quote = Quote::from_bytes(attest).map_err(QuoteError::InvalidAttest)?;
    signature.verify(signer.public(), attest)?;
    if !bool::from(quote.extra_data.ct_eq(nonce)) {
        return Err(QuoteError::NonceMismatch);
    }
    match &quote.selections[..] {
        [quoted] if quoted.matches(bank, selection) => {}
        _ => return Err(QuoteError::SelectionMismatch { bank, selection }),
    }
    if values.bank() != bank || values.selection() != selection {
        return Err(QuoteError::ValuesSelectionMismatch { bank, selection });
    }
    if quote.pcr_digest != digest(values) {
        return Err(QuoteError::DigestMismatch);
    }
    Ok(VerifiedQuote {
        clock: quote.clock,
        firmware_version: quote.firmware_version,
    })
}
