//! Longest-prefix matching: a trie over bytes whose sparse branches are short lists (a burst trie).
//!
//! A node has 256 slots. A slot knows the longest prefix that ends within the node's byte and covers it, and where longer
//! prefixes go on: in another node, or, as long as they are few, in a bucket that is compared item by item, longest
//! prefix first. So a handful of routes are one bucket, a thousand are one or two nodes and short buckets, and an update
//! touches one bucket or one byte's worth of slots. A lookup is one load per node on the way and one bucket.
//!
//! Exact fields beside the prefix are the key's first bytes: they are a prefix that all entries have in full length.

use super::entry::Entry;
use super::index::{Index, Slots};
use super::key::{KeySpec, MatchKey, WILD_KEY_MAX_BYTES};
use super::words::Words;
use smallvec::SmallVec;
use std::sync::Arc;

/// Slots of a node: one for each value of its byte.
const FANOUT: usize = 256;
/// Prefixes that a bucket holds before it becomes a node.
const BUCKET_MAX: usize = 4;
/// No entry.
const NONE: u32 = u32::MAX;
/// Marks a link to a bucket; the others are to nodes.
const BUCKET: u32 = 1 << 31;
/// Goes nowhere.
const END: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Slot {
    /// Entry with the longest prefix that ends in this node's byte and covers the slot, or [`NONE`].
    best: u32,
    /// Where longer prefixes are: [`END`], a node, or a bucket.
    next: u32,
}

const EMPTY: Slot = Slot {
    best: NONE,
    next: END,
};

/// A prefix within one node: of the node's byte, how many bits and which.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Stub {
    bits: u8,
    byte: u8,
}

impl Stub {
    /// The slots that it covers.
    fn slots(self) -> std::ops::Range<usize> {
        let first = usize::from(self.byte);
        first..first + (1 << (8 - self.bits))
    }

    /// The same prefix cut to fewer bits.
    fn cut(self, bits: u8) -> Self {
        Self {
            bits,
            byte: self.byte & !(0xff_u16 >> bits) as u8,
        }
    }
}

/// What a node knows beside its slots; read by updates only.
#[derive(Clone, Default)]
struct Node {
    /// The prefixes that end within its byte, in order, with their entries.
    stubs: Vec<(Stub, u32)>,
    /// Prefixes in the node and below it.
    prefixes: u32,
}

#[derive(Clone, Copy)]
struct Item<const N: usize> {
    value: Words<N>,
    bits: u32,
    entry: u32,
}

/// Prefixes of one branch, longest first.
#[derive(Clone)]
struct Bucket<const N: usize> {
    items: SmallVec<[Item<N>; BUCKET_MAX]>,
}

/// Where a link is kept.
#[derive(Clone, Copy)]
enum Place {
    Root,
    Slot(usize),
}

#[derive(Clone)]
pub(super) struct PrefixTrie<const N: usize> {
    /// The entry with the prefix of no bits.
    default: u32,
    root: u32,
    /// Of all nodes, [`FANOUT`] each.
    slots: Vec<Slot>,
    nodes: Vec<Node>,
    buckets: Vec<Bucket<N>>,
    free_nodes: Vec<u32>,
    free_buckets: Vec<u32>,
    /// Start and end of the field with the prefix, if other fields lie behind it.
    not_last: Option<(usize, usize)>,
}

impl<const N: usize> PrefixTrie<N> {
    pub(super) fn new(spec: &KeySpec) -> Self {
        Self {
            default: NONE,
            root: END,
            slots: Vec::new(),
            nodes: Vec::new(),
            buckets: Vec::new(),
            free_nodes: Vec::new(),
            free_buckets: Vec::new(),
            not_last: spec.prefix_field().filter(|(_, end)| *end != spec.bytes()),
        }
    }

    /// The key with the prefix's field moved to its end.
    #[inline]
    fn load(&self, key: &[u8]) -> Words<N> {
        match self.not_last {
            None => Words::load(key),
            Some((start, end)) => {
                let mut moved = SmallVec::<[u8; WILD_KEY_MAX_BYTES]>::new();
                for part in [0..start, end..key.len(), start..end] {
                    moved.extend_from_slice(key.get(part).unwrap_or_default());
                }
                Words::load(&moved)
            }
        }
    }

    #[inline]
    fn search(&self, key: &Words<N>) -> u32 {
        let mut best = self.default;
        let mut link = self.root;
        let mut depth = 0;
        while link & BUCKET == 0 {
            let Some(slot) = self
                .slots
                .get(link as usize * FANOUT + usize::from(key.byte(depth)))
            else {
                break;
            };
            if slot.best != NONE {
                best = slot.best;
            }
            link = slot.next;
            depth += 1;
        }
        if link != END
            && let Some(bucket) = self.buckets.get((link & !BUCKET) as usize)
            && let Some(item) = bucket
                .items
                .iter()
                .find(|item| key.common_prefix(&item.value) >= item.bits)
        {
            best = item.entry;
        }
        best
    }

    fn link_at(&self, place: Place) -> u32 {
        match place {
            Place::Root => self.root,
            Place::Slot(slot) => self.slots.get(slot).map_or(END, |slot| slot.next),
        }
    }

    fn set_link(&mut self, place: Place, link: u32) {
        match place {
            Place::Root => self.root = link,
            Place::Slot(slot) => {
                if let Some(slot) = self.slots.get_mut(slot) {
                    slot.next = link;
                }
            }
        }
    }

    fn insert(&mut self, item: Item<N>) {
        if item.bits == 0 {
            self.default = item.entry;
            return;
        }
        let (mut place, mut depth) = (Place::Root, 0);
        loop {
            let link = self.link_at(place);
            if link == END {
                let bucket = self.new_bucket();
                self.set_link(place, bucket | BUCKET);
            } else if link & BUCKET != 0 {
                if self.add_to_bucket(link & !BUCKET, item) {
                    return;
                }
                self.burst(place, link & !BUCKET, depth);
            } else {
                self.count(link, 1);
                if let Some(stub) = stub_of(&item, depth) {
                    self.add_stub(link, stub, item.entry);
                    return;
                }
                place = Place::Slot(link as usize * FANOUT + usize::from(item.value.byte(depth)));
                depth += 1;
            }
        }
    }

    /// Takes the prefix in if the bucket has room for it.
    fn add_to_bucket(&mut self, bucket: u32, item: Item<N>) -> bool {
        let Some(bucket) = self.buckets.get_mut(bucket as usize) else {
            return false;
        };
        if bucket.items.len() >= BUCKET_MAX {
            return false;
        }
        let at = bucket.items.partition_point(|other| other.bits > item.bits);
        bucket.items.insert(at, item);
        true
    }

    /// Makes a full bucket a node.
    fn burst(&mut self, place: Place, bucket: u32, depth: usize) {
        let items = match self.buckets.get_mut(bucket as usize) {
            Some(bucket) => std::mem::take(&mut bucket.items),
            None => return,
        };
        self.free_buckets.push(bucket);
        let node = self.new_node();
        self.count(node, items.len() as u32);
        self.set_link(place, node);
        for item in items {
            if let Some(stub) = stub_of(&item, depth) {
                self.add_stub(node, stub, item.entry);
                continue;
            }
            // At most as many as were in the bucket that burst, so they fit into one each.
            let below = Place::Slot(node as usize * FANOUT + usize::from(item.value.byte(depth)));
            if self.link_at(below) == END {
                let bucket = self.new_bucket();
                self.set_link(below, bucket | BUCKET);
            }
            self.add_to_bucket(self.link_at(below) & !BUCKET, item);
        }
    }

    fn new_bucket(&mut self) -> u32 {
        self.free_buckets.pop().unwrap_or_else(|| {
            self.buckets.push(Bucket {
                items: SmallVec::new(),
            });
            self.buckets.len() as u32 - 1
        })
    }

    fn new_node(&mut self) -> u32 {
        self.free_nodes.pop().unwrap_or_else(|| {
            self.nodes.push(Node::default());
            self.slots.resize(self.nodes.len() * FANOUT, EMPTY);
            self.nodes.len() as u32 - 1
        })
    }

    fn count(&mut self, node: u32, prefixes: u32) {
        if let Some(node) = self.nodes.get_mut(node as usize) {
            node.prefixes += prefixes;
        }
    }

    /// Sets the best entry of those slots that a prefix covers and no longer one does.
    fn cover(&mut self, node: u32, stub: Stub, best: u32) {
        let first = node as usize * FANOUT;
        let (Some(node), Some(slots)) = (
            self.nodes.get(node as usize),
            self.slots.get_mut(first..first + FANOUT),
        ) else {
            return;
        };
        if let Some(covered) = slots.get_mut(stub.slots()) {
            covered.iter_mut().for_each(|slot| slot.best = best);
        }
        // Those with more bits come later in the order, and the longer paints over the shorter.
        let longer = node.stubs.partition_point(|(other, _)| other.bits <= stub.bits);
        for (other, entry) in node.stubs.get(longer..).unwrap_or_default() {
            if other.cut(stub.bits) == stub
                && let Some(covered) = slots.get_mut(other.slots())
            {
                covered.iter_mut().for_each(|slot| slot.best = *entry);
            }
        }
    }

    fn add_stub(&mut self, node: u32, stub: Stub, entry: u32) {
        if let Some(node) = self.nodes.get_mut(node as usize) {
            let at = node.stubs.partition_point(|(other, _)| *other < stub);
            node.stubs.insert(at, (stub, entry));
        }
        self.cover(node, stub, entry);
    }

    fn remove_stub(&mut self, node: u32, stub: Stub) {
        let Some(known) = self.nodes.get_mut(node as usize) else {
            return;
        };
        known.stubs.retain(|(other, _)| *other != stub);
        let shorter = (1..stub.bits)
            .rev()
            .find_map(|bits| find_stub(known, stub.cut(bits)));
        self.cover(node, stub, shorter.unwrap_or(NONE));
    }

    fn remove(&mut self, value: &Words<N>, bits: u32) {
        if bits == 0 {
            self.default = NONE;
            return;
        }
        let mut way: SmallVec<[(Place, u32); 16]> = SmallVec::new();
        let (mut place, mut depth) = (Place::Root, 0);
        loop {
            let link = self.link_at(place);
            if link & BUCKET != 0 {
                if link != END {
                    self.remove_from_bucket(place, link & !BUCKET, value, bits);
                }
                break;
            }
            way.push((place, link));
            let item = Item {
                value: *value,
                bits,
                entry: NONE,
            };
            if let Some(stub) = stub_of(&item, depth) {
                self.remove_stub(link, stub);
                break;
            }
            place = Place::Slot(link as usize * FANOUT + usize::from(value.byte(depth)));
            depth += 1;
        }
        for (place, link) in way.into_iter().rev() {
            let Some(node) = self.nodes.get_mut(link as usize) else {
                continue;
            };
            node.prefixes = node.prefixes.saturating_sub(1);
            if node.prefixes == 0 {
                self.set_link(place, END);
                self.free_nodes.push(link);
            }
        }
    }

    fn remove_from_bucket(&mut self, place: Place, bucket: u32, value: &Words<N>, bits: u32) {
        let Some(found) = self.buckets.get_mut(bucket as usize) else {
            return;
        };
        found
            .items
            .retain(|item| item.bits != bits || item.value != *value);
        if found.items.is_empty() {
            self.set_link(place, END);
            self.free_buckets.push(bucket);
        }
    }

    /// The entry with exactly this prefix.
    fn find(&self, value: &Words<N>, bits: u32) -> Option<u32> {
        if bits == 0 {
            return (self.default != NONE).then_some(self.default);
        }
        let (mut link, mut depth) = (self.root, 0);
        while link & BUCKET == 0 {
            if let Some(stub) = stub_of(
                &Item {
                    value: *value,
                    bits,
                    entry: NONE,
                },
                depth,
            ) {
                return find_stub(self.nodes.get(link as usize)?, stub);
            }
            link = self
                .slots
                .get(link as usize * FANOUT + usize::from(value.byte(depth)))?
                .next;
            depth += 1;
        }
        let bucket = self.buckets.get((link & !BUCKET) as usize)?;
        let item = bucket
            .items
            .iter()
            .find(|item| item.bits == bits && item.value == *value)?;
        Some(item.entry)
    }
}

/// The prefix as it ends within the byte of a node at this depth, if it does.
fn stub_of<const N: usize>(item: &Item<N>, depth: usize) -> Option<Stub> {
    let bits = u8::try_from(item.bits.checked_sub(8 * depth as u32)?)
        .ok()
        .filter(|bits| (1..=8).contains(bits))?;
    Some(Stub {
        bits,
        byte: item.value.byte(depth),
    })
}

fn find_stub(node: &Node, stub: Stub) -> Option<u32> {
    let at = node.stubs.binary_search_by_key(&stub, |(stub, _)| *stub).ok()?;
    node.stubs.get(at).map(|(_, entry)| *entry)
}

impl<const N: usize> Index for PrefixTrie<N> {
    #[inline]
    fn lookup<'a>(&'a self, key: &[u8], slots: &'a Slots) -> Option<&'a Arc<Entry>> {
        slots.get(self.search(&self.load(key)) as usize)?.as_ref()
    }

    fn same(&self, key: &MatchKey) -> Option<u32> {
        self.find(&self.load(key.value()), key.prefix_bits()?)
    }

    fn link(&mut self, entry: &Arc<Entry>) {
        if let Some(bits) = entry.key.prefix_bits() {
            let value = self.load(entry.key.value());
            self.insert(Item {
                value,
                bits,
                entry: entry.handle.index,
            });
        }
    }

    fn unlink(&mut self, entry: &Entry) {
        if let Some(bits) = entry.key.prefix_bits() {
            self.remove(&self.load(entry.key.value()), bits);
        }
    }

    fn exchange(&mut self, _: &Arc<Entry>) {
        // The trie knows entries by index.
    }

    fn boxed_clone(&self) -> Box<dyn Index> {
        Box::new(self.clone())
    }
}
