//! A job declared once; its worker, its client and a broker in one program:
//!
//!     cargo run -p eventmq --example both_sides

use eventmq::client::Client;
use eventmq::ids::Socket;
use eventmq::jobmanager::{Functions, JobManager, JobManagerConfig};
use eventmq::server::{Server, ServerConfig};

eventmq::job! {
    /// The sum; whoever asks for it knows the types.
    ADD in "tasks" = fn add(a: i64, b: i64) -> Result<i64, String> {
        a.checked_add(b).ok_or_else(|| "too large".to_owned())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Or `emq-router`, and its addresses below.
    let broker = Server::start(ServerConfig::default())?;
    let worker = JobManager::start(JobManagerConfig {
        brokers: vec![broker.addr(Socket::Backend).clone()],
        functions: Functions::new().job(ADD),
        ..JobManagerConfig::default()
    })?;
    let client = Client::connect(&broker.addr(Socket::Frontend).to_string())?;

    println!("40 + 2 = {}", client.call(ADD.with((40, 2)))?);
    if let Err(error) = client.call(ADD.with((i64::MAX, 1))) {
        println!("{error}");
    }

    worker.shutdown();
    worker.wait()?;
    broker.shutdown();
    broker.wait()?;
    Ok(())
}
