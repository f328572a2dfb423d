//! Cost of the ZMTP codec: decoding batches of whole messages as they stand in a receive buffer,
//! and encoding. Throughput is in messages, so that the time of one message can be read off.

mod wire;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use eventmq::frames::OwnedMessage;
use eventmq::zmtp::push_ping;
use std::hint::black_box;
use wire::{connected, decode, request};

fn bench_decode(c: &mut Criterion, name: &str, wire: &[u8], messages: usize, inner_commands: bool) {
    let (mut peer, mut buf) = (connected(), wire.to_vec());
    let (mut spans, mut out) = (Vec::new(), Vec::new());
    let mut group = c.benchmark_group("decode");
    group.throughput(Throughput::Elements(messages as u64));
    group.bench_function(name, |b| {
        b.iter(|| {
            out.clear();
            if inner_commands {
                // They are cut out in place; the copy is part of what is measured.
                buf.copy_from_slice(wire);
            }
            let (consumed, decoded) = decode(&mut peer, &mut buf, &mut spans, &mut out);
            assert_eq!((consumed, decoded), (wire.len(), messages));
        });
    });
    group.finish();
}

fn decoding(c: &mut Criterion) {
    let request = request();
    let wire = request.view().wire();
    let count = 64 * 1024 / wire.len();
    bench_decode(c, "7_frames_200_bytes", &wire.repeat(count), count, false);

    let (mixed, messages) = wire::mixed();
    bench_decode(c, "mixed", &mixed, messages, false);

    let large = OwnedMessage::from_frames([&b""[..], &[7; 4096]]);
    let wire_4k = large.view().wire();
    bench_decode(c, "2_frames_4096_bytes", &wire_4k.repeat(16), 16, false);

    // What a libzmq peer with heartbeats may do at worst: a PING inside every message.
    let mut with_ping = wire[..2].to_vec();
    push_ping(&mut with_ping, 30, b"");
    with_ping.extend_from_slice(&wire[2..]);
    bench_decode(
        c,
        "7_frames_with_ping_inside",
        &with_ping.repeat(count),
        count,
        true,
    );
}

/// The same bytes handed over in pieces: the part of a message that came is kept in front.
fn fragmented(c: &mut Criterion) {
    let request = request();
    let wire = request.view().wire().repeat(16);
    let mut group = c.benchmark_group("decode_cut");
    group.throughput(Throughput::Elements(16));
    for piece in [1, 64, 1460] {
        group.bench_function(format!("{piece}_byte_pieces"), |b| {
            b.iter_batched_ref(
                || (connected(), Vec::<u8>::with_capacity(wire.len())),
                |(peer, buf)| {
                    let (mut spans, mut out) = (Vec::new(), Vec::new());
                    let mut messages = 0;
                    for bytes in wire.chunks(piece) {
                        buf.extend_from_slice(bytes);
                        let (consumed, decoded) = decode(peer, buf, &mut spans, &mut out);
                        buf.drain(..consumed);
                        messages += decoded;
                    }
                    assert_eq!(messages, 16);
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

fn encoding(c: &mut Criterion) {
    let request = request();
    let frames = request.to_frames();
    let mut out = Vec::with_capacity(64 * 1024);
    let mut group = c.benchmark_group("encode");
    group.throughput(Throughput::Elements(1));
    group.bench_function("7_frames_200_bytes", |b| {
        b.iter(|| {
            out.clear();
            for (i, frame) in frames.iter().enumerate() {
                eventmq::frames::push_frame(&mut out, frame, i + 1 < frames.len());
            }
            black_box(&out);
        });
    });
    group.bench_function("forward_200_bytes", |b| {
        b.iter(|| {
            out.clear();
            out.extend_from_slice(black_box(request.view().wire()));
            black_box(&out);
        });
    });
    group.finish();
}

criterion_group!(benches, decoding, fragmented, encoding);
criterion_main!(benches);
