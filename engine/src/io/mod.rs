//! The shell around ZMTP: listeners, connections and their buffers, on mio.
//!
//! Owns: sockets, receive and output buffers, handshake deadlines, connection limits. May import:
//! layers 0-3 except `broker`: an I/O agent moves messages and knows nothing of jobs.
//!
//! Invariants: a connection is reported `opened` before its first message and `lost` behind its
//! last; its slot is not reused before `closed`; a connection gets at most
//! `limits::TURN_READ_BYTES_MAX` bytes of reading a turn; output is written once a turn; buffers
//! are held only while bytes are in them.

mod agent;
mod buffers;
mod dialer;
mod listener;
mod output;
mod sink;
mod steps;
mod stream;
mod table;
mod unsent;

pub use agent::{Handover, IoAgent, IoWaker};
pub use dialer::{DialedTurn, Dialer};
pub use listener::{BindError, Listener};
pub use output::{OutputConfig, OutputTable, WrittenTable};
pub use sink::InputSink;
pub use steps::Steps;
pub use stream::{NetStream, Stream};
pub use table::{ConnTable, TableConfig};

#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod tests;
