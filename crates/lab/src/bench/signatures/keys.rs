//! Keys, signed messages and masks for the benchmarks.

use std::sync::Arc;

use linewarden_signatures::key::PrivateKey;
use linewarden_signatures::lane::BatchLane;
use linewarden_signatures::message::{
    Draft, MASK_NAME_BYTES, PayloadKind, Priority, Stamp, TimeMs, UnsignedMessage,
};
use linewarden_signatures::ra::{Digits, Layout, Mask, RaPrivate, Table};
use linewarden_signatures::receive::{
    Checked, KEY_MEMORY_DEFAULT_BYTES, Receiver, ReplayMemory, Signers, Window,
};
use linewarden_signatures::scheme::Scheme;
use linewarden_signatures::store::Revocations;

use crate::bench::BenchError;

/// The time at which all messages are signed.
const NOW: TimeMs = TimeMs::since_2020(200_000_000_000);

/// Converts an error of an operation that cannot fail in a correct program.
pub(super) fn invalid_measurement(error: impl std::fmt::Display) -> BenchError {
    BenchError::InvalidMeasurement(error.to_string())
}

/// Random names for masks.
pub(super) fn names(count: usize) -> Result<Vec<[u8; MASK_NAME_BYTES]>, BenchError> {
    let mut names = vec![[0; MASK_NAME_BYTES]; count];
    getrandom::fill(names.as_flattened_mut()).map_err(invalid_measurement)?;
    Ok(names)
}

fn stamp() -> Stamp {
    Stamp {
        time: NOW,
        priority: Priority::URGENT,
    }
}

/// A key of Rapid Authentication with its table.
pub(super) struct RapidKey {
    key: PrivateKey,
    pub(super) table: Table,
}

impl RapidKey {
    pub(super) fn new(scheme: Scheme, components: usize) -> Result<Self, BenchError> {
        let layout = Layout::bytes(components).map_err(invalid_measurement)?;
        let key = PrivateKey::generate(scheme, Some(layout)).map_err(invalid_measurement)?;
        let table = ra(&key)?.table(|_| true).map_err(invalid_measurement)?;
        let table = table.ok_or_else(|| invalid_measurement("the computation of the table was stopped"))?;
        Ok(Self { key, table })
    }

    pub(super) fn ra(&self) -> Result<&RaPrivate, BenchError> {
        ra(&self.key)
    }

    pub(super) fn masks(&self, count: usize) -> Result<Vec<Mask>, BenchError> {
        self.ra()?.masks(&names(count)?).map_err(invalid_measurement)
    }

    /// The components of random messages.
    pub(super) fn digits(&self, count: usize) -> Result<Vec<Digits>, BenchError> {
        let layout = self.table.public().layout();
        let payloads = (0..count).map(|_| {
            let mut payload = vec![0; layout.payload_bytes()];
            getrandom::fill(&mut payload).map_err(invalid_measurement)?;
            layout
                .digits(stamp(), PayloadKind::Opaque, &payload)
                .map_err(invalid_measurement)
        });
        payloads.collect()
    }

    /// Random signed messages as a receiver holds them before verification.
    pub(super) fn messages(&self, count: usize) -> Result<Vec<Checked>, BenchError> {
        messages_of(&self.key, Some(&self.table), count, KEY_MEMORY_DEFAULT_BYTES)
    }
}

fn ra(key: &PrivateKey) -> Result<&RaPrivate, BenchError> {
    key.ra()
        .ok_or_else(|| invalid_measurement("not a key of Rapid Authentication"))
}

/// Signs with a given stamp. Rapid Authentication uses the private operation and a mask name that was never used.
pub(super) fn sign_at(
    key: &PrivateKey,
    name: &[u8; MASK_NAME_BYTES],
    stamp: Stamp,
    payload: &[u8],
) -> Result<Vec<u8>, BenchError> {
    let draft = draft(key, stamp, payload)?;
    let Some(ra) = key.ra() else {
        let signed = key.sign_plain(draft).map_err(invalid_measurement)?;
        return signed.ok_or_else(|| invalid_measurement("a plain key cannot sign"));
    };
    let layout = ra.public().layout();
    let digits = layout
        .digits(stamp, PayloadKind::Opaque, payload)
        .map_err(invalid_measurement)?;
    let signature = ra.sign(name, &digits).map_err(invalid_measurement)?;
    Ok(draft.with_mask(name, &signature))
}

fn draft(key: &PrivateKey, stamp: Stamp, payload: &[u8]) -> Result<Draft, BenchError> {
    let public = key.public();
    let unsigned = UnsignedMessage {
        scheme: public.scheme(),
        key_id: public.id(),
        stamp,
        kind: PayloadKind::Opaque,
        payload,
    };
    unsigned
        .encode()
        .ok_or_else(|| invalid_measurement("payload too long"))
}

/// A key of a plain scheme.
pub(super) struct PlainKey(PrivateKey);

impl PlainKey {
    pub(super) fn new(scheme: Scheme) -> Result<Self, BenchError> {
        PrivateKey::generate(scheme, None)
            .map(Self)
            .map_err(invalid_measurement)
    }

    /// Signs 200 bytes.
    pub(super) fn sign(&self) -> Result<Vec<u8>, BenchError> {
        sign(&self.0, None, &[7; 200])
    }
}

/// Messages of a plain scheme, alternately from several signers for whom the receiver has precomputed all tables.
pub(super) fn plain_messages(
    scheme: Scheme,
    signers: usize,
    count: usize,
) -> Result<Vec<Checked>, BenchError> {
    let messages = interleaved_messages(scheme, signers, count, KEY_MEMORY_DEFAULT_BYTES)?;
    let uses_points = matches!(scheme, Scheme::EcdsaP256 | Scheme::Ed25519);
    let Some(mut lane) = BatchLane::widest().filter(|_| uses_points) else {
        return Ok(messages);
    };
    // A signer's table is computed after eight valid messages; each batch of 32 computes one table.
    for _ in 0..8 + 32 * signers.div_ceil(count.max(1)) {
        for batch in messages.chunks(32) {
            if lane.verify_all(batch).contains(&false) {
                return Err(invalid_measurement("a valid signature was rejected"));
            }
        }
    }
    if !messages.iter().all(|message| message.key().has_table()) {
        return Err(invalid_measurement(
            "no table was computed for a signer of many messages",
        ));
    }
    Ok(messages)
}

/// Messages of a plain scheme, alternately from several signers without precomputed tables.
pub(super) fn new_signers(scheme: Scheme, signers: usize, count: usize) -> Result<Vec<Checked>, BenchError> {
    interleaved_messages(scheme, signers, count, 0)
}

fn interleaved_messages(
    scheme: Scheme,
    signers: usize,
    count: usize,
    key_memory: usize,
) -> Result<Vec<Checked>, BenchError> {
    let mut by_signer = Vec::new();
    for _ in 0..signers {
        let key = PrivateKey::generate(scheme, None).map_err(invalid_measurement)?;
        by_signer.push(messages_of(&key, None, count.div_ceil(signers), key_memory)?.into_iter());
    }
    let mut messages = Vec::with_capacity(count);
    while messages.len() < count {
        messages.extend(by_signer.iter_mut().filter_map(Iterator::next));
    }
    messages.truncate(count);
    Ok(messages)
}

fn sign(key: &PrivateKey, table: Option<&Table>, payload: &[u8]) -> Result<Vec<u8>, BenchError> {
    let draft = draft(key, stamp(), payload)?;
    let Some(table) = table else {
        let signed = key.sign_plain(draft).map_err(invalid_measurement)?;
        return signed.ok_or_else(|| invalid_measurement("a plain key cannot sign"));
    };
    let digits = table
        .public()
        .layout()
        .digits(stamp(), PayloadKind::Opaque, payload)
        .map_err(invalid_measurement)?;
    let mask = ra(key)?.masks(&names(1)?).map_err(invalid_measurement)?.pop();
    let mask = mask.ok_or_else(|| invalid_measurement("no mask was created"))?;
    let name = *mask.name();
    let signature = table.sign(mask, &digits).map_err(invalid_measurement)?;
    Ok(draft.with_mask(&name, &signature))
}

fn messages_of(
    key: &PrivateKey,
    table: Option<&Table>,
    count: usize,
    key_memory: usize,
) -> Result<Vec<Checked>, BenchError> {
    let mut signers = Signers::default();
    let text = key.public().to_json().map_err(invalid_measurement)?;
    let public = linewarden_signatures::key::PublicKey::from_json(&text).map_err(invalid_measurement)?;
    signers.add(public).map_err(invalid_measurement)?;
    let replays = ReplayMemory::new(Window::DEFAULT, 1, [0; 16]);
    let receiver = Receiver::new(signers, Revocations::default(), Window::DEFAULT, replays);
    receiver.set_key_memory(key_memory);
    let bytes = table.map_or(200, |table| table.public().layout().payload_bytes());
    let messages = (0..count).map(|_| {
        let mut payload = vec![0; bytes];
        getrandom::fill(&mut payload).map_err(invalid_measurement)?;
        let message = sign(key, table, &payload)?;
        receiver
            .screen(message, NOW)
            .map_err(|refusal| invalid_measurement(format!("a valid message was rejected: {refusal}")))
    });
    messages.collect()
}

/// A new copy of a message's public key, without cached component hashes.
pub(super) fn uncached_public_key(
    message: &Checked,
) -> Result<Arc<linewarden_signatures::key::PublicKey>, BenchError> {
    let text = message.key().to_json().map_err(invalid_measurement)?;
    linewarden_signatures::key::PublicKey::from_json(&text)
        .map(Arc::new)
        .map_err(invalid_measurement)
}
