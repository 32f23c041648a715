//! One core: every scheme's operations one message at a time (aws-lc's, but for Rapid Authentication) and eight.
//!
//! Verification is of received messages, hash and all, of eight signers by turns, whose points' multiples were computed ahead; `new_signers`
//! are without, and `many_signers` a thousand with them. Rapid Authentication's of one, with component hashes
//! cached and without. Signing is of 200 bytes, or of as many random bytes as there are components, with masks at hand; `offline` makes a
//! mask, which is the private operation of RSA with its check.

use linewarden_signatures::lane::{Eight, OneByOne, Verifier};
use linewarden_signatures::receive::Checked;
use linewarden_signatures::scheme::Scheme;

use super::Size;
use super::keys::{Plain, Rapid, broken, fresh_public, names, new_signers, plain_messages};
use super::turns::{Done, Way, best, timed};
use crate::bench::scale::Progress;
use crate::bench::{BenchError, Better, Pending, Report, Row};

/// Messages that a lane is handed at once.
const BATCH: usize = 128;
/// Messages that are signed with masks made for them.
const SIGNED: usize = 64;

/// The name of what is signed eight at a time on the vectors of this processor.
const WIDE: &str = "eight";
const IFMA: &str = "avx512-ifma";

/// Measures; `stage_key` has as many components as the stages.
///
/// # Errors
/// A signature that is wrong.
pub(super) fn rows(
    size: &Size,
    stage_key: &Rapid,
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
        plain(size, name, scheme, &mut report.rows)?;
    }
    for components in size.components.iter().copied() {
        let name = format!("ra{components}");
        if components == size.stage_components {
            progress("rapid authentication", None);
            rapid(size, stage_key, &name, &mut report.rows)?;
        } else {
            progress("rapid authentication: table", None);
            let key = Rapid::new(Scheme::RaRsa2048, components)?;
            rapid(size, &key, &name, &mut report.rows)?;
        }
    }
    if let Some(components) = size.over_rsa3072 {
        progress("rapid authentication over rsa3072: table", None);
        let key = Rapid::new(Scheme::RaRsa3072, components)?;
        rapid(size, &key, &format!("ra{components}_rsa3072"), &mut report.rows)?;
    }
    ratios(report);
    Ok(())
}

/// A row of operations per second for each way.
fn measure(size: &Size, mut ways: Vec<Way<'_>>, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    for (seconds, way) in best(size, &mut ways)?.into_iter().zip(&ways) {
        rows.push(Row::higher(
            format!("{}_per_s", way.name),
            1.0 / seconds,
            "/s",
            None,
        ));
    }
    Ok(())
}

fn plain(size: &Size, name: &str, scheme: Scheme, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let messages = plain_messages(scheme, size.signers, BATCH)?;
    let key = Plain::new(scheme)?;
    let others = match scheme {
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
    let mut ways = verification(&format!("{name}.verify"), &messages);
    for (of, messages) in &others {
        if let Some(mut eight) = Eight::widest() {
            let way = move || verified(&mut eight, messages);
            ways.push(Way::new(format!("{name}.verify.{WIDE}.{of}"), way));
        }
    }
    ways.push(Way::new(format!("{name}.sign.awslc"), || {
        let (signed, done) = timed(1, || key.sign());
        signed.map(|_| done)
    }));
    measure(size, ways, rows)
}

/// One at a time, and eight if this processor has vectors for it.
fn verification<'a>(name: &str, messages: &'a [Checked]) -> Vec<Way<'a>> {
    let of_whom = match messages
        .first()
        .is_some_and(|message| message.key().ra().is_some())
    {
        true => "one",
        false => "awslc",
    };
    let mut one = OneByOne::default();
    let mut ways = vec![Way::new(format!("{name}.{of_whom}"), move || {
        verified(&mut one, messages)
    })];
    if let Some(mut eight) = Eight::widest() {
        ways.push(Way::new(format!("{name}.{WIDE}"), move || {
            verified(&mut eight, messages)
        }));
    }
    ways
}

fn verified(lane: &mut dyn Verifier, messages: &[Checked]) -> Result<Done, BenchError> {
    let mut holds = Vec::with_capacity(messages.len());
    let (result, done) = timed(messages.len(), || lane.verify(messages, &mut holds));
    result.map_err(broken)?;
    match holds.len() == messages.len() && holds.iter().all(|holds| *holds) {
        true => Ok(done),
        false => Err(broken("a signature that was just made does not verify")),
    }
}

fn rapid(size: &Size, key: &Rapid, name: &str, rows: &mut Vec<Row>) -> Result<(), BenchError> {
    let messages = key.messages(BATCH)?;
    let digits = key.digits(SIGNED)?;
    let mut ways = verification(&format!("{name}.verify"), &messages);
    ways.push(Way::new(format!("{name}.verify.uncached"), || {
        uncached(&messages)
    }));
    ways.push(Way::new(format!("{name}.online.one"), || {
        let masks = key.masks(SIGNED)?;
        let (signed, done) = timed(SIGNED, || {
            let messages = masks.into_iter().zip(&digits);
            messages
                .map(|(mask, digits)| key.table.sign(mask, digits))
                .collect::<Result<Vec<_>, _>>()
        });
        signed.map_err(broken).map(|_| done)
    }));
    ways.push(Way::new(format!("{name}.online.{WIDE}"), || {
        let messages = key.masks(SIGNED)?.into_iter().zip(&digits).collect();
        let (signed, done) = timed(SIGNED, || key.table.sign_all(messages));
        signed.map_err(broken).map(|_| done)
    }));
    ways.push(Way::new(format!("{name}.offline.one"), || offline(key, 1)));
    ways.push(Way::new(format!("{name}.offline.{WIDE}"), || offline(key, 8)));
    measure(size, ways, rows)
}

/// Masks, so many at a time.
fn offline(key: &Rapid, count: usize) -> Result<Done, BenchError> {
    let (ra, names) = (key.ra()?, names(count)?);
    let (masks, done) = timed(count, || ra.masks(&names));
    masks.map_err(broken).map(|_| done)
}

/// With keys that have hashed no component yet.
fn uncached(messages: &[Checked]) -> Result<Done, BenchError> {
    let message = messages.first().ok_or_else(|| broken("no message"))?;
    let public = fresh_public(message)?;
    let (digits, name) = message.rapid().ok_or_else(|| broken("a message of RA is none"))?;
    let ra = public.ra().ok_or_else(|| broken("a key of RA is none"))?;
    let (holds, done) = timed(1, || ra.verify(name, digits, message.signature()));
    match holds {
        true => Ok(done),
        false => Err(broken("a signature that was just made does not verify")),
    }
}

/// Our ways by aws-lc's.
fn ratios(report: &mut Report) {
    let vectors = linewarden_arithmetic::Backend::widest().map(|backend| backend.name());
    let over = |a: &str, b: &str| Some(report.value(a)? / report.value(b)?);
    let mut rows = Vec::new();
    let mut pending = Vec::new();
    for (name, ours, theirs, bar) in [
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
            over(&format!("{ours}_per_s"), &format!("{theirs}_per_s")),
            vectors,
        ) {
            (Some(ratio), Some(IFMA)) => rows.push(Row::higher(ifma, ratio, "ratio", Some(bar))),
            (ratio, vectors) => {
                let why = "this processor has no AVX-512 IFMA";
                pending.push(Pending::new(ifma, "ratio", Better::Higher, Some(bar), why));
                let vectors = vectors.unwrap_or("none").replace('-', "_");
                rows.extend(
                    ratio.map(|ratio| {
                        Row::higher(format!("{name}.{vectors}_over_awslc"), ratio, "ratio", None)
                    }),
                );
            }
        }
    }
    for (name, ours, theirs, bar) in [
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
        let ratio = over(&format!("{ours}_per_s"), &format!("{theirs}_per_s"));
        rows.extend(ratio.map(|ratio| Row::higher(name, ratio, "ratio", Some(bar))));
    }
    for scheme in ["p256", "ed25519"] {
        for of in ["new_signers", "many_signers"] {
            let ours = format!("{scheme}.verify.{WIDE}.{of}_per_s");
            let ratio = over(&ours, &format!("{scheme}.verify.awslc_per_s"));
            let name = format!("{scheme}_verify.{of}_over_awslc");
            rows.extend(ratio.map(|ratio| Row::higher(name, ratio, "ratio", None)));
        }
    }
    report.rows.extend(rows);
    report.pending.extend(pending);
}
