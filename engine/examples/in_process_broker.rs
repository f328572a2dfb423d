//! A broker inside another program: no process, settings file or signal handler of its own.
//!
//!     cargo run -p eventmq --example in_process_broker
//!
//! It prints the addresses it listens on. Connect workers and clients, then press Enter: the
//! broker drains and says what it did.

use eventmq::addr::Addr;
use eventmq::broker::BrokerConfig;
use eventmq::ids::Socket;
use eventmq::metrics::Counter;
use eventmq::server::{Server, ServerConfig};
use eventmq::settings::Threading;
use std::error::Error;
use std::io;

fn main() -> Result<(), Box<dyn Error>> {
    // Indexed by `Socket`: frontend, backend, administrative. Port 0 takes a free one.
    let free: Addr = "tcp://127.0.0.1:0".parse()?;
    let server = Server::start(ServerConfig {
        addrs: [free.clone(), free.clone(), free],
        threading: Threading::Inline,
        broker: BrokerConfig {
            // `emq-router` sets this from `max_memory`; in process there is no limit by default.
            max_memory_bytes: 512 << 20,
            drain_timeout_ms: 5_000,
            ..BrokerConfig::default()
        },
        ..ServerConfig::default()
    })?;
    for socket in Socket::ALL {
        println!("{socket}: {}", server.addr(socket));
    }
    println!(
        "threading: {}. Press Enter to shut down.",
        server.threading()
    );
    io::stdin().read_line(&mut String::new())?;

    // Running jobs that owe a result are waited for, at most `drain_timeout_ms`.
    server.shutdown();
    let report = server.wait()?;
    for counter in [
        Counter::RequestsAccepted,
        Counter::JobsHandedOut,
        Counter::JobsLost,
    ] {
        println!(
            "{}: {}",
            counter.name(),
            report.figures.counters.get(counter)
        );
    }
    Ok(())
}
