//! What an I/O agent tells about its connections.

use super::output::OutputTable;
use crate::frames::Message;
use crate::ids::{ConnId, Socket};
use crate::link::PeerInfo;

/// Receiver of everything an I/O agent reads: the dispatch itself where both share a thread, a
/// ring otherwise. `outs` is the agent's own output, for an answer on the spot.
///
/// The order of calls for one connection is that of `link`. Every call is made only while
/// [`InputSink::has_room`] was true for its socket.
pub trait InputSink {
    /// False while nothing more should be read from `socket`.
    fn has_room(&mut self, socket: Socket) -> bool;

    /// A handshake has finished.
    fn opened(&mut self, conn: ConnId, info: PeerInfo, outs: &mut OutputTable);

    /// A complete message.
    fn message(
        &mut self,
        conn: ConnId,
        socket: Socket,
        message: &Message<'_>,
        outs: &mut OutputTable,
    );

    /// A SUBSCRIBE or CANCEL command (ZMTP 3.1) on a socket of type PUB or XPUB. Subscribers that
    /// speak ZMTP 3.0 send messages instead. Not called for sockets of other types.
    fn subscription(
        &mut self,
        _conn: ConnId,
        _socket: Socket,
        _subscribe: bool,
        _topic: &[u8],
        _outs: &mut OutputTable,
    ) {
    }

    /// Bytes have come that made no whole message: a PING, part of a large message. A sign of life.
    fn activity(&mut self, conn: ConnId, socket: Socket, outs: &mut OutputTable);

    /// A message above the size limit; `head` holds its frames as far as they could be read.
    fn too_large(
        &mut self,
        conn: ConnId,
        socket: Socket,
        head: &Message<'_>,
        outs: &mut OutputTable,
    );

    /// The connection has ended; nothing more comes from it.
    fn lost(&mut self, conn: ConnId, socket: Socket, outs: &mut OutputTable);

    /// A message that was not wholly sent, newest first.
    fn unsent(
        &mut self,
        conn: ConnId,
        socket: Socket,
        message: &Message<'_>,
        outs: &mut OutputTable,
    );

    /// All of the connection is over.
    fn closed(&mut self, conn: ConnId, socket: Socket, outs: &mut OutputTable);

    /// The output asked about has drained.
    fn writable(&mut self, conn: ConnId, socket: Socket, outs: &mut OutputTable);
}
