//! Connections and their subscriptions.

use super::trie::{NodeId, Trie};
use super::{LogKind, OUTGOING, PubSub};
use crate::frames::Message;
use crate::ids::{ConnId, Now};
use crate::limits::SUBSCRIPTION_BYTES_MAX;
use crate::link::PeerInfo;
use crate::log_limit::shown_id;
use crate::metrics::Counter;
use ahash::RandomState;
use std::collections::HashSet;
use std::net::SocketAddr;

/// One connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) id: ConnId,
    pub(super) subscriber: bool,
    pub(super) remote: Option<SocketAddr>,
    routing_id: Vec<u8>,
    /// Nodes it has subscribed to. The order is of no effect.
    nodes: HashSet<NodeId, RandomState>,
    /// The last message given to it, or passed over.
    stamp: u64,
    /// Messages dropped for it.
    pub(super) dropped: u64,
    /// Messages are being dropped for it.
    pub(super) slow: bool,
    /// The warning about refused subscriptions has been given.
    warned: bool,
}

/// All connections, by slot.
#[derive(Debug)]
pub(super) struct Conns {
    slots: Vec<Option<Box<Conn>>>,
    hasher: RandomState,
    publishers: usize,
    subscribers: usize,
    slow: usize,
}

impl Conns {
    pub(super) fn new(hasher: RandomState) -> Conns {
        Conns {
            slots: Vec::new(),
            hasher,
            publishers: 0,
            subscribers: 0,
            slow: 0,
        }
    }

    pub(super) fn open(&mut self, id: ConnId, info: &PeerInfo) {
        if id.slot() >= self.slots.len() {
            self.slots.resize_with(id.slot() + 1, || None);
        }
        let subscriber = info.socket == OUTGOING;
        match subscriber {
            true => self.subscribers += 1,
            false => self.publishers += 1,
        }
        debug_assert!(self.slots[id.slot()].is_none(), "a slot is closed first");
        self.slots[id.slot()] = Some(Box::new(Conn {
            id,
            subscriber,
            remote: info.remote,
            routing_id: info.routing_id.clone(),
            nodes: HashSet::with_hasher(self.hasher.clone()),
            stamp: 0,
            dropped: 0,
            slow: false,
            warned: false,
        }));
    }

    /// Forgets a connection and what it has subscribed to.
    pub(super) fn end(&mut self, id: ConnId, trie: &mut Trie) {
        if self.get(id).is_none() {
            return;
        }
        let Some(conn) = self.slots[id.slot()].take() else {
            return;
        };
        match conn.subscriber {
            true => self.subscribers -= 1,
            false => self.publishers -= 1,
        }
        self.slow -= usize::from(conn.slow);
        for node in conn.nodes {
            trie.remove(node, id);
        }
    }

    fn get(&self, id: ConnId) -> Option<&Conn> {
        let conn = self.slots.get(id.slot())?.as_deref()?;
        (conn.id == id).then_some(conn)
    }

    fn get_mut(&mut self, id: ConnId) -> Option<&mut Conn> {
        let conn = self.slots.get_mut(id.slot())?.as_deref_mut()?;
        (conn.id == id).then_some(conn)
    }

    /// The connection, unless it is marked with this stamp already.
    #[inline]
    pub(super) fn mark(&mut self, id: ConnId, stamp: u64) -> Option<&mut Conn> {
        let conn = self.get_mut(id)?;
        (std::mem::replace(&mut conn.stamp, stamp) != stamp).then_some(conn)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Conn> {
        self.slots.iter().filter_map(Option::as_deref)
    }

    pub(super) fn publishers(&self) -> usize {
        self.publishers
    }

    pub(super) fn subscribers(&self) -> usize {
        self.subscribers
    }

    /// Subscribers for which messages are being dropped.
    pub(super) fn slow(&self) -> usize {
        self.slow
    }

    pub(super) fn count_slow(&mut self, slow: bool) {
        match slow {
            true => self.slow += 1,
            false => self.slow -= 1,
        }
    }

    pub(super) fn dropped(&self, id: ConnId) -> u64 {
        self.get(id).map_or(0, |conn| conn.dropped)
    }

    /// For logs.
    pub(super) fn shown(&self, id: ConnId) -> String {
        self.get(id).map_or_else(String::new, Conn::shown)
    }
}

impl Conn {
    /// Number of its subscriptions.
    pub(super) fn subscriptions(&self) -> usize {
        self.nodes.len()
    }

    /// Its address, or its routing id if it came over a Unix-domain socket.
    pub(super) fn shown(&self) -> String {
        match self.remote {
            Some(remote) => remote.to_string(),
            None => shown_id(&self.routing_id),
        }
    }
}

impl PubSub {
    /// What a subscriber sends as a message: a subscription of ZMTP 3.0, or nothing we know.
    pub(super) fn on_subscriber(&mut self, conn: ConnId, message: &Message<'_>, now: Now) {
        let frame = message.get(0).unwrap_or_default();
        match frame.split_first() {
            Some((1, topic)) if message.len() == 1 => {
                self.handle_subscription(conn, true, topic, now);
            }
            Some((0, topic)) if message.len() == 1 => {
                self.handle_subscription(conn, false, topic, now);
            }
            // XSUB sockets let programs send anything.
            _ => self.counters.inc(Counter::IgnoredFromSubscriber),
        }
    }

    /// A subscription or its cancellation. As in libzmq a connection has a subscription or has it
    /// not: subscribers count for themselves and send one cancellation, when theirs is the last.
    pub fn handle_subscription(&mut self, conn: ConnId, subscribe: bool, topic: &[u8], now: Now) {
        let known = self.trie.find(topic);
        let Some(subscriber) = self.conns.get_mut(conn) else {
            return;
        };
        let has = known.filter(|node| subscriber.nodes.contains(node));
        match (subscribe, has) {
            (true, Some(_)) => self.counters.inc(Counter::SubscriptionsRepeated),
            (true, None) => match self.may_subscribe(conn, topic.len()) {
                Ok(()) => {
                    let node = self.trie.insert(topic, conn);
                    if let Some(subscriber) = self.conns.get_mut(conn) {
                        subscriber.nodes.insert(node);
                    }
                    self.counters.inc(Counter::SubscriptionsAdded);
                }
                Err(reason) => self.refuse(conn, reason, now),
            },
            (false, Some(node)) => {
                subscriber.nodes.remove(&node);
                if subscriber.nodes.is_empty() {
                    subscriber.nodes.shrink_to_fit();
                }
                self.trie.remove(node, conn);
                self.counters.inc(Counter::SubscriptionsCancelled);
            }
            (false, None) => self.counters.inc(Counter::SubscriptionsUnknown),
        }
    }

    fn may_subscribe(&self, conn: ConnId, topic_len: usize) -> Result<(), Counter> {
        let own = self.conns.get(conn).map_or(0, Conn::subscriptions);
        if topic_len > SUBSCRIPTION_BYTES_MAX {
            Err(Counter::SubscriptionsRefusedTooLong)
        } else if own >= self.config.max_subscriptions_per_subscriber {
            Err(Counter::SubscriptionsRefusedPeer)
        } else if self.trie.subscriptions() >= self.config.max_subscriptions {
            Err(Counter::SubscriptionsRefusedTotal)
        } else if self.trie.bytes().saturating_add(Trie::bytes_for(topic_len))
            > self.config.subscription_bytes_max()
        {
            Err(Counter::SubscriptionsRefusedMemory)
        } else {
            Ok(())
        }
    }

    /// A subscription is not taken: counted, with one warning for the connection. The connection
    /// stays: libzmq would come back at once and send all of its subscriptions again.
    #[cold]
    pub(super) fn refuse(&mut self, conn: ConnId, reason: Counter, now: Now) {
        self.counters.inc(reason);
        let Some(subscriber) = self.conns.get_mut(conn) else {
            return;
        };
        if std::mem::replace(&mut subscriber.warned, true) {
            return;
        }
        if let Some(repeats) = self.logs.admit(LogKind::Refused as usize, now.mono_ns) {
            let subscriber = self.conns.shown(conn);
            tracing::warn!(
                subscriber,
                reason = reason.name(),
                repeats,
                "subscription refused, as will be others of this subscriber beyond the limit"
            );
        }
    }
}
