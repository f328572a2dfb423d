//! A thousand jobs at once as futures, on an executor of ten lines: the client needs none in
//! particular. The broker is in this process, too.
//!
//!     cargo run -p eventmq --example client_futures

use eventmq::broker::BrokerConfig;
use eventmq::client::{Client, Pending, Request};
use eventmq::ids::Socket;
use eventmq::server::{Server, ServerConfig};
use std::error::Error;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// Wakes the thread that runs a future.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let free = "tcp://127.0.0.1:0".parse::<eventmq::addr::Addr>()?;
    let server = Server::start(ServerConfig {
        addrs: [free.clone(), free.clone(), free],
        broker: BrokerConfig::default(),
        ..ServerConfig::default()
    })?;
    let client = Client::connect(&server.addr(Socket::Frontend).to_string())?;

    // Nobody runs these jobs: what is awaited is that the broker has each of them.
    let accepted = block_on(async {
        let tickets: Result<Vec<_>, _> = (0..1_000)
            .map(|n| client.start(Request::new("tasks.double").arg(n)))
            .collect();
        let mut accepted = 0;
        for ticket in tickets? {
            ticket.await?;
            accepted += 1;
        }
        Ok::<_, Box<dyn Error>>(accepted)
    })?;
    println!("{accepted} jobs accepted");

    // A result is awaited in the same way.
    let pending: Pending<i64> = client.start_call(Request::new("tasks.double").arg(4).returns())?;
    println!("asked for {}", pending.msgid());
    drop(pending);

    let failures = client.close(std::time::Duration::from_millis(100));
    println!("{} calls without a result", failures.list.len());
    server.shutdown();
    server.wait()?;
    Ok(())
}
