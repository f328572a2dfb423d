//! A client: a job that is only handed over, and one whose result is waited for.
//!
//! With a broker (`emq-router`) and a job manager that knows `tasks.add`:
//!
//!     EMQ_BROKER_ADDR=tcp://127.0.0.1:47291 cargo run -p eventmq --example client

use eventmq::client::{CallError, Client, Request, SendError};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let client = Client::from_env()?;

    // Accepted: the broker has it. Everything else is an error that says what is known.
    let job = Request::new("tasks.add").arg(1).arg(2).retry_count(3);
    match client.defer_job(job.clone()) {
        Ok(accepted) => println!("handed over: {accepted:?}"),
        Err(SendError::Rejected { word, .. }) => println!("refused: {word}"),
        Err(error) if error.may_have_been_taken() => println!("nobody knows: {error}"),
        Err(error) => println!("not taken: {error}"),
    }

    match client.call(job.returns::<i64>()) {
        Ok(sum) => println!("1 + 2 = {sum}"),
        Err(CallError::Job(error)) => println!("it failed: {error}"),
        Err(error) => println!("no result: {error}"),
    }
    Ok(())
}
