//! What must hold when everything is at rest.

use super::World;
use super::peers::Link;
use crate::link::{CloseReason, OutClass, Outbox};
use crate::metrics::Counter;
use crate::server::inline;

impl World {
    /// Whoever sleeps, with nothing on its way to wake it, has nothing to do.
    pub(super) fn check_sleepers(&mut self) {
        let now = self.now;
        for (number, io) in self.ios.iter_mut().enumerate() {
            if io.thread.is_runnable(now.mono_ns) {
                continue;
            }
            let more = match &mut io.ends {
                Some(ends) => ends.has_work(&mut io.table),
                None => inline::has_work(&mut io.table, &mut self.witness, &self.orders, now),
            };
            assert!(!more, "agent {number} sleeps with work");
        }
        if let Some(apart) = &self.apart
            && !apart.thread.is_runnable(now.mono_ns)
        {
            let more = apart.ends.has_work(&self.witness, &self.orders);
            assert!(!more, "the dispatch sleeps with work");
        }
    }

    pub(super) fn check_rest(&mut self) {
        assert!(!self.witness.dispatch.broker.has_pending_output());
        assert!(!self.renderer.has_work() && !self.witness.dispatch.admin.has_answers());
        for link in &self.links {
            self.check_input(link);
        }
        let workers = self.witness.dispatch.broker.workers(self.now).workers;
        let slow = workers.iter().any(|worker| worker.state == "slow");
        assert!(
            !slow,
            "the output of a worker has drained, and nobody was told"
        );
        if let Some(apart) = &mut self.apart {
            let outbox = &mut apart.ends.outbox;
            assert_eq!(outbox.bytes_under_way(), 0, "bytes in rings");
            assert!(!outbox.needs_flush() && outbox.has_room());
            assert!(apart.ends.inputs.iter().all(|(r, _)| r.is_empty()));
            for link in self.links.iter().filter(|l| l.is_alive()) {
                let pending = outbox.pending_bytes(link.conn);
                assert_eq!(
                    pending, 0,
                    "{}: bytes handed over and not written",
                    link.conn
                );
            }
        }
        for io in &mut self.ios {
            assert_eq!(io.table.outs.total_pending_bytes(), 0, "output");
            assert_eq!(io.table.partial_bytes(), 0, "partial messages");
            if let Some(ends) = &io.ends {
                assert_eq!(ends.sink.bytes_under_way(), 0, "bytes in rings");
                assert!(ends.receiver.is_empty());
            }
        }
        self.check_output();
    }

    /// What was read has been told, and what has arrived has been read.
    fn check_input(&self, link: &Link) {
        let Some(seen) = self.witness.log.conns.get(&link.conn) else {
            assert!(link.sent.is_empty() || link.ended, "{}", link.conn);
            return;
        };
        let (arrived, read) = {
            let wire = link.peer.wire();
            (wire.arrived_total, wire.read_total)
        };
        let must = match seen.close {
            None => arrived,
            Some(CloseReason::Replaced) => read,
            Some(_) => 0,
        };
        let told = seen.told.len();
        assert!(
            told <= link.sent.len(),
            "{}: more told than sent",
            link.conn
        );
        let sent: Vec<_> = link.sent[..told]
            .iter()
            .map(|(_, digest)| *digest)
            .collect();
        assert_eq!(seen.told, sent, "{}: messages in order", link.conn);
        let whole = link.sent.iter().filter(|(end, _)| *end <= must).count();
        assert!(
            told >= whole,
            "{} ({}): {told} messages told of {whole} that came",
            link.conn,
            link.routing_id
        );
        assert!(
            !link.ended || seen.lost,
            "{}: its end was not seen",
            link.conn
        );
        assert!(
            !seen.lost || seen.closed,
            "{}: its end is not over",
            link.conn
        );
    }

    /// What was put out has arrived, came back, or is counted.
    fn check_output(&self) {
        let (mut arrived, mut returned, mut missing) = (0, 0, 0);
        for (conn, seen) in &self.witness.log.conns {
            let link = self.links.iter().find(|l| l.conn == *conn).unwrap();
            let back = seen.unsent.iter().rev();
            let mut found = link.received.iter().chain(back).peekable();
            for (class, digest) in &seen.put_out {
                if found.next_if(|next| *next == digest).is_none() {
                    missing += 1;
                    assert_ne!(*class, OutClass::Work, "{conn}: a job is missing");
                }
            }
            assert!(found.next().is_none(), "{conn}: output out of order");
            arrived += link.received.len();
            returned += seen.unsent.len();
        }
        let count = |counter| -> u64 {
            let ios = self.ios.iter();
            ios.map(|io| io.table.counters().get(counter)).sum()
        };
        let dropped = [
            Counter::NoticesDropped,
            Counter::ResultsDropped,
            Counter::OutputToGone,
        ];
        let dropped: u64 = dropped.into_iter().map(count).sum();
        assert_eq!(
            missing, dropped,
            "output missing and output counted as dropped"
        );
        let sent = count(Counter::MessagesSent);
        assert_eq!(sent, (arrived + returned) as u64, "messages sent");
        let told = self.witness.log.conns.values().map(|s| s.told.len() as u64);
        assert_eq!(
            count(Counter::MessagesReceived),
            told.sum::<u64>(),
            "messages"
        );
        let figures = self.witness.dispatch.broker.figures();
        let answered = [
            Counter::RequestsAccepted,
            Counter::RejectedMalformed,
            Counter::RejectedQueueFull,
            Counter::RejectedDraining,
        ];
        let answered: u64 = answered.map(|c| figures.counters.get(c)).iter().sum();
        assert_eq!(self.witness.log.requests, answered, "REQUESTs");
        let jobs = figures.counters.get(Counter::JobsHandedOut);
        assert_eq!(self.witness.log.jobs_put_out, jobs, "jobs handed out");
    }
}
