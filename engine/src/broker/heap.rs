//! A binary heap whose entries can be found by a small number, moved and removed.

const ABSENT: u32 = u32::MAX;

/// Smallest key on top, of equal ones the smallest number. Every entry has a number, given by the caller, used at most once at a time.
#[derive(Debug, Clone)]
pub(super) struct IndexedHeap<K> {
    heap: Vec<(K, u32)>,
    /// Place in `heap` by number.
    places: Vec<u32>,
}

impl<K: Ord + Copy> IndexedHeap<K> {
    pub(super) fn new() -> Self {
        IndexedHeap {
            heap: Vec::new(),
            places: Vec::new(),
        }
    }

    /// Key and number of the smallest entry.
    #[inline]
    pub(super) fn peek(&self) -> Option<(K, u32)> {
        self.heap.first().copied()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    pub(super) fn key(&self, number: u32) -> Option<K> {
        self.place(number).map(|at| self.heap[at].0)
    }

    fn place(&self, number: u32) -> Option<usize> {
        match self.places.get(number as usize) {
            None | Some(&ABSENT) => None,
            Some(at) => Some(*at as usize),
        }
    }

    /// Inserts `number`, or moves it to `key`.
    pub(super) fn set(&mut self, number: u32, key: K) {
        match self.place(number) {
            Some(at) => {
                let old = self.heap[at].0;
                self.heap[at].0 = key;
                if key < old {
                    self.up(at);
                } else {
                    self.down(at);
                }
            }
            None => {
                let index = number as usize;
                if index >= self.places.len() {
                    self.places.resize(index + 1, ABSENT);
                }
                let at = self.heap.len();
                self.heap.push((key, number));
                self.places[index] = at as u32;
                self.up(at);
            }
        }
    }

    /// Gives the top entry a larger key.
    #[inline]
    pub(super) fn raise_top(&mut self, key: K) {
        // It usually goes to the bottom: down without looking at it, then up to its place.
        let (len, entry) = (self.heap.len(), (key, self.heap[0].1));
        let mut at = 0;
        while 2 * at + 1 < len {
            let left = 2 * at + 1;
            let right = (left + 1).min(len - 1);
            let child = if self.heap[right] < self.heap[left] {
                right
            } else {
                left
            };
            let below = self.heap[child];
            self.heap[at] = below;
            self.places[below.1 as usize] = at as u32;
            at = child;
        }
        self.heap[at] = entry;
        self.up(at);
    }

    /// Takes the top entry away.
    pub(super) fn pop(&mut self) {
        if let Some((_, number)) = self.peek() {
            self.remove(number);
        }
    }

    /// Takes `number` away if it is there.
    pub(super) fn remove(&mut self, number: u32) -> bool {
        let Some(at) = self.place(number) else {
            return false;
        };
        self.places[number as usize] = ABSENT;
        let last = self.heap.pop().expect("the entry is in the heap");
        if at < self.heap.len() {
            let old = self.heap[at].0;
            self.heap[at] = last;
            self.places[last.1 as usize] = at as u32;
            if last < (old, number) {
                self.up(at);
            } else {
                self.down(at);
            }
        }
        true
    }

    fn up(&mut self, mut at: usize) {
        let entry = self.heap[at];
        while at > 0 {
            let parent = (at - 1) / 2;
            let above = self.heap[parent];
            if above <= entry {
                break;
            }
            self.heap[at] = above;
            self.places[above.1 as usize] = at as u32;
            at = parent;
        }
        self.heap[at] = entry;
        self.places[entry.1 as usize] = at as u32;
    }

    fn down(&mut self, mut at: usize) {
        let len = self.heap.len();
        let entry = self.heap[at];
        loop {
            let mut child = 2 * at + 1;
            if child >= len {
                break;
            }
            if child + 1 < len && self.heap[child + 1] < self.heap[child] {
                child += 1;
            }
            let below = self.heap[child];
            if entry <= below {
                break;
            }
            self.heap[at] = below;
            self.places[below.1 as usize] = at as u32;
            at = child;
        }
        self.heap[at] = entry;
        self.places[entry.1 as usize] = at as u32;
    }

    /// Asserts heap order and places.
    pub(super) fn check(&self) {
        for (at, (key, number)) in self.heap.iter().enumerate() {
            assert_eq!(
                self.places[*number as usize], at as u32,
                "place of a heap entry"
            );
            if at > 0 {
                assert!(self.heap[(at - 1) / 2] <= (*key, *number), "heap order");
            }
        }
        let present = self.places.iter().filter(|place| **place != ABSENT).count();
        assert_eq!(present, self.heap.len(), "heap entries and places");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn behaves_like_a_sorted_map(steps in prop::collection::vec(
            (0_u8..4, 0_u32..12, 0_u32..50), 0..200)) {
            let mut heap = IndexedHeap::new();
            let mut model = BTreeMap::new();
            for (kind, number, key) in steps {
                match kind {
                    0 | 1 => {
                        heap.set(number, (key, number));
                        model.insert(number, (key, number));
                    }
                    2 => {
                        prop_assert_eq!(heap.remove(number), model.remove(&number).is_some());
                    }
                    _ => {
                        if let Some((old, top)) = heap.peek() {
                            let new = (old.0 + key, top);
                            heap.raise_top(new);
                            model.insert(top, new);
                        }
                    }
                }
                heap.check();
                prop_assert_eq!(heap.peek().map(|top| top.0), model.values().min().copied());
            }
        }
    }
}
