//! What all connections of one socket have in common.

use super::{GREETING_BYTES, Mechanism, greeting, ready_command};
use crate::limits::{
    DISCARD_BYTES_MAX, FRAME_BYTES_MAX, INNER_COMMAND_BYTES_MAX, MESSAGE_BYTES_MAX,
    MESSAGE_FRAMES_MAX,
};

/// What is accepted from a peer after the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Largest body of one frame, in bytes.
    pub frame_bytes_max: usize,
    /// Largest message on the wire, frame headers included, in bytes.
    pub message_bytes_max: usize,
    /// A message above the limits is read and discarded up to this size in bytes; beyond it the
    /// connection ends.
    pub discard_bytes_max: usize,
    /// Largest number of frames in one message.
    pub frames_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            frame_bytes_max: FRAME_BYTES_MAX,
            message_bytes_max: MESSAGE_BYTES_MAX,
            discard_bytes_max: DISCARD_BYTES_MAX,
            frames_max: MESSAGE_FRAMES_MAX,
        }
    }
}

/// Which side of the handshake we are. NULL makes no difference between them; PLAIN and CURVE do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// We accept connections and decide who may use them.
    Server,
    /// We connect.
    Client,
}

macro_rules! socket_types {
    ($($variant:ident $name:literal: $($peer:ident),*;)*) => {
        /// The kinds of ZeroMQ sockets that can be named in a READY.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum SocketType {
            $(
                #[doc = $name]
                $variant,
            )*
        }

        impl SocketType {
            /// All kinds.
            pub const ALL: &'static [SocketType] = &[$(SocketType::$variant,)*];

            /// The name in READY.
            pub fn name(self) -> &'static str {
                match self { $(SocketType::$variant => $name,)* }
            }

            /// True if a socket of this kind may be connected to one of the kind `peer`.
            pub fn accepts(self, peer: SocketType) -> bool {
                match self { $(SocketType::$variant => matches!(peer, $(SocketType::$peer)|*),)* }
            }
        }
    };
}

// The draft kinds of libzmq (SERVER, CLIENT, RADIO, ...) go with none of these and stay unknown.
socket_types! {
    Req "REQ": Rep, Router;
    Rep "REP": Req, Dealer;
    Dealer "DEALER": Rep, Dealer, Router;
    Router "ROUTER": Req, Dealer, Router;
    Pub "PUB": Sub, XSub;
    XPub "XPUB": Sub, XSub;
    Sub "SUB": Pub, XPub;
    XSub "XSUB": Pub, XPub;
    Push "PUSH": Pull;
    Pull "PULL": Push;
    Pair "PAIR": Pair;
}

impl SocketType {
    /// The kind with this name (exact, as in READY).
    pub fn from_name(name: &[u8]) -> Option<SocketType> {
        SocketType::ALL
            .iter()
            .copied()
            .find(|t| t.name().as_bytes() == name)
    }

    /// True if sockets of this kind send an Identity.
    pub(super) fn has_routing_id(self) -> bool {
        matches!(
            self,
            SocketType::Req | SocketType::Dealer | SocketType::Router
        )
    }

    /// True if SUBSCRIBE and CANCEL commands mean something to this kind.
    pub(super) fn takes_subscriptions(self) -> bool {
        matches!(self, SocketType::Pub | SocketType::XPub)
    }
}

/// What all connections of one socket share: who we are, and what we accept. The greeting and the
/// READY are built once.
#[derive(Debug, Clone)]
pub struct PeerConfig {
    role: Role,
    socket_type: SocketType,
    mechanism: Mechanism,
    pub(super) limits: Limits,
    greeting: [u8; GREETING_BYTES],
    ready: Vec<u8>,
}

impl PeerConfig {
    /// A configuration with the mechanism NULL. `routing_id` is our own (Identity in READY, at
    /// most 255 bytes, may be empty); it is sent only by socket types that have one.
    /// `properties` are added to READY as they are.
    ///
    /// # Panics
    /// If the routing id or a property name has more than 255 bytes, or a name is empty.
    pub fn new(
        role: Role,
        socket_type: SocketType,
        routing_id: &[u8],
        properties: &[(&str, &[u8])],
        limits: Limits,
    ) -> PeerConfig {
        assert!(routing_id.len() <= 255, "routing id above 255 bytes");
        let mechanism = Mechanism::Null;
        // Frame offsets are 32 bits wide, commands between the frames of a message included.
        let offsets_max = u32::MAX as usize - 2 * INNER_COMMAND_BYTES_MAX;
        PeerConfig {
            role,
            socket_type,
            mechanism,
            limits: Limits {
                message_bytes_max: limits.message_bytes_max.min(offsets_max),
                ..limits
            },
            greeting: greeting(mechanism),
            ready: ready_command(socket_type, routing_id, properties),
        }
    }

    /// Our side of the handshake.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Our kind of socket.
    pub fn socket_type(&self) -> SocketType {
        self.socket_type
    }

    /// The security mechanism.
    pub fn mechanism(&self) -> Mechanism {
        self.mechanism
    }

    /// What is accepted from peers.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    pub(super) fn greeting(&self) -> &[u8; GREETING_BYTES] {
        &self.greeting
    }

    pub(super) fn ready(&self) -> &[u8] {
        &self.ready
    }
}
