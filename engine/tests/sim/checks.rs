//! What must hold after every step, and when the broker has ended.

use super::model::{Phase, State};
use super::parts::frames_of;
use super::world::World;
use eventmq::link::CloseReason;
use eventmq::metrics::Counter;
use std::collections::BTreeSet;

/// Ends of a job.
const ENDS: [Counter; 6] = [
    Counter::JobsDone,
    Counter::JobsFailed,
    Counter::JobsTimedOut,
    Counter::JobsLost,
    Counter::JobsUnknown,
    Counter::JobsAbandoned,
];

/// Counters that the model predicts besides.
const PREDICTED: [Counter; 19] = [
    Counter::RequestsAccepted,
    Counter::RejectedMalformed,
    Counter::RejectedQueueFull,
    Counter::RejectedTooManyQueues,
    Counter::RejectedMemoryFull,
    Counter::RejectedDraining,
    Counter::RejectedNoScheduler,
    Counter::RejectedTooLarge,
    Counter::RejectedUnsupported,
    Counter::JobsHandedOut,
    Counter::JobsReturned,
    Counter::ResultsForwarded,
    Counter::RepliesUnknown,
    Counter::RepliesLate,
    Counter::SlotsOverLimit,
    Counter::SchedulesForwarded,
    Counter::SchedulesDropped,
    Counter::DisconnectsSent,
    Counter::IgnoredUnregistered,
];

/// What was put out since the last look, by kind.
#[derive(Default)]
struct Seen {
    hand_outs: Vec<(String, String)>,
    schedules: Vec<(String, String)>,
    results: Vec<(String, String)>,
    answers: Vec<(String, String)>,
    disconnects: Vec<String>,
    farewells: Vec<String>,
    acks: Vec<(String, String)>,
}

impl World {
    fn take_output(&mut self) -> Seen {
        let mut seen = Seen::default();
        for (conn, wire) in std::mem::take(&mut self.out.log) {
            let frames = frames_of(&wire);
            self.note(|| format!("    -> {conn} {}", frames[2..].join(" ")));
            let link = self
                .links
                .get_mut(&conn)
                .expect("output for an open connection");
            let id = link.id.clone();
            let text = |word: &str, at: usize| format!("{word} {}", frames[at]);
            match frames[2].as_str() {
                "REQUEST" => seen.hand_outs.push((id, frames[3].clone())),
                "REPLY" if frames.len() == 5 => seen.answers.push((id, text("ok", 4))),
                "REPLY" if frames[4].contains("JobLost") => {
                    seen.results.push((id, text("lost", 5)))
                }
                "REPLY" if frames[4].contains("BrokerStopped") => {
                    seen.results.push((id, text("stopped", 5)));
                }
                "REPLY" if frames[4].contains("\"error\"") => {
                    seen.results
                        .push((id, format!("made {} {}", frames[6], frames[5])));
                }
                "REPLY" => seen.results.push((id, text("result", 5))),
                "REJECT" => seen.answers.push((id, text(&frames[5], 4))),
                "SCHEDULE" | "UNSCHEDULE" => seen.schedules.push((id, text(&frames[2], 3))),
                "DISCONNECT" => seen.disconnects.push(id),
                "KBYE" => seen.farewells.push(id),
                "ACK" => seen.acks.push((id, frames[4].clone())),
                "HEARTBEAT" => {}
                other => panic!("unexpected {other}"),
            }
            link.incoming.push_back(wire);
        }
        seen
    }

    /// Compares what the broker did with what the model says.
    pub(crate) fn compare(&mut self) {
        let mut seen = self.take_output();
        let expected = std::mem::take(&mut self.model.hand_outs);
        let expected: Vec<_> = expected
            .into_iter()
            .map(|(worker, job)| (worker, self.model.jobs[job].msgid.clone()))
            .collect();
        assert_eq!(seen.hand_outs, expected, "hand-outs");
        let mut expected = std::mem::take(&mut self.model.results);
        expected.sort();
        seen.results.sort();
        assert_eq!(seen.results, expected, "results");
        let mut expected = std::mem::take(&mut self.model.answers);
        if self.model.phase == Phase::Finished {
            // Schedulers are let go in the order of a table.
            expected.sort();
            seen.answers.sort();
        }
        assert_eq!(seen.answers, expected, "acceptances and refusals");
        let expected = std::mem::take(&mut self.model.schedulers.sent);
        assert_eq!(seen.schedules, expected, "schedules");
        let expected = std::mem::take(&mut self.model.disconnects);
        assert_eq!(seen.disconnects, expected, "DISCONNECTs");
        let mut expected = std::mem::take(&mut self.model.farewells);
        let removed = &self.model.schedulers.removed;
        seen.farewells
            .retain(|id| expected.contains(id) || !removed.contains(id));
        expected.sort();
        seen.farewells.sort();
        assert_eq!(seen.farewells, expected, "KBYEs");
        let expected = std::mem::take(&mut self.acks);
        assert_eq!(seen.acks, expected, "ACKs");
        self.compare_workers();
        self.compare_figures();
        self.compare_connections();
    }

    fn compare_workers(&self) {
        let shown = self.broker.workers(self.now).workers;
        let shown: Vec<_> = shown
            .into_iter()
            .map(|w| (String::from_utf8(w.id).unwrap(), w.free_slots, w.in_flight))
            .collect();
        let workers = self.model.workers.iter();
        let expected: Vec<_> = workers
            .map(|(id, w)| (id.clone(), w.free, w.jobs.len() as u64))
            .collect();
        assert_eq!(shown, expected, "free slots and jobs of the workers");
        let shown = self.broker.schedulers(self.now).schedulers;
        let shown: Vec<_> = shown
            .into_iter()
            .map(|(id, _)| String::from_utf8(id).unwrap())
            .collect();
        assert_eq!(shown, self.model.schedulers.ids(), "schedulers");
    }

    fn compare_figures(&self) {
        let figures = self.broker.figures();
        for counter in PREDICTED.iter().chain(&ENDS) {
            let counted = figures.counters.get(*counter);
            assert_eq!(counted, self.model.counted(*counter), "{counter:?}");
        }
        // When a scheduler and the worker of its job are given up at the same moment, either may come
        // first: its result is one that it did not ask for, or one for nobody.
        let without_taker = [Counter::ResultsNotAsked, Counter::ResultsClientGone];
        let counted = without_taker.map(|counter| figures.counters.get(counter));
        let predicted = without_taker.map(|counter| self.model.counted(counter));
        let sums = [counted, predicted].map(|counts| counts.iter().sum::<u64>());
        assert_eq!(sums[0], sums[1], "{without_taker:?}");
        // The model is told once a step what is used: it does not see a pause that ends in the step
        // in which it began.
        let pauses = figures.counters.get(Counter::InputPaused);
        assert!(
            pauses >= self.model.counted(Counter::InputPaused),
            "{pauses}"
        );
        assert_eq!(figures.jobs_waiting, self.model.waiting() as u64, "waiting");
        let ended: u64 = ENDS.iter().map(|end| figures.counters.get(*end)).sum();
        assert_eq!(
            figures.counters.get(Counter::RequestsAccepted),
            ended + figures.jobs_waiting + figures.jobs_in_flight,
            "accepted jobs and what became of them"
        );
        let (least, most) = self.model.queues_known();
        assert!(
            (least..=most).contains(&figures.queues),
            "{} queues, between {least} and {most} expected",
            figures.queues
        );
        assert_eq!(figures.input_paused, self.out.paused, "reading of clients");
        // At the very end nobody looks any more.
        if self.model.phase != Phase::Finished {
            assert_eq!(self.out.paused, self.model.is_paused(), "reading");
        }
    }

    /// Who is read while others are not, and who has been let go.
    fn compare_connections(&mut self) {
        for (conn, reason) in std::mem::take(&mut self.out.closed) {
            if reason == CloseReason::Shutdown {
                assert!(self.closing.insert(conn), "{conn} is closed once");
            }
        }
        let phase = self.model.phase;
        for (id, conn) in &self.newest {
            let link = &self.links[conn];
            let closed = self.closing.contains(conn);
            if phase == Phase::Finished {
                assert!(closed, "{id} has been let go");
            } else if link.worker || phase < Phase::Waiting {
                assert!(!closed, "{id} is let go too early");
            } else {
                let owed = self.model.owed_to(id);
                assert!(!closed || owed == 0, "{id} is let go, owed {owed}");
                if id.starts_with('c') && !self.held_some.contains(id) {
                    assert!(closed || owed > 0, "{id} is owed nothing and kept");
                }
            }
            if !link.worker {
                let scheduler = self.model.schedulers.get(id).is_some();
                let never = self.out.never_paused.contains(conn);
                assert_eq!(never, scheduler, "{id} is read whatever happens");
            }
        }
    }

    /// Ends the broker, in order or at once, and balances the books.
    pub(crate) fn finish(mut self, skipped: &BTreeSet<u64>) {
        if self.rng.chance(60) {
            self.note(|| "drain".to_owned());
            self.broker.begin_shutdown(self.now, &mut self.out);
            self.model.begin_drain();
            self.settle();
            let until_ns = self.now.mono_ns + self.model.rules.drain_ms * 1_000_000;
            for step in 1_000..1_000 + self.rng.below(60) {
                if self.now.mono_ns >= until_ns || self.broker.is_finished() {
                    break;
                }
                if !skipped.contains(&step) {
                    self.step();
                }
            }
            while !self.broker.is_finished() {
                assert!(self.now.mono_ns <= until_ns, "the drain takes too long");
                let left_ms = until_ns.saturating_sub(self.now.mono_ns) / 1_000_000;
                self.sleep(left_ms.clamp(1, 500));
            }
        } else {
            self.note(|| "end at once".to_owned());
            self.broker.end_shutdown(self.now, &mut self.out);
            self.model.goodbye();
            self.settle();
        }
        assert!(self.broker.is_finished() && self.model.phase == Phase::Finished);
        let figures = self.broker.figures();
        assert_eq!((figures.workers, figures.schedulers), (0, 0));
        assert_eq!((figures.jobs_waiting, figures.jobs_in_flight), (0, 0));
        assert_eq!(figures.job_bytes, 0, "memory at the end");
        assert!(self.model.jobs.iter().all(|job| job.state == State::Ended));
        while !self.links.is_empty() {
            self.lose_someone();
        }
    }
}
