//! What crosses the rings between I/O and dispatch.

use crate::frames::{Message, OwnedMessage};
use crate::ids::{ConnId, Socket};
use crate::link::{CloseReason, OutClass, PeerInfo};
use crate::ring::Place;

/// From an I/O agent to the dispatch.
#[derive(Debug, Clone, Copy)]
pub(super) enum InEvent {
    /// The message holds the encoded [`PeerInfo`].
    Opened {
        conn: ConnId,
        socket: Socket,
        info: Place,
    },
    Message {
        conn: ConnId,
        socket: Socket,
        place: Place,
    },
    TooLarge {
        conn: ConnId,
        socket: Socket,
        head: Place,
    },
    Activity {
        conn: ConnId,
        socket: Socket,
    },
    Lost {
        conn: ConnId,
        socket: Socket,
    },
    Unsent {
        conn: ConnId,
        socket: Socket,
        place: Place,
    },
    Closed {
        conn: ConnId,
        socket: Socket,
    },
    Writable {
        conn: ConnId,
        socket: Socket,
    },
}

/// From the dispatch to an I/O agent.
#[derive(Debug, Clone, Copy)]
pub(super) enum OutEvent {
    Message {
        conn: ConnId,
        class: OutClass,
        place: Place,
    },
    Close {
        conn: ConnId,
        reason: CloseReason,
    },
    Release {
        conn: ConnId,
    },
    NotifyWritable {
        conn: ConnId,
        below_bytes: usize,
    },
    NeverPaused {
        conn: ConnId,
        never_paused: bool,
    },
    PauseInput {
        socket: Socket,
        paused: bool,
    },
}

const FLAG_EXTENSIONS: u8 = 1;

/// Peer information as a message, so that it travels like one.
pub(super) fn encode_info(info: &PeerInfo) -> OwnedMessage {
    let flags = if info.speaks_extensions {
        FLAG_EXTENSIONS
    } else {
        0
    };
    let remote = info.remote.map(|r| r.to_string()).unwrap_or_default();
    OwnedMessage::from_frames([
        &[info.socket as u8, flags],
        &info.routing_id[..],
        remote.as_bytes(),
    ])
}

/// The reverse of [`encode_info`].
pub(super) fn decode_info(message: &Message<'_>) -> PeerInfo {
    let head = message.get(0).unwrap_or_default();
    let socket = head.first().map_or(0, |n| usize::from(*n));
    PeerInfo {
        socket: Socket::ALL[socket],
        speaks_extensions: head.get(1).is_some_and(|f| f & FLAG_EXTENSIONS != 0),
        routing_id: message.get(1).unwrap_or_default().to_vec(),
        remote: std::str::from_utf8(message.get(2).unwrap_or_default())
            .ok()
            .and_then(|text| text.parse().ok()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_info_survives() {
        for remote in [
            None,
            Some("127.0.0.1:9".parse().unwrap()),
            Some("[::1]:65535".parse().unwrap()),
        ] {
            let info = PeerInfo {
                socket: Socket::Backend,
                routing_id: vec![0, 255, 7],
                speaks_extensions: true,
                remote,
            };
            assert_eq!(decode_info(&encode_info(&info).view()), info);
        }
    }
}
