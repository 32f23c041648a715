//! Which places and slots are free. Only user space keeps this; the packet path sees what is in the lines.

use std::collections::HashSet;

use super::Place;

/// Numbers of a table of homes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Homes {
    /// Places in a home.
    pub(super) ways: u32,
    /// Homes that ids are hashed to.
    pub(super) hashed: u32,
    /// All, with those of who finds no room at home.
    pub(super) all: u32,
    /// Slots.
    pub(super) slots: u32,
}

/// Free places and slots.
#[derive(Debug)]
pub(super) struct Places {
    /// By home: a bit for each taken way.
    taken: Vec<u8>,
    /// Places outside the homes that ids are hashed to.
    spare: Vec<u32>,
    /// Slots given back.
    free_slots: Vec<u32>,
    next_slot: u32,
    homes: Homes,
    /// Left, but perhaps still looked at by a packet in flight.
    quarantine: Vec<Place>,
    /// Left before the last [`Places::reclaim`].
    free_next: Vec<Place>,
}

impl Places {
    pub(super) fn new(homes: Homes) -> Self {
        let spare = homes.hashed * homes.ways..homes.all * homes.ways;
        Self {
            taken: vec![0; homes.hashed as usize],
            spare: spare.rev().collect(),
            free_slots: Vec::new(),
            next_slot: 0,
            homes,
            quarantine: Vec::new(),
            free_next: Vec::new(),
        }
    }

    /// A slot, and that line if it is free, else another one of its home, else any.
    pub(super) fn allocate(&mut self, line: u32) -> Option<Place> {
        let slot = self.free_slots.pop().or_else(|| {
            (self.next_slot < self.homes.slots).then(|| {
                self.next_slot += 1;
                self.next_slot - 1
            })
        })?;
        let line = self.take_at_home(line).or_else(|| self.spare.pop());
        if line.is_none() {
            self.free_slots.push(slot);
        }
        Some(Place { line: line?, slot })
    }

    fn take_at_home(&mut self, line: u32) -> Option<u32> {
        let ways = self.homes.ways;
        let taken = self.taken.get_mut((line / ways) as usize)?;
        let mut lines = (0..ways).map(|step| line - line % ways + (line + step) % ways);
        let free = lines.find(|line| *taken >> (line % ways) & 1 == 0)?;
        *taken |= 1 << (free % ways);
        Some(free)
    }

    /// Takes these places, which devices are in already; all others are free.
    pub(super) fn occupy(&mut self, occupied: impl Iterator<Item = Place>) {
        let mut is_free = vec![true; self.homes.slots as usize];
        let mut elsewhere = HashSet::new();
        for place in occupied {
            if let Some(is_free) = is_free.get_mut(place.slot as usize) {
                *is_free = false;
            }
            let home = place.line / self.homes.ways;
            if home >= self.homes.hashed {
                elsewhere.insert(place.line);
            } else if let Some(taken) = self.taken.get_mut(home as usize) {
                *taken |= 1 << (place.line % self.homes.ways);
            }
        }
        self.spare.retain(|line| !elsewhere.contains(line));
        let free = (0u32..).zip(is_free).filter(|(_, is_free)| *is_free);
        self.free_slots = free.map(|(slot, _)| slot).collect();
        self.next_slot = self.homes.slots;
    }

    /// The slots that no device has.
    pub(super) fn free_slots(&self) -> &[u32] {
        &self.free_slots
    }

    /// Sets a place aside until the second [`Places::reclaim`].
    pub(super) fn quarantine(&mut self, place: Place) {
        self.quarantine.push(place);
    }

    /// Frees what was set aside before the last call: at the first one a packet may still be on its way through.
    pub(super) fn reclaim(&mut self) {
        let left = std::mem::replace(&mut self.free_next, std::mem::take(&mut self.quarantine));
        for place in left {
            self.free_slots.push(place.slot);
            let home = place.line / self.homes.ways;
            if home >= self.homes.hashed {
                self.spare.push(place.line);
            } else if let Some(taken) = self.taken.get_mut(home as usize) {
                *taken &= !(1 << (place.line % self.homes.ways));
            }
        }
    }
}
