//! Opening the connections of a run and starting its threads.

use super::client::Client;
use super::worker::{Worker, WorkerTemplates};
use super::{Generator, HEARTBEAT_MS, Outcome, Pace, Shared, latency_histogram};
use crate::conn::{Conn, Scratch};
use crate::failure::{Failure, Result};
use crate::handshake::{self, Opened};
use crate::wire;
use crate::wire::Msgid;
use crate::workload::Workload;
use eventmq::addr::Addr;
use mio::{Poll, Token};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Everything that a run's threads need to know.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) workload: Workload,
    pub(crate) frontend: Addr,
    pub(crate) backend: Addr,
    pub(crate) pace: Pace,
    pub(crate) threads: usize,
    /// Longest time without any progress while jobs are outstanding.
    pub(crate) deadline: Duration,
    /// The target is an eMQP broker: it watches heartbeats (`floor` does not understand them).
    pub(crate) is_broker: bool,
}

/// A number that differs between generators running at the same time.
fn run_tag() -> u32 {
    std::process::id() << 14
}

/// Opens all connections, registers the workers, and starts the threads. Clients begin to send
/// when every worker is registered and has offered its slots.
pub(crate) fn spawn(plan: &Plan, shared: &Arc<Shared>) -> Result<Vec<JoinHandle<Result<Outcome>>>> {
    let mut workers = open_workers(plan)?.into_iter();
    let mut clients = open_clients(plan)?.into_iter();
    let start = Instant::now();
    let mut generators = Vec::new();
    for index in 0..plan.threads {
        let share = |total: usize| share_of(total as u64, plan.threads, index) as usize;
        let clients: Vec<_> = clients
            .by_ref()
            .take(share(plan.workload.clients))
            .collect();
        let workers: Vec<_> = workers
            .by_ref()
            .take(share(plan.workload.workers))
            .collect();
        generators.push((index, clients, workers));
    }
    let spawn_one = |(index, clients, workers)| {
        let (plan, shared) = (plan.clone(), Arc::clone(shared));
        thread::Builder::new()
            .name(format!("generator-{index}"))
            .spawn(move || {
                let result =
                    build(&plan, &shared, (clients, workers), start).and_then(Generator::run);
                if result.is_err() {
                    shared
                        .abandon
                        .store(true, std::sync::atomic::Ordering::SeqCst);
                }
                result
            })
            .map_err(|error| Failure::run(format!("cannot start a thread: {error}")))
    };
    generators.into_iter().map(spawn_one).collect()
}

/// The part of `total` that thread `index` of `threads` takes.
fn share_of(total: u64, threads: usize, index: usize) -> u64 {
    let (threads, index) = (threads as u64, index as u64);
    total / threads + u64::from(index < total % threads)
}

type Tagged = (u32, Opened);

fn open_workers(plan: &Plan) -> Result<Vec<Tagged>> {
    let open = |index: usize| {
        let tag = run_tag() + 0x2000 + index as u32;
        let identity = format!("bench-worker-{tag:08x}");
        let mut opened = handshake::connect(&plan.backend, identity.as_bytes())?;
        opened.register_worker(&plan.workload.queue, Msgid::new(tag).bytes())?;
        Ok((tag, opened))
    };
    (0..plan.workload.workers).map(open).collect()
}

fn open_clients(plan: &Plan) -> Result<Vec<Tagged>> {
    let open = |index: usize| {
        let tag = run_tag() + index as u32;
        let identity = format!("bench-client-{tag:08x}");
        Ok((
            tag,
            handshake::connect(&plan.frontend, identity.as_bytes())?,
        ))
    };
    (0..plan.workload.clients).map(open).collect()
}

fn build<'a>(
    plan: &Plan,
    shared: &'a Shared,
    (clients, workers): (Vec<Tagged>, Vec<Tagged>),
    start: Instant,
) -> Result<Generator<'a>> {
    let workload = &plan.workload;
    let poll = Poll::new().map_err(|error| Failure::run(format!("cannot poll: {error}")))?;
    let mut place = 0;
    let mut register = |opened| {
        let token = Token(place);
        place += 1;
        Conn::new(opened, poll.registry(), token)
    };
    let clients: Vec<Client> = clients
        .into_iter()
        .map(|(tag, opened)| Ok(Client::new(register(opened)?, tag, workload.outstanding)))
        .collect::<Result<_>>()?;
    let workers: Vec<Worker> = workers
        .into_iter()
        .map(|(tag, opened)| Ok(Worker::new(register(opened)?, tag)))
        .collect::<Result<_>>()?;
    Ok(Generator {
        shared,
        listed: Vec::with_capacity(clients.len() + workers.len()),
        poll,
        clients,
        workers,
        request: wire::request(&workload.queue, "reply-requested", workload.payload),
        templates: WorkerTemplates::new(),
        scratch: Scratch::new(),
        slots: workload.slots,
        pace: plan.pace,
        threads: plan.threads,
        deadline: plan.deadline,
        heartbeats: plan.is_broker,
        start,
        now_ns: 0,
        latency_ns: latency_histogram(),
        recording: false,
        turn_done: 0,
        turn_accepted: 0,
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
