//! Placement of signers on devices.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use linewarden_arithmetic::rsa::Size;

use crate::gpu::{DeviceInfo, P256_KEY_BYTES, takes_layout};
use crate::key::{Material, PublicKey};
use crate::ra::RaPublic;
use crate::scheduler::{Span, Time};

/// Maximum number of layouts for which keys are stored on devices: the layouts with the most signers.
const LAYOUTS_MAX: usize = 4;
/// A signer without a valid message for this time can be replaced.
const IDLE_MIN: Span = Span::from_millis(10_000);

/// Limits of a device's memory for keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyMemory {
    /// Memory for the hashed components of keys of RA, in bytes: 2 MiB for the stamp of a key of 2,048 bits, and 64 KiB
    /// for each byte of the payload. All layouts share this memory.
    pub table_bytes: usize,
    /// Maximum number of keys of RSA-PSS of one size, and of keys of RA of one layout.
    pub rsa_keys: usize,
    /// Maximum number of keys of ECDSA over P-256, 13 KiB each.
    pub p256_keys: usize,
}

impl KeyMemory {
    /// A quarter of the device's memory for hashed components, 4,096 keys of RSA, and another thirty-second of the memory for keys of
    /// P-256.
    #[must_use]
    pub fn of(device: &DeviceInfo) -> Self {
        let memory_part = |divisor: u64| usize::try_from(device.memory_bytes / divisor).unwrap_or(usize::MAX);
        Self {
            table_bytes: memory_part(4),
            rsa_keys: 4096,
            p256_keys: memory_part(32) / P256_KEY_BYTES,
        }
    }

    /// The smaller of the two values of each limit.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self {
            table_bytes: self.table_bytes.min(other.table_bytes),
            rsa_keys: self.rsa_keys.min(other.rsa_keys),
            p256_keys: self.p256_keys.min(other.p256_keys),
        }
    }
}

/// What keys that are stored side by side have in common; one kernel reads all of them.
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

/// A receiver's signers, and which of these signers are placed on the receiver's devices. All devices have the same
/// signers. Check [`KeyPlacement::is_placed`] before submitting a message: messages of signers without a place are for
/// CPU lanes. Forgeries in the name of a signer without a place therefore use no time of devices.
///
/// All signers are placed if memory suffices. Otherwise a signer without a valid message for ten seconds is replaced by a signer with a
/// valid message: forgeries never displace a signer.
pub struct KeyPlacement {
    /// Index of each signer by the address of its key. Addresses stay constant while the keys are stored here, so no
    /// keys need to be compared.
    index_by_address: HashMap<usize, usize>,
    signers: Vec<Signer>,
    groups: Vec<Group>,
    /// Whether all signers are placed, permanently.
    are_all_placed: bool,
}

struct Signer {
    /// Keeps the key at its address.
    key: Arc<PublicKey>,
    /// `None` for a key that no device supports.
    group: Option<usize>,
    is_on_device: AtomicBool,
    /// Time of the last valid message, ns; 0 without one.
    accepted_at: AtomicU64,
}

impl Signer {
    /// Time from which on another signer may replace this signer.
    fn replaceable_at(&self) -> Time {
        match self.accepted_at.load(Ordering::Relaxed) {
            0 => Time::ZERO,
            accepted_at => Time::from_nanos(accepted_at) + IDLE_MIN,
        }
    }
}

/// Keys of one shape.
pub(super) struct Group {
    pub(super) shape: Shape,
    /// Keys that fit on a device.
    pub(super) capacity: usize,
    /// Whether more signers have keys of this shape than fit. A few slots of the device then have no placed signer, and
    /// serve waiting messages of displaced signers.
    pub(super) is_oversubscribed: bool,
    placed: Mutex<PlacedSigners>,
}

struct PlacedSigners {
    /// Indices of the signers.
    signers: Vec<usize>,
    /// No signer can be replaced before this time.
    replaceable_at: Time,
}

fn address(key: &Arc<PublicKey>) -> usize {
    Arc::as_ptr(key).addr()
}

impl KeyPlacement {
    /// Places as many signers as fit on each device, in the order of `signers`.
    pub fn new<'a>(signers: impl IntoIterator<Item = &'a Arc<PublicKey>>, memory: KeyMemory) -> Self {
        let mut keys_by_shape: HashMap<Shape, Vec<&Arc<PublicKey>>> = HashMap::new();
        let mut unplaced = Vec::new();
        let mut seen = HashSet::new();
        for key in signers {
            match Shape::of(key).filter(|_| seen.insert(address(key))) {
                None => {}
                Some(_) if !key.ra().map(RaPublic::layout).is_none_or(takes_layout) => unplaced.push(key),
                Some(shape) => keys_by_shape.entry(shape).or_default().push(key),
            }
        }
        let (mut layouts, plain): (Vec<_>, Vec<_>) = keys_by_shape
            .into_iter()
            .partition(|(shape, _)| matches!(shape, Shape::Ra { .. }));
        layouts.sort_by(|(a, keys_a), (b, keys_b)| {
            let by_signers = keys_b.len().cmp(&keys_a.len());
            by_signers.then_with(|| a.cmp(b))
        });
        unplaced.extend(
            layouts
                .drain(layouts.len().min(LAYOUTS_MAX)..)
                .flat_map(|(_, keys)| keys),
        );
        let mut placement = Self {
            index_by_address: HashMap::new(),
            signers: Vec::new(),
            groups: Vec::new(),
            are_all_placed: true,
        };
        for (shape, keys) in plain {
            let capacity = match shape {
                Shape::P256 => memory.p256_keys,
                Shape::Pss(_) | Shape::Ra { .. } => memory.rsa_keys,
            };
            placement.add(shape, &keys, capacity.max(1));
        }
        // Groups that need less than an even share leave the remaining memory to other groups.
        layouts.sort_by_key(|(shape, keys)| shape.table_bytes().saturating_mul(keys.len()));
        let (mut remaining_bytes, mut remaining_layouts) = (memory.table_bytes, layouts.len());
        for (shape, keys) in layouts {
            let share = remaining_bytes / remaining_layouts;
            remaining_layouts -= 1;
            match (share / shape.table_bytes().max(1)).min(memory.rsa_keys) {
                0 => unplaced.extend(keys),
                capacity => {
                    remaining_bytes -= shape.table_bytes() * capacity.min(keys.len());
                    placement.add(shape, &keys, capacity);
                }
            }
        }
        for key in unplaced {
            placement.insert(key, None, false);
        }
        placement
    }

    fn add(&mut self, shape: Shape, keys: &[&Arc<PublicKey>], capacity: usize) {
        let (group, is_oversubscribed) = (self.groups.len(), keys.len() > capacity);
        let placed_count = match is_oversubscribed && capacity > 1 {
            true => capacity - (capacity / 8).max(1),
            false => capacity.min(keys.len()),
        };
        let first = self.signers.len();
        for (number, key) in keys.iter().enumerate() {
            self.insert(key, Some(group), number < placed_count);
        }
        self.groups.push(Group {
            shape,
            capacity: capacity.min(keys.len()),
            is_oversubscribed,
            placed: Mutex::new(PlacedSigners {
                signers: (first..first + placed_count).collect(),
                replaceable_at: Time::ZERO,
            }),
        });
    }

    fn insert(&mut self, key: &Arc<PublicKey>, group: Option<usize>, is_on_device: bool) {
        self.are_all_placed &= is_on_device;
        self.index_by_address.insert(address(key), self.signers.len());
        self.signers.push(Signer {
            key: Arc::clone(key),
            group,
            is_on_device: AtomicBool::new(is_on_device),
            accepted_at: AtomicU64::new(0),
        });
    }

    fn signer(&self, key: &Arc<PublicKey>) -> Option<(usize, &Signer)> {
        let number = *self.index_by_address.get(&address(key))?;
        Some((number, self.signers.get(number)?))
    }

    /// Whether a message of this signer may go to a device; always true for a key that needs no place.
    #[must_use]
    pub fn is_placed(&self, key: &Arc<PublicKey>) -> bool {
        self.are_all_placed
            || self
                .signer(key)
                .is_none_or(|(_, signer)| signer.is_on_device.load(Ordering::Relaxed))
    }

    /// Records an accepted message of this signer.
    pub fn record_accepted(&self, key: &Arc<PublicKey>, now: Time) {
        if self.are_all_placed {
            return;
        }
        let Some((number, signer)) = self.signer(key) else {
            return;
        };
        signer.accepted_at.store(now.as_nanos(), Ordering::Relaxed);
        if !signer.is_on_device.load(Ordering::Relaxed)
            && let Some(group) = signer.group.and_then(|group| self.groups.get(group))
        {
            self.make_room(group, number, now);
        }
    }

    /// Gives `newcomer` the place of the placed signer that has had no valid message for the longest time, if that time
    /// is at least [`IDLE_MIN`].
    fn make_room(&self, group: &Group, newcomer: usize, now: Time) {
        let mut placed = group.placed.lock().unwrap_or_else(PoisonError::into_inner);
        let signer = |number: &usize| self.signers.get(*number);
        // Another thread may have changed these values while this thread waited for the lock.
        if now < placed.replaceable_at
            || signer(&newcomer).is_none_or(|signer| signer.is_on_device.load(Ordering::Relaxed))
        {
            return;
        }
        let replaceable_at = |number: &&mut usize| signer(number).map(Signer::replaceable_at);
        let PlacedSigners {
            signers,
            replaceable_at: next,
        } = &mut *placed;
        let Some(oldest) = signers.iter_mut().min_by_key(replaceable_at) else {
            return;
        };
        let (Some(oldest_signer), Some(new_signer)) = (signer(oldest), signer(&newcomer)) else {
            return;
        };
        *next = oldest_signer.replaceable_at();
        if *next <= now {
            oldest_signer.is_on_device.store(false, Ordering::Relaxed);
            new_signer.is_on_device.store(true, Ordering::Relaxed);
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
        let placement = KeyPlacement::new(&keys, MEMORY);
        let is_placed = || [0, 1, 2, 3].map(|key| placement.is_placed(&keys[key]));
        assert_eq!(is_placed(), [true, true, false, false]);
        placement.record_accepted(&keys[1], at(1));
        placement.record_accepted(&keys[0], at(2));
        placement.record_accepted(&keys[2], at(10));
        assert_eq!(
            is_placed(),
            [true, true, false, false],
            "both were active recently"
        );
        placement.record_accepted(&keys[2], at(11));
        assert_eq!(is_placed(), [true, false, true, false]);
        placement.record_accepted(&keys[1], at(11));
        assert_eq!(
            is_placed(),
            [true, false, true, false],
            "the other signer was active 9 s ago"
        );
        placement.record_accepted(&keys[0], at(12));
        placement.record_accepted(&keys[1], at(20));
        assert_eq!(is_placed(), [true, false, true, false]);
        placement.record_accepted(&keys[1], at(21));
        assert_eq!(is_placed(), [true, true, false, false]);
    }

    #[test]
    fn a_signer_that_was_never_active_is_replaced_at_once() {
        let keys = keys(4, None);
        let placement = KeyPlacement::new(&keys, MEMORY);
        placement.record_accepted(&keys[0], at(1));
        placement.record_accepted(&keys[3], at(2));
        assert_eq!(
            [0, 1, 2, 3].map(|key| placement.is_placed(&keys[key])),
            [true, false, false, true]
        );
    }

    #[test]
    fn no_signer_is_displaced_if_all_fit() {
        let keys = keys(3, None);
        let placement = KeyPlacement::new(&keys, MEMORY);
        placement.record_accepted(&keys[0], at(100));
        assert!(keys.iter().all(|key| placement.is_placed(key)));
        let unknown_keys = self::keys(1, None);
        placement.record_accepted(&unknown_keys[0], at(100));
    }

    /// A layout that no device supports, or that few signers use, is for CPU lanes.
    #[test]
    fn the_most_common_layouts_share_the_memory() {
        let long = "x".repeat(82);
        let texts = ["a", "b", "c", "d", "e", "f", long.as_str()];
        let layouts: Vec<Layout> = (2..7).map(|count| layout(&texts[..count])).collect();
        let counts = [2, 1, 2, 2, 2];
        let keys_by_layout: Vec<_> = layouts
            .iter()
            .zip(counts)
            .map(|(layout, count)| keys(count, Some(layout)))
            .collect();
        let unsupported = keys(1, Some(&layout(&texts)));
        let all_keys = || keys_by_layout.iter().flatten().chain(&unsupported);
        let placement = KeyPlacement::new(all_keys(), MEMORY);
        let placed_counts: Vec<usize> = keys_by_layout
            .iter()
            .map(|keys| keys.iter().filter(|key| placement.is_placed(key)).count())
            .collect();
        assert_eq!(placed_counts, [2, 0, 2, 2, 2]);
        placement.record_accepted(&keys_by_layout[1][0], at(100));
        placement.record_accepted(&unsupported[0], at(100));
        assert!(!placement.is_placed(&keys_by_layout[1][0]) && !placement.is_placed(&unsupported[0]));
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
            let placement = KeyPlacement::new(all_keys(), memory);
            let capacities: Vec<usize> = placement.groups().iter().map(|group| group.capacity).collect();
            assert_eq!(capacities, expected, "{mebibytes} MiB");
        }
    }
}
