//! Time of the hand-over between agents: what a message costs on its way through a ring of batches,
//! both ends on one thread, and a doorbell that wakes nobody.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use eventmq::frames::{Message, OwnedMessage};
use eventmq::limits::SHARED_BYTES_MIN;
use eventmq::ring::{Doorbell, Place, RingConfig, Wake, ring};
use std::hint::black_box;
use std::sync::Arc;

struct Nobody;

impl Wake for Nobody {
    fn wake(&self) {}
}

const MESSAGES: usize = 256;

fn job(payload: usize) -> OwnedMessage {
    let msgid = [b'm'; 36];
    let payload = vec![b'x'; payload];
    OwnedMessage::from_frames([
        &b""[..],
        b"eMQP/1.0",
        b"REQUEST",
        &msgid,
        b"default",
        b"",
        &payload,
    ])
}

/// Puts messages in until they are through: in, flush, out, batch given back.
fn pass(c: &mut Criterion) {
    let mut group = c.benchmark_group("ring");
    group.throughput(Throughput::Elements(MESSAGES as u64));
    for payload in [120, 4096] {
        let message = job(payload);
        let (mut sender, mut receiver) = ring::<Place>(RingConfig::default());
        group.bench_function(format!("copied {payload} bytes"), |b| {
            b.iter(|| {
                let mut put = 0;
                let mut taken = 0;
                while taken < MESSAGES {
                    while put < MESSAGES
                        && let Some(batch) = sender.open()
                    {
                        let place = batch.put_message(&message.view(), true);
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
            });
        });
    }
    group.throughput(Throughput::Elements(1));
    let large = job(2 * SHARED_BYTES_MIN);
    let shared = Arc::new(large.view().wire().to_vec());
    let (mut sender, mut receiver) = ring::<Place>(RingConfig::default());
    group.bench_function("by reference", |b| {
        b.iter_batched(
            || Arc::clone(&shared),
            |shared| {
                let message = Message::from_shared(&shared, large.view().spans());
                if let Some(batch) = sender.open() {
                    let place = batch.put_message(&message, true);
                    batch.push(place);
                }
                sender.flush();
                while let Some(mut batch) = receiver.take() {
                    while let Some(place) = batch.next_event() {
                        black_box(batch.message(place).shared());
                    }
                    receiver.put(batch);
                }
            },
            BatchSize::SmallInput,
        );
    });
    group.finish();
}

fn bell(c: &mut Criterion) {
    let bell = Doorbell::new(Nobody);
    c.bench_function("doorbell, nobody sleeps", |b| {
        b.iter(|| black_box(&bell).ring())
    });
}

criterion_group!(benches, pass, bell);
criterion_main!(benches);
