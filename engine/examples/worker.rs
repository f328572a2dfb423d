//! A job manager that runs functions of this program:
//!
//! ```sh
//! cargo run -p eventmq --example worker -- tcp://127.0.0.1:47290
//! ```
//!
//! Jobs for it have the path `sums` and the callable `add` or `half`. It ends with Enter.

use eventmq::jobmanager::{FunctionError, Functions, JobManager, JobManagerConfig};
use std::error::Error;

fn half(n: i64) -> Result<i64, FunctionError> {
    if n % 2 == 0 {
        Ok(n / 2)
    } else {
        Err(FunctionError::new("OddNumber", format!("{n} has no half")))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let functions = Functions::new()
        .register("sums", "add", |(a, b): (i64, i64)| Ok(a + b))
        .register("sums", "half", |(n,): (i64,)| half(n));
    let mut config = JobManagerConfig {
        functions,
        ..JobManagerConfig::default()
    };
    if let Some(address) = std::env::args().nth(1) {
        config.brokers = vec![address.parse()?];
    }
    let manager = JobManager::start(config)?;
    println!("working; Enter ends it");
    std::io::stdin().read_line(&mut String::new())?;
    manager.shutdown();
    manager.wait()?;
    Ok(())
}
