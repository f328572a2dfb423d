//! Asking for a job.

use crate::json::{self, JsonError};
use crate::limits::{FRAME_BYTES_MAX, QUEUE_NAME_BYTES_MAX};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::marker::PhantomData;

/// The queue of a request that names none, as in 0.3.13.
pub const DEFAULT_QUEUE: &str = "default";

/// Why a request cannot be sent. Nothing of it has left.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadRequest {
    /// No path or no callable.
    #[error("{0:?} names no job: expected PATH.CALLABLE, as in my.module.function")]
    Name(String),
    /// An argument is not JSON.
    #[error("{argument}: {why}")]
    Argument {
        /// Which one.
        argument: String,
        /// Why not.
        why: JsonError,
    },
    /// More than 255 bytes.
    #[error("the name of the queue has more than {QUEUE_NAME_BYTES_MAX} bytes")]
    Queue,
    /// Empty, or with a comma or control character.
    #[error("{0:?} is no header: commas separate headers")]
    Header(String),
    /// Above the limit of a frame.
    #[error("the message has more than {FRAME_BYTES_MAX} bytes")]
    TooLarge,
    /// Interval 0, a cron expression of less than 5 or more than 6 fields, or a time zone's name
    /// with a comma.
    #[error("no schedule: {0}")]
    Schedule(&'static str),
}

/// A job to be run: what, with which arguments, in which queue, and how.
///
/// `R` is the type of its result, for `Client::call`. Mistakes are kept and reported when it is
/// sent, so that calls can be chained.
///
/// ```
/// use eventmq::job::Request;
///
/// let request = Request::new("my.module.add").arg(1).kwarg("b", 2).queue("math").retry_count(3);
/// assert_eq!(
///     request.message().unwrap(),
///     br#"["run", {"callable": "add", "path": "my.module", "args": [1], "kwargs": {"b": 2}, "class_args": [], "class_kwargs": {}}]"#
/// );
/// assert_eq!(request.headers(), "retry-count:3");
/// ```
#[derive(Debug)]
pub struct Request<R = Value> {
    path: String,
    callable: String,
    args: Vec<u8>,
    args_len: usize,
    kwargs: Vec<(String, Vec<u8>)>,
    class_args: Vec<u8>,
    class_kwargs: Vec<(String, Vec<u8>)>,
    queue: String,
    options: Options,
    wrong: Option<BadRequest>,
    result: PhantomData<fn() -> R>,
}

#[derive(Debug, Clone, Default)]
struct Options {
    reply_requested: bool,
    guarantee: bool,
    retry_count: u32,
    timeout_secs: u32,
    delay_secs: u32,
    debounce_secs: u32,
    others: Vec<String>,
    resend: bool,
}

impl<R> Clone for Request<R> {
    fn clone(&self) -> Self {
        Request {
            path: self.path.clone(),
            callable: self.callable.clone(),
            args: self.args.clone(),
            args_len: self.args_len,
            kwargs: self.kwargs.clone(),
            class_args: self.class_args.clone(),
            class_kwargs: self.class_kwargs.clone(),
            queue: self.queue.clone(),
            options: self.options.clone(),
            wrong: self.wrong.clone(),
            result: PhantomData,
        }
    }
}

impl Request {
    /// A request for a job by its whole name, `my.module.function`; a method is
    /// `my.module:Class.method`.
    pub fn new(name: &str) -> Request {
        match name.rsplit_once('.') {
            Some((path, callable)) => Request::new_at(path, callable),
            None => Request::new_at(name, ""),
        }
    }

    /// A request for `callable` in `path`: `my.module` and `function`, or `my.module:Class` and
    /// `method`.
    pub fn new_at(path: &str, callable: &str) -> Request {
        let named = !path.is_empty() && !callable.is_empty();
        let shown = || {
            format!("{path}.{callable}")
                .trim_end_matches('.')
                .to_owned()
        };
        Request {
            path: path.to_owned(),
            callable: callable.to_owned(),
            args: Vec::new(),
            args_len: 0,
            kwargs: Vec::new(),
            class_args: Vec::new(),
            class_kwargs: Vec::new(),
            queue: DEFAULT_QUEUE.to_owned(),
            options: Options::default(),
            wrong: (!named).then(|| BadRequest::Name(shown())),
            result: PhantomData,
        }
    }
}

impl<R> Request<R> {
    /// The same request with a result of another type.
    pub fn returns<T: DeserializeOwned>(self) -> Request<T> {
        Request {
            path: self.path,
            callable: self.callable,
            args: self.args,
            args_len: self.args_len,
            kwargs: self.kwargs,
            class_args: self.class_args,
            class_kwargs: self.class_kwargs,
            queue: self.queue,
            options: self.options,
            wrong: self.wrong,
            result: PhantomData,
        }
    }

    fn noted(&mut self, argument: impl FnOnce() -> String, result: Result<(), JsonError>) {
        if let (Err(why), None) = (result, &self.wrong) {
            let argument = argument();
            self.wrong = Some(BadRequest::Argument { argument, why });
        }
    }

    /// One more positional argument.
    #[must_use]
    pub fn arg<T: Serialize>(mut self, value: T) -> Self {
        let result = push_item(&mut self.args, &value);
        self.args_len += 1;
        let place = self.args_len;
        self.noted(|| format!("argument {place}"), result);
        self
    }

    /// One more keyword argument; of a name given twice the last value counts.
    #[must_use]
    pub fn kwarg<T: Serialize>(mut self, name: &str, value: T) -> Self {
        let result = set_key(&mut self.kwargs, name, &value);
        self.noted(|| format!("argument {name}"), result);
        self
    }

    /// One more positional argument for the class of a method.
    #[must_use]
    pub fn class_arg<T: Serialize>(mut self, value: T) -> Self {
        let result = push_item(&mut self.class_args, &value);
        self.noted(|| "an argument of the class".to_owned(), result);
        self
    }

    /// One more keyword argument for the class of a method.
    #[must_use]
    pub fn class_kwarg<T: Serialize>(mut self, name: &str, value: T) -> Self {
        let result = set_key(&mut self.class_kwargs, name, &value);
        self.noted(|| format!("argument {name} of the class"), result);
        self
    }

    /// The queue, instead of `default`; at most 255 bytes.
    #[must_use]
    pub fn queue(mut self, queue: &str) -> Self {
        if queue.len() > QUEUE_NAME_BYTES_MAX && self.wrong.is_none() {
            self.wrong = Some(BadRequest::Queue);
        }
        queue.clone_into(&mut self.queue);
        self
    }

    /// The worker is to send its result. `Client::call` sets it.
    #[must_use]
    pub fn reply_requested(mut self, requested: bool) -> Self {
        self.options.reply_requested = requested;
        self
    }

    /// The job is to be durable before it is accepted, and to run at least once.
    #[must_use]
    pub fn guarantee(mut self, guarantee: bool) -> Self {
        self.options.guarantee = guarantee;
        self
    }

    /// Further runs after a failure or time-out; 0 = none.
    #[must_use]
    pub fn retry_count(mut self, count: u32) -> Self {
        self.options.retry_count = count;
        self
    }

    /// Seconds until the job manager kills the job; 0 = its own default.
    #[must_use]
    pub fn timeout_secs(mut self, seconds: u32) -> Self {
        self.options.timeout_secs = seconds;
        self
    }

    /// Seconds for which the broker holds the job first; 0 = none.
    #[must_use]
    pub fn delay_secs(mut self, seconds: u32) -> Self {
        self.options.delay_secs = seconds;
        self
    }

    /// While the same job waits or runs: one more run at most, this many seconds later; 0 = off.
    #[must_use]
    pub fn debounce_secs(mut self, seconds: u32) -> Self {
        self.options.debounce_secs = seconds;
        self
    }

    /// A header of any other kind.
    #[must_use]
    pub fn header(mut self, header: &str) -> Self {
        let bad = header.is_empty() || header.contains(|c: char| c == ',' || c.is_control());
        if bad && self.wrong.is_none() {
            self.wrong = Some(BadRequest::Header(header.to_owned()));
        }
        self.options.others.push(header.to_owned());
        self
    }

    /// If the connection ends before the answer, the request is sent again, with the same msgid:
    /// the job may then run twice. Without it the caller is told that nobody knows.
    #[must_use]
    pub fn resend(mut self, resend: bool) -> Self {
        self.options.resend = resend;
        self
    }

    /// See [`Request::resend`].
    pub fn may_be_resent(&self) -> bool {
        self.options.resend
    }

    /// The queue frame.
    pub fn queue_name(&self) -> &str {
        &self.queue
    }

    /// The headers frame of a REQUEST, in the order of 0.3.13.
    pub fn headers(&self) -> String {
        let mut all = Vec::new();
        if self.options.reply_requested {
            all.push("reply-requested".to_owned());
        }
        if self.options.guarantee {
            all.push("guarantee".to_owned());
        }
        self.numbered(&mut all);
        all.extend(self.options.others.iter().cloned());
        all.join(",")
    }

    fn numbered(&self, all: &mut Vec<String>) {
        for (name, number) in [
            ("retry-count", self.options.retry_count),
            ("timeout", self.options.timeout_secs),
            ("delay", self.options.delay_secs),
            ("debounce", self.options.debounce_secs),
        ] {
            if number > 0 {
                all.push(format!("{name}:{number}"));
            }
        }
    }

    /// The headers that a SCHEDULE hands on to its runs.
    pub fn run_headers(&self) -> Vec<String> {
        let mut all = Vec::new();
        if self.options.guarantee {
            all.push("guarantee-runs".to_owned());
        }
        self.numbered(&mut all);
        all.extend(self.options.others.iter().cloned());
        all
    }

    /// The message frame: JSON as the original client writes it.
    ///
    /// # Errors
    /// The first mistake that was made in building the request.
    pub fn message(&self) -> Result<Vec<u8>, BadRequest> {
        if let Some(wrong) = &self.wrong {
            return Err(wrong.clone());
        }
        let mut out = Vec::with_capacity(128 + self.args.len());
        out.extend_from_slice(b"[\"run\", {\"callable\": ");
        push_text(&mut out, &self.callable);
        out.extend_from_slice(b", \"path\": ");
        push_text(&mut out, &self.path);
        for (name, args, kwargs) in [
            ("", &self.args, &self.kwargs),
            ("class_", &self.class_args, &self.class_kwargs),
        ] {
            for part in [", \"", name, "args\": ["] {
                out.extend_from_slice(part.as_bytes());
            }
            out.extend_from_slice(args);
            for part in ["], \"", name, "kwargs\": {"] {
                out.extend_from_slice(part.as_bytes());
            }
            for (at, (key, value)) in kwargs.iter().enumerate() {
                if at > 0 {
                    out.extend_from_slice(b", ");
                }
                push_text(&mut out, key);
                out.extend_from_slice(b": ");
                out.extend_from_slice(value);
            }
            out.push(b'}');
        }
        out.extend_from_slice(b"}]");
        if out.len() > FRAME_BYTES_MAX {
            return Err(BadRequest::TooLarge);
        }
        Ok(out)
    }
}

fn push_text(out: &mut Vec<u8>, text: &str) {
    json::push(out, text).expect("text is JSON");
}

fn push_item<T: Serialize>(out: &mut Vec<u8>, value: &T) -> Result<(), JsonError> {
    let len = out.len();
    if len > 0 {
        out.extend_from_slice(b", ");
    }
    json::push(out, value).inspect_err(|_| out.truncate(len))
}

fn set_key<T: Serialize>(
    keys: &mut Vec<(String, Vec<u8>)>,
    name: &str,
    value: &T,
) -> Result<(), JsonError> {
    let mut text = Vec::new();
    json::push(&mut text, value)?;
    match keys.iter_mut().find(|(known, _)| known == name) {
        Some((_, known)) => *known = text,
        None => keys.push((name.to_owned(), text)),
    }
    Ok(())
}
