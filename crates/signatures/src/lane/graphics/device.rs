//! An open device with the keys that it holds.

use std::collections::HashMap;
use std::sync::Arc;

use super::KeyMemory;
use super::keys::{Number, Numbers};
use crate::gpu::{BatchError, Goal, Gpu, P256Batch, PssBatch, RaBatch, RaKeys, RsaKeys, Width, takes_layout};
use crate::key::{Material, PublicKey};
use crate::lane::{digest, halves};
use crate::message::MASK_NAME_BYTES;
use crate::receive::Checked;
use crate::scheme::Scheme;

/// Layouts whose keys are kept side by side. A further one, of which a message has held, displaces that of which none has for the longest
/// time, with all its keys.
const LAYOUTS_MAX: usize = 4;
/// Batches after which a layout of which no message has held makes room: where more than the most are in use, they would displace each other
/// all the time.
const IDLE_ROUNDS: u64 = 256;

/// A message and its place in the batch.
pub(super) type Placed<'a> = (usize, &'a Checked);

/// What keys have in common whose tables one kernel reads.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Shape {
    width: Width,
    domains: Vec<u32>,
}

impl Shape {
    fn table_bytes(&self) -> usize {
        let rows: usize = self.domains.iter().map(|values| *values as usize).sum();
        rows.saturating_mul(self.width.bytes())
    }
}

struct PssStore {
    keys: RsaKeys,
    numbers: Numbers,
}

struct LayoutStore {
    shape: Shape,
    keys: RaKeys,
    numbers: Numbers,
    held: u64,
}

/// The first messages of some, and their keys' numbers.
struct Run<'a> {
    messages: Vec<Placed<'a>>,
    key_of: Vec<u32>,
    newcomers: Vec<(usize, &'a Arc<PublicKey>)>,
    /// Messages of strangers among them.
    others: Vec<Placed<'a>>,
    round: u64,
}

impl<'a> Run<'a> {
    /// Takes messages from the front of `rest` while there are numbers for their keys; at least one.
    fn take(numbers: &mut Numbers, rest: &mut &[Placed<'a>], round: u64) -> Self {
        let mut run = Self {
            messages: Vec::with_capacity(rest.len()),
            key_of: Vec::with_capacity(rest.len()),
            newcomers: Vec::new(),
            others: Vec::new(),
            round,
        };
        while let Some((placed, behind)) = rest.split_first() {
            let key = placed.1.key();
            match numbers.of(key, round) {
                Number::None => break,
                Number::Stranger => run.others.push(*placed),
                Number::Known(number) => run.push(*placed, number),
                Number::New(number) => {
                    run.newcomers.push((number as usize, key));
                    run.push(*placed, number);
                }
            }
            *rest = behind;
        }
        run
    }

    fn push(&mut self, placed: Placed<'a>, number: u32) {
        self.messages.push(placed);
        self.key_of.push(number);
    }

    /// Writes the verdicts to their places, and notes whose messages have held; whether any has.
    fn put_verdicts(&self, numbers: &mut Numbers, verdicts: &[bool], holds: &mut [bool]) -> bool {
        put_verdicts(&self.messages, verdicts, holds);
        for (number, _) in self.key_of.iter().zip(verdicts).filter(|(_, holds)| **holds) {
            numbers.held(*number, self.round);
        }
        verdicts.contains(&true)
    }
}

pub(super) struct Device {
    pub(super) gpu: Gpu,
    memory: KeyMemory,
    round: u64,
    pss: Vec<PssStore>,
    layouts: Vec<LayoutStore>,
    /// A layout without a place of which a message has held.
    candidate: Option<Shape>,
}

impl Device {
    pub(super) fn new(gpu: Gpu, memory: KeyMemory) -> Self {
        Self {
            gpu,
            memory,
            round: 0,
            pss: Vec::new(),
            layouts: Vec::new(),
            candidate: None,
        }
    }

    /// RSA-PSS of one size; messages whose keys get no place come back. After an error the device is to be closed: keys may have numbers
    /// and not be there.
    pub(super) fn pss<'a>(
        &mut self,
        width: Width,
        messages: &[Placed<'a>],
        holds: &mut [bool],
    ) -> Result<Vec<Placed<'a>>, BatchError> {
        let index = match self.pss.iter().position(|store| store.keys.width() == width) {
            Some(index) => index,
            None => {
                let keys = self.gpu.rsa_keys(width, self.memory.rsa_keys.max(1))?;
                let numbers = Numbers::new(keys.capacity());
                self.pss.push(PssStore { keys, numbers });
                self.pss.len() - 1
            }
        };
        let Some(store) = self.pss.get_mut(index) else {
            return Ok(messages.to_vec());
        };
        let (mut rest, mut others) = (messages, Vec::new());
        while !rest.is_empty() {
            self.round += 1;
            let mut run = Run::take(&mut store.numbers, &mut rest, self.round);
            others.append(&mut run.others);
            if run.messages.is_empty() {
                continue;
            }
            for (number, key) in &run.newcomers {
                if let Material::Pss(key, _) = key.material() {
                    self.gpu.put_rsa_key(&mut store.keys, *number, key.as_bytes())?;
                }
            }
            let digests: Vec<[u8; 32]> = run.messages.iter().map(|(_, message)| digest(message)).collect();
            let batch = PssBatch {
                keys: &store.keys,
                key_of: &run.key_of,
                digests: &digests,
                signatures: &signatures(&run.messages, width),
            };
            let verdicts = self.gpu.verify_pss(&batch, Goal::Best)?;
            run.put_verdicts(&mut store.numbers, &verdicts, holds);
        }
        Ok(others)
    }

    /// Rapid Authentication of one size; messages whose layouts the device does not take, or whose keys get no place, come back.
    pub(super) fn rapid<'a>(
        &mut self,
        width: Width,
        messages: &[Placed<'a>],
        holds: &mut [bool],
    ) -> Result<Vec<Placed<'a>>, BatchError> {
        let (groups, mut others) = self.by_shape(width, messages);
        for (shape, messages) in groups {
            others.extend(self.of_shape(shape, &messages, holds)?);
        }
        Ok(others)
    }

    fn by_shape<'a>(
        &self,
        width: Width,
        messages: &[Placed<'a>],
    ) -> (Vec<(Shape, Vec<Placed<'a>>)>, Vec<Placed<'a>>) {
        let mut groups: Vec<(Shape, Vec<Placed>)> = Vec::new();
        let mut others = Vec::new();
        let mut group_of: HashMap<usize, Option<usize>> = HashMap::new();
        for placed in messages {
            let key = placed.1.key();
            let group = *group_of.entry(Arc::as_ptr(key).addr()).or_insert_with(|| {
                let shape = self.shape(width, key)?;
                let known = groups.iter().position(|(of, _)| *of == shape);
                Some(known.unwrap_or_else(|| {
                    groups.push((shape, Vec::new()));
                    groups.len() - 1
                }))
            });
            match group.and_then(|group| groups.get_mut(group)) {
                Some((_, group)) => group.push(*placed),
                None => others.push(*placed),
            }
        }
        (groups, others)
    }

    /// None if its layout is not for the device, or its table too large for the memory that a layout gets.
    fn shape(&self, width: Width, key: &PublicKey) -> Option<Shape> {
        let layout = key.ra().map(crate::ra::RaPublic::layout)?;
        let shape = Shape {
            width,
            domains: layout.domains().collect(),
        };
        let fits = shape.table_bytes() <= self.memory.table_bytes / LAYOUTS_MAX;
        (takes_layout(layout) && fits).then_some(shape)
    }

    fn of_shape<'a>(
        &mut self,
        shape: Shape,
        messages: &[Placed<'a>],
        holds: &mut [bool],
    ) -> Result<Vec<Placed<'a>>, BatchError> {
        let width = shape.width;
        let store = match self.layout_store(shape)? {
            Some(index) => self.layouts.get_mut(index),
            None => None,
        };
        let Some(store) = store else {
            return Ok(messages.to_vec());
        };
        let (mut rest, mut others) = (messages, Vec::new());
        while !rest.is_empty() {
            self.round += 1;
            let mut run = Run::take(&mut store.numbers, &mut rest, self.round);
            others.append(&mut run.others);
            if run.messages.is_empty() {
                continue;
            }
            for (number, key) in &run.newcomers {
                if let Some(key) = key.ra() {
                    self.gpu.put_ra_public(&mut store.keys, *number, key)?;
                }
            }
            let parts = run.messages.iter().filter_map(|(_, message)| message.rapid());
            let (digits, names): (Vec<_>, Vec<[u8; MASK_NAME_BYTES]>) =
                parts.map(|(digits, name)| (digits.as_slice(), *name)).unzip();
            let batch = RaBatch {
                keys: &store.keys,
                key_of: &run.key_of,
                digits: &digits.concat(),
                seeds: &names,
                signatures: &signatures(&run.messages, width),
            };
            let verdicts = self.gpu.verify_ra(&batch, Goal::Best)?;
            if run.put_verdicts(&mut store.numbers, &verdicts, holds) {
                store.held = self.round;
            }
        }
        Ok(others)
    }

    /// Where keys of this shape are; `None` if all places are taken, and none of its messages has held.
    fn layout_store(&mut self, shape: Shape) -> Result<Option<usize>, BatchError> {
        if let Some(index) = self.layouts.iter().position(|store| store.shape == shape) {
            return Ok(Some(index));
        }
        if self.layouts.len() >= LAYOUTS_MAX {
            let oldest = (0..).zip(&self.layouts).min_by_key(|(_, store)| store.held);
            let idle = oldest.filter(|(_, store)| store.held + IDLE_ROUNDS <= self.round);
            let Some((oldest, _)) = idle.filter(|_| self.candidate.as_ref() == Some(&shape)) else {
                return Ok(None);
            };
            self.candidate = None;
            self.layouts.swap_remove(oldest);
        }
        let share = self.memory.table_bytes / LAYOUTS_MAX;
        // `shape` has seen to it that one fits.
        let capacity = (share / shape.table_bytes().max(1)).clamp(1, self.memory.rsa_keys.max(1));
        let keys = self.gpu.ra_keys(shape.width, &shape.domains, capacity)?;
        self.layouts.push(LayoutStore {
            shape,
            keys,
            numbers: Numbers::new(capacity),
            held: self.round,
        });
        Ok(Some(self.layouts.len() - 1))
    }

    /// Notes that a message has held that came back: from now on its key may have a place.
    pub(super) fn wants(&mut self, message: &Checked) {
        let (key, round) = (message.key(), self.round);
        let width = match key.scheme() {
            Scheme::RaRsa2048 | Scheme::RsaPss2048 => Width::Bits2048,
            Scheme::RaRsa3072 | Scheme::RsaPss3072 => Width::Bits3072,
            Scheme::EcdsaP256 | Scheme::Ed25519 => return,
        };
        if !key.scheme().is_rapid() {
            let store = self.pss.iter_mut().find(|store| store.keys.width() == width);
            store
                .into_iter()
                .for_each(|store| store.numbers.wants(key, round));
        } else if let Some(shape) = self.shape(width, key) {
            match self.layouts.iter_mut().find(|store| store.shape == shape) {
                Some(store) => store.numbers.wants(key, round),
                None => self.candidate = Some(shape),
            }
        }
    }

    pub(super) fn p256(&mut self, messages: &[Placed], holds: &mut [bool]) -> Result<(), BatchError> {
        let mut place_of: HashMap<usize, u32> = HashMap::new();
        let mut keys: Vec<[u8; 64]> = Vec::new();
        let mut key_of = Vec::with_capacity(messages.len());
        let mut numbers = Vec::with_capacity(messages.len());
        for (_, message) in messages {
            let (Material::EcdsaP256(key, _), Some((r, s))) = (message.key().material(), halves(message))
            else {
                // What a receiver has checked has both.
                return Err(BatchError::Malformed("a message without its scheme's parts"));
            };
            let place = place_of
                .entry(Arc::as_ptr(message.key()).addr())
                .or_insert_with(|| {
                    let [_, point @ ..] = key.as_bytes();
                    keys.push(*point);
                    (keys.len() - 1) as u32
                });
            key_of.push(*place);
            let mut both = [0; 64];
            let (first, second) = both.split_at_mut(32);
            first.copy_from_slice(r);
            second.copy_from_slice(s);
            numbers.push(both);
        }
        let digests: Vec<[u8; 32]> = messages.iter().map(|(_, message)| digest(message)).collect();
        let batch = P256Batch {
            keys: &keys,
            key_of: &key_of,
            digests: &digests,
            signatures: &numbers,
        };
        put_verdicts(messages, &self.gpu.verify_p256(&batch)?, holds);
        Ok(())
    }
}

fn signatures(messages: &[Placed], width: Width) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(messages.len() * width.bytes());
    for (_, message) in messages {
        bytes.extend_from_slice(message.signature());
    }
    bytes
}

fn put_verdicts(messages: &[Placed], verdicts: &[bool], holds: &mut [bool]) {
    for ((place, _), verdict) in messages.iter().zip(verdicts) {
        if let Some(holds) = holds.get_mut(*place) {
            *holds = *verdict;
        }
    }
}
