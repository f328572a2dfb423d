//! What the coordinator of a soak does to the connections of a running generator.

use super::Generator;
use super::worker::Worker;
use crate::conn::Conn;
use crate::failure::Result;
use crate::handshake::Opened;
use mio::Token;
use std::sync::atomic::Ordering;

/// An order to one thread. Indices are those of the thread.
#[derive(Debug)]
pub(crate) enum Order {
    /// The worker's connection breaks, without a word.
    KillWorker(usize),
    /// A killed worker is back, registered on this connection.
    ReviveWorker(usize, Opened),
    /// The client reads nothing for so long.
    PauseClient(usize, u64),
    /// The client has gone without a word; another process takes its place on this connection.
    RestartClient(usize, Opened),
}

impl Generator<'_> {
    pub(super) fn obey_orders(&mut self) -> Result<()> {
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::KillWorker(at) => {
                    self.shared.killed_ns.store(self.now_ns, Ordering::Relaxed);
                    self.workers[at].conn.close();
                }
                Order::ReviveWorker(at, opened) => {
                    let token = self.clients.len() + at;
                    let conn = Conn::new(opened, self.poll.registry(), Token(token))?;
                    let tag = self.worker_tag + at as u32;
                    let life = self.workers[at].life + 1;
                    self.workers[at] = Worker::new(conn, tag, life);
                    self.workers[at].offer(self.slots, &self.templates);
                    self.list(token);
                    self.again.push(token);
                }
                Order::PauseClient(at, for_ns) => {
                    self.clients[at].paused_until_ns = Some(self.now_ns + for_ns);
                }
                Order::RestartClient(at, opened) => self.restart_client(at, opened)?,
            }
        }
        Ok(())
    }

    fn restart_client(&mut self, at: usize, opened: Opened) -> Result<()> {
        let conn = Conn::new(opened, self.poll.registry(), Token(at))?;
        let client = &mut self.clients[at];
        client.conn = conn;
        client.paused_until_ns = None;
        let abandoned = client.jobs.abandon();
        self.outstanding -= abandoned;
        self.tally.abandoned += abandoned;
        self.fill_window(at);
        self.list(at);
        self.again.push(at);
        Ok(())
    }

    /// Reads again what a client has left lying for long enough.
    pub(super) fn end_pauses(&mut self) -> Result<()> {
        if !self.tolerant {
            // Only a soak pauses clients.
            return Ok(());
        }
        for at in 0..self.clients.len() {
            if self.clients[at]
                .paused_until_ns
                .is_some_and(|until_ns| until_ns <= self.now_ns)
            {
                self.clients[at].paused_until_ns = None;
                self.serve(at)?;
            }
        }
        Ok(())
    }
}
