//! What the publisher shows of itself.

use super::PubSub;
use crate::ids::ConnId;
use crate::metrics::Counters;
use serde::Serialize;

/// Subscribers shown one by one, at most.
const SLOW_SHOWN_MAX: usize = 32;

/// Figures of the state machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct PubSubFigures {
    /// Connected publishers.
    pub publishers: u64,
    /// Connected subscribers.
    pub subscribers: u64,
    /// Subscriptions, each counted for each of its subscribers.
    pub subscriptions: u64,
    /// Different prefixes among them.
    pub prefixes: u64,
    /// Memory they take, roughly.
    pub subscription_bytes: u64,
    /// Subscribers for which messages are being dropped now.
    pub slow: u64,
}

/// A subscriber for which messages have been dropped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SlowSubscriber {
    /// Its address, or routing id over a Unix-domain socket.
    pub peer: String,
    /// True while messages are being dropped.
    pub slow: bool,
    /// Messages dropped since it connected.
    pub dropped: u64,
    /// Output waiting for it.
    pub waiting_bytes: u64,
    /// Its subscriptions.
    pub subscriptions: u64,
}

impl PubSub {
    /// Its figures.
    pub fn figures(&self) -> PubSubFigures {
        PubSubFigures {
            publishers: self.conns.publishers() as u64,
            subscribers: self.conns.subscribers() as u64,
            subscriptions: self.trie.subscriptions() as u64,
            prefixes: self.trie.prefixes() as u64,
            subscription_bytes: self.trie.bytes() as u64,
            slow: self.conns.slow() as u64,
        }
    }

    /// Its counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The subscribers that most was dropped for, at most 32. `waiting_bytes` tells what waits
    /// for a connection.
    pub fn slow_subscribers(
        &self,
        mut waiting_bytes: impl FnMut(ConnId) -> usize,
    ) -> Vec<SlowSubscriber> {
        let mut slow: Vec<_> = self.conns.all().filter(|conn| conn.dropped > 0).collect();
        slow.sort_by_key(|conn| (std::cmp::Reverse(conn.dropped), conn.id));
        slow.iter()
            .take(SLOW_SHOWN_MAX)
            .map(|conn| SlowSubscriber {
                peer: conn.shown(),
                slow: conn.slow,
                dropped: conn.dropped,
                waiting_bytes: waiting_bytes(conn.id) as u64,
                subscriptions: conn.subscriptions() as u64,
            })
            .collect()
    }
}
