//! An I/O agent as its runner steps it.

use super::agent::IoAgent;
use super::sink::InputSink;
use super::stream::{NetStream, Stream};
use super::table::ConnTable;
use crate::ids::Socket;

/// What happens between a poll and the next sleep: [`IoAgent`] does it with listeners, a bare
/// [`ConnTable`] over any sockets, so that the runners' turns also run without a system.
pub trait Steps {
    /// The sockets.
    type Stream: Stream;

    /// The connections.
    fn table(&mut self) -> &mut ConnTable<Self::Stream>;

    /// Input. Returns a measure of the work done.
    fn turn<K: InputSink>(&mut self, now_ns: u64, sink: &mut K) -> usize;

    /// True if a turn has something to do without waiting.
    fn has_work<K: InputSink>(&mut self, sink: &mut K) -> bool;

    /// Accepts nothing more for `socket`.
    fn stop_listening(&mut self, socket: Socket);

    /// Writes fresh output and looks at deadlines. True if one had come.
    fn flush(&mut self, now_ns: u64) -> bool {
        self.table().flush();
        self.table().housekeeping(now_ns) > 0
    }
}

impl Steps for IoAgent {
    type Stream = NetStream;

    fn table(&mut self) -> &mut ConnTable<NetStream> {
        &mut self.table
    }

    fn turn<K: InputSink>(&mut self, now_ns: u64, sink: &mut K) -> usize {
        IoAgent::turn(self, now_ns, sink)
    }

    fn has_work<K: InputSink>(&mut self, sink: &mut K) -> bool {
        IoAgent::has_work(self, sink)
    }

    fn stop_listening(&mut self, socket: Socket) {
        IoAgent::stop_listening(self, socket);
    }
}

impl<S: Stream> Steps for ConnTable<S> {
    type Stream = S;

    fn table(&mut self) -> &mut ConnTable<S> {
        self
    }

    fn turn<K: InputSink>(&mut self, now_ns: u64, sink: &mut K) -> usize {
        ConnTable::turn(self, now_ns, sink)
    }

    fn has_work<K: InputSink>(&mut self, sink: &mut K) -> bool {
        ConnTable::has_work(self, sink)
    }

    fn stop_listening(&mut self, _: Socket) {}
}
