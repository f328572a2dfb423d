//! Spreading accepted connections over the I/O agents of a socket.

use super::control::{Bell, IoOrder, Orders, Published};
use crate::ids::Socket;
use crate::io::{Handover, NetStream};
use std::net::SocketAddr;
use std::sync::Arc;

type Member = ((Arc<Orders<IoOrder>>, Arc<Bell>), Arc<Published>);

/// Gives each new connection to the agent that has fewest. The first member is the one that
/// accepts.
pub(super) struct Spread {
    members: Vec<Member>,
}

impl std::fmt::Debug for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spread")
            .field("members", &self.members.len())
            .finish()
    }
}

impl Spread {
    pub(super) fn new(members: Vec<Member>) -> Self {
        Spread { members }
    }
}

impl Handover for Spread {
    fn offer(
        &mut self,
        stream: NetStream,
        socket: Socket,
        remote: Option<SocketAddr>,
        own_load: usize,
    ) -> Option<NetStream> {
        let others = self.members.iter().skip(1);
        let least = others.min_by_key(|(_, published)| published.load());
        let Some(((orders, bell), published)) = least.filter(|(_, p)| p.load() < own_load) else {
            return Some(stream);
        };
        match orders.give(IoOrder::Adopt(stream, socket, remote), bell) {
            Ok(()) => {
                // Its own figure follows with its next turn.
                published.add_load();
                None
            }
            Err(IoOrder::Adopt(stream, ..)) => Some(stream),
            Err(_) => None,
        }
    }
}
