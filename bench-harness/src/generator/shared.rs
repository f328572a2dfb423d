//! What the threads of a run and their coordinator share.

use super::board::{Board, JobRef};
use super::tally::Tally;
use mio::Waker;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// A thread answers the coordinator within its longest sleep and one turn.
const ANSWER_MS_MAX: u64 = 500;

/// Counters and switches of a run.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Jobs finished, summed over all threads once per turn of each.
    pub(crate) done: AtomicU64,
    /// Jobs accepted, likewise.
    pub(crate) accepted: AtomicU64,
    /// Send no more REQUESTs.
    pub(crate) stop: AtomicBool,
    /// Put latencies into the histograms.
    pub(crate) record: AtomicBool,
    /// End now: another thread has failed.
    pub(crate) abandon: AtomicBool,
    /// Threads that have no job outstanding and send none.
    pub(crate) threads_done: AtomicUsize,
    /// When a worker was killed last, in the generator's time; 0: none was.
    pub(crate) killed_ns: AtomicU64,
    desks: Vec<Desk>,
}

/// Where one thread puts down its tally when the coordinator asks for it.
#[derive(Debug, Default)]
struct Desk {
    asked: AtomicBool,
    /// An empty one from the coordinator, for which the thread leaves its own.
    tally: Mutex<Option<Box<Tally>>>,
}

impl Shared {
    pub(crate) fn new(threads: usize) -> Self {
        Shared {
            done: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            record: AtomicBool::new(false),
            abandon: AtomicBool::new(false),
            threads_done: AtomicUsize::new(0),
            killed_ns: AtomicU64::new(0),
            desks: (0..threads).map(|_| Desk::default()).collect(),
        }
    }

    /// Takes what all threads have counted since the last time. A thread that does not answer in
    /// time (it was stopped, or has ended) has its part in the next answer, or in its outcome.
    pub(crate) fn collect(&self) -> Tally {
        for desk in &self.desks {
            if !desk.asked.load(Ordering::Acquire) {
                *lock(&desk.tally) = Some(Box::new(Tally::new()));
                desk.asked.store(true, Ordering::Release);
            }
        }
        let until = Instant::now() + Duration::from_millis(ANSWER_MS_MAX);
        let is_open = |desk: &Desk| desk.asked.load(Ordering::Acquire);
        while self.desks.iter().any(is_open)
            && Instant::now() < until
            && self.threads_done.load(Ordering::SeqCst) == 0
        {
            thread::sleep(Duration::from_millis(1));
        }
        let mut sum = Tally::new();
        for desk in self.desks.iter().filter(|desk| !is_open(desk)) {
            if let Some(tally) = lock(&desk.tally).take() {
                sum.add(&tally);
            }
        }
        sum
    }

    /// Called by thread `index` once per turn.
    #[inline]
    pub(crate) fn hand_over(&self, index: usize, tally: &mut Box<Tally>) {
        let desk = &self.desks[index];
        if desk.asked.load(Ordering::Acquire) {
            if let Some(left) = lock(&desk.tally).as_mut() {
                std::mem::swap(left, tally);
            }
            desk.asked.store(false, Ordering::Release);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A worker is done with a job that asks for no result.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Worked {
    pub(crate) job: JobRef,
    pub(crate) at_ns: u64,
}

/// How a thread reaches the client of a job that one of its workers has done.
#[derive(Debug)]
pub(crate) struct Links {
    pub(crate) board: Board,
    /// Thread and index there, by client.
    pub(crate) routes: Vec<(usize, usize)>,
    /// By thread.
    pub(crate) threads: Vec<Link>,
}

/// The way to one thread.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) worked: Mutex<Sender<Worked>>,
    pub(crate) waker: Waker,
}

impl Link {
    /// Sends; a thread that has ended needs to know nothing.
    pub(crate) fn send(&self, worked: Worked) {
        let _ = lock(&self.worked).send(worked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_count_is_collected_once() {
        let shared = Shared::new(2);
        thread::scope(|scope| {
            for index in 0..2 {
                let shared = &shared;
                scope.spawn(move || {
                    let mut tally = Box::new(Tally::new());
                    for _ in 0..1_000 {
                        tally.done += 1;
                        shared.hand_over(index, &mut tally);
                    }
                    while !shared.stop.load(Ordering::Relaxed) {
                        shared.hand_over(index, &mut tally);
                        thread::yield_now();
                    }
                    assert_eq!(tally.done, 0);
                });
            }
            let mut sum = 0;
            let until = Instant::now() + Duration::from_secs(20);
            while sum < 2_000 && Instant::now() < until {
                sum += shared.collect().done;
            }
            assert_eq!(shared.collect().done, 0);
            shared.stop.store(true, Ordering::Relaxed);
            assert_eq!(sum, 2_000);
        });
    }
}
