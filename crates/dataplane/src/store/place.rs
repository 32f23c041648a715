//! Which places and slots are free. Only user space keeps this; the packet path sees what is in the lines.

use std::collections::HashSet;

use super::{Geometry, Place};
use crate::layout::HOME_WAYS;

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
    slots: u32,
    homes: u32,
    /// Left, but perhaps still looked at by a packet in flight.
    quarantine: Vec<Place>,
    /// Left before the last [`Places::reclaim`].
    free_next: Vec<Place>,
}

impl Places {
    pub(super) fn new(geometry: &Geometry) -> Self {
        let ways = HOME_WAYS as u32;
        let spare = geometry.homes() * ways..geometry.all_homes() * ways;
        Self {
            taken: vec![0; geometry.homes() as usize],
            spare: spare.rev().collect(),
            free_slots: Vec::new(),
            next_slot: 0,
            slots: geometry.slots,
            homes: geometry.homes(),
            quarantine: Vec::new(),
            free_next: Vec::new(),
        }
    }

    /// A slot, and a line at home if the home has room, else anywhere.
    pub(super) fn allocate(&mut self, device_hash: u64, geometry: &Geometry) -> Option<Place> {
        let slot = self.free_slots.pop().or_else(|| {
            (self.next_slot < self.slots).then(|| {
                self.next_slot += 1;
                self.next_slot - 1
            })
        })?;
        let home = geometry.home(device_hash);
        let line = match self.taken.get_mut(home as usize) {
            Some(taken) if taken.trailing_ones() < HOME_WAYS as u32 => {
                let way = taken.trailing_ones();
                *taken |= 1 << way;
                Some(home * HOME_WAYS as u32 + way)
            }
            _ => self.spare.pop(),
        };
        if line.is_none() {
            self.free_slots.push(slot);
        }
        Some(Place { line: line?, slot })
    }

    /// Takes these places, which devices are in already; all others are free.
    pub(super) fn occupy(&mut self, occupied: impl Iterator<Item = Place>) {
        let mut is_free = vec![true; self.slots as usize];
        let mut elsewhere = HashSet::new();
        for place in occupied {
            if let Some(is_free) = is_free.get_mut(place.slot as usize) {
                *is_free = false;
            }
            let home = place.line / HOME_WAYS as u32;
            if home >= self.homes {
                elsewhere.insert(place.line);
            } else if let Some(taken) = self.taken.get_mut(home as usize) {
                *taken |= 1 << (place.line % HOME_WAYS as u32);
            }
        }
        self.spare.retain(|line| !elsewhere.contains(line));
        let free = (0u32..).zip(is_free).filter(|(_, is_free)| *is_free);
        self.free_slots = free.map(|(slot, _)| slot).collect();
        self.next_slot = self.slots;
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
            let home = place.line / HOME_WAYS as u32;
            if home >= self.homes {
                self.spare.push(place.line);
            } else if let Some(taken) = self.taken.get_mut(home as usize) {
                *taken &= !(1 << (place.line % HOME_WAYS as u32));
            }
        }
    }
}
