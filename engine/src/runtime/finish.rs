//! The end of an I/O agent.

use super::clock::Clock;
use super::idle::earliest;
use crate::frames::Message;
use crate::ids::{ConnId, NS_PER_SEC, Socket};
use crate::io::{InputSink, IoAgent, OutputTable, Steps};
use crate::link::{Outbox, PeerInfo};
use std::io;
use std::time::Duration;

/// How long the last output may take at the end.
const FINISH_NS: u64 = 2 * NS_PER_SEC;

/// Receives what still comes at the very end: nothing of it matters any more.
struct NullSink;

impl InputSink for NullSink {
    fn has_room(&mut self, _: Socket) -> bool {
        true
    }
    fn opened(&mut self, _: ConnId, _: PeerInfo, _: &mut OutputTable) {}
    fn message(&mut self, _: ConnId, _: Socket, _: &Message<'_>, _: &mut OutputTable) {}
    fn too_large(&mut self, _: ConnId, _: Socket, _: &Message<'_>, _: &mut OutputTable) {}
    fn activity(&mut self, _: ConnId, _: Socket, _: &mut OutputTable) {}
    fn lost(&mut self, conn: ConnId, _: Socket, outs: &mut OutputTable) {
        outs.release(conn);
    }
    fn unsent(&mut self, _: ConnId, _: Socket, _: &Message<'_>, _: &mut OutputTable) {}
    fn closed(&mut self, _: ConnId, _: Socket, _: &mut OutputTable) {}
    fn writable(&mut self, _: ConnId, _: Socket, _: &mut OutputTable) {}
}

/// Sends what is waiting and closes every connection in order, for at most 2 seconds.
///
/// # Errors
/// When the system's poll fails.
pub fn finish_connections(io: &mut IoAgent, clock: &mut Clock) -> io::Result<()> {
    let began = clock.now();
    for socket in Socket::ALL {
        io.stop_listening(socket);
    }
    io.table.close_all(began.mono_ns);
    let end_ns = began.mono_ns + FINISH_NS;
    loop {
        let now = clock.now();
        io.turn(now.mono_ns, &mut NullSink);
        io.flush(now.mono_ns);
        if io.table.is_empty() || now.mono_ns >= end_ns {
            return Ok(());
        }
        let wait = match io.has_work(&mut NullSink) {
            true => Some(Duration::ZERO),
            false => earliest([Some(end_ns), io.next_deadline_ns()], now),
        };
        io.poll(wait)?;
    }
}
