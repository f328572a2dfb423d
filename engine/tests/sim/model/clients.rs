//! What clients send and what they are owed.

use super::{DEFAULT, Job, Memory, Model, State};
use eventmq::metrics::Counter;

/// Whether the broker knows a queue. An empty one that nobody serves is forgotten some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    No,
    Maybe,
    Yes,
}

/// What one REQUEST says.
#[derive(Debug, Clone, Default)]
pub(crate) struct Request {
    pub(crate) msgid: String,
    pub(crate) queue: String,
    pub(crate) owes: bool,
    pub(crate) timeout_secs: u64,
    /// Length of its body.
    pub(crate) body: usize,
    /// Why it is refused whatever the broker's state.
    pub(crate) bad: Option<&'static str>,
}

/// What the broker shows that the model does not predict.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shown {
    /// Memory in use before the message.
    pub(crate) used: u64,
    /// Queues known before the message.
    pub(crate) queues: u64,
    /// It has refused the message for its number of queues.
    pub(crate) too_many_queues: bool,
}

impl Model {
    pub(crate) fn knows(&self, queue: &str) -> Known {
        let used = |job: &Job| match &job.state {
            State::Waiting => job.queue == queue,
            State::InFlight(_) => job.counted == queue,
            _ => false,
        };
        if self.served(queue) || self.jobs.iter().any(used) {
            Known::Yes
        } else if self.queues_made.contains(queue) {
            Known::Maybe
        } else {
            Known::No
        }
    }

    /// Fewest and most queues the broker may know.
    pub(crate) fn queues_known(&self) -> (u64, u64) {
        let sure = |queue: &&String| *queue != DEFAULT && self.knows(queue) == Known::Yes;
        let made = self.queues_made.iter().filter(|queue| *queue != DEFAULT);
        let least = made.clone().filter(sure).count() as u64;
        (1 + least, 1 + made.count() as u64)
    }

    /// True if an INFORM with these queues has too many. `shown` decides where it cannot be told.
    pub(crate) fn has_too_many_queues(&self, queues: &[(i64, String)], shown: Shown) -> bool {
        let known = queues.iter().map(|(_, name)| self.knows(name));
        let (mut surely_new, mut maybe_new) = (0, 0);
        for known in known {
            surely_new += u64::from(known == Known::No);
            maybe_new += u64::from(known != Known::Yes);
        }
        let above = |new: u64| new > 0 && shown.queues + new > self.rules.max_queues;
        match (above(surely_new), above(maybe_new)) {
            (false, true) => shown.too_many_queues,
            (surely, _) => surely,
        }
    }

    /// A scheduler takes results only if it says so.
    fn takes_results(&self, client: &str) -> bool {
        self.schedulers
            .get(client)
            .is_none_or(|scheduler| scheduler.results)
    }

    pub(crate) fn answer(&mut self, client: &str, text: &str, msgid: &str) {
        if self.clients.contains(client) {
            self.answers
                .push((client.to_owned(), format!("{text} {msgid}")));
        }
    }

    pub(crate) fn reject(&mut self, client: &str, reason: &str, msgid: &str) {
        self.count(match reason {
            "malformed" => Counter::RejectedMalformed,
            "too-large" => Counter::RejectedTooLarge,
            "unsupported" => Counter::RejectedUnsupported,
            "draining" => Counter::RejectedDraining,
            "queue-full" => Counter::RejectedQueueFull,
            "too-many-queues" => Counter::RejectedTooManyQueues,
            "memory-full" => Counter::RejectedMemoryFull,
            "no-scheduler" => Counter::RejectedNoScheduler,
            other => panic!("{other}"),
        });
        if reason != "draining" || self.speaks.contains(client) {
            self.answer(client, reason, msgid);
        }
    }

    /// A REQUEST. True if it is accepted.
    pub(crate) fn request(&mut self, client: &str, request: &Request, shown: Shown) -> bool {
        match self.place(client, request, shown) {
            Some(reason) => {
                self.reject(client, reason, &request.msgid);
                false
            }
            None => {
                self.count(Counter::RequestsAccepted);
                self.answer(client, "ok", &request.msgid);
                true
            }
        }
    }

    /// The reason if it is refused.
    fn place(&mut self, client: &str, request: &Request, shown: Shown) -> Option<&'static str> {
        if request.bad.is_some() {
            return request.bad;
        }
        if self.refuses() {
            return Some("draining");
        }
        let limit = self.rules.max_memory;
        let refusing = self.memory == Memory::Refusing;
        if refusing && shown.used > limit + limit / 8 {
            return Some("memory-full");
        }
        let queue = match request.queue.as_str() {
            "" => DEFAULT,
            name => name,
        };
        let served = self.served(queue);
        let target = if served { queue } else { DEFAULT };
        let chosen = match self.head(target) {
            None => self.choose(target),
            Some(_) => None,
        };
        if chosen.is_none() {
            let hwm = self.rules.hwm;
            let known = self.knows(queue);
            if refusing {
                return Some("memory-full");
            }
            if served && hwm > 0 && queue != DEFAULT && self.waiting_in(queue) >= hwm {
                return Some("queue-full");
            }
            let no_place = known != Known::Yes && shown.queues >= self.rules.max_queues;
            if no_place && (known == Known::No || shown.too_many_queues) {
                return Some("too-many-queues");
            }
            self.queues_made.insert(queue.to_owned());
        }
        let owes = request.owes && self.takes_results(client);
        self.jobs.push(Job {
            msgid: request.msgid.clone(),
            queue: queue.to_owned(),
            open: !served,
            client: owes.then(|| client.to_owned()),
            replies: request.owes,
            timeout_secs: request.timeout_secs,
            handed: 0,
            counted: String::new(),
            state: State::Waiting,
            epoch: 0,
            body: request.body,
            kept: false,
        });
        if let Some(id) = chosen {
            self.give(&id, target, self.jobs.len() - 1);
        }
        None
    }

    /// A result for the client of `job`.
    pub(super) fn result(&mut self, job: usize, text: &str) {
        let client = self.jobs[job].client.clone();
        let Some(client) = client.filter(|client| self.takes_results(client)) else {
            return self.count(Counter::ResultsNotAsked);
        };
        if self.clients.contains(&client) {
            self.count(Counter::ResultsForwarded);
            self.results.push((client, text.to_owned()));
        } else {
            self.count(Counter::ResultsClientGone);
        }
    }

    /// Unfinished things that may have something for a client.
    pub(crate) fn owed_to(&self, client: &str) -> usize {
        let open = |job: &&Job| matches!(job.state, State::Waiting | State::InFlight(_));
        let own = |job: &&Job| job.client.as_deref() == Some(client);
        self.jobs.iter().filter(open).filter(own).count() + self.schedulers.held_for(client)
    }

    /// A message of a worker that is not registered. True if `tell` and it is told so.
    pub(crate) fn unregistered(&mut self, id: &str, tell: bool, connected: bool) {
        self.count(Counter::IgnoredUnregistered);
        self.told(id, tell, connected);
    }

    /// As [`Model::unregistered`] of a REPLY, which is counted by the job that it names.
    pub(crate) fn told(&mut self, id: &str, tell: bool, connected: bool) {
        if tell && connected {
            self.count(Counter::DisconnectsSent);
            self.disconnects.push(id.to_owned());
        }
    }
}
