//! The operations of every scheme on one core: one message at a time (with aws-lc, except for Rapid Authentication), and eight in
//! parallel with vector instructions.
//!
//! The time of a verification includes the hash of the message. The messages come alternately from eight signers, for
//! whose public keys multiples were precomputed; rows named `new_signers` are without precomputation, and rows named
//! `many_signers` have a thousand signers with precomputed multiples. Rapid Authentication verifies messages of one
//! signer, with and without cached component hashes. A signature covers 200 bytes or, with an existing mask, one random
//! byte per component; `offline` creates a mask: one private RSA operation and its check.

use linewarden_signatures::lane::{BatchLane, SingleLane, Verifier};
use linewarden_signatures::receive::Checked;
use linewarden_signatures::scheme::Scheme;

use super::Size;
use super::keys::{
    PlainKey, RapidKey, invalid_measurement, names, new_signers, plain_messages, uncached_public_key,
};
use super::rounds::{Measurement, Timing, best_of_rounds, timed};
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Better, Pending, Report, Row};

/// Messages per call of a lane.
const BATCH: usize = 128;
/// Messages of a signing measurement, each with a new mask.
const SIGNED_MESSAGES: usize = 64;

/// Name in rows of operations on eight messages in parallel, with vector instructions.
const BATCH_LANE: &str = "eight";
const IFMA: &str = "avx512-ifma";

/// Adds the rows of this part; `stage_key` has the component count of the stages.
///
/// # Errors
/// A signature was invalid.
pub(super) fn rows(
    size: &Size,
    stage_key: &RapidKey,
    progress: Progress<'_>,
    report: &mut Report,
) -> Result<(), BenchError> {
    for (name, scheme) in [
        ("rsa2048", Scheme::RsaPss2048),
        ("rsa3072", Scheme::RsaPss3072),
        ("p256", Scheme::EcdsaP256),
        ("ed25519", Scheme::Ed25519),
    ] {
        progress(name, None);
        measure_plain(size, name, scheme, &mut report.rows)?;
    }
    for components in size.components.iter().copied() {
        let name = format!("ra{components}");
        if components == size.stage_components {
            progress("Rapid Authentication", None);
            measure_rapid(size, stage_key, &name, &mut report.rows)?;
        } else {
            progress("Rapid Authentication: computing a table", None);
            let key = RapidKey::new(Scheme::RaRsa2048, components)?;
            measure_rapid(size, &key, &name, &mut report.rows)?;
        }
    }
    if let Some(components) = size.over_rsa3072 {
        progress("Rapid Authentication with RSA-3072: computing a table", None);
        let key = RapidKey::new(Scheme::RaRsa3072, components)?;
        measure_rapid(size, &key, &format!("ra{components}_rsa3072"), &mut report.rows)?;
    }
    add_ratios(report);
    Ok(())
}

/// Adds a row with the operations per second of each measurement.
fn measure(
    size: &Size,
    mut measurements: Vec<Measurement<'_>>,
    rows: &mut Vec<Row>,
) -> Result<(), BenchError> {
    for (seconds, measurement) in best_of_rounds(size, &mut measurements)?
        .into_iter()
        .zip(&measurements)
    {
        rows.push(Row::higher(
            format!("{}_per_s", measurement.name),
            1.0 / seconds,
            "/s",
            None,
        ));
    }
    Ok(())
}

fn measure_plain(size: &Size, name: &str, scheme: Scheme, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let messages = plain_messages(scheme, size.signers, BATCH)?;
    let key = PlainKey::new(scheme)?;
    let other_messages = match scheme {
        Scheme::EcdsaP256 | Scheme::Ed25519 => vec![
            ("of_8", plain_messages(scheme, 8, 8)?),
            ("new_signers_of_8", new_signers(scheme, 8, 8)?),
            ("new_signers", new_signers(scheme, size.signers, BATCH)?),
            (
                "many_signers",
                plain_messages(scheme, size.many_signers, size.many_signers)?,
            ),
        ],
        _ => Vec::new(),
    };
    let mut measurements = verification_measurements(&format!("{name}.verify"), &messages);
    for (variant, messages) in &other_messages {
        if let Some(mut lane) = BatchLane::widest() {
            let measurement = move || time_verification(&mut lane, messages);
            measurements.push(Measurement::new(
                format!("{name}.verify.{BATCH_LANE}.{variant}"),
                measurement,
            ));
        }
    }
    measurements.push(Measurement::new(format!("{name}.sign.awslc"), || {
        let (signed, timing) = timed(1, || key.sign());
        signed.map(|_| timing)
    }));
    measure(size, measurements, rows)
}

/// Measurements of verification: one message at a time and, if this CPU has suitable vector instructions, eight in parallel.
fn verification_measurements<'a>(name: &str, messages: &'a [Checked]) -> Vec<Measurement<'a>> {
    let implementation = match messages
        .first()
        .is_some_and(|message| message.key().ra().is_some())
    {
        true => "one",
        false => "awslc",
    };
    let mut single_lane = SingleLane::default();
    let mut measurements = vec![Measurement::new(format!("{name}.{implementation}"), move || {
        time_verification(&mut single_lane, messages)
    })];
    if let Some(mut lane) = BatchLane::widest() {
        measurements.push(Measurement::new(format!("{name}.{BATCH_LANE}"), move || {
            time_verification(&mut lane, messages)
        }));
    }
    measurements
}

fn time_verification(lane: &mut dyn Verifier, messages: &[Checked]) -> Result<Timing, BenchError> {
    let mut validities = Vec::with_capacity(messages.len());
    let (result, timing) = timed(messages.len(), || lane.verify(messages, &mut validities));
    result.map_err(invalid_measurement)?;
    match validities.len() == messages.len() && validities.iter().all(|is_valid| *is_valid) {
        true => Ok(timing),
        false => Err(invalid_measurement("a valid signature was rejected")),
    }
}

fn measure_rapid(size: &Size, key: &RapidKey, name: &str, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let messages = key.messages(BATCH)?;
    let digits = key.digits(SIGNED_MESSAGES)?;
    let mut measurements = verification_measurements(&format!("{name}.verify"), &messages);
    measurements.push(Measurement::new(format!("{name}.verify.uncached"), || {
        time_uncached_verification(&messages)
    }));
    measurements.push(Measurement::new(format!("{name}.online.one"), || {
        let masks = key.masks(SIGNED_MESSAGES)?;
        let (signed, timing) = timed(SIGNED_MESSAGES, || {
            let messages = masks.into_iter().zip(&digits);
            messages
                .map(|(mask, digits)| key.table.sign(mask, digits))
                .collect::<Result<Vec<_>, _>>()
        });
        signed.map_err(invalid_measurement).map(|_| timing)
    }));
    measurements.push(Measurement::new(format!("{name}.online.{BATCH_LANE}"), || {
        let messages = key.masks(SIGNED_MESSAGES)?.into_iter().zip(&digits).collect();
        let (signed, timing) = timed(SIGNED_MESSAGES, || key.table.sign_all(messages));
        signed.map_err(invalid_measurement).map(|_| timing)
    }));
    measurements.push(Measurement::new(format!("{name}.offline.one"), || {
        time_masks(key, 1)
    }));
    measurements.push(Measurement::new(format!("{name}.offline.{BATCH_LANE}"), || {
        time_masks(key, 8)
    }));
    measure(size, measurements, rows)
}

/// Creates `count` masks at once.
fn time_masks(key: &RapidKey, count: usize) -> Result<Timing, BenchError> {
    let (ra, names) = (key.ra()?, names(count)?);
    let (masks, timing) = timed(count, || ra.masks(&names));
    masks.map_err(invalid_measurement).map(|_| timing)
}

/// Verifies with a public key that has no cached component hashes.
fn time_uncached_verification(messages: &[Checked]) -> Result<Timing, BenchError> {
    let message = messages
        .first()
        .ok_or_else(|| invalid_measurement("no message"))?;
    let public = uncached_public_key(message)?;
    let (digits, name) = message
        .rapid()
        .ok_or_else(|| invalid_measurement("not a message of Rapid Authentication"))?;
    let ra = public
        .ra()
        .ok_or_else(|| invalid_measurement("not a key of Rapid Authentication"))?;
    let (is_valid, timing) = timed(1, || ra.verify(name, digits, message.signature()));
    match is_valid {
        true => Ok(timing),
        false => Err(invalid_measurement("a valid signature was rejected")),
    }
}

/// Adds the ratios of this implementation's rates to the rates of aws-lc.
fn add_ratios(report: &mut Report) {
    let vectors = linewarden_arithmetic::Backend::widest().map(|backend| backend.name());
    let ratio_of = |a: &str, b: &str| Some(report.value(a)? / report.value(b)?);
    let mut rows = Vec::new();
    let mut pending = Vec::new();
    for (name, row, reference_row, target) in [
        (
            "rsa2048_verify",
            "rsa2048.verify.eight",
            "rsa2048.verify.awslc",
            3.0,
        ),
        ("rsa2048_sign", "ra32.offline.eight", "rsa2048.sign.awslc", 2.5),
    ] {
        let ifma = format!("{name}.ifma_over_awslc");
        match (
            ratio_of(&format!("{row}_per_s"), &format!("{reference_row}_per_s")),
            vectors,
        ) {
            (Some(ratio), Some(IFMA)) => rows.push(Row::higher(ifma, ratio, "ratio", Some(target))),
            (ratio, vectors) => {
                let reason = "this CPU has no AVX-512 IFMA";
                pending.push(Pending::new(ifma, "ratio", Better::Higher, Some(target), reason));
                let vectors = vectors.unwrap_or("none").replace('-', "_");
                rows.extend(
                    ratio.map(|ratio| {
                        Row::higher(format!("{name}.{vectors}_over_awslc"), ratio, "ratio", None)
                    }),
                );
            }
        }
    }
    for (name, row, reference_row, target) in [
        (
            "ra32_online.over_rsa_sign",
            "ra32.online.eight",
            "rsa2048.sign.awslc",
            30.0,
        ),
        (
            "p256_verify.batch_over_awslc",
            "p256.verify.eight",
            "p256.verify.awslc",
            2.0,
        ),
        (
            "ed25519_verify.batch_over_awslc",
            "ed25519.verify.eight",
            "ed25519.verify.awslc",
            2.0,
        ),
    ] {
        let ratio = ratio_of(&format!("{row}_per_s"), &format!("{reference_row}_per_s"));
        rows.extend(ratio.map(|ratio| Row::higher(name, ratio, "ratio", Some(target))));
    }
    for scheme in ["p256", "ed25519"] {
        for variant in ["new_signers", "many_signers"] {
            let row = format!("{scheme}.verify.{BATCH_LANE}.{variant}_per_s");
            let ratio = ratio_of(&row, &format!("{scheme}.verify.awslc_per_s"));
            let name = format!("{scheme}_verify.{variant}_over_awslc");
            rows.extend(ratio.map(|ratio| Row::higher(name, ratio, "ratio", None)));
        }
    }
    report.rows.extend(rows);
    report.pending.extend(pending);
}
