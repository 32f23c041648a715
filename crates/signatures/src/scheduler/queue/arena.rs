//! Places with numbers, and doubly linked lists through them: a job is in two lists at once and leaves both
//! in O(1).

/// No place.
const NONE: u32 = u32::MAX;

/// Places for things that have numbers as long as they stay. A place is used again once it is free.
pub(super) struct Arena<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Arena<T> {
    pub(super) const fn new() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
        }
    }

    /// The new thing's number. There are never 2^32 - 1 things: a queue's capacity is bounded far below.
    pub(super) fn add(&mut self, thing: T) -> u32 {
        if let Some(id) = self.free.pop()
            && let Some(place) = self.places.get_mut(id as usize)
        {
            *place = Some(thing);
            return id;
        }
        self.places.push(Some(thing));
        (self.places.len() - 1) as u32
    }

    pub(super) fn get(&self, id: u32) -> Option<&T> {
        self.places.get(id as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        self.places.get_mut(id as usize)?.as_mut()
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<T> {
        let thing = self.places.get_mut(id as usize)?.take()?;
        self.free.push(id);
        Some(thing)
    }

    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

/// A thing's neighbours in one list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    before: u32,
    after: u32,
}

impl Default for Links {
    fn default() -> Self {
        Self {
            before: NONE,
            after: NONE,
        }
    }
}

/// A list through an arena. `links` picks which of a thing's [`Links`] the list runs through.
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
            Some(last) => links(last).after = id,
            None => self.first = id,
        }
        if let Some(thing) = arena.get_mut(id) {
            *links(thing) = Links {
                before: self.last,
                after: NONE,
            };
        }
        self.last = id;
        self.len += 1;
    }

    /// Takes out `id`, which must be in this list.
    pub(super) fn remove<T>(&mut self, arena: &mut Arena<T>, id: u32, links: impl Fn(&mut T) -> &mut Links) {
        let Some(thing) = arena.get_mut(id) else { return };
        let Links { before, after } = std::mem::take(links(thing));
        match arena.get_mut(before) {
            Some(thing) => links(thing).after = after,
            None => self.first = after,
        }
        match arena.get_mut(after) {
            Some(thing) => links(thing).before = before,
            None => self.last = before,
        }
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Thing(u8, Links);

    fn order(arena: &Arena<Thing>, list: &List) -> Vec<u8> {
        let mut seen = Vec::new();
        let mut at = list.first();
        while let Some(thing) = at.and_then(|id| arena.get(id)) {
            seen.push(thing.0);
            at = (thing.1.after != NONE).then_some(thing.1.after);
        }
        assert_eq!(seen.len(), list.len());
        seen
    }

    #[test]
    fn things_leave_from_the_front_the_middle_and_the_back() {
        let (mut arena, mut list) = (Arena::new(), List::default());
        let ids: Vec<_> = (0..5)
            .map(|number| {
                let id = arena.add(Thing(number, Links::default()));
                list.push_back(&mut arena, id, |thing| &mut thing.1);
                id
            })
            .collect();
        for (leaves, left) in [(2, vec![0, 1, 3, 4]), (0, vec![1, 3, 4]), (4, vec![1, 3])] {
            list.remove(&mut arena, ids[leaves], |thing| &mut thing.1);
            assert_eq!(arena.remove(ids[leaves]).map(|thing| thing.0), Some(leaves as u8));
            assert_eq!(order(&arena, &list), left);
        }
        let again = arena.add(Thing(9, Links::default()));
        assert!(ids.contains(&again), "a free place is used again");
        list.push_back(&mut arena, again, |thing| &mut thing.1);
        assert_eq!(order(&arena, &list), [1, 3, 9]);
        assert_eq!((list.last(), arena.len()), (Some(again), 3));
    }
}
