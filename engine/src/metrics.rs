//! The one catalogue of counters and reason codes. Documentation and COUNTERS come from it.
//!
//! Every refusal, drop, loss and close has an entry. Each agent counts in a [`Counters`] of its
//! own (no sharing, no atomics); snapshots are added up outside the hot path.

macro_rules! catalogue {
    ($( $(#[$group:meta])* $variant:ident, $name:literal, $help:literal; )*) => {
        /// One counter of the catalogue.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Counter {
            $(
                #[doc = $help]
                $variant,
            )*
        }

        impl Counter {
            /// All counters in catalogue order.
            pub const ALL: &'static [Counter] = &[$(Counter::$variant,)*];

            /// The name used in COUNTERS, logs and documentation.
            pub fn name(self) -> &'static str {
                match self { $(Counter::$variant => $name,)* }
            }

            /// One line for people.
            pub fn help(self) -> &'static str {
                match self { $(Counter::$variant => $help,)* }
            }
        }
    };
}

catalogue! {
    // Connections.
    ConnectionsAccepted, "connections_accepted", "connections accepted from listeners";
    ConnectionsDialled, "connections_dialled", "connections made to others";
    HandshakesCompleted, "handshakes_completed", "ZMTP handshakes completed";
    ConnectionsClosedByPeer, "closed_by_peer", "connections that ended with end of file or reset";
    ConnectionsClosedGreeting, "closed_greeting", "connections closed: the greeting is not ZMTP 3.x";
    ConnectionsClosedOldZmtp, "closed_old_zmtp", "connections closed: the peer speaks ZMTP 1 or 2";
    ConnectionsClosedMechanism, "closed_mechanism", "connections closed: security mechanism differs";
    ConnectionsClosedHandshake, "closed_handshake", "connections closed: bad handshake command or metadata";
    ConnectionsClosedHandshakeTimeout, "closed_handshake_timeout", "connections closed: handshake not finished in time";
    ConnectionsClosedProtocol, "closed_protocol", "connections closed: ZMTP violation after the handshake";
    ConnectionsClosedError, "closed_error_command", "connections closed: the peer sent a ZMTP ERROR";
    ConnectionsClosedTooLarge, "closed_too_large", "connections closed: message above twice the size limit";
    ConnectionsClosedNotReading, "closed_not_reading", "connections closed: the peer asked for answers and took no byte of them";
    ConnectionsThrottled, "connections_throttled", "times a connection was not read because its peer did not take the answers it had asked for";
    ConnectionsClosedReplaced, "closed_replaced", "connections closed: a newer one has the same routing id";
    ConnectionsRefusedTakeover, "refused_takeover", "connections refused: routing id taken over too often";
    ConnectionsRefusedLimit, "refused_connection_limit", "connections refused: the socket has its maximum";
    ConnectionsClosedShutdown, "closed_shutdown", "connections closed at shutdown";
    ConnectionsClosedMemory, "closed_partial_memory", "connections closed: stalled partial message under memory pressure";
    AcceptErrors, "accept_errors", "accept failed (out of file descriptors, usually); retried by a timer";
    // Traffic.
    MessagesReceived, "messages_received", "complete messages received";
    BytesReceived, "bytes_received", "bytes received";
    MessagesSent, "messages_sent", "messages put into output buffers";
    BytesSent, "bytes_sent", "bytes written to the kernel";
    PingsAnswered, "pings_answered", "ZMTP PINGs answered";
    MessagesTooLarge, "messages_too_large", "messages above the size limit, read and discarded";
    NoticesDropped, "notices_dropped", "acceptance notices dropped: the client does not read";
    ResultsDropped, "results_dropped", "results and REJECTs dropped: the client does not read";
    OutputToGone, "output_to_gone", "messages for a connection that was gone";
    // Ignored input.
    IgnoredFrames, "ignored_frames", "messages ignored: fewer than four frames";
    IgnoredFrame0, "ignored_frame0", "messages ignored: first frame not empty";
    IgnoredVersion, "ignored_version", "messages ignored: second frame is not eMQP/1.0";
    IgnoredCommand, "ignored_command", "messages ignored: unknown command";
    IgnoredRole, "ignored_role", "messages ignored: command not allowed on this socket";
    IgnoredMsgid, "ignored_msgid", "messages ignored: msgid empty or too long";
    IgnoredInform, "ignored_inform", "INFORMs ignored: malformed";
    IgnoredReply, "ignored_reply", "REPLYs ignored: malformed";
    IgnoredUnregistered, "ignored_unregistered", "messages ignored: the sender is not registered";
    // Requests.
    RequestsAccepted, "requests_accepted", "REQUESTs accepted";
    RejectedMalformed, "rejected_malformed", "messages refused: malformed";
    RejectedQueueFull, "rejected_queue_full", "REQUESTs refused: queue-full";
    RejectedTooManyQueues, "rejected_too_many_queues", "REQUESTs refused: too-many-queues";
    RejectedMemoryFull, "rejected_memory_full", "REQUESTs refused: memory-full";
    RejectedDraining, "rejected_draining", "REQUESTs refused: draining";
    RejectedNoScheduler, "rejected_no_scheduler", "SCHEDULEs refused: no-scheduler";
    RejectedTooLarge, "rejected_too_large", "messages refused: too-large";
    RejectedUnsupported, "rejected_unsupported", "REQUESTs refused: unsupported";
    GuaranteeNotDurable, "guarantee_not_durable", "REQUESTs with guarantee or retry-count, which this version only carries on";
    // Jobs.
    JobsHandedOut, "jobs_handed_out", "jobs handed to workers";
    JobsDone, "jobs_done", "jobs that ended ok";
    JobsFailed, "jobs_failed", "jobs that ended with an error";
    JobsTimedOut, "jobs_timed_out", "jobs that ended with a time-out";
    JobsLost, "jobs_lost", "jobs lost with their worker";
    JobsUnknown, "jobs_unknown", "jobs whose end a leaving worker did not tell";
    JobsAbandoned, "jobs_abandoned", "jobs still waiting or running when the broker ended";
    JobsReturned, "jobs_returned", "jobs that came back to their place: not wholly sent, or refused by the worker";
    ResultsForwarded, "results_forwarded", "results sent to clients";
    ResultsNotAsked, "results_not_asked", "results whose client had not asked for one";
    ResultsClientGone, "results_client_gone", "results whose client was gone";
    RepliesUnknown, "replies_unknown", "REPLYs for jobs the broker does not know";
    RepliesLate, "replies_late", "REPLYs for jobs already given up as lost";
    SlotsOverLimit, "slots_over_limit", "READYs that would exceed the worker's slot limit";
    // Workers and schedulers.
    WorkersRegistered, "workers_registered", "workers registered (INFORM)";
    WorkersRemovedSilent, "workers_removed_silent", "workers removed: silent";
    WorkersRemovedLost, "workers_removed_lost", "workers removed: connection lost";
    WorkersRemovedLeft, "workers_removed_left", "workers that said KBYE";
    SchedulersRegistered, "schedulers_registered", "schedulers registered (INFORM)";
    SchedulersRemoved, "schedulers_removed", "schedulers removed: silent, lost, or said KBYE";
    SchedulesForwarded, "schedules_forwarded", "SCHEDULEs and UNSCHEDULEs sent to schedulers";
    DisconnectsSent, "disconnects_sent", "DISCONNECTs sent to unregistered workers";
    // Scheduler.
    SchedulesTaken, "schedules_taken", "SCHEDULEs taken";
    SchedulesRestored, "schedules_restored", "schedules read from the store";
    SchedulesUnscheduled, "schedules_unscheduled", "schedules removed by an UNSCHEDULE";
    SchedulesUnknown, "schedules_unknown", "UNSCHEDULEs for a schedule that is not known";
    SchedulesEnded, "schedules_ended", "schedules that have used up their run_count";
    SchedulesRefusedMalformed, "schedules_refused_malformed", "SCHEDULEs and UNSCHEDULEs refused: frames missing, too long, not UTF-8, or no call";
    SchedulesRefusedInterval, "schedules_refused_interval", "SCHEDULEs refused: interval";
    SchedulesRefusedCron, "schedules_refused_cron", "SCHEDULEs refused: cron expression";
    SchedulesRefusedHeaders, "schedules_refused_headers", "SCHEDULEs refused: headers or time zone";
    SchedulesRefusedFull, "schedules_refused_full", "SCHEDULEs refused: max_schedules or max_schedule_bytes";
    RunsSent, "runs_sent", "runs sent to the broker";
    RunsAccepted, "runs_accepted", "runs the broker has taken";
    RunsRejected, "runs_rejected", "runs the broker has refused; they are not repeated";
    RunsSentAgain, "runs_sent_again", "runs sent again: not wholly written, or refused by a broker that was leaving";
    RunsUnconfirmed, "runs_unconfirmed", "runs whose acceptance never came";
    RunsMissed, "runs_missed", "due times that passed without a run of their own";
    RunsOfOthers, "runs_of_others", "runs that another scheduler on the same store had sent";
    SchedulerRegistrations, "scheduler_registrations", "times the broker has registered this scheduler";
    StoreFailures, "store_failures", "requests the store could not carry out";
    StoreFolded, "store_folded", "entries of the stored list that named a schedule again";
    StoreUnreadable, "store_unreadable", "stored entries that are no schedules; they are left alone";
    // Publisher.
    PublishesReceived, "publishes_received", "PUBLISHes taken";
    PublishesUnheard, "publishes_unheard", "PUBLISHes whose topic nobody had subscribed to";
    PublishedSent, "published_sent", "published messages given to subscribers, one for each";
    PublishedDroppedSlow, "published_dropped_slow", "published messages dropped for a subscriber that does not read";
    PublishedDroppedMemory, "published_dropped_memory", "published messages dropped for a subscriber under memory pressure";
    PublishedUnsent, "published_unsent", "published messages not sent before their subscriber's connection ended";
    IgnoredPublish, "ignored_publish", "PUBLISHes ignored: neither 6 nor 7 frames";
    IgnoredFromSubscriber, "ignored_from_subscriber", "messages of subscribers ignored: no subscription";
    SubscriptionsAdded, "subscriptions_added", "subscriptions taken";
    SubscriptionsRepeated, "subscriptions_repeated", "subscriptions that were there already";
    SubscriptionsCancelled, "subscriptions_cancelled", "subscriptions cancelled";
    SubscriptionsUnknown, "subscriptions_unknown", "cancellations of subscriptions that were not there";
    SubscriptionsRefusedPeer, "subscriptions_refused_peer", "subscriptions refused: the subscriber has its maximum";
    SubscriptionsRefusedTotal, "subscriptions_refused_total", "subscriptions refused: all subscribers together have the maximum";
    SubscriptionsRefusedMemory, "subscriptions_refused_memory", "subscriptions refused: memory";
    SubscriptionsRefusedTooLong, "subscriptions_refused_too_long", "subscriptions refused: topic too long";
    // Job manager.
    ManagerRegistrations, "manager_registrations", "job manager: registrations a broker has confirmed";
    ManagerBrokerSilent, "manager_broker_silent", "job manager: connections given up because the broker was silent";
    ManagerJobsTaken, "manager_jobs_taken", "job manager: jobs taken from brokers";
    ManagerJobsRefused, "manager_jobs_refused", "job manager: jobs given back without having been started";
    ManagerEndsDropped, "manager_ends_dropped", "job manager: ends of jobs that could not be told to their broker";
    IgnoredUnexpected, "ignored_unexpected", "messages ignored: not expected from this peer now";
    // Broker.
    InputPaused, "input_paused", "times reading from clients was paused for memory";
    Stalls, "stalls", "gaps of more than a second in which the broker did not run";
    AdminRequests, "admin_requests", "administrative requests answered";
    SchedulesDropped, "schedules_dropped", "schedules given back by a lost connection for which there was no place or no scheduler";
    AdminDropped, "admin_dropped", "administrative requests not answered: too many at once";
    LogRecordsDropped, "log_records_dropped", "log records dropped: the log writer was behind";
}

/// A set of counters owned by one agent.
#[derive(Debug, Clone)]
pub struct Counters {
    values: Box<[u64]>,
}

impl Default for Counters {
    fn default() -> Self {
        Counters {
            values: vec![0; Counter::ALL.len()].into_boxed_slice(),
        }
    }
}

impl Counters {
    /// Adds one.
    #[inline]
    pub fn inc(&mut self, counter: Counter) {
        self.add(counter, 1);
    }

    /// Adds `n`.
    #[inline]
    pub fn add(&mut self, counter: Counter, n: u64) {
        self.values[counter as usize] += n;
    }

    /// The current value.
    pub fn get(&self, counter: Counter) -> u64 {
        self.values[counter as usize]
    }

    /// Becomes equal to another set, without a new allocation.
    pub fn copy_from(&mut self, other: &Counters) {
        self.values.copy_from_slice(&other.values);
    }

    /// Adds all of another set.
    pub fn merge(&mut self, other: &Counters) {
        for (mine, theirs) in self.values.iter_mut().zip(other.values.iter()) {
            *mine += theirs;
        }
    }

    /// All counters with their values, in catalogue order.
    pub fn iter(&self) -> impl Iterator<Item = (Counter, u64)> + '_ {
        Counter::ALL.iter().map(|c| (*c, self.get(*c)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_in_order() {
        let mut names: Vec<_> = Counter::ALL.iter().map(|c| c.name()).collect();
        for (i, counter) in Counter::ALL.iter().enumerate() {
            assert_eq!(*counter as usize, i);
        }
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
