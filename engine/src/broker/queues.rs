//! Queues, the workers that serve them, and the queue lists of workers ("profiles").

use super::heap::IndexedHeap;
use super::jobs::JobList;
use super::slab::{NONE, Slab};
use super::steps::step;
use super::store::{JobStore, NO_HEAD};
use super::turns::Turns;
use ahash::RandomState;
use hashbrown::HashTable;
use std::collections::HashMap;
use std::sync::Arc;

/// The default queue's index: it is made first and never forgotten.
pub(super) const DEFAULT_QUEUE: u32 = 0;

/// A weight as a number that is smaller for a higher weight.
#[inline]
pub(super) fn weight_rank(weight: f64) -> u64 {
    // Adding zero makes -0.0 and 0.0 the same weight.
    let bits = (weight + 0.0).to_bits();
    let ascending = if bits >> 63 == 1 {
        !bits
    } else {
        bits | (1 << 63)
    };
    !ascending
}

/// The weight of a rank.
pub(super) fn rank_weight(rank: u64) -> f64 {
    let ascending = !rank;
    f64::from_bits(if ascending >> 63 == 1 {
        ascending & !(1 << 63)
    } else {
        !ascending
    })
}

/// A worker in a queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member {
    /// `NONE` marks a free place.
    pub(super) worker: u32,
    /// The place of the queue in the worker's list.
    pub(super) index: u32,
    /// `weight_rank` of the worker's weight for this queue.
    pub(super) rank: u64,
    /// When it was last handed a job of this queue (or joined it), as a counter.
    pub(super) stamp: u64,
}

/// A profile that contains a queue, as the queue sees it.
///
/// Workers of long lists that are met without a free slot are parked here instead of being put
/// back by their next READY, which would cost as much as their list is long: the queue looks
/// itself which of them have become available, 64 at a time, and only where some are parked.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) profile: u32,
    /// The place of the queue in the profile's list.
    pub(super) place: u32,
    /// By seat in the profile: parked, and the place among the queue's members.
    parked: Vec<u64>,
    slots: Vec<u32>,
    /// By word of `parked`: not zero.
    words: Vec<u64>,
}

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) name: Box<[u8]>,
    /// Tells timers apart that were armed for an earlier queue at this index.
    pub(super) tag: u32,
    /// Jobs that only workers of this queue may take.
    pub(super) bound: JobStore,
    /// Jobs accepted while the queue was not served: workers of the default queue may take them.
    pub(super) open: JobStore,
    pub(super) members: Vec<Member>,
    free_members: Vec<u32>,
    /// Members that may have a free slot, by (rank, stamp). Stamps may be too small, and members
    /// may be without a slot: both are put right when it is their turn.
    pub(super) candidates: Turns,
    /// Registered workers.
    pub(super) workers: u32,
    /// Without workers it still counts as served until then.
    pub(super) served_until_ns: u64,
    /// When it last became empty.
    pub(super) emptied_ns: u64,
    pub(super) timer_armed: bool,
    /// Jobs in flight that count for this queue, in accept order.
    pub(super) flight: JobList,
    pub(super) in_flight: u64,
    /// Accept times of all unfinished jobs added up.
    pub(super) accepted_sum_ns: u128,
    /// Handed out since the queue is known.
    pub(super) processed: u64,
    /// Its latency entry, once it has one.
    pub(super) latency: u32,
    /// The profiles that contain it.
    pub(super) groups: Vec<Group>,
    /// Members that are parked, in all groups together.
    pub(super) parked: u32,
    /// A hand-out of jobs that came back is due.
    pub(super) pump_due: bool,
}

impl Queue {
    fn new(name: &[u8], tag: u32) -> Self {
        Queue {
            name: name.into(),
            tag,
            bound: JobStore::new(),
            open: JobStore::new(),
            members: Vec::new(),
            free_members: Vec::new(),
            candidates: Turns::new(),
            workers: 0,
            served_until_ns: 0,
            emptied_ns: 0,
            timer_armed: false,
            flight: JobList::EMPTY,
            in_flight: 0,
            accepted_sum_ns: 0,
            processed: 0,
            latency: NONE,
            groups: Vec::new(),
            parked: 0,
            pump_due: false,
        }
    }

    /// Waiting jobs.
    #[inline]
    pub(super) fn waiting(&self) -> usize {
        self.bound.len() + self.open.len()
    }

    /// Accept sequence of the oldest waiting job.
    #[inline]
    pub(super) fn head_seq(&self) -> u64 {
        self.bound.head_seq().min(self.open.head_seq())
    }

    #[inline]
    pub(super) fn store(&mut self, open: bool) -> &mut JobStore {
        if open {
            &mut self.open
        } else {
            &mut self.bound
        }
    }

    /// Adds a worker; it is not a candidate yet.
    pub(super) fn join(&mut self, member: Member) -> u32 {
        self.workers += 1;
        match self.free_members.pop() {
            Some(slot) => {
                self.members[slot as usize] = member;
                slot
            }
            None => {
                self.members.push(member);
                self.members.len() as u32 - 1
            }
        }
    }

    /// Takes a worker out.
    pub(super) fn leave(&mut self, slot: u32) {
        self.candidates.remove(slot);
        self.members[slot as usize].worker = NONE;
        self.free_members.push(slot);
        self.workers -= 1;
    }
}

impl Queue {
    /// Notes that the worker on this seat of the profile of `group` is no candidate.
    pub(super) fn park(&mut self, group: u32, seat: u32, slot: u32) {
        let group = &mut self.groups[group as usize];
        let (word, seat) = (seat as usize / 64, seat as usize);
        if group.slots.len() <= seat {
            group.slots.resize(seat + 1, NONE);
            group.parked.resize(word + 1, 0);
            group.words.resize(word / 64 + 1, 0);
        }
        debug_assert_eq!(group.parked[word] >> (seat % 64) & 1, 0, "parked twice");
        group.slots[seat] = slot;
        group.parked[word] |= 1 << (seat % 64);
        group.words[word / 64] |= 1 << (word % 64);
        self.parked += 1;
    }

    /// Forgets a parked worker. False if it is not parked.
    pub(super) fn unpark(&mut self, group: u32, seat: u32) -> bool {
        let group = &mut self.groups[group as usize];
        let (word, bit) = (seat as usize / 64, 1 << (seat % 64));
        let found = group
            .parked
            .get(word)
            .is_some_and(|parked| parked & bit != 0);
        if found {
            group.parked[word] &= !bit;
            if group.parked[word] == 0 {
                group.words[word / 64] &= !(1 << (word % 64));
            }
            self.parked -= 1;
        }
        found
    }

    /// Makes the parked workers candidates that have become available.
    pub(super) fn unpark_available(&mut self, profiles: &Slab<Profile>) {
        for group in &mut self.groups {
            step();
            let profile = &profiles[group.profile];
            if profile.available_seats == 0 {
                continue;
            }
            for (at, words) in group.words.iter_mut().enumerate() {
                let mut left = *words;
                while left != 0 {
                    let bit = left & left.wrapping_neg();
                    let word = at * 64 + left.trailing_zeros() as usize;
                    left ^= bit;
                    let mut found = group.parked[word] & profile.available[word];
                    group.parked[word] ^= found;
                    if group.parked[word] == 0 {
                        *words ^= bit;
                    }
                    while found != 0 {
                        let seat = word * 64 + found.trailing_zeros() as usize;
                        found &= found - 1;
                        let slot = group.slots[seat];
                        let member = &self.members[slot as usize];
                        self.candidates.insert(slot, (member.rank, member.stamp));
                        self.parked -= 1;
                    }
                }
            }
        }
    }

    /// Parked members, counted one by one.
    pub(super) fn count_parked(&self) -> u32 {
        for group in &self.groups {
            for (word, parked) in group.parked.iter().enumerate() {
                let marked = group.words[word / 64] >> (word % 64) & 1 == 1;
                assert_eq!(marked, *parked != 0, "words with parked members");
            }
        }
        let words = self.groups.iter().flat_map(|group| &group.parked);
        words.map(|word| word.count_ones()).sum()
    }

    pub(super) fn is_parked(&self, group: u32, seat: u32) -> bool {
        let group = &self.groups[group as usize];
        let word = group.parked.get(seat as usize / 64);
        word.is_some_and(|word| word >> (seat % 64) & 1 == 1)
    }
}

/// All queues by index and by name.
#[derive(Debug)]
pub(super) struct Queues {
    pub(super) slab: Slab<Queue>,
    by_name: HashTable<u32>,
    hasher: RandomState,
    tags: u32,
}

impl Queues {
    pub(super) fn new(hasher: RandomState, default_name: &[u8]) -> Self {
        let mut queues = Queues {
            slab: Slab::new(),
            by_name: HashTable::new(),
            hasher,
            tags: 0,
        };
        let default = queues.create(default_name);
        assert_eq!(default, DEFAULT_QUEUE);
        queues
    }

    pub(super) fn find(&self, name: &[u8]) -> Option<u32> {
        let hash = self.hasher.hash_one(name);
        self.by_name
            .find(hash, |ix| &*self.slab[*ix].name == name)
            .copied()
    }

    pub(super) fn create(&mut self, name: &[u8]) -> u32 {
        self.tags = self.tags.wrapping_add(1);
        let ix = self.slab.insert(Queue::new(name, self.tags));
        let Queues {
            slab,
            by_name,
            hasher,
            ..
        } = self;
        by_name.insert_unique(hasher.hash_one(name), ix, |other| {
            hasher.hash_one(&*slab[*other].name)
        });
        ix
    }

    pub(super) fn forget(&mut self, ix: u32) {
        let queue = self
            .slab
            .remove(ix)
            .expect("a queue that is forgotten is known");
        let hash = self.hasher.hash_one(&*queue.name);
        match self.by_name.find_entry(hash, |other| *other == ix) {
            Ok(entry) => {
                entry.remove();
            }
            Err(_) => unreachable!("a known queue is found by its name"),
        }
    }

    pub(super) fn check(&self) {
        assert_eq!(self.by_name.len(), self.slab.len(), "queues by name");
        for (ix, queue) in self.slab.iter() {
            assert_eq!(self.find(&queue.name), Some(ix), "queue found by its name");
        }
    }
}

/// The queue list of a worker, shared by all workers with the same one.
#[derive(Debug)]
pub(super) struct Profile {
    /// (rank, queue) in the order of the INFORM.
    pub(super) key: Arc<[(u64, u32)]>,
    /// By place in the list: which of the queue's groups is this profile's.
    pub(super) groups: Vec<u32>,
    refs: u32,
    /// Places of queues that may have waiting jobs, by (rank, oldest job). A key may be too
    /// small and a queue may be empty: both are put right when met at the top.
    pub(super) waiting: IndexedHeap<(u64, u64)>,
    /// Its workers are parked by the queues (see [`Group`]).
    pub(super) parks: bool,
    /// By seat: the worker may be available. Cleared when it is met and is not.
    pub(super) available: Vec<u64>,
    /// Bits set in `available`.
    pub(super) available_seats: u32,
    free_seats: Vec<u32>,
    seats: u32,
}

/// From this many queues on, workers are parked.
const PARK_QUEUES_MIN: usize = 16;

impl Profile {
    /// A number for one of its workers.
    pub(super) fn take_seat(&mut self) -> u32 {
        self.free_seats.pop().unwrap_or_else(|| {
            self.seats += 1;
            self.available.resize((self.seats as usize).div_ceil(64), 0);
            self.seats - 1
        })
    }

    pub(super) fn give_seat(&mut self, seat: u32) {
        self.set_available(seat, false);
        self.free_seats.push(seat);
    }

    #[inline]
    pub(super) fn set_available(&mut self, seat: u32, available: bool) {
        let (word, bit) = (seat as usize / 64, 1 << (seat % 64));
        let bits = &mut self.available[word];
        if available && *bits & bit == 0 {
            self.available_seats += 1;
            *bits |= bit;
        } else if !available && *bits & bit != 0 {
            self.available_seats -= 1;
            *bits &= !bit;
        }
    }

    pub(super) fn is_available(&self, seat: u32) -> bool {
        self.available[seat as usize / 64] >> (seat % 64) & 1 == 1
    }
}

/// All profiles in use.
#[derive(Debug)]
pub(super) struct Profiles {
    pub(super) slab: Slab<Profile>,
    by_key: HashMap<Arc<[(u64, u32)]>, u32, RandomState>,
}

impl Profiles {
    pub(super) fn new(hasher: RandomState) -> Self {
        Profiles {
            slab: Slab::new(),
            by_key: HashMap::with_hasher(hasher),
        }
    }

    /// The profile with this list. `head_of` tells the oldest waiting job of a queue, as it
    /// counts for a worker of that queue.
    pub(super) fn intern(
        &mut self,
        key: Vec<(u64, u32)>,
        queues: &mut Queues,
        head_of: impl Fn(&Queues, u32) -> u64,
    ) -> u32 {
        if let Some(ix) = self.by_key.get(key.as_slice()) {
            self.slab[*ix].refs += 1;
            return *ix;
        }
        let key: Arc<[_]> = key.into();
        let mut waiting = IndexedHeap::new();
        for (place, (rank, queue)) in key.iter().enumerate() {
            let head = head_of(queues, *queue);
            if head != NO_HEAD {
                waiting.set(place as u32, (*rank, head));
            }
        }
        let groups = key
            .iter()
            .map(|(_, queue)| queues.slab[*queue].groups.len() as u32)
            .collect();
        let profile = Profile {
            key: Arc::clone(&key),
            groups,
            refs: 1,
            waiting,
            parks: key.len() >= PARK_QUEUES_MIN,
            available: Vec::new(),
            available_seats: 0,
            free_seats: Vec::new(),
            seats: 0,
        };
        let ix = self.slab.insert(profile);
        for (place, (_, queue)) in key.iter().enumerate() {
            queues.slab[*queue].groups.push(Group {
                profile: ix,
                place: place as u32,
                parked: Vec::new(),
                slots: Vec::new(),
                words: Vec::new(),
            });
        }
        self.by_key.insert(key, ix);
        ix
    }

    pub(super) fn check(&self, queues: &Queues) {
        let mut groups = 0;
        for (ix, profile) in self.slab.iter() {
            assert_eq!(profile.groups.len(), profile.key.len());
            for (place, ((_, queue), at)) in profile.key.iter().zip(&profile.groups).enumerate() {
                let group = &queues.slab[*queue].groups[*at as usize];
                assert_eq!((group.profile, group.place), (ix, place as u32), "group");
            }
            groups += profile.groups.len();
        }
        let known = queues.slab.iter().map(|(_, queue)| queue.groups.len());
        assert_eq!(
            known.sum::<usize>(),
            groups,
            "groups of queues and profiles"
        );
    }

    /// One worker less has this list.
    pub(super) fn release(&mut self, ix: u32, queues: &mut Queues) {
        let profile = &mut self.slab[ix];
        profile.refs -= 1;
        if profile.refs > 0 {
            return;
        }
        let profile = self.slab.remove(ix).expect("a profile in use");
        self.by_key.remove(&profile.key);
        for ((_, queue), at) in profile.key.iter().zip(profile.groups) {
            let groups = &mut queues.slab[*queue].groups;
            groups.swap_remove(at as usize);
            if let Some(moved) = groups.get(at as usize) {
                self.slab[moved.profile].groups[moved.place as usize] = at;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_order_weights_from_high_to_low() {
        let weights = [
            f64::MAX,
            20.0,
            10.5,
            1.0,
            f64::MIN_POSITIVE,
            0.0,
            -0.5,
            -3.0,
            f64::MIN,
        ];
        for pair in weights.windows(2) {
            assert!(weight_rank(pair[0]) < weight_rank(pair[1]), "{pair:?}");
        }
        for weight in weights {
            assert_eq!(rank_weight(weight_rank(weight)), weight);
        }
        assert_eq!(weight_rank(0.0), weight_rank(-0.0));
    }
}
