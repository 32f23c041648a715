//! Numbered slots, and doubly linked lists through them: a job is in two lists at once and leaves both in
//! O(1).

/// The index that means "no slot".
const NONE: u32 = u32::MAX;

/// Slots whose items have stable numbers. Free slots are reused.
pub(super) struct Arena<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Arena<T> {
    pub(super) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Stores an item and returns its number. There are never 2^32 - 1 items: a queue's capacity is far
    /// lower.
    pub(super) fn add(&mut self, item: T) -> u32 {
        if let Some(id) = self.free.pop()
            && let Some(slot) = self.slots.get_mut(id as usize)
        {
            *slot = Some(item);
            return id;
        }
        self.slots.push(Some(item));
        (self.slots.len() - 1) as u32
    }

    pub(super) fn get(&self, id: u32) -> Option<&T> {
        self.slots.get(id as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        self.slots.get_mut(id as usize)?.as_mut()
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<T> {
        let item = self.slots.get_mut(id as usize)?.take()?;
        self.free.push(id);
        Some(item)
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

/// The neighbors of an item in one list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    previous: u32,
    next: u32,
}

impl Default for Links {
    fn default() -> Self {
        Self {
            previous: NONE,
            next: NONE,
        }
    }
}

/// A list through an arena. `links` selects the [`Links`] of an item that the list uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    first: u32,
    last: u32,
    len: u32,
}

impl Default for List {
    fn default() -> Self {
        Self {
            first: NONE,
            last: NONE,
            len: 0,
        }
    }
}

impl List {
    pub(super) fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    pub(super) fn last(&self) -> Option<u32> {
        (self.last != NONE).then_some(self.last)
    }

    pub(super) const fn len(&self) -> usize {
        self.len as usize
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn push_back<T>(
        &mut self,
        arena: &mut Arena<T>,
        id: u32,
        links: impl Fn(&mut T) -> &mut Links,
    ) {
        match arena.get_mut(self.last) {
            Some(last) => links(last).next = id,
            None => self.first = id,
        }
        if let Some(item) = arena.get_mut(id) {
            *links(item) = Links {
                previous: self.last,
                next: NONE,
            };
        }
        self.last = id;
        self.len += 1;
    }

    /// Removes `id`, which must be in this list.
    pub(super) fn remove<T>(&mut self, arena: &mut Arena<T>, id: u32, links: impl Fn(&mut T) -> &mut Links) {
        let Some(item) = arena.get_mut(id) else { return };
        let Links { previous, next } = std::mem::take(links(item));
        match arena.get_mut(previous) {
            Some(item) => links(item).next = next,
            None => self.first = next,
        }
        match arena.get_mut(next) {
            Some(item) => links(item).previous = previous,
            None => self.last = previous,
        }
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct TestItem(u8, Links);

    fn order(arena: &Arena<TestItem>, list: &List) -> Vec<u8> {
        let mut seen = Vec::new();
        let mut cursor = list.first();
        while let Some(item) = cursor.and_then(|id| arena.get(id)) {
            seen.push(item.0);
            cursor = (item.1.next != NONE).then_some(item.1.next);
        }
        assert_eq!(seen.len(), list.len());
        seen
    }

    #[test]
    fn items_are_removed_from_the_front_the_middle_and_the_back() {
        let (mut arena, mut list) = (Arena::new(), List::default());
        let ids: Vec<_> = (0..5)
            .map(|number| {
                let id = arena.add(TestItem(number, Links::default()));
                list.push_back(&mut arena, id, |item| &mut item.1);
                id
            })
            .collect();
        for (removed, remaining) in [(2, vec![0, 1, 3, 4]), (0, vec![1, 3, 4]), (4, vec![1, 3])] {
            list.remove(&mut arena, ids[removed], |item| &mut item.1);
            assert_eq!(arena.remove(ids[removed]).map(|item| item.0), Some(removed as u8));
            assert_eq!(order(&arena, &list), remaining);
        }
        let reused = arena.add(TestItem(9, Links::default()));
        assert!(ids.contains(&reused), "a free slot is reused");
        list.push_back(&mut arena, reused, |item| &mut item.1);
        assert_eq!(order(&arena, &list), [1, 3, 9]);
        assert_eq!((list.last(), arena.len()), (Some(reused), 3));
    }
}
