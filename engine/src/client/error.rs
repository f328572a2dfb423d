//! What can go wrong, for callers.

use crate::addr::AddrError;
use crate::emqp::{JobStatus, RejectReason};
use crate::job::BadRequest;
use thiserror::Error;

/// Why there is no client.
#[derive(Debug, Error)]
pub enum StartError {
    /// No address of a broker was given.
    #[error("no broker address: give one, or set {}", super::BROKER_ADDR_ENV)]
    NoAddress,
    /// An address that is none.
    #[error("broker address {0}")]
    Address(#[from] AddrError),
    /// The system has no thread or descriptor left.
    #[error("cannot start the client: {0}")]
    System(#[from] std::io::Error),
}

/// Why a message was not accepted, or why nobody knows.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SendError {
    /// It cannot be sent at all. Nothing has left.
    #[error("{0}")]
    Invalid(#[from] BadRequest),
    /// The broker has refused it.
    #[error("the broker refused it: {word}")]
    Rejected {
        /// Why, if the reason is known here.
        reason: Option<RejectReason>,
        /// Why, as the broker said it.
        word: String,
    },
    /// There was no connection in all the time it could wait. The broker has not got it.
    #[error("not connected: {0}")]
    NotConnected(String),
    /// It was sent, and not answered in time. The broker may have got it.
    #[error("no answer in time: the broker may or may not have taken it")]
    TimedOut,
    /// It was sent, and the connection ended before the answer. The broker may have got it.
    #[error("the connection ended before the answer: the broker may or may not have taken it")]
    ConnectionLost,
    /// Too much is waiting in this client already. The broker has not got it.
    #[error("too many messages of this client are waiting")]
    Full,
    /// The client was closed, or has ended, before the answer. The broker may have got what was
    /// given to the client before.
    #[error("the client was closed before the answer")]
    Closed,
}

impl SendError {
    /// True if the broker may have taken the message all the same, so that sending it again could
    /// run the job twice.
    pub fn may_have_been_taken(&self) -> bool {
        match self {
            SendError::TimedOut | SendError::ConnectionLost | SendError::Closed => true,
            SendError::Invalid(_)
            | SendError::Rejected { .. }
            | SendError::NotConnected(_)
            | SendError::Full => false,
        }
    }
}

/// Why a call has no result.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CallError {
    /// The request was not accepted, or nobody knows.
    #[error("{0}")]
    Send(#[from] SendError),
    /// The broker does not send results to clients (EventMQ 0.3.13). The request was not sent.
    #[error("this broker sends no results to clients; the job was not sent")]
    NoResults,
    /// Accepted, and no result in time. The job may still run.
    #[error("the job was accepted, but no result came in time")]
    TimedOut,
    /// Accepted, and the connection ended before the result. The job may have run.
    #[error("the job was accepted, but the connection ended before its result")]
    ConnectionLost,
    /// The job failed.
    #[error("the job failed: {0}")]
    Job(#[from] JobError),
    /// The job succeeded, but its result is not of the type asked for.
    #[error("the result is not what was asked for: {0}")]
    Result(String),
}

/// How a job failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}{kind}: {message}", status_text(*.status))]
pub struct JobError {
    /// How it ended; `None` if the worker did not say (0.3.13).
    pub status: Option<JobStatus>,
    /// Kind of the failure: the type of an exception, say.
    pub kind: String,
    /// In words.
    pub message: String,
    /// Where in the job, if it is known.
    pub traceback: Option<String>,
}

fn status_text(status: Option<JobStatus>) -> &'static str {
    match status {
        Some(JobStatus::Timeout) => "timed out: ",
        Some(JobStatus::Lost) => "lost: ",
        Some(JobStatus::Cancelled) => "cancelled: ",
        Some(JobStatus::Dead) => "given up: ",
        Some(JobStatus::Ok | JobStatus::Error | JobStatus::Refused) | None => "",
    }
}
