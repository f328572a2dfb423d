//! Effective settings of the publisher as a plain struct.

use super::catalogue::{Component, Key};
use super::load::Settings;
use super::value::{MemoryLimit, Value};
use crate::addr::Addr;

/// Effective settings of `emq-pubsub`. Times in milliseconds, sizes in bytes; the catalogue says
/// what each means.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    missing_docs,
    reason = "each field is the catalogue's key of the same name"
)]
pub struct PublisherSettings {
    pub publisher_incoming_addr: Addr,
    pub publisher_outgoing_addr: Addr,
    pub publisher_administrative_addr: Addr,
    pub max_publisher_connections: usize,
    pub max_subscriber_connections: usize,
    pub max_admin_connections: usize,
    pub handshake_timeout_ms: u64,
    pub max_memory: MemoryLimit,
    pub subscriber_buffer_bytes: usize,
    pub max_subscriptions: usize,
    pub max_subscriptions_per_subscriber: usize,
}

impl PublisherSettings {
    /// The effective values.
    ///
    /// # Panics
    /// If `settings` were loaded for another component.
    pub fn new(settings: &Settings) -> PublisherSettings {
        assert_eq!(settings.component(), Component::Publisher);
        let count = |key| usize::try_from(settings.int(key)).unwrap_or(usize::MAX);
        PublisherSettings {
            publisher_incoming_addr: settings.addr(Key::PublisherIncomingAddr),
            publisher_outgoing_addr: settings.addr(Key::PublisherOutgoingAddr),
            publisher_administrative_addr: settings.addr(Key::PublisherAdministrativeAddr),
            max_publisher_connections: count(Key::MaxPublisherConnections),
            max_subscriber_connections: count(Key::MaxSubscriberConnections),
            max_admin_connections: count(Key::MaxAdminConnections),
            handshake_timeout_ms: settings.int(Key::HandshakeTimeout),
            max_memory: match settings.value(Key::MaxMemory) {
                Value::Memory(limit) => *limit,
                other => unreachable!("max_memory: {other:?}"),
            },
            subscriber_buffer_bytes: count(Key::SubscriberBufferBytes),
            max_subscriptions: count(Key::MaxSubscriptions),
            max_subscriptions_per_subscriber: count(Key::MaxSubscriptionsPerSubscriber),
        }
    }
}
