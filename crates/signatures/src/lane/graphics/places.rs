//! Which signers have places on devices.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use linewarden_arithmetic::rsa::Size;

use crate::gpu::{DeviceInfo, P256_KEY_BYTES, takes_layout};
use crate::key::{Material, PublicKey};
use crate::ra::RaPublic;
use crate::scheduler::{Span, Time};

/// Layouts whose keys are kept side by side: those that most signers have.
const LAYOUTS_MAX: usize = 4;
/// A signer of whom no message has held for so long makes room for another.
const IDLE: Span = Span::from_millis(10_000);

/// How much of a device's memory keys may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyMemory {
    /// For the hashed components of RA's keys, in bytes: 2 MiB a key of 2,048 bits for the stamp, and 64 KiB for each
    /// byte of the payload. Layouts share it.
    pub table_bytes: usize,
    /// Keys of RSA-PSS of one size, and of one layout of RA.
    pub rsa_keys: usize,
    /// Keys of ECDSA over P-256, 13 KiB each.
    pub p256_keys: usize,
}

impl KeyMemory {
    /// A quarter of the device's memory, and 4,096 keys of RSA; another thirty-second for keys of P-256.
    #[must_use]
    pub fn of(device: &DeviceInfo) -> Self {
        let part = |part: u64| usize::try_from(device.memory_bytes / part).unwrap_or(usize::MAX);
        Self {
            table_bytes: part(4),
            rsa_keys: 4096,
            p256_keys: part(32) / P256_KEY_BYTES,
        }
    }

    /// What both have.
    #[must_use]
    pub fn least(self, other: Self) -> Self {
        Self {
            table_bytes: self.table_bytes.min(other.table_bytes),
            rsa_keys: self.rsa_keys.min(other.rsa_keys),
            p256_keys: self.p256_keys.min(other.p256_keys),
        }
    }
}

/// What keys have in common that lie side by side, and that one kernel reads.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Shape {
    Pss(Size),
    Ra {
        size: Size,
        /// How many values each component has.
        domains: Vec<u32>,
    },
    P256,
}

impl Shape {
    /// `None` of a key that no device takes.
    fn of(key: &PublicKey) -> Option<Self> {
        Some(match key.material() {
            Material::Pss(rsa, _) => Self::Pss(rsa.size()),
            Material::Ra(ra) => Self::Ra {
                size: ra.rsa().size(),
                domains: ra.layout().domains().collect(),
            },
            Material::EcdsaP256(..) => Self::P256,
            Material::Ed25519(..) => return None,
        })
    }

    /// What a key's hashed components take; nothing of others than RA's.
    fn table_bytes(&self) -> usize {
        match self {
            Self::Ra { size, domains } => {
                let rows: usize = domains.iter().map(|values| *values as usize).sum();
                rows.saturating_mul(size.bytes())
            }
            Self::Pss(_) | Self::P256 => 0,
        }
    }
}

/// A receiver's signers, and which of them have places on its devices, the same on each. Whoever submits messages asks here first: those of
/// signers without a place are for processors, which verify what is forged in any name, and take none of the devices' time.
///
/// All have places for whom there is memory. Where there are more, one of whom no message has held for ten seconds makes room for one
/// of whom one has: forgeries displace nobody.
pub struct Places {
    /// Numbers of signers by their keys' places in memory, which each keeps as long as it is kept here: nothing has to be compared.
    numbers: HashMap<usize, usize>,
    signers: Vec<Signer>,
    groups: Vec<Group>,
    /// Nobody is without a place, and so nobody ever will be.
    all_have: bool,
}

struct Signer {
    /// Keeps its place in memory.
    key: Arc<PublicKey>,
    /// `None` of one that no device takes.
    group: Option<usize>,
    on_device: AtomicBool,
    /// When a message has held last, ns; 0 if none has.
    held_at: AtomicU64,
}

impl Signer {
    fn idle_at(&self) -> Time {
        match self.held_at.load(Ordering::Relaxed) {
            0 => Time::ZERO,
            held_at => Time::from_nanos(held_at) + IDLE,
        }
    }
}

/// Keys of one shape.
pub(super) struct Group {
    pub(super) shape: Shape,
    /// Keys that a device holds.
    pub(super) capacity: usize,
    /// More signers have such keys than that. Then a few of what a device holds are no places: what waits of a signer who was displaced is
    /// worked off there.
    pub(super) crowded: bool,
    placed: Mutex<PlacedSigners>,
}

struct PlacedSigners {
    /// Their numbers.
    signers: Vec<usize>,
    /// None of them makes room before.
    idle_at: Time,
}

fn address(key: &Arc<PublicKey>) -> usize {
    Arc::as_ptr(key).addr()
}

impl Places {
    /// Gives places to as many signers as there is memory for on each device, the first of them.
    pub fn new<'a>(signers: impl IntoIterator<Item = &'a Arc<PublicKey>>, memory: KeyMemory) -> Self {
        let mut of_shape: HashMap<Shape, Vec<&Arc<PublicKey>>> = HashMap::new();
        let mut without = Vec::new();
        let mut seen = HashSet::new();
        for key in signers {
            match Shape::of(key).filter(|_| seen.insert(address(key))) {
                None => {}
                Some(_) if !key.ra().map(RaPublic::layout).is_none_or(takes_layout) => without.push(key),
                Some(shape) => of_shape.entry(shape).or_default().push(key),
            }
        }
        let (mut layouts, plain): (Vec<_>, Vec<_>) = of_shape
            .into_iter()
            .partition(|(shape, _)| matches!(shape, Shape::Ra { .. }));
        layouts.sort_by(|(a, of_a), (b, of_b)| {
            let by_signers = of_b.len().cmp(&of_a.len());
            by_signers.then_with(|| a.cmp(b))
        });
        without.extend(
            layouts
                .drain(layouts.len().min(LAYOUTS_MAX)..)
                .flat_map(|(_, keys)| keys),
        );
        let mut places = Self {
            numbers: HashMap::new(),
            signers: Vec::new(),
            groups: Vec::new(),
            all_have: true,
        };
        for (shape, keys) in plain {
            let room = match shape {
                Shape::P256 => memory.p256_keys,
                Shape::Pss(_) | Shape::Ra { .. } => memory.rsa_keys,
            };
            places.add(shape, &keys, room.max(1));
        }
        // Who needs less than an even share leaves the rest of it to the others.
        layouts.sort_by_key(|(shape, keys)| shape.table_bytes().saturating_mul(keys.len()));
        let (mut bytes_left, mut layouts_left) = (memory.table_bytes, layouts.len());
        for (shape, keys) in layouts {
            let share = bytes_left / layouts_left;
            layouts_left -= 1;
            match (share / shape.table_bytes().max(1)).min(memory.rsa_keys) {
                0 => without.extend(keys),
                room => {
                    bytes_left -= shape.table_bytes() * room.min(keys.len());
                    places.add(shape, &keys, room);
                }
            }
        }
        for key in without {
            places.insert(key, None, false);
        }
        places
    }

    fn add(&mut self, shape: Shape, keys: &[&Arc<PublicKey>], room: usize) {
        let (group, crowded) = (self.groups.len(), keys.len() > room);
        let placed = match crowded && room > 1 {
            true => room - (room / 8).max(1),
            false => room.min(keys.len()),
        };
        let first = self.signers.len();
        for (number, key) in keys.iter().enumerate() {
            self.insert(key, Some(group), number < placed);
        }
        self.groups.push(Group {
            shape,
            capacity: room.min(keys.len()),
            crowded,
            placed: Mutex::new(PlacedSigners {
                signers: (first..first + placed).collect(),
                idle_at: Time::ZERO,
            }),
        });
    }

    fn insert(&mut self, key: &Arc<PublicKey>, group: Option<usize>, on_device: bool) {
        self.all_have &= on_device;
        self.numbers.insert(address(key), self.signers.len());
        self.signers.push(Signer {
            key: Arc::clone(key),
            group,
            on_device: AtomicBool::new(on_device),
            held_at: AtomicU64::new(0),
        });
    }

    fn signer(&self, key: &Arc<PublicKey>) -> Option<(usize, &Signer)> {
        let number = *self.numbers.get(&address(key))?;
        Some((number, self.signers.get(number)?))
    }

    /// Whether a message of this signer may be for a device. A key that needs no place has one.
    #[must_use]
    pub fn has(&self, key: &Arc<PublicKey>) -> bool {
        self.all_have
            || self
                .signer(key)
                .is_none_or(|(_, signer)| signer.on_device.load(Ordering::Relaxed))
    }

    /// Notes that a message of this signer was accepted.
    pub fn held(&self, key: &Arc<PublicKey>, now: Time) {
        if self.all_have {
            return;
        }
        let Some((number, signer)) = self.signer(key) else {
            return;
        };
        signer.held_at.store(now.as_nanos(), Ordering::Relaxed);
        if !signer.on_device.load(Ordering::Relaxed)
            && let Some(group) = signer.group.and_then(|group| self.groups.get(group))
        {
            self.make_room(group, number, now);
        }
    }

    /// Gives a signer the place of the one of whom none has held for longest, if that is long enough.
    fn make_room(&self, group: &Group, newcomer: usize, now: Time) {
        let mut placed = group.placed.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |number: &usize| self.signers.get(*number);
        // Both may have changed while the lock was waited for.
        if now < placed.idle_at || of(&newcomer).is_none_or(|signer| signer.on_device.load(Ordering::Relaxed))
        {
            return;
        }
        let idle_at = |number: &&mut usize| of(number).map(Signer::idle_at);
        let PlacedSigners {
            signers,
            idle_at: next,
        } = &mut *placed;
        let Some(oldest) = signers.iter_mut().min_by_key(idle_at) else {
            return;
        };
        let (Some(before), Some(after)) = (of(oldest), of(&newcomer)) else {
            return;
        };
        *next = before.idle_at();
        if *next <= now {
            before.on_device.store(false, Ordering::Relaxed);
            after.on_device.store(true, Ordering::Relaxed);
            *oldest = newcomer;
        }
    }

    /// The group of a key that a device takes, whether it has a place at the moment or not.
    pub(super) fn group_of(&self, key: &Arc<PublicKey>) -> Option<usize> {
        self.signer(key)?.1.group
    }

    /// The keys of a group that have places at the moment.
    pub(super) fn placed(&self, group: &Group) -> Vec<Arc<PublicKey>> {
        let placed = group.placed.lock().unwrap_or_else(PoisonError::into_inner);
        let signers = placed
            .signers
            .iter()
            .filter_map(|number| self.signers.get(*number));
        signers.map(|signer| Arc::clone(&signer.key)).collect()
    }

    pub(super) fn groups(&self) -> &[Group] {
        &self.groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::PrivateKey;
    use crate::message::PayloadKind;
    use crate::ra::{Domain, Layout};
    use crate::scheme::Scheme;

    fn keys(count: usize, layout: Option<&Layout>) -> Vec<Arc<PublicKey>> {
        let scheme = if layout.is_some() {
            Scheme::RaRsa2048
        } else {
            Scheme::RsaPss2048
        };
        let key = || PrivateKey::generate(scheme, layout.cloned()).unwrap();
        (0..count).map(|_| Arc::clone(key().public())).collect()
    }

    fn layout(texts: &[&str]) -> Layout {
        let texts = Domain::Submessages(texts.iter().map(ToString::to_string).collect());
        Layout::new(PayloadKind::Submessages, vec![texts]).unwrap()
    }

    fn at(seconds: u64) -> Time {
        Time::ZERO + Span::from_millis(1000 * seconds)
    }

    const MEMORY: KeyMemory = KeyMemory {
        table_bytes: 1 << 30,
        rsa_keys: 3,
        p256_keys: 3,
    };

    #[test]
    fn who_was_not_heard_of_for_longest_makes_room_when_that_is_long() {
        // One of three that a device holds is spare.
        let keys = keys(4, None);
        let places = Places::new(&keys, MEMORY);
        let has = || [0, 1, 2, 3].map(|key| places.has(&keys[key]));
        assert_eq!(has(), [true, true, false, false]);
        places.held(&keys[1], at(1));
        places.held(&keys[0], at(2));
        places.held(&keys[2], at(10));
        assert_eq!(has(), [true, true, false, false], "both were heard of lately");
        places.held(&keys[2], at(11));
        assert_eq!(has(), [true, false, true, false]);
        places.held(&keys[1], at(11));
        assert_eq!(
            has(),
            [true, false, true, false],
            "the other was heard of 9 s ago"
        );
        places.held(&keys[0], at(12));
        places.held(&keys[1], at(20));
        assert_eq!(has(), [true, false, true, false]);
        places.held(&keys[1], at(21));
        assert_eq!(has(), [true, true, false, false]);
    }

    #[test]
    fn who_was_never_heard_of_makes_room_at_once() {
        let keys = keys(4, None);
        let places = Places::new(&keys, MEMORY);
        places.held(&keys[0], at(1));
        places.held(&keys[3], at(2));
        assert_eq!(
            [0, 1, 2, 3].map(|key| places.has(&keys[key])),
            [true, false, false, true]
        );
    }

    #[test]
    fn where_there_is_room_for_all_nobody_is_displaced() {
        let keys = keys(3, None);
        let places = Places::new(&keys, MEMORY);
        places.held(&keys[0], at(100));
        assert!(keys.iter().all(|key| places.has(key)));
        let foreign = self::keys(1, None);
        places.held(&foreign[0], at(100));
    }

    /// What is no layout for a device, or one that too few have, is for processors.
    #[test]
    fn the_layouts_that_most_signers_have_share_the_memory() {
        let long = "x".repeat(82);
        let texts = ["a", "b", "c", "d", "e", "f", long.as_str()];
        let layouts: Vec<Layout> = (2..7).map(|count| layout(&texts[..count])).collect();
        let counts = [2, 1, 2, 2, 2];
        let of_layout: Vec<_> = layouts
            .iter()
            .zip(counts)
            .map(|(layout, count)| keys(count, Some(layout)))
            .collect();
        let never = keys(1, Some(&layout(&texts)));
        let all = || of_layout.iter().flatten().chain(&never);
        let places = Places::new(all(), MEMORY);
        let have: Vec<usize> = of_layout
            .iter()
            .map(|keys| keys.iter().filter(|key| places.has(key)).count())
            .collect();
        assert_eq!(have, [2, 0, 2, 2, 2]);
        places.held(&of_layout[1][0], at(100));
        places.held(&never[0], at(100));
        assert!(!places.has(&of_layout[1][0]) && !places.has(&never[0]));
        // Tables of 2 MiB and a little, of which each layout needs two.
        for (mebibytes, expected) in [
            (20, vec![2; 4]),
            (12, vec![1, 1, 1, 2]),
            (7, vec![1; 3]),
            (2, vec![]),
        ] {
            let memory = KeyMemory {
                table_bytes: mebibytes << 20,
                ..MEMORY
            };
            let places = Places::new(all(), memory);
            let capacities: Vec<usize> = places.groups().iter().map(|group| group.capacity).collect();
            assert_eq!(capacities, expected, "{mebibytes} MiB");
        }
    }
}
