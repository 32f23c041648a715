//! Placement of signers on devices.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use linewarden_arithmetic::rsa::Size;

use crate::gpu::{DeviceInfo, P256_KEY_BYTES, takes_layout};
use crate::key::{Material, PublicKey};
use crate::ra::RaPublic;
use crate::scheduler::{Span, Time};

/// Number of layouts whose keys are stored side by side: those of the most signers.
const LAYOUTS_MAX: usize = 4;
/// A signer without a valid message for this time can be replaced.
const IDLE_MIN: Span = Span::from_millis(10_000);

/// Limits of a device's memory for keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyMemory {
    /// For the hashed components of keys of RA, in bytes: 2 MiB for the stamp of a key of 2,048 bits, and 64 KiB for each byte of the
    /// payload. All layouts share this memory.
    pub table_bytes: usize,
    /// Keys of RSA-PSS of one size, and keys of RA of one layout.
    pub rsa_keys: usize,
    /// Keys of ECDSA over P-256, 13 KiB each.
    pub p256_keys: usize,
}

impl KeyMemory {
    /// A quarter of the device's memory and 4,096 keys of RSA; another thirty-second for keys of P-256.
    #[must_use]
    pub fn of(device: &DeviceInfo) -> Self {
        let part = |part: u64| usize::try_from(device.memory_bytes / part).unwrap_or(usize::MAX);
        Self {
            table_bytes: part(4),
            rsa_keys: 4096,
            p256_keys: part(32) / P256_KEY_BYTES,
        }
    }

    /// The minimum of both.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self {
            table_bytes: self.table_bytes.min(other.table_bytes),
            rsa_keys: self.rsa_keys.min(other.rsa_keys),
            p256_keys: self.p256_keys.min(other.p256_keys),
        }
    }
}

/// Properties that keys stored side by side share, and that one kernel reads.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Shape {
    Pss(Size),
    Ra {
        size: Size,
        /// Number of values of each component.
        domains: Vec<u32>,
    },
    P256,
}

impl Shape {
    /// `None` for a key that no device supports.
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

    /// Bytes of a key's hashed components; 0 for keys of other schemes than RA.
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

/// A receiver's signers, and which of them are placed on its devices, the same ones on each device. Check here before submitting a message:
/// messages of signers without a place are for CPU lanes. Forgeries in the name of such a signer use no time of devices.
///
/// All signers are placed if memory suffices. Otherwise a signer without a valid message for ten seconds is replaced by a signer with a
/// valid message: forgeries never displace a signer.
pub struct KeyPlacement {
    /// Signers by the addresses of their keys, which stay constant while the keys are stored here: no comparison is necessary.
    numbers: HashMap<usize, usize>,
    signers: Vec<Signer>,
    groups: Vec<Group>,
    /// All signers are placed, permanently.
    all_placed: bool,
}

struct Signer {
    /// Keeps the key at its address.
    key: Arc<PublicKey>,
    /// `None` for a key that no device supports.
    group: Option<usize>,
    on_device: AtomicBool,
    /// Time of the last valid message, ns; 0 without one.
    accepted_at: AtomicU64,
}

impl Signer {
    fn idle_at(&self) -> Time {
        match self.accepted_at.load(Ordering::Relaxed) {
            0 => Time::ZERO,
            held_at => Time::from_nanos(held_at) + IDLE_MIN,
        }
    }
}

/// Keys of one shape.
pub(super) struct Group {
    pub(super) shape: Shape,
    /// Keys that fit on a device.
    pub(super) capacity: usize,
    /// More signers have such keys than fit. Then a few of the device's slots are not placed: they serve waiting messages of displaced
    /// signers.
    pub(super) is_oversubscribed: bool,
    placed: Mutex<PlacedSigners>,
}

struct PlacedSigners {
    /// Indices of the signers.
    signers: Vec<usize>,
    /// No signer can be replaced before this time.
    idle_at: Time,
}

fn address(key: &Arc<PublicKey>) -> usize {
    Arc::as_ptr(key).addr()
}

impl KeyPlacement {
    /// Places as many signers as fit on each device, the first ones first.
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
            all_placed: true,
        };
        for (shape, keys) in plain {
            let room = match shape {
                Shape::P256 => memory.p256_keys,
                Shape::Pss(_) | Shape::Ra { .. } => memory.rsa_keys,
            };
            places.add(shape, &keys, room.max(1));
        }
        // Groups that need less than an even share leave the rest to the others.
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
        let (group, oversubscribed) = (self.groups.len(), keys.len() > room);
        let placed = match oversubscribed && room > 1 {
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
            is_oversubscribed: oversubscribed,
            placed: Mutex::new(PlacedSigners {
                signers: (first..first + placed).collect(),
                idle_at: Time::ZERO,
            }),
        });
    }

    fn insert(&mut self, key: &Arc<PublicKey>, group: Option<usize>, on_device: bool) {
        self.all_placed &= on_device;
        self.numbers.insert(address(key), self.signers.len());
        self.signers.push(Signer {
            key: Arc::clone(key),
            group,
            on_device: AtomicBool::new(on_device),
            accepted_at: AtomicU64::new(0),
        });
    }

    fn signer(&self, key: &Arc<PublicKey>) -> Option<(usize, &Signer)> {
        let number = *self.numbers.get(&address(key))?;
        Some((number, self.signers.get(number)?))
    }

    /// Whether a message of this signer may go to a device. A key that needs no place always may.
    #[must_use]
    pub fn is_placed(&self, key: &Arc<PublicKey>) -> bool {
        self.all_placed
            || self
                .signer(key)
                .is_none_or(|(_, signer)| signer.on_device.load(Ordering::Relaxed))
    }

    /// Records an accepted message of this signer.
    pub fn record_accepted(&self, key: &Arc<PublicKey>, now: Time) {
        if self.all_placed {
            return;
        }
        let Some((number, signer)) = self.signer(key) else {
            return;
        };
        signer.accepted_at.store(now.as_nanos(), Ordering::Relaxed);
        if !signer.on_device.load(Ordering::Relaxed)
            && let Some(group) = signer.group.and_then(|group| self.groups.get(group))
        {
            self.make_room(group, number, now);
        }
    }

    /// Gives the signer the place of the signer with the oldest valid message, if that is old enough.
    fn make_room(&self, group: &Group, newcomer: usize, now: Time) {
        let mut placed = group.placed.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |number: &usize| self.signers.get(*number);
        // Both may have changed while this thread waited for the lock.
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

    /// The group of a key that a device supports, whether the key is placed or not.
    pub(super) fn group_of(&self, key: &Arc<PublicKey>) -> Option<usize> {
        self.signer(key)?.1.group
    }

    /// The placed keys of a group.
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
    fn the_longest_idle_signer_is_replaced() {
        // One of three slots of the device is spare.
        let keys = keys(4, None);
        let places = KeyPlacement::new(&keys, MEMORY);
        let is_placed = || [0, 1, 2, 3].map(|key| places.is_placed(&keys[key]));
        assert_eq!(is_placed(), [true, true, false, false]);
        places.record_accepted(&keys[1], at(1));
        places.record_accepted(&keys[0], at(2));
        places.record_accepted(&keys[2], at(10));
        assert_eq!(
            is_placed(),
            [true, true, false, false],
            "both were active recently"
        );
        places.record_accepted(&keys[2], at(11));
        assert_eq!(is_placed(), [true, false, true, false]);
        places.record_accepted(&keys[1], at(11));
        assert_eq!(
            is_placed(),
            [true, false, true, false],
            "the other was active 9 s ago"
        );
        places.record_accepted(&keys[0], at(12));
        places.record_accepted(&keys[1], at(20));
        assert_eq!(is_placed(), [true, false, true, false]);
        places.record_accepted(&keys[1], at(21));
        assert_eq!(is_placed(), [true, true, false, false]);
    }

    #[test]
    fn a_signer_that_was_never_active_is_replaced_at_once() {
        let keys = keys(4, None);
        let places = KeyPlacement::new(&keys, MEMORY);
        places.record_accepted(&keys[0], at(1));
        places.record_accepted(&keys[3], at(2));
        assert_eq!(
            [0, 1, 2, 3].map(|key| places.is_placed(&keys[key])),
            [true, false, false, true]
        );
    }

    #[test]
    fn no_signer_is_displaced_if_all_fit() {
        let keys = keys(3, None);
        let places = KeyPlacement::new(&keys, MEMORY);
        places.record_accepted(&keys[0], at(100));
        assert!(keys.iter().all(|key| places.is_placed(key)));
        let foreign = self::keys(1, None);
        places.record_accepted(&foreign[0], at(100));
    }

    /// A layout that no device supports, or that few signers use, is for CPU lanes.
    #[test]
    fn the_most_common_layouts_share_the_memory() {
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
        let places = KeyPlacement::new(all(), MEMORY);
        let have: Vec<usize> = of_layout
            .iter()
            .map(|keys| keys.iter().filter(|key| places.is_placed(key)).count())
            .collect();
        assert_eq!(have, [2, 0, 2, 2, 2]);
        places.record_accepted(&of_layout[1][0], at(100));
        places.record_accepted(&never[0], at(100));
        assert!(!places.is_placed(&of_layout[1][0]) && !places.is_placed(&never[0]));
        // Tables of slightly more than 2 MiB, of which each layout needs two.
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
            let places = KeyPlacement::new(all(), memory);
            let capacities: Vec<usize> = places.groups().iter().map(|group| group.capacity).collect();
            assert_eq!(capacities, expected, "{mebibytes} MiB");
        }
    }
}
