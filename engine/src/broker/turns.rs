//! The members of a queue that may have a free slot, in the order in which it is their turn.

use super::heap::IndexedHeap;
use super::slab::NONE;

/// Rank of the weight, then the stamp of the latest use: the smallest is next.
pub(super) type TurnKey = (u64, u64);

/// Marks a slot that is not in the list.
const OUTSIDE: u32 = NONE - 1;

#[derive(Debug, Clone, Copy)]
struct Node {
    /// `OUTSIDE` if the slot is not in the list.
    prev: u32,
    next: u32,
    stamp: u64,
}

/// A queue of members by (rank, stamp), each known by its slot.
///
/// A use gives the largest stamp there is, so among members of one weight whoever was used goes
/// to the end: they stand in a list, and a use costs the same however many they are. Members of
/// other weights, and those that come back with a stamp from before the end of the list, are in a
/// heap; they join the list when they are used. Stamps in the heap may be too small.
#[derive(Debug)]
pub(super) struct Turns {
    heap: IndexedHeap<TurnKey>,
    /// By slot.
    nodes: Vec<Node>,
    first: u32,
    last: u32,
    /// Of everyone in the list.
    rank: u64,
}

impl Turns {
    pub(super) fn new() -> Self {
        Turns {
            heap: IndexedHeap::new(),
            nodes: Vec::new(),
            first: NONE,
            last: NONE,
            rank: 0,
        }
    }

    /// Who is next, and the key known of it.
    #[inline]
    pub(super) fn peek(&self) -> Option<(TurnKey, u32)> {
        if self.first == NONE {
            return self.heap.peek();
        }
        let listed = (self.rank, self.nodes[self.first as usize].stamp);
        match self.heap.peek() {
            Some(top) if top.0 < listed => Some(top),
            _ => Some((listed, self.first)),
        }
    }

    #[inline]
    fn is_listed(&self, slot: u32) -> bool {
        let node = self.nodes.get(slot as usize);
        node.is_some_and(|node| node.prev != OUTSIDE)
    }

    /// The key known of a member, if it is here.
    pub(super) fn key(&self, slot: u32) -> Option<TurnKey> {
        if self.is_listed(slot) {
            return Some((self.rank, self.nodes[slot as usize].stamp));
        }
        self.heap.key(slot)
    }

    /// Adds a member that is not here.
    #[inline]
    pub(super) fn insert(&mut self, slot: u32, key: TurnKey) {
        if self.may_append(key) {
            self.append(slot, key);
        } else {
            self.heap.set(slot, key);
        }
    }

    #[inline]
    fn may_append(&self, (rank, stamp): TurnKey) -> bool {
        self.last == NONE || (rank == self.rank && stamp >= self.nodes[self.last as usize].stamp)
    }

    #[inline]
    fn append(&mut self, slot: u32, (rank, stamp): TurnKey) {
        let at = slot as usize;
        if at >= self.nodes.len() {
            let outside = Node {
                prev: OUTSIDE,
                next: NONE,
                stamp: 0,
            };
            self.nodes.resize(at + 1, outside);
        }
        self.nodes[at] = Node {
            prev: self.last,
            next: NONE,
            stamp,
        };
        match self.last {
            NONE => self.first = slot,
            last => self.nodes[last as usize].next = slot,
        }
        self.last = slot;
        self.rank = rank;
    }

    #[inline]
    fn unlink(&mut self, slot: u32) {
        let Node { prev, next, .. } = self.nodes[slot as usize];
        match prev {
            NONE => self.first = next,
            prev => self.nodes[prev as usize].next = next,
        }
        match next {
            NONE => self.last = prev,
            next => self.nodes[next as usize].prev = prev,
        }
        self.nodes[slot as usize].prev = OUTSIDE;
    }

    /// A member, which need not be here, was used: the stamp of `key` is the largest there is.
    #[inline]
    pub(super) fn used(&mut self, slot: u32, key: TurnKey) {
        if self.is_listed(slot) {
            if self.last == slot {
                self.nodes[slot as usize].stamp = key.1;
            } else {
                self.unlink(slot);
                self.append(slot, key);
            }
        } else if !self.heap.is_empty() && self.may_append(key) && self.heap.remove(slot) {
            self.append(slot, key);
        }
    }

    /// Whoever [`Turns::peek`] shows was used with a stamp larger than the one known.
    pub(super) fn correct_top(&mut self, slot: u32, key: TurnKey) {
        debug_assert!(!self.is_listed(slot), "the list knows its stamps");
        self.heap.raise_top(key);
    }

    /// Takes a member out if it is here.
    pub(super) fn remove(&mut self, slot: u32) {
        if self.is_listed(slot) {
            self.unlink(slot);
        } else {
            self.heap.remove(slot);
        }
    }

    /// Asserts order and links.
    pub(super) fn check(&self) {
        self.heap.check();
        let (mut prev, mut slot, mut count, mut stamp) = (NONE, self.first, 0, 0);
        while slot != NONE {
            let node = &self.nodes[slot as usize];
            assert_eq!(node.prev, prev, "backward link of a turn");
            assert!(node.stamp >= stamp, "order of turns");
            assert!(self.heap.key(slot).is_none(), "in list and heap");
            (prev, slot, stamp) = (slot, node.next, node.stamp);
            count += 1;
        }
        assert_eq!(self.last, prev, "end of the turns");
        let listed = self.nodes.iter().filter(|node| node.prev != OUTSIDE);
        assert_eq!(listed.count(), count, "members in the list");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Like [`Turns::peek`], with the stamps put right as the broker does it.
    fn next(turns: &mut Turns, members: &BTreeMap<u32, TurnKey>) -> Option<u32> {
        loop {
            let (key, slot) = turns.peek()?;
            let actual = members[&slot];
            assert!(key <= actual, "a key is never too large");
            if key == actual {
                return Some(slot);
            }
            turns.correct_top(slot, actual);
        }
    }

    proptest! {
        #[test]
        fn the_least_recently_used_of_the_highest_weight_is_next(
            steps in prop::collection::vec((0_u8..6, 0_u32..9), 0..300),
            ranks in prop::collection::vec(0_u64..3, 9),
        ) {
            let mut turns = Turns::new();
            // Members that are here, and all with their stamps.
            let mut present = BTreeMap::new();
            let mut stamps = [0_u64; 9];
            for (now, (kind, slot)) in (1_u64..).zip(steps) {
                let rank = ranks[slot as usize];
                match kind {
                    0 | 1 => {
                        let key = (rank, stamps[slot as usize]);
                        if present.insert(slot, key).is_none() {
                            turns.insert(slot, key);
                        }
                    }
                    2 => {
                        turns.remove(slot);
                        present.remove(&slot);
                    }
                    3 => {
                        // Used, whether it is here or not.
                        stamps[slot as usize] = now;
                        turns.used(slot, (rank, now));
                        present.entry(slot).and_modify(|key| key.1 = now);
                    }
                    _ => {
                        if let Some(slot) = next(&mut turns, &present) {
                            stamps[slot as usize] = now;
                            let key = (ranks[slot as usize], now);
                            turns.used(slot, key);
                            present.insert(slot, key);
                        }
                    }
                }
                turns.check();
                for slot in 0..9 {
                    prop_assert_eq!(turns.key(slot).is_some(), present.contains_key(&slot));
                }
                let expected = present.iter().min_by_key(|(_, key)| **key).map(|(slot, _)| *slot);
                let found = next(&mut turns, &present);
                prop_assert_eq!(found.map(|s| present[&s]), expected.map(|s| present[&s]));
            }
        }
    }
}
