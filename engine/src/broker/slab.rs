//! A table with stable `u32` indices whose places are used again.

use super::steps::step;
use std::ops::{Index, IndexMut};

/// "No entry", for fields that hold an index.
pub(super) const NONE: u32 = u32::MAX;

/// Entries keep their index until they are removed; then the index may be given out again.
#[derive(Debug)]
pub(super) struct Slab<T> {
    items: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(super) fn new() -> Self {
        Slab {
            items: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(super) fn insert(&mut self, item: T) -> u32 {
        match self.free.pop() {
            Some(ix) => {
                self.items[ix as usize] = Some(item);
                ix
            }
            None => {
                let ix = self.items.len() as u32;
                assert!(ix != NONE, "slab is full");
                self.items.push(Some(item));
                ix
            }
        }
    }

    pub(super) fn remove(&mut self, ix: u32) -> Option<T> {
        let item = self.items.get_mut(ix as usize)?.take()?;
        self.free.push(ix);
        Some(item)
    }

    #[inline]
    pub(super) fn get(&self, ix: u32) -> Option<&T> {
        step();
        self.items.get(ix as usize)?.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, ix: u32) -> Option<&mut T> {
        self.items.get_mut(ix as usize)?.as_mut()
    }

    pub(super) fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }

    /// One more than the largest index in use so far.
    pub(super) fn end(&self) -> u32 {
        self.items.len() as u32
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.items
            .iter()
            .enumerate()
            .filter_map(|(ix, item)| Some((ix as u32, item.as_ref()?)))
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    #[inline]
    fn index(&self, ix: u32) -> &T {
        step();
        self.items[ix as usize].as_ref().expect("slab index in use")
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, ix: u32) -> &mut T {
        step();
        self.items[ix as usize].as_mut().expect("slab index in use")
    }
}

/// Entries by place, without free ones.
#[derive(Debug)]
pub(super) struct Dense<T>(Vec<T>);

impl<T> Dense<T> {
    pub(super) fn new() -> Self {
        Dense(Vec::new())
    }

    pub(super) fn push(&mut self, item: T) -> u32 {
        let ix = self.0.len() as u32;
        assert!(ix != NONE, "table is full");
        self.0.push(item);
        ix
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn get(&self, ix: u32) -> Option<&T> {
        step();
        self.0.get(ix as usize)
    }

    /// All entries: for checks, not for messages.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }
}

impl<T> Index<u32> for Dense<T> {
    type Output = T;

    #[inline]
    fn index(&self, ix: u32) -> &T {
        step();
        &self.0[ix as usize]
    }
}

impl<T> IndexMut<u32> for Dense<T> {
    #[inline]
    fn index_mut(&mut self, ix: u32) -> &mut T {
        step();
        &mut self.0[ix as usize]
    }
}
