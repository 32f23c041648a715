//! Keys, signed messages, masks: what is measured with.

use std::sync::Arc;

use linewarden_signatures::key::PrivateKey;
use linewarden_signatures::lane::Eight;
use linewarden_signatures::message::{
    Draft, MASK_NAME_BYTES, PayloadKind, Priority, Stamp, TimeMs, Unsigned,
};
use linewarden_signatures::ra::{Digits, Layout, Mask, RaPrivate, Table};
use linewarden_signatures::receive::{
    Checked, KEY_MEMORY_DEFAULT_BYTES, Receiver, ReplayMemory, Signers, Window,
};
use linewarden_signatures::scheme::Scheme;
use linewarden_signatures::store::Revocations;

use crate::bench::BenchError;

/// When all messages are signed.
const NOW: TimeMs = TimeMs::since_2020(200_000_000_000);

/// That something which cannot fail did.
pub(super) fn broken(error: impl std::fmt::Display) -> BenchError {
    BenchError::Contradiction(error.to_string())
}

/// Random names for masks.
pub(super) fn names(count: usize) -> Result<Vec<[u8; MASK_NAME_BYTES]>, BenchError> {
    let mut names = vec![[0; MASK_NAME_BYTES]; count];
    getrandom::fill(names.as_flattened_mut()).map_err(broken)?;
    Ok(names)
}

fn stamp() -> Stamp {
    Stamp {
        time: NOW,
        priority: Priority::URGENT,
    }
}

/// A key of Rapid Authentication at work.
pub(super) struct Rapid {
    key: PrivateKey,
    pub(super) table: Table,
}

impl Rapid {
    pub(super) fn new(scheme: Scheme, components: usize) -> Result<Self, BenchError> {
        let layout = Layout::bytes(components).map_err(broken)?;
        let key = PrivateKey::generate(scheme, Some(layout)).map_err(broken)?;
        let table = ra(&key)?.table(|_| true).map_err(broken)?;
        let table = table.ok_or_else(|| broken("a table was not finished"))?;
        Ok(Self { key, table })
    }

    pub(super) fn ra(&self) -> Result<&RaPrivate, BenchError> {
        ra(&self.key)
    }

    pub(super) fn masks(&self, count: usize) -> Result<Vec<Mask>, BenchError> {
        self.ra()?.masks(&names(count)?).map_err(broken)
    }

    /// Components of random messages.
    pub(super) fn digits(&self, count: usize) -> Result<Vec<Digits>, BenchError> {
        let layout = self.table.public().layout();
        let payloads = (0..count).map(|_| {
            let mut payload = vec![0; layout.payload_bytes()];
            getrandom::fill(&mut payload).map_err(broken)?;
            layout
                .digits(stamp(), PayloadKind::Opaque, &payload)
                .map_err(broken)
        });
        payloads.collect()
    }

    /// Random messages, received.
    pub(super) fn messages(&self, count: usize) -> Result<Vec<Checked>, BenchError> {
        messages_of(&self.key, Some(&self.table), count, KEY_MEMORY_DEFAULT_BYTES)
    }
}

fn ra(key: &PrivateKey) -> Result<&RaPrivate, BenchError> {
    key.ra().ok_or_else(|| broken("a key of RA is none"))
}

/// Signs at a time; with RA by a private operation, with a mask's name that was never used.
pub(super) fn sign_at(
    key: &PrivateKey,
    name: &[u8; MASK_NAME_BYTES],
    stamp: Stamp,
    payload: &[u8],
) -> Result<Vec<u8>, BenchError> {
    let draft = draft(key, stamp, payload)?;
    let Some(ra) = key.ra() else {
        let signed = key.sign_plainly(draft).map_err(broken)?;
        return signed.ok_or_else(|| broken("a plain key does not sign"));
    };
    let layout = ra.public().layout();
    let digits = layout
        .digits(stamp, PayloadKind::Opaque, payload)
        .map_err(broken)?;
    let signature = ra.sign(name, &digits).map_err(broken)?;
    Ok(draft.with_mask(name, &signature))
}

fn draft(key: &PrivateKey, stamp: Stamp, payload: &[u8]) -> Result<Draft, BenchError> {
    let public = key.public();
    let unsigned = Unsigned {
        scheme: public.scheme(),
        key_id: public.id(),
        stamp,
        kind: PayloadKind::Opaque,
        payload,
    };
    unsigned.encode().ok_or_else(|| broken("too long a payload"))
}

/// A key of a plain scheme.
pub(super) struct Plain(PrivateKey);

impl Plain {
    pub(super) fn new(scheme: Scheme) -> Result<Self, BenchError> {
        PrivateKey::generate(scheme, None).map(Self).map_err(broken)
    }

    /// Signs 200 bytes.
    pub(super) fn sign(&self) -> Result<Vec<u8>, BenchError> {
        sign(&self.0, None, &[7; 200])
    }
}

/// Messages of a plain scheme, of several signers by turns, as a receiver on a road has them: of signers for whom all has been computed ahead
/// that ever is.
pub(super) fn plain_messages(
    scheme: Scheme,
    signers: usize,
    count: usize,
) -> Result<Vec<Checked>, BenchError> {
    let messages = by_turns(scheme, signers, count, KEY_MEMORY_DEFAULT_BYTES)?;
    let is_point = matches!(scheme, Scheme::EcdsaP256 | Scheme::Ed25519);
    let Some(mut eight) = Eight::widest().filter(|_| is_point) else {
        return Ok(messages);
    };
    // Eight messages of each must hold, and then one table is made beside 32.
    for _ in 0..8 + 32 * signers.div_ceil(count.max(1)) {
        for part in messages.chunks(32) {
            if eight.holds(part).contains(&false) {
                return Err(broken("a signature that was just made does not verify"));
            }
        }
    }
    if !messages.iter().all(|message| message.key().has_table()) {
        return Err(broken("a signer of many messages has no table"));
    }
    Ok(messages)
}

/// The same of signers for whom nothing is computed ahead.
pub(super) fn new_signers(scheme: Scheme, signers: usize, count: usize) -> Result<Vec<Checked>, BenchError> {
    by_turns(scheme, signers, count, 0)
}

fn by_turns(
    scheme: Scheme,
    signers: usize,
    count: usize,
    key_memory: usize,
) -> Result<Vec<Checked>, BenchError> {
    let mut of_all = Vec::new();
    for _ in 0..signers {
        let key = PrivateKey::generate(scheme, None).map_err(broken)?;
        of_all.push(messages_of(&key, None, count.div_ceil(signers), key_memory)?.into_iter());
    }
    let mut messages = Vec::with_capacity(count);
    while messages.len() < count {
        messages.extend(of_all.iter_mut().filter_map(Iterator::next));
    }
    messages.truncate(count);
    Ok(messages)
}

fn sign(key: &PrivateKey, table: Option<&Table>, payload: &[u8]) -> Result<Vec<u8>, BenchError> {
    let draft = draft(key, stamp(), payload)?;
    let Some(table) = table else {
        let signed = key.sign_plainly(draft).map_err(broken)?;
        return signed.ok_or_else(|| broken("a plain key does not sign"));
    };
    let digits = table
        .public()
        .layout()
        .digits(stamp(), PayloadKind::Opaque, payload)
        .map_err(broken)?;
    let mask = ra(key)?.masks(&names(1)?).map_err(broken)?.pop();
    let mask = mask.ok_or_else(|| broken("no mask was made"))?;
    let name = *mask.name();
    let signature = table.sign(mask, &digits).map_err(broken)?;
    Ok(draft.with_mask(&name, &signature))
}

fn messages_of(
    key: &PrivateKey,
    table: Option<&Table>,
    count: usize,
    key_memory: usize,
) -> Result<Vec<Checked>, BenchError> {
    let mut signers = Signers::default();
    let text = key.public().to_json().map_err(broken)?;
    let public = linewarden_signatures::key::PublicKey::from_json(&text).map_err(broken)?;
    signers.add(public).map_err(broken)?;
    let replays = ReplayMemory::new(Window::DEFAULT, 1, [0; 16]);
    let receiver = Receiver::new(signers, Revocations::default(), Window::DEFAULT, replays);
    receiver.set_key_memory(key_memory);
    let bytes = table.map_or(200, |table| table.public().layout().payload_bytes());
    let messages = (0..count).map(|_| {
        let mut payload = vec![0; bytes];
        getrandom::fill(&mut payload).map_err(broken)?;
        let message = sign(key, table, &payload)?;
        receiver
            .screen(message, NOW)
            .map_err(|refusal| broken(format!("a message is refused: {refusal}")))
    });
    messages.collect()
}

/// The receivers' keys of messages, once each.
pub(super) fn fresh_public(
    message: &Checked,
) -> Result<Arc<linewarden_signatures::key::PublicKey>, BenchError> {
    let text = message.key().to_json().map_err(broken)?;
    linewarden_signatures::key::PublicKey::from_json(&text)
        .map(Arc::new)
        .map_err(broken)
}
