//! Opening the connections of a run and starting its threads.

use super::board::Board;
use super::client::Client;
use super::incident::Incidents;
use super::jobs::Jobs;
use super::requests::{Manners, Requests};
use super::shared::{Link, Links, Shared, Worked};
use super::tally::Tally;
use super::timer::Timer;
use super::worker::{Worker, WorkerTemplates};
use super::{Generator, HEARTBEAT_MS, Order, Outcome, Pace, TIMER, WAKER};
use crate::conn::{Conn, Scratch};
use crate::failure::{Failure, Result};
use crate::handshake::Opened;
use crate::service::Random;
use crate::transport::Transport;
use crate::wire::Msgid;
use crate::workload::Workload;
use eventmq::addr::Addr;
use mio::{Poll, Token, Waker};
use std::collections::BinaryHeap;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Everything that a run's threads need to know.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) workload: Workload,
    pub(crate) frontend: Addr,
    pub(crate) backend: Addr,
    pub(crate) transport: Transport,
    pub(crate) manners: Manners,
    pub(crate) pace: Pace,
    pub(crate) threads: usize,
    /// Longest time without any progress while jobs are outstanding.
    pub(crate) deadline: Duration,
    /// The target is an eMQP broker: it watches heartbeats (`floor` does not understand them).
    pub(crate) is_broker: bool,
    /// Incidents are noted instead of ending the run.
    pub(crate) tolerant: bool,
}

/// First tag of workers; those of clients begin at 0.
const WORKER_TAGS: u32 = 0x2000;

/// A number that differs between generators running at the same time.
fn run_tag() -> u32 {
    std::process::id() << 14
}

/// The threads of a running generator.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) threads: Vec<JoinHandle<Result<Outcome>>>,
    /// By thread.
    pub(crate) orders: Vec<Sender<Order>>,
    links: Arc<Links>,
}

impl Running {
    /// Number of clients and workers of thread `index`.
    pub(crate) fn sizes(plan: &Plan, index: usize) -> (usize, usize) {
        let share = |total: usize| share_of(total as u64, plan.threads, index) as usize;
        (share(plan.workload.clients), share(plan.workload.workers))
    }

    /// Gives thread `index` an order. A thread that has ended obeys none.
    pub(crate) fn order(&self, index: usize, order: Order) {
        let _ = self.orders[index].send(order);
        let _ = self.links.threads[index].waker.wake();
    }
}

/// Opens all connections, registers the workers, and starts the threads. Clients begin to send
/// when every worker is registered and has offered its slots.
pub(crate) fn spawn(plan: &Plan, shared: &Arc<Shared>) -> Result<Running> {
    let tag = run_tag();
    let workload = &plan.workload;
    let mut workers = (0..workload.workers)
        .map(|index| open_worker(plan, index, 0))
        .collect::<Result<Vec<_>>>()?
        .into_iter();
    let mut clients = (0..workload.clients)
        .map(|index| open_client(plan, index, 0))
        .collect::<Result<Vec<_>>>()?
        .into_iter()
        .enumerate();
    let start = Instant::now();
    let mut links = Links {
        board: Board::new(tag, workload.clients, workload.outstanding),
        routes: Vec::with_capacity(workload.clients),
        threads: Vec::new(),
    };
    let mut shares = Vec::new();
    let mut first_worker = 0;
    for index in 0..plan.threads {
        let share = |total: usize| share_of(total as u64, plan.threads, index) as usize;
        let cannot = |error| Failure::run(format!("cannot poll: {error}"));
        let poll = Poll::new().map_err(cannot)?;
        let waker = Waker::new(poll.registry(), WAKER).map_err(cannot)?;
        let (worked, worked_here) = mpsc::channel();
        let worked = Mutex::new(worked);
        links.threads.push(Link { worked, waker });
        let (order, orders) = mpsc::channel();
        let clients: Vec<_> = clients.by_ref().take(share(workload.clients)).collect();
        links
            .routes
            .extend((0..clients.len()).map(|at| (index, at)));
        let workers: Vec<_> = workers.by_ref().take(share(workload.workers)).collect();
        let part = Part {
            index,
            poll,
            clients,
            first_worker,
            worked_here,
            orders,
        };
        first_worker += workers.len();
        shares.push((part, workers, order));
    }
    let links = Arc::new(links);
    let (mut threads, mut orders) = (Vec::new(), Vec::new());
    for (part, workers, order) in shares {
        orders.push(order);
        let (plan, shared, links) = (plan.clone(), Arc::clone(shared), Arc::clone(&links));
        let thread = thread::Builder::new()
            .name(format!("generator-{}", part.index))
            .spawn(move || {
                let result =
                    build(&plan, &shared, &links, part, workers, start).and_then(Generator::run);
                if result.is_err() {
                    shared.abandon.store(true, Ordering::SeqCst);
                }
                result
            })
            .map_err(|error| Failure::run(format!("cannot start a thread: {error}")))?;
        threads.push(thread);
    }
    Ok(Running {
        threads,
        orders,
        links,
    })
}

/// The part of `total` that thread `index` of `threads` takes.
fn share_of(total: u64, threads: usize, index: usize) -> u64 {
    let (threads, index) = (threads as u64, index as u64);
    total / threads + u64::from(index < total % threads)
}

/// Connects and registers worker `index` of all; `life` is above 0 when it was killed before.
pub(crate) fn open_worker(plan: &Plan, index: usize, life: u32) -> Result<Opened> {
    let tag = run_tag() + WORKER_TAGS + index as u32;
    let identity = format!("bench-worker-{tag:08x}-{life}");
    let mut opened = plan.transport.connect(&plan.backend, identity.as_bytes())?;
    let queues = plan.workload.queues_of_worker(index);
    opened.register_worker_of(&queues, Msgid::new(tag).bytes())?;
    Ok(opened)
}

/// Connects client `index` of all; `life` is above 0 when it restarts.
pub(crate) fn open_client(plan: &Plan, index: usize, life: u32) -> Result<Opened> {
    let tag = run_tag() + index as u32;
    let identity = format!("bench-client-{tag:08x}-{life}");
    plan.transport.connect(&plan.frontend, identity.as_bytes())
}

/// What one thread has for its own.
struct Part {
    index: usize,
    poll: Poll,
    /// With their indices over all threads.
    clients: Vec<(usize, Opened)>,
    /// Index of the first worker over all threads.
    first_worker: usize,
    worked_here: Receiver<Worked>,
    orders: Receiver<Order>,
}

fn build<'a>(
    plan: &Plan,
    shared: &'a Shared,
    links: &'a Links,
    part: Part,
    workers: Vec<Opened>,
    start: Instant,
) -> Result<Generator<'a>> {
    let workload = &plan.workload;
    let poll = part.poll;
    let mut place = 0;
    let mut register = |opened| {
        let token = Token(place);
        place += 1;
        Conn::new(opened, poll.registry(), token)
    };
    let strict = plan.manners == Manners::Full;
    let clients: Vec<Client> = part
        .clients
        .into_iter()
        .map(|(index, opened)| {
            let tag = run_tag() + index as u32;
            let jobs = Jobs::new(index, tag, workload.outstanding, strict);
            Ok(Client::new(register(opened)?, jobs, index))
        })
        .collect::<Result<_>>()?;
    let tag = run_tag() + WORKER_TAGS + part.first_worker as u32;
    let workers: Vec<Worker> = workers
        .into_iter()
        .zip(tag..)
        .map(|(opened, tag)| Ok(Worker::new(register(opened)?, tag, 0)))
        .collect::<Result<_>>()?;
    Ok(Generator {
        index: part.index,
        shared,
        links,
        listed: Vec::with_capacity(clients.len() + workers.len()),
        again: Vec::new(),
        timer: Timer::new(poll.registry(), TIMER)?,
        poll,
        clients,
        workers,
        worker_tag: tag,
        requests: Requests::new(workload, plan.manners)?,
        templates: WorkerTemplates::new(),
        scratch: Scratch::new(),
        slots: workload.slots,
        service: workload.service,
        fail_share: workload.fail_share,
        random: Random::new(0x5eed_0000 + part.index as u64),
        in_service: BinaryHeap::new(),
        in_service_number: 0,
        worked: Vec::new(),
        worked_here: part.worked_here,
        orders: part.orders,
        pace: plan.pace,
        threads: plan.threads,
        deadline: plan.deadline,
        heartbeats: plan.is_broker,
        tolerant: plan.tolerant,
        incidents: Incidents::default(),
        start,
        now_ns: 0,
        tally: Box::new(Tally::new()),
        recording: false,
        turn: (0, 0),
        outstanding: 0,
        next_due: 0,
        last_progress_ns: 0,
        next_heartbeat_ns: HEARTBEAT_MS * 1_000_000,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up() {
        for (total, threads) in [(10_u64, 3_usize), (2, 4), (0, 1), (7, 7)] {
            let sum: u64 = (0..threads)
                .map(|index| share_of(total, threads, index))
                .sum();
            assert_eq!(sum, total);
        }
    }
}
