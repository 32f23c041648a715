//! Longest prefix matching with a burst trie: a trie over bytes whose sparse branches are short lists.
//!
//! A node has 256 slots. A slot stores the longest prefix that ends within the node's byte and covers the slot, and a link
//! to longer prefixes: another node, or, for few prefixes, a bucket that is searched linearly, longest prefix first. So the
//! trie of a few routes is one bucket, and the trie of a thousand routes consists of one or two nodes and short buckets. An
//! update changes one bucket or the slots of one byte. A lookup costs one load for each node on the path and one bucket.
//!
//! Exact fields are moved to the front of the key: all entries contain them as part of the prefix.

use super::entry::Entry;
use super::index::{EntriesByIndex, SearchStructure};
use super::key::{KeySpec, MatchKey, WILD_KEY_MAX_BYTES};
use super::words::Words;
use smallvec::SmallVec;
use std::sync::Arc;

/// Number of slots of a node: one for each byte value.
const FANOUT: usize = 256;
/// Maximum number of prefixes in a bucket. A bucket with more prefixes becomes a node.
const BUCKET_MAX: usize = 4;
/// Maximum bucket size in a small trie: a node is faster to search than a bucket of several items, but needs 2 KiB.
const SMALL_BUCKET_MAX: usize = 2;
/// A trie with fewer nodes (half a MiB) is small.
const SMALL_NODES_MAX: usize = 256;
/// No entry.
const NONE: u32 = u32::MAX;
/// Flag of a link to a bucket; other links refer to nodes.
const BUCKET: u32 = 1 << 31;
/// Empty link.
const END: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Slot {
    /// Entry with the longest prefix that ends in this node's byte and covers the slot, or [`NONE`].
    best: u32,
    /// Link to longer prefixes: [`END`], a node, or a bucket.
    next: u32,
}

const EMPTY: Slot = Slot {
    best: NONE,
    next: END,
};

/// Prefix within a node: number and value of the bits of the node's byte.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Stub {
    bits: u8,
    byte: u8,
}

impl Stub {
    /// Covered slots.
    fn slots(self) -> std::ops::Range<usize> {
        let first = usize::from(self.byte);
        first..first + (1 << (8 - self.bits))
    }

    /// The prefix truncated to fewer bits.
    fn cut(self, bits: u8) -> Self {
        Self {
            bits,
            byte: self.byte & !(0xff_u16 >> bits) as u8,
        }
    }
}

/// Data of a node for updates; lookups use only the slots.
#[derive(Clone, Default)]
struct Node {
    /// Prefixes that end within the node's byte, in order, with their entries.
    stubs: Vec<(Stub, u32)>,
    /// Number of prefixes in the node and below.
    prefixes: u32,
}

/// Prefix with its entry.
#[derive(Clone, Copy)]
struct Item<const N: usize> {
    value: Words<N>,
    /// Length of the prefix, bits.
    bits: u32,
    /// Index of the entry, or [`NONE`] in a search.
    entry: u32,
}

/// Bucket of prefixes, longest first.
#[derive(Clone)]
struct Bucket<const N: usize> {
    items: SmallVec<[Item<N>; BUCKET_MAX]>,
}

/// Location of a link.
#[derive(Clone, Copy)]
enum LinkLocation {
    Root,
    Slot(usize),
}

#[derive(Clone)]
pub(super) struct PrefixTrie<const N: usize> {
    /// Entry with the empty prefix.
    default: u32,
    root: u32,
    /// Slots of all nodes, [`FANOUT`] each.
    slots: Vec<Slot>,
    nodes: Vec<Node>,
    buckets: Vec<Bucket<N>>,
    free_nodes: Vec<u32>,
    free_buckets: Vec<u32>,
    /// Start and end of the LPM field if other fields follow the LPM field.
    inner_prefix_field: Option<(usize, usize)>,
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
            inner_prefix_field: spec.prefix_field().filter(|(_, end)| *end != spec.bytes()),
        }
    }

    /// Key with the LPM field moved to the end.
    #[inline]
    fn load(&self, key: &[u8]) -> Words<N> {
        match self.inner_prefix_field {
            None => Words::load(key),
            Some((start, end)) => {
                let mut reordered = SmallVec::<[u8; WILD_KEY_MAX_BYTES]>::new();
                for part in [0..start, end..key.len(), start..end] {
                    reordered.extend_from_slice(key.get(part).unwrap_or_default());
                }
                Words::load(&reordered)
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

    fn link_at(&self, location: LinkLocation) -> u32 {
        match location {
            LinkLocation::Root => self.root,
            LinkLocation::Slot(slot) => self.slots.get(slot).map_or(END, |slot| slot.next),
        }
    }

    fn set_link(&mut self, location: LinkLocation, link: u32) {
        match location {
            LinkLocation::Root => self.root = link,
            LinkLocation::Slot(slot) => {
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
        let (mut location, mut depth) = (LinkLocation::Root, 0);
        loop {
            let link = self.link_at(location);
            if link == END {
                let bucket = self.new_bucket();
                self.set_link(location, bucket | BUCKET);
            } else if link & BUCKET != 0 {
                if self.has_room(link & !BUCKET) {
                    self.add_to_bucket(link & !BUCKET, item);
                    return;
                }
                self.burst(location, link & !BUCKET, depth);
            } else {
                self.add_prefixes(link, 1);
                if let Some(stub) = stub_of(&item, depth) {
                    self.add_stub(link, stub, item.entry);
                    return;
                }
                location = LinkLocation::Slot(link as usize * FANOUT + usize::from(item.value.byte(depth)));
                depth += 1;
            }
        }
    }

    fn has_room(&self, bucket: u32) -> bool {
        let nodes = self.nodes.len() - self.free_nodes.len();
        let max = if nodes < SMALL_NODES_MAX {
            SMALL_BUCKET_MAX
        } else {
            BUCKET_MAX
        };
        self.buckets
            .get(bucket as usize)
            .is_some_and(|bucket| bucket.items.len() < max)
    }

    fn add_to_bucket(&mut self, bucket: u32, item: Item<N>) {
        if let Some(bucket) = self.buckets.get_mut(bucket as usize) {
            let position = bucket.items.partition_point(|other| other.bits > item.bits);
            bucket.items.insert(position, item);
        }
    }

    /// Converts a full bucket to a node.
    fn burst(&mut self, location: LinkLocation, bucket: u32, depth: usize) {
        let items = match self.buckets.get_mut(bucket as usize) {
            Some(bucket) => std::mem::take(&mut bucket.items),
            None => return,
        };
        self.free_buckets.push(bucket);
        let node = self.new_node();
        self.add_prefixes(node, items.len() as u32);
        self.set_link(location, node);
        for item in items {
            if let Some(stub) = stub_of(&item, depth) {
                self.add_stub(node, stub, item.entry);
                continue;
            }
            // All items were in one bucket, so they fit in one bucket even if they have the same next byte.
            let child = LinkLocation::Slot(node as usize * FANOUT + usize::from(item.value.byte(depth)));
            if self.link_at(child) == END {
                let bucket = self.new_bucket();
                self.set_link(child, bucket | BUCKET);
            }
            self.add_to_bucket(self.link_at(child) & !BUCKET, item);
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

    fn add_prefixes(&mut self, node: u32, prefixes: u32) {
        if let Some(node) = self.nodes.get_mut(node as usize) {
            node.prefixes += prefixes;
        }
    }

    /// Sets the best entry of the slots that a prefix covers, except slots covered by a longer prefix.
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
        // The order is from shorter to longer prefixes, so longer prefixes overwrite shorter prefixes.
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
            let position = node.stubs.partition_point(|(other, _)| *other < stub);
            node.stubs.insert(position, (stub, entry));
        }
        self.cover(node, stub, entry);
    }

    fn remove_stub(&mut self, node: u32, stub: Stub) {
        let Some(node_data) = self.nodes.get_mut(node as usize) else {
            return;
        };
        node_data.stubs.retain(|(other, _)| *other != stub);
        let shorter = (1..stub.bits)
            .rev()
            .find_map(|bits| find_stub(node_data, stub.cut(bits)));
        self.cover(node, stub, shorter.unwrap_or(NONE));
    }

    fn remove(&mut self, value: &Words<N>, bits: u32) {
        if bits == 0 {
            self.default = NONE;
            return;
        }
        let mut path: SmallVec<[(LinkLocation, u32); 16]> = SmallVec::new();
        let (mut location, mut depth) = (LinkLocation::Root, 0);
        loop {
            let link = self.link_at(location);
            if link & BUCKET != 0 {
                if link != END {
                    self.remove_from_bucket(location, link & !BUCKET, value, bits);
                }
                break;
            }
            path.push((location, link));
            let item = Item {
                value: *value,
                bits,
                entry: NONE,
            };
            if let Some(stub) = stub_of(&item, depth) {
                self.remove_stub(link, stub);
                break;
            }
            location = LinkLocation::Slot(link as usize * FANOUT + usize::from(value.byte(depth)));
            depth += 1;
        }
        for (location, link) in path.into_iter().rev() {
            let Some(node) = self.nodes.get_mut(link as usize) else {
                continue;
            };
            node.prefixes = node.prefixes.saturating_sub(1);
            if node.prefixes == 0 {
                self.set_link(location, END);
                self.free_nodes.push(link);
            }
        }
    }

    fn remove_from_bucket(&mut self, location: LinkLocation, bucket: u32, value: &Words<N>, bits: u32) {
        let Some(bucket_data) = self.buckets.get_mut(bucket as usize) else {
            return;
        };
        bucket_data
            .items
            .retain(|item| item.bits != bits || item.value != *value);
        if bucket_data.items.is_empty() {
            self.set_link(location, END);
            self.free_buckets.push(bucket);
        }
    }

    /// Entry with exactly this prefix.
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

/// Returns the stub of a prefix in a node at this depth; `None` if the prefix does not end within the node's byte.
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
    let position = node.stubs.binary_search_by_key(&stub, |(stub, _)| *stub).ok()?;
    node.stubs.get(position).map(|(_, entry)| *entry)
}

impl<const N: usize> SearchStructure for PrefixTrie<N> {
    #[inline]
    fn lookup<'a>(&'a self, key: &[u8], entries: &'a EntriesByIndex) -> Option<&'a Arc<Entry>> {
        entries.get(self.search(&self.load(key)) as usize)?.as_ref()
    }

    fn find_key(&self, key: &MatchKey) -> Option<u32> {
        self.find(&self.load(key.value()), key.prefix_bits()?)
    }

    fn add_entry(&mut self, entry: &Arc<Entry>) {
        if let Some(bits) = entry.key.prefix_bits() {
            let value = self.load(entry.key.value());
            self.insert(Item {
                value,
                bits,
                entry: entry.handle.index,
            });
        }
    }

    fn remove_entry(&mut self, entry: &Entry) {
        if let Some(bits) = entry.key.prefix_bits() {
            self.remove(&self.load(entry.key.value()), bits);
        }
    }

    fn replace(&mut self, _: &Arc<Entry>) {
        // The trie refers to entries by index, so a replaced entry needs no update.
    }

    fn boxed_clone(&self) -> Box<dyn SearchStructure> {
        Box::new(self.clone())
    }
}
