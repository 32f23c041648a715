//! Sizes of a store, and of the arrays that follow from them.

use linewarden_protocol::ids::DeviceId;

use std::sync::atomic::Ordering::Acquire;

use super::place::HomeLayout;
use super::{Region, table, wire_word};
use crate::layout::{
    Bucket, Control, EXPECTED_RESPONSES, ExpectedResponse, FilterBlock, HOME_WAYS, Line, Note, RingRow,
    Session,
};

/// Sizes of a store and the seed of its hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Maximum number of devices.
    pub slots: u32,
    /// Number of rows per device that follow the row in the line.
    pub ring: u32,
    /// Random; seeds the hashes of the homes, the index and the binding tables.
    pub hash_seed: [u64; 2],
}

impl Geometry {
    /// Number of homes that device ids are hashed to: at most half full, so that 96 % of the devices are in their home
    /// (Poisson, mean two for four places).
    #[must_use]
    pub fn homes(&self) -> u32 {
        next_power_of_two(self.slots.div_ceil(2))
    }

    /// Number of spare homes, for devices that do not fit into their home: an eighth of [`Self::homes`], at least four.
    #[must_use]
    pub fn spare_homes(&self) -> u32 {
        (self.homes() / 8).max(4)
    }

    /// Number of all homes: the length of the lines array as the eBPF program sees it.
    #[must_use]
    pub fn all_homes(&self) -> u32 {
        self.homes() + self.spare_homes()
    }

    /// Number of lines.
    #[must_use]
    pub fn lines(&self) -> usize {
        self.all_homes() as usize * HOME_WAYS
    }

    pub(super) fn home_layout(&self) -> HomeLayout {
        HomeLayout {
            ways: HOME_WAYS as u32,
            hashed_homes: self.homes(),
            all_homes: self.all_homes(),
            slots: self.slots,
        }
    }

    /// Number of buckets in the index of devices outside their home. The index is about 15 % full if all slots are used.
    #[must_use]
    pub fn index_buckets(&self) -> u32 {
        next_power_of_two(self.slots / 16).max(16)
    }

    /// `index_buckets - 1`.
    #[must_use]
    pub fn index_mask(&self) -> u32 {
        self.index_buckets() - 1
    }

    /// Number of buckets in each binding table. The table is at most a quarter full, so the two buckets of four places that
    /// a hash selects do not overflow in practice.
    #[must_use]
    pub fn buckets(&self) -> u32 {
        next_power_of_two(self.slots)
    }

    /// `buckets - 1`.
    #[must_use]
    pub fn bucket_mask(&self) -> u32 {
        self.buckets() - 1
    }

    /// Number of blocks, 64 B each, in the filter of enrolled ids. The filter has 16 bits for each of `2 * slots` ids, and
    /// at least for each of half a million ids; 6 in 10,000 unknown ids then pass. With more enrolled ids, more unknown ids
    /// pass; no enrolled id is ever dropped.
    #[must_use]
    pub fn filter_blocks(&self) -> u32 {
        next_power_of_two(self.slots / 16).max(1 << 14)
    }

    /// `filter_blocks - 1`.
    #[must_use]
    pub fn filter_mask(&self) -> u32 {
        self.filter_blocks() - 1
    }

    /// Number of elements in the rows array. `None` if the number does not fit into 32 bits.
    #[must_use]
    pub fn row_count(&self) -> Option<u32> {
        self.slots.checked_mul(self.ring.max(1))
    }

    /// The keyed hash of a device id.
    #[must_use]
    pub fn device_hash(&self, device: DeviceId) -> u64 {
        table::hash(self.hash_seed, wire_word(device.0.to_be_bytes()), 0)
    }

    /// The home that a device hash selects.
    #[must_use]
    pub fn home(&self, device_hash: u64) -> u32 {
        device_hash as u32 & (self.homes() - 1)
    }

    /// Whether the place `line` is in the home that the hash selects. The line is then found without the index.
    #[must_use]
    pub fn is_at_home(&self, device_hash: u64, line: u32) -> bool {
        line / HOME_WAYS as u32 == self.home(device_hash)
    }
}

/// The smallest power of two that is at least `least`; 2^31 if 32 bits cannot hold it.
pub(super) fn next_power_of_two(least: u32) -> u32 {
    least.max(1).checked_next_power_of_two().unwrap_or(1 << 31)
}

/// The arrays that a packet path works on.
#[derive(Debug)]
pub struct Regions {
    /// By place; each home has [`HOME_WAYS`] places.
    pub lines: Region<Line>,
    /// One session for each slot.
    pub sessions: Region<Session>,
    /// Row `idx` of a slot is at index `slot * ring + idx % ring`.
    pub rows: Region<RingRow>,
    /// Maps a device id to the place of a line outside the device's home.
    pub device_index: Region<Bucket>,
    /// Maps an IP address to the place of a line.
    pub by_address: Region<Bucket>,
    /// Maps (ingress, VLANs, MAC) to the place of a line.
    pub by_mac: Region<Bucket>,
    /// Ids of all enrolled devices, see [`super::load_shedder`].
    pub enrolled: Region<FilterBlock>,
    /// RESPONSEs that follow CHALLENGEs of the slow path, see [`super::load_shedder`].
    pub expected: Region<ExpectedResponse>,
    /// One note for each slot.
    pub notes: Region<Note>,
    /// An array with one element.
    pub control: Region<Control>,
}

impl Regions {
    /// Allocates zeroed private memory.
    ///
    /// # Errors
    /// Errors of `mmap`.
    pub fn anonymous(geometry: &Geometry) -> std::io::Result<Self> {
        let rows = geometry.row_count().ok_or(std::io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            lines: Region::anonymous(geometry.lines())?,
            sessions: Region::anonymous(geometry.slots as usize)?,
            rows: Region::anonymous(rows as usize)?,
            device_index: Region::anonymous(geometry.index_buckets() as usize)?,
            by_address: Region::anonymous(geometry.buckets() as usize)?,
            by_mac: Region::anonymous(geometry.buckets() as usize)?,
            enrolled: Region::anonymous(geometry.filter_blocks() as usize)?,
            expected: Region::anonymous(EXPECTED_RESPONSES as usize)?,
            notes: Region::anonymous(geometry.slots as usize)?,
            control: Region::anonymous(1)?,
        })
    }

    /// The line of the device with `id` in wire order, and its place: the look-up of the packet paths.
    #[must_use]
    pub fn find(&self, geometry: &Geometry, id: u64) -> Option<(&Line, u32)> {
        let hash = table::hash(geometry.hash_seed, id, 0);
        let first = geometry.home(hash) * HOME_WAYS as u32;
        let at_home = first..first + HOME_WAYS as u32;
        let fallback_lines = table::candidates(&self.device_index, geometry.index_mask(), hash);
        at_home
            .chain(fallback_lines)
            .filter_map(|place| self.lines.get(place as usize).map(|line| (line, place)))
            .find(|(line, _)| line.device_id.load(Acquire) == id)
    }
}
