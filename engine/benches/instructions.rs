//! The same work as in the other benches, a given number of times and without any clock: what
//! `perf/instructions` counts the instructions of.
//!
//! `instructions CASE TIMES` does it and prints how many times it really did; without arguments it
//! prints `CASE<tab>TIMES<tab>UNIT`, one case a line. What setting up costs cancels out when the
//! counts of TIMES and of twice as many are subtracted.

mod shapes;
mod wire;

use eventmq::emqp::{Command, Envelope, RequestHeaders, parse_queues};
use eventmq::frames::push_frame;
use eventmq::ring::{Doorbell, Place, RingConfig, Wake, ring};
use shapes::{Rig, SHAPES};
use std::hint::black_box;
use std::process::ExitCode;

/// Something to count: does its work that many times.
struct Case {
    name: String,
    /// Enough for the cost of one to be exact to a thousandth.
    times: u64,
    unit: &'static str,
    /// Returns how many it really did: whole batches may be more.
    run: Box<dyn Fn(u64) -> u64>,
}

fn case(name: &str, times: u64, unit: &'static str, run: impl Fn(u64) -> u64 + 'static) -> Case {
    let (name, run) = (name.to_owned(), Box::new(run));
    Case {
        name,
        times,
        unit,
        run,
    }
}

fn cases() -> Vec<Case> {
    let mut cases = vec![
        case("decode request", 20_000, "message", |times| {
            let request = wire::request();
            let batch = 320;
            let bytes = request.view().wire().repeat(batch);
            decode_batches(&bytes, batch, times)
        }),
        case("decode mixed", 20_000, "message", |times| {
            let (bytes, messages) = wire::mixed();
            decode_batches(&bytes, messages, times)
        }),
        case("decode in pieces of 64", 2_000, "message", |times| {
            let bytes = wire::request().view().wire().repeat(times as usize);
            let (mut peer, mut buf) = (wire::connected(), Vec::with_capacity(4_096));
            let (mut spans, mut out) = (Vec::new(), Vec::new());
            for piece in bytes.chunks(64) {
                buf.extend_from_slice(piece);
                let (consumed, _) = wire::decode(&mut peer, &mut buf, &mut spans, &mut out);
                buf.drain(..consumed);
            }
            assert!(buf.is_empty());
            times
        }),
        case("encode request", 20_000, "message", |times| {
            let request = wire::request();
            let frames = request.to_frames();
            let mut out = Vec::with_capacity(4_096);
            for _ in 0..times {
                out.clear();
                for (i, frame) in frames.iter().enumerate() {
                    push_frame(&mut out, frame, i + 1 < frames.len());
                }
                black_box(&out);
            }
            times
        }),
        case("parse request", 20_000, "message", |times| {
            let request = wire::request();
            for _ in 0..times {
                let message = black_box(&request).view();
                let envelope = Envelope::parse(&message).expect("an envelope");
                assert!(envelope.command == Command::Request);
                let headers = envelope.body(1).expect("headers");
                black_box(RequestHeaders::parse(headers).expect("headers"));
            }
            times
        }),
        case("parse queues", 2_000, "list of 3", |times| {
            for _ in 0..times {
                let json = black_box(br#"[[10, "default"], [5.5, "mail"], [1, "slow"]]"#);
                black_box(parse_queues(json).expect("queues"));
            }
            times
        }),
        case("ring", 20_000, "message", |times| {
            let request = wire::request();
            let (mut sender, mut receiver) = ring::<Place>(RingConfig::default());
            let (mut put, mut taken) = (0, 0);
            while taken < times {
                while put < times.min(taken + 256)
                    && let Some(batch) = sender.open()
                {
                    let place = batch.put_message(&request.view(), true);
                    batch.push(place);
                    put += 1;
                }
                sender.flush();
                while let Some(mut batch) = receiver.take() {
                    while let Some(place) = batch.next_event() {
                        black_box(batch.message(place).get(3));
                        taken += 1;
                    }
                    receiver.put(batch);
                }
            }
            taken
        }),
        case("doorbell", 20_000, "ring", |times| {
            let bell = Doorbell::new(Nobody);
            for _ in 0..times {
                black_box(&bell).ring();
            }
            times
        }),
    ];
    for shape in SHAPES {
        // As many as make every worker and queue have its turns.
        cases.push(case(shape.name, 30_000, "job", move |times| {
            Rig::new(shape).run(times);
            times
        }));
    }
    cases
}

struct Nobody;

impl Wake for Nobody {
    fn wake(&self) {}
}

/// Whole batches of messages, until there were so many.
fn decode_batches(bytes: &[u8], messages: usize, times: u64) -> u64 {
    let (mut peer, mut buf) = (wire::connected(), bytes.to_vec());
    let (mut spans, mut out) = (Vec::new(), Vec::new());
    let mut decoded = 0;
    while decoded < times {
        let (consumed, count) = wire::decode(&mut peer, &mut buf, &mut spans, &mut out);
        assert_eq!((consumed, count), (bytes.len(), messages));
        decoded += count as u64;
    }
    decoded
}

fn main() -> ExitCode {
    // `cargo bench` adds `--bench`.
    let arguments: Vec<_> = std::env::args()
        .skip(1)
        .filter(|a| a != "--bench")
        .collect();
    let cases = cases();
    match arguments.as_slice() {
        [] => {
            for case in &cases {
                println!("{}\t{}\t{}", case.name, case.times, case.unit);
            }
            ExitCode::SUCCESS
        }
        [name, times] => {
            let case = cases.iter().find(|case| case.name == *name);
            let (Some(case), Ok(times)) = (case, times.parse()) else {
                eprintln!("instructions: no case {name:?}, or {times:?} is not a number");
                return ExitCode::from(2);
            };
            println!("{}", (case.run)(times));
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("usage: instructions [CASE TIMES]");
            ExitCode::from(2)
        }
    }
}
