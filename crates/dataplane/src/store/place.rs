//! Tracks free places and slots. Only user space uses this module; the packet path reads the lines.

use std::collections::HashSet;

/// The line and the slot of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the device's line in the lines array.
    pub line: u32,
    /// Index of the device's session. Multiplied by the ring size: index of the device's first ring row.
    pub slot: u32,
}

/// Numbers of homes, of places in a home, and of slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct HomeLayout {
    /// Number of places in each home.
    pub(super) ways: u32,
    /// Number of homes that ids are hashed to.
    pub(super) hashed_homes: u32,
    /// Number of all homes, including the spare ones for devices that do not fit into their home.
    pub(super) all_homes: u32,
    /// Number of slots.
    pub(super) slots: u32,
}

/// Free places and slots.
#[derive(Debug)]
pub(super) struct Places {
    /// By home: one bit for each occupied way.
    used_ways: Vec<u8>,
    /// Free places in the spare homes.
    spare: Vec<u32>,
    /// Slots that a device used before.
    free_slots: Vec<u32>,
    /// Slots from this number on were never used.
    next_slot: u32,
    homes: HomeLayout,
    /// Places that were retired since the most recent [`Places::reclaim`]. A packet in flight may still read them.
    retired: Vec<Place>,
    /// Places that were retired before the most recent [`Places::reclaim`].
    retired_before: Vec<Place>,
}

impl Places {
    pub(super) fn new(homes: HomeLayout) -> Self {
        let spare = homes.hashed_homes * homes.ways..homes.all_homes * homes.ways;
        Self {
            used_ways: vec![0; homes.hashed_homes as usize],
            spare: spare.rev().collect(),
            free_slots: Vec::new(),
            next_slot: 0,
            homes,
            retired: Vec::new(),
            retired_before: Vec::new(),
        }
    }

    /// Allocates a slot and a line: `line` if it is free, otherwise another line of its home, otherwise a spare line.
    pub(super) fn allocate(&mut self, line: u32) -> Option<Place> {
        let slot = self.free_slots.pop().or_else(|| {
            (self.next_slot < self.homes.slots).then(|| {
                self.next_slot += 1;
                self.next_slot - 1
            })
        })?;
        let line = self.take_free_line_of_home(line).or_else(|| self.spare.pop());
        if line.is_none() {
            self.free_slots.push(slot);
        }
        Some(Place { line: line?, slot })
    }

    fn take_free_line_of_home(&mut self, line: u32) -> Option<u32> {
        let ways = self.homes.ways;
        let used_ways = self.used_ways.get_mut((line / ways) as usize)?;
        let mut lines = (0..ways).map(|step| line - line % ways + (line + step) % ways);
        let free = lines.find(|line| *used_ways >> (line % ways) & 1 == 0)?;
        *used_ways |= 1 << (free % ways);
        Some(free)
    }

    /// Marks these places as occupied; all others are free.
    pub(super) fn occupy(&mut self, occupied: impl Iterator<Item = Place>) {
        let mut is_free = vec![true; self.homes.slots as usize];
        let mut spare_lines = HashSet::new();
        for place in occupied {
            if let Some(is_free) = is_free.get_mut(place.slot as usize) {
                *is_free = false;
            }
            let home = place.line / self.homes.ways;
            if home >= self.homes.hashed_homes {
                spare_lines.insert(place.line);
            } else if let Some(used_ways) = self.used_ways.get_mut(home as usize) {
                *used_ways |= 1 << (place.line % self.homes.ways);
            }
        }
        self.spare.retain(|line| !spare_lines.contains(line));
        let free = (0u32..).zip(is_free).filter(|(_, is_free)| *is_free);
        self.free_slots = free.map(|(slot, _)| slot).collect();
        self.next_slot = self.homes.slots;
    }

    /// The slots that no device uses.
    pub(super) fn free_slots(&self) -> &[u32] {
        &self.free_slots
    }

    /// Keeps a place unused until the second [`Places::reclaim`].
    pub(super) fn retire(&mut self, place: Place) {
        self.retired.push(place);
    }

    /// Frees the places that were retired before the previous call. At the first call after the retirement, a packet may
    /// still be in flight.
    pub(super) fn reclaim(&mut self) {
        let freed = std::mem::replace(&mut self.retired_before, std::mem::take(&mut self.retired));
        for place in freed {
            self.free_slots.push(place.slot);
            let home = place.line / self.homes.ways;
            if home >= self.homes.hashed_homes {
                self.spare.push(place.line);
            } else if let Some(used_ways) = self.used_ways.get_mut(home as usize) {
                *used_ways &= !(1 << (place.line % self.homes.ways));
            }
        }
    }
}
