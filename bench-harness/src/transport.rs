//! What carries the messages of the generator.

use crate::failure::{Failure, Result};
use crate::handshake::{self, Opened};
use clap::ValueEnum;
use eventmq::addr::Addr;
use serde::Serialize;

/// Who speaks ZMTP for the clients and workers of the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Default)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Transport {
    /// This program: batched, so that the load costs little
    #[default]
    Native,
    /// A libzmq DEALER socket for each, as users' programs have
    Zmq,
}

impl Transport {
    /// Says so if this program would have to contain libzmq and does not.
    pub(crate) fn check_built_in(self) -> Result<()> {
        if self == Transport::Zmq && !cfg!(feature = "libzmq") {
            return Err(Failure::usage(
                "--transport zmq: this emq-bench is built without libzmq; build it with \
                 --features libzmq",
            ));
        }
        Ok(())
    }

    /// Connects to a broker's socket as a DEALER with the routing id `identity`.
    pub(crate) fn connect(self, addr: &Addr, identity: &[u8]) -> Result<Opened> {
        match self {
            Transport::Native => handshake::connect(addr, identity),
            #[cfg(feature = "libzmq")]
            Transport::Zmq => crate::zmq_stream::connect(addr, identity),
            #[cfg(not(feature = "libzmq"))]
            Transport::Zmq => Err(Failure::usage("this emq-bench is built without libzmq")),
        }
    }
}
