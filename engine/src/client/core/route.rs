//! The connections to one kind of server: brokers, or publishers. One connection is in use; when it
//! ends, or cannot be made, the next address is tried, and those that failed go on trying.

use crate::addr::Addr;
use crate::dial::{DialError, DialId, Net, Target};
use crate::ids::ConnId;
use crate::link::PeerInfo;
use std::collections::{BTreeSet, VecDeque};

/// An address that is dialled.
#[derive(Debug)]
struct Dial {
    addr: usize,
    id: DialId,
    conn: Option<ConnId>,
}

/// The connection in use.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) conn: ConnId,
    /// The other side is one of ours: it answers every message.
    pub(super) extensions: bool,
    /// When something came from it last.
    pub(super) heard_ns: u64,
    /// Too much output is waiting: `writable` will come.
    pub(super) blocked: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Route {
    addrs: Vec<Addr>,
    dials: Vec<Dial>,
    pub(super) link: Option<Link>,
    /// The address to try next.
    next: usize,
    /// Numbers of messages that wait for a connection, or for room in its output.
    pub(super) queue: BTreeSet<u64>,
    /// Numbers of messages that were given to the connection and will not be answered: they count
    /// as sent once nothing waits for the kernel.
    pub(super) unsettled: VecDeque<u64>,
    trouble: Option<String>,
}

impl Route {
    pub(super) fn new(addrs: Vec<Addr>) -> Route {
        Route {
            addrs,
            dials: Vec::new(),
            link: None,
            next: 0,
            queue: BTreeSet::new(),
            unsettled: VecDeque::new(),
            trouble: None,
        }
    }

    /// Dials, if nothing is dialled yet.
    pub(super) fn begin(&mut self, net: &mut dyn Net) {
        if self.dials.is_empty() {
            self.dial_next(net);
        }
    }

    /// Dials the next address that is not being dialled.
    fn dial_next(&mut self, net: &mut dyn Net) {
        let count = self.addrs.len();
        let free = (0..count)
            .map(|step| (self.next + step) % count)
            .find(|at| self.dials.iter().all(|dial| dial.addr != *at));
        if let Some(addr) = free {
            self.next = (addr + 1) % count;
            let id = net.dial(Target::dealer(self.addrs[addr].clone()));
            self.dials.push(Dial {
                addr,
                id,
                conn: None,
            });
        }
    }

    /// What to say when there is no connection.
    pub(super) fn trouble(&self) -> String {
        match (&self.trouble, self.addrs.first()) {
            (Some(trouble), _) => trouble.clone(),
            (None, Some(addr)) => format!("{addr}: still connecting"),
            (None, None) => "no address".to_owned(),
        }
    }

    pub(super) fn owns(&self, dial: DialId) -> bool {
        self.dials.iter().any(|known| known.id == dial)
    }

    pub(super) fn has_conn(&self, conn: ConnId) -> bool {
        self.dials.iter().any(|dial| dial.conn == Some(conn))
    }

    /// The connection in use, if it is this one.
    pub(super) fn link_of(&mut self, conn: ConnId) -> Option<&mut Link> {
        self.link.as_mut().filter(|link| link.conn == conn)
    }

    /// A connection of ours is open.
    pub(super) fn opened(
        &mut self,
        dial: DialId,
        conn: ConnId,
        info: &PeerInfo,
        now_ns: u64,
        net: &mut dyn Net,
    ) {
        if self.link.is_some() {
            // Two came at once.
            self.give_up(dial, net);
            return;
        }
        self.link = Some(Link {
            conn,
            extensions: info.speaks_extensions,
            heard_ns: now_ns,
            blocked: false,
        });
        self.unsettled.clear();
        let mut others = Vec::new();
        for known in &mut self.dials {
            if known.id == dial {
                known.conn = Some(conn);
                self.next = (known.addr + 1) % self.addrs.len();
                if self.trouble.take().is_some() {
                    tracing::info!(addr = %self.addrs[known.addr], "connected again");
                }
            } else if known.conn.is_none() {
                others.push(known.id);
            }
        }
        for other in others {
            self.give_up(other, net);
        }
    }

    fn give_up(&mut self, dial: DialId, net: &mut dyn Net) {
        net.hang_up(dial);
        self.dials.retain(|known| known.id != dial);
    }

    fn note_trouble(&mut self, dial: DialId, why: &DialError) {
        let Some(known) = self.dials.iter().find(|known| known.id == dial) else {
            return;
        };
        let addr = &self.addrs[known.addr];
        if self.trouble.is_none() && *why != DialError::HungUp {
            tracing::warn!(%addr, "no connection: {why}");
        }
        self.trouble = Some(format!("{addr}: {why}"));
    }

    /// An address cannot be reached now.
    pub(super) fn failed(&mut self, dial: DialId, why: &DialError, net: &mut dyn Net) {
        self.note_trouble(dial, why);
        if self.link.is_none() {
            self.dial_next(net);
        }
    }

    /// The connection is no longer used for what comes next; answers may still come from it.
    pub(super) fn turn_away(&mut self, conn: ConnId, net: &mut dyn Net) {
        if self.link_of(conn).is_some() {
            self.link = None;
            self.dial_next(net);
        }
    }

    /// The other side takes nothing any more: another connection is made.
    pub(super) fn abandon(&mut self, conn: ConnId, net: &mut dyn Net) {
        self.turn_away(conn, net);
        if let Some(dial) = self.dials.iter().find(|dial| dial.conn == Some(conn)) {
            net.redial(dial.id);
        }
    }

    /// A message has waited for a connection in vain. One that was turned away from should have
    /// ended long since: it is made anew.
    pub(super) fn waited_in_vain(&mut self, net: &mut dyn Net) {
        if self.link.is_none() {
            for dial in self.dials.iter().filter(|dial| dial.conn.is_some()) {
                net.redial(dial.id);
            }
        }
    }

    /// A connection of ours has ended.
    pub(super) fn lost(&mut self, conn: ConnId, why: &DialError, net: &mut dyn Net) {
        let Some(dial) = self.dials.iter_mut().find(|dial| dial.conn == Some(conn)) else {
            return;
        };
        dial.conn = None;
        let id = dial.id;
        self.turn_away(conn, net);
        if self.link.is_some() {
            // It had been turned away from, and another one is in use.
            self.give_up(id, net);
        } else {
            self.note_trouble(id, why);
        }
    }
}
