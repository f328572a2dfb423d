use super::*;
use crate::json::JsonError;
use serde_json::{Map, Value, json};

crate::job! {
    /// Adds.
    ADD in "tasks" = fn add(a: i64, b: i64) -> Result<i64, String> {
        a.checked_add(b).ok_or_else(|| "too large".to_owned())
    }

    /// Nothing in, nothing out.
    NOTHING in "tasks" = fn nothing() -> Result<(), JobFailure> {
        Ok(())
    }

    /// A result that is not JSON.
    NAN in "tasks" = fn nan(zero: f64) -> Result<f64, std::num::ParseIntError> {
        if zero == 1.0 { "x".parse::<i32>()?; }
        Ok(0.0 / zero)
    }
}

/// Without the macro.
#[allow(clippy::type_complexity)]
const JOIN: Job<fn(Vec<String>, Option<String>) -> Result<String, std::fmt::Error>> =
    Job::new("text", "join", &[], join);

fn join(parts: Vec<String>, with: Option<String>) -> Result<String, std::fmt::Error> {
    Ok(parts.join(&with.unwrap_or_default()))
}

fn run(job: &dyn AnyJob, args: Value, kwargs: Value) -> Result<String, JobFailure> {
    let (Value::Array(args), Value::Object(kwargs)) = (args, kwargs) else {
        panic!("an array and an object");
    };
    job.run(Arguments::new(args, kwargs))
        .map(|json| String::from_utf8(json).unwrap())
}

#[test]
fn messages_are_those_of_the_original_client() {
    let message = |request: &Request| String::from_utf8(request.message().unwrap()).unwrap();
    let add = Request::new("jobs_x.add").arg(1).arg(2).kwarg("b", 3);
    assert_eq!(
        message(&add),
        r#"["run", {"callable": "add", "path": "jobs_x", "args": [1, 2], "kwargs": {"b": 3}, "class_args": [], "class_kwargs": {}}]"#
    );
    assert_eq!((add.queue_name(), add.headers().as_str()), ("default", ""));
    let method = Request::new("jobs_x:K.m")
        .class_arg(1)
        .class_kwarg("k", "\u{e9}\u{2603}")
        .kwarg("z", 1.0)
        .kwarg("a", json!([null, {"x": true}]))
        .kwarg("z", 2e16);
    assert_eq!(
        message(&method),
        r#"["run", {"callable": "m", "path": "jobs_x:K", "args": [], "kwargs": {"z": 2e+16, "a": [null, {"x": true}]}, "class_args": [1], "class_kwargs": {"k": "\u00e9\u2603"}}]"#
    );
}

#[test]
fn headers_are_in_the_order_of_the_original_client() {
    let all = Request::new("a.b")
        .debounce_secs(9)
        .delay_secs(8)
        .timeout_secs(7)
        .retry_count(3)
        .header("tz:Europe/Berlin")
        .guarantee(true)
        .reply_requested(true);
    assert_eq!(
        all.headers(),
        "reply-requested,guarantee,retry-count:3,timeout:7,delay:8,debounce:9,tz:Europe/Berlin"
    );
    assert_eq!(
        all.run_headers().join(","),
        "guarantee-runs,retry-count:3,timeout:7,delay:8,debounce:9,tz:Europe/Berlin"
    );
    let parsed = crate::emqp::RequestHeaders::parse(all.headers().as_bytes()).unwrap();
    assert!(parsed.reply_requested && parsed.guarantee);
    assert_eq!(
        (
            parsed.retry_count,
            parsed.timeout_secs,
            parsed.delay_secs,
            parsed.debounce_secs
        ),
        (3, 7, 8, 9)
    );
    let none = Request::new("a.b").timeout_secs(0).retry_count(0);
    assert_eq!(none.headers(), "");
}

#[test]
fn mistakes_are_told_and_the_first_counts() {
    for name in ["", "add", ".add", "path.", "."] {
        assert!(matches!(
            Request::new(name).message(),
            Err(BadRequest::Name(_))
        ));
    }
    let nan = Request::new("a.b")
        .arg(1)
        .arg(f64::NAN)
        .queue(&"q".repeat(256));
    assert_eq!(
        nan.message(),
        Err(BadRequest::Argument {
            argument: "argument 2".to_owned(),
            why: JsonError::NotFinite
        })
    );
    assert_eq!(
        nan.message().unwrap_err().to_string(),
        "argument 2: NaN and infinities are not JSON"
    );
    assert_eq!(
        Request::new("a.b").queue(&"q".repeat(256)).message(),
        Err(BadRequest::Queue)
    );
    assert!(
        Request::new("a.b")
            .queue(&"q".repeat(255))
            .message()
            .is_ok()
    );
    for header in ["", "a,b", "a\n"] {
        assert!(matches!(
            Request::new("a.b").header(header).message(),
            Err(BadRequest::Header(_))
        ));
    }
    let large = "x".repeat(crate::limits::FRAME_BYTES_MAX);
    assert_eq!(
        Request::new("a.b").arg(large).message(),
        Err(BadRequest::TooLarge)
    );
}

#[test]
fn a_declared_job_is_asked_for_and_run() {
    assert_eq!((ADD.path(), ADD.callable()), ("tasks", "add"));
    let message = ADD.with((1, 2)).message().unwrap();
    let value: Value = serde_json::from_slice(&message).unwrap();
    assert_eq!(value[1]["args"], json!([1, 2]));
    assert_eq!(run(&ADD, value[1]["args"].clone(), json!({})).unwrap(), "3");
    assert_eq!(run(&ADD, json!([1]), json!({"b": 5})).unwrap(), "6");
    assert_eq!(run(&ADD, json!([]), json!({"b": 5, "a": 1})).unwrap(), "6");
    assert_eq!(run(&NOTHING, json!([]), json!({})).unwrap(), "null");
    assert_eq!(
        run(&JOIN, json!([["a", "b"], "-"]), json!({})).unwrap(),
        r#""a-b""#
    );
    assert_eq!((ADD.function())(1, 2), Ok(3));
    let jobs: Vec<Box<dyn AnyJob>> = vec![Box::new(ADD), Box::new(NOTHING), Box::new(JOIN)];
    let names: Vec<_> = jobs
        .iter()
        .map(|job| (job.path(), job.callable()))
        .collect();
    assert_eq!(
        names,
        [("tasks", "add"), ("tasks", "nothing"), ("text", "join")]
    );
}

#[test]
fn what_does_not_fit_is_a_failure_in_words() {
    for (args, kwargs, message) in [
        (json!([1]), json!({}), "argument 2 (b) is missing"),
        (
            json!([1, 2, 3, 4]),
            json!({}),
            "2 arguments expected, 4 given",
        ),
        (
            json!([1, 2]),
            json!({"a": 1}),
            "argument 1 (a) is given twice",
        ),
        (json!([1, 2]), json!({"c": 1}), "unknown argument c"),
        (
            json!([1, "x"]),
            json!({}),
            "argument 2 (b): invalid type: string \"x\", expected i64",
        ),
    ] {
        let failure = run(&ADD, args, kwargs).unwrap_err();
        assert_eq!(failure, JobFailure::new("ArgumentError", message));
    }
    assert_eq!(
        run(&ADD, json!([i64::MAX, 1]), json!({})).unwrap_err(),
        JobFailure::new("Error", "too large")
    );
    assert_eq!(
        run(&NAN, json!([1]), json!({})).unwrap_err().kind,
        "ParseIntError"
    );
    assert_eq!(
        run(&NAN, json!([0.0]), json!({})).unwrap_err().kind,
        "ResultError"
    );
    let missing = JOIN
        .run(Arguments::new(vec![json!([])], Map::new()))
        .unwrap_err();
    assert_eq!(missing.message, "argument 2 is missing");
}
