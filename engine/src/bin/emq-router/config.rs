//! What the server takes, made from the settings.

use eventmq::broker::BrokerConfig;
use eventmq::server::ServerConfig;
use eventmq::settings::RouterSettings;

/// The server's configuration on a machine with `usable_bytes` of memory.
pub(crate) fn server_config(settings: &RouterSettings, usable_bytes: u64) -> ServerConfig {
    let s = settings.clone();
    let broker = BrokerConfig {
        hwm: s.hwm,
        max_queues: s.max_queues,
        max_slots_per_worker: u32::try_from(s.max_slots_per_worker).unwrap_or(u32::MAX),
        default_queue_name: s.default_queue_name.into_bytes(),
        queues: s
            .queues
            .into_iter()
            .map(|(weight, name)| (weight, name.into_bytes()))
            .collect(),
        heartbeat_interval_ms: s.heartbeat_interval_ms,
        heartbeat_timeout_ms: s.heartbeat_timeout_ms,
        disable_heartbeats: s.disable_heartbeats,
        disconnect_unknown: s.disconnect_unknown,
        reconnect_grace_ms: s.reconnect_grace_ms,
        queue_grace_ms: s.queue_grace_ms,
        kill_grace_period_ms: s.kill_grace_period_ms,
        global_timeout_ms: s.global_timeout_ms,
        late_reply_window_ms: s.late_reply_window_ms,
        drain_timeout_ms: s.drain_timeout_ms,
        worker_buffer_bytes: s.worker_buffer_bytes,
        max_memory_bytes: s.max_memory.resolve(usable_bytes),
        memory_pause_ms: s.memory_pause_ms,
        latency_queues: s.latency_queues,
        latency_interval_ms: s.latency_interval_ms,
    };
    ServerConfig {
        addrs: [s.frontend_addr, s.backend_addr, s.administrative_addr],
        threading: s.threading,
        io_threads: s.io_threads,
        io_cores: s.io_cores,
        dispatch_core: s.dispatch_core,
        idle: s.idle,
        broker,
        handshake_timeout_ms: s.handshake_timeout_ms,
        connections_max: [
            s.max_frontend_connections,
            s.max_backend_connections,
            s.max_admin_connections,
        ],
        client_buffer_bytes: s.client_buffer_bytes,
        client_result_bytes: s.client_result_bytes,
        ..ServerConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eventmq::settings::{Component, Settings, Sources};

    #[test]
    fn default_settings_are_the_defaults_of_the_server() {
        let sources = Sources {
            config_file: Some("/dev/null".into()),
            ..Sources::default()
        };
        let settings = Settings::load(Component::Router, &sources).unwrap();
        let config = server_config(&RouterSettings::new(&settings), 1_000);
        // These two depend on use and machine.
        let broker = BrokerConfig {
            max_memory_bytes: 500,
            ..BrokerConfig::default()
        };
        let default = ServerConfig {
            addrs: config.addrs.clone(),
            broker,
            ..ServerConfig::default()
        };
        assert_eq!(format!("{config:?}"), format!("{default:?}"));
    }
}
