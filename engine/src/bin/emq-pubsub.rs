//! The publisher: `emq-pubsub --help`.

use eventmq::addr::Addr;
use eventmq::daemon::{self, Daemon, Program, StartFailure};
use eventmq::ids::Socket;
use eventmq::metrics::Counter;
use eventmq::pubsub::{PubSubConfig, PubSubServer, ServerConfig};
use eventmq::runtime::{memory, open_files};
use eventmq::settings::{Component, Key, PublisherSettings, Settings};
use std::process::ExitCode;

const PROGRAM: Program = Program {
    name: "emq-pubsub",
    about: "The EventMQ publisher: PUBLISH in, topics out to subscribers",
    component: Component::Publisher,
    main: &[
        Key::PublisherIncomingAddr,
        Key::PublisherOutgoingAddr,
        Key::PublisherAdministrativeAddr,
        Key::SubscriberBufferBytes,
        Key::MaxSubscriptions,
        Key::MaxMemory,
        Key::LogFormat,
        Key::LogLevel,
    ],
};

fn main() -> ExitCode {
    daemon::main::<Publisher>(&PROGRAM)
}

struct Publisher(PubSubServer);

/// What the server takes, on a machine with `usable_bytes` of memory.
fn server_config(settings: &Settings, usable_bytes: u64) -> ServerConfig {
    let s = PublisherSettings::new(settings);
    ServerConfig {
        addrs: [
            s.publisher_incoming_addr,
            s.publisher_outgoing_addr,
            s.publisher_administrative_addr,
        ],
        connections_max: [
            s.max_publisher_connections,
            s.max_subscriber_connections,
            s.max_admin_connections,
        ],
        pubsub: PubSubConfig {
            subscriber_buffer_bytes: s.subscriber_buffer_bytes,
            max_subscriptions: s.max_subscriptions,
            max_subscriptions_per_subscriber: s.max_subscriptions_per_subscriber,
            max_memory_bytes: s.max_memory.resolve(usable_bytes),
        },
        handshake_timeout_ms: s.handshake_timeout_ms,
    }
}

impl Daemon for Publisher {
    fn start(settings: &Settings) -> Result<Publisher, StartFailure> {
        let config = server_config(settings, memory::usable_bytes());
        let connections: usize = config.connections_max.iter().sum();
        if let Some(warning) = open_files::raise_open_files().too_few_for(connections as u64) {
            tracing::warn!("{warning}");
        }
        PubSubServer::start(config)
            .map(Publisher)
            .map_err(StartFailure::run_time)
    }

    fn addresses(&self) -> Vec<(String, Addr)> {
        Socket::ALL
            .iter()
            .map(|socket| {
                let name = PubSubServer::socket_name(*socket);
                (name.to_owned(), self.0.addr(*socket))
            })
            .collect()
    }

    fn reload(&mut self, settings: &Settings) -> Result<(), String> {
        self.0
            .reload(server_config(settings, memory::usable_bytes()))
            .map_err(|error| error.to_string())
    }

    fn shutdown(&mut self) {
        self.0.shutdown();
    }

    fn shutdown_now(&mut self) {
        self.0.shutdown_now();
    }

    fn is_finished(&mut self) -> bool {
        self.0.is_finished()
    }

    fn wait(self) -> Result<(), String> {
        let counters = self.0.wait().map_err(|error| error.to_string())?.counters;
        let count = |counter| counters.get(counter);
        tracing::info!(
            published = count(Counter::PublishesReceived),
            sent = count(Counter::PublishedSent),
            unsent = count(Counter::PublishedUnsent),
            "emq-pubsub ends"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eventmq::settings::Sources;

    #[test]
    fn default_settings_are_the_defaults_of_the_server() {
        let sources = Sources {
            config_file: Some("/dev/null".into()),
            ..Sources::default()
        };
        let settings = Settings::load(Component::Publisher, &sources).unwrap();
        let config = server_config(&settings, 1_000);
        // These two depend on use and machine.
        let pubsub = PubSubConfig {
            max_memory_bytes: 500,
            ..PubSubConfig::default()
        };
        let default = ServerConfig {
            addrs: config.addrs.clone(),
            pubsub,
            ..ServerConfig::default()
        };
        assert_eq!(format!("{config:?}"), format!("{default:?}"));
    }
}
