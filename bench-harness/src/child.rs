//! What a spawned broker and the harness say to each other.
//!
//! The child prints one line with its addresses when it listens, then answers commands that come
//! on its standard input, one line each. The end of its standard input ends the child, so that no
//! broker outlives its harness.

use crate::failure::{Failure, Result};
use eventmq::addr::Addr;
use std::io::{BufRead, Write};
use std::str::FromStr;
use std::{io, process, thread};

const READY: &str = "ready";
/// Asks for the number of allocations (and reallocations) of the process so far.
pub(crate) const ALLOCATIONS: &str = "allocations";

/// Where a spawned broker listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Addresses {
    pub(crate) frontend: Addr,
    pub(crate) backend: Addr,
    /// Where it answers STATUS and LATENCY, if it does.
    pub(crate) administrative: Option<Addr>,
    /// Flags that the libzmq inside the child was built with, if it uses one.
    pub(crate) cxxflags: Option<String>,
}

impl Addresses {
    fn line(&self) -> String {
        let flags = self.cxxflags.as_deref();
        let flags = flags.map_or_else(String::new, |flags| format!(" cxxflags={flags}"));
        let administrative = self.administrative.as_ref();
        let administrative =
            administrative.map_or_else(String::new, |addr| format!(" administrative={addr}"));
        format!(
            "{READY} frontend={} backend={}{administrative}{flags}",
            self.frontend, self.backend
        )
    }

    /// Understands the line of [`announce`].
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        if words.next()? != READY {
            return None;
        }
        let frontend = Addr::from_str(words.next()?.strip_prefix("frontend=")?).ok()?;
        let backend = Addr::from_str(words.next()?.strip_prefix("backend=")?).ok()?;
        let mut flags: Vec<&str> = words.collect();
        let administrative = flags
            .first()
            .and_then(|word| word.strip_prefix("administrative="))
            .and_then(|text| Addr::from_str(text).ok());
        if administrative.is_some() {
            flags.remove(0);
        }
        let cxxflags = flags.join(" ").strip_prefix("cxxflags=").map(str::to_owned);
        Some(Addresses {
            frontend,
            backend,
            administrative,
            cxxflags,
        })
    }
}

/// A TCP address on the loopback interface.
pub(crate) fn loopback(port: u16) -> Addr {
    Addr::Tcp {
        host: "127.0.0.1".to_owned(),
        port,
    }
}

/// Prints the addresses and starts the thread that answers the harness. The process ends with
/// exit code 0 when the harness does.
pub(crate) fn announce(addresses: &Addresses) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", addresses.line())
        .and_then(|()| out.flush())
        .map_err(|error| Failure::run(format!("cannot print the addresses: {error}")))?;
    thread::Builder::new()
        .name("control".to_owned())
        .spawn(answer_harness)
        .map_err(|error| Failure::run(format!("cannot start a thread: {error}")))?;
    Ok(())
}

fn answer_harness() {
    let mut line = String::new();
    let mut input = io::stdin().lock();
    while input.read_line(&mut line).is_ok_and(|read| read > 0) {
        let answer = match line.trim() {
            ALLOCATIONS => crate::allocations().to_string(),
            other => format!("unknown command {other:?}"),
        };
        let mut out = io::stdout().lock();
        if writeln!(out, "{answer}")
            .and_then(|()| out.flush())
            .is_err()
        {
            break;
        }
        line.clear();
    }
    process::exit(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announced_addresses_are_understood() {
        for (cxxflags, administrative) in [
            (None, None),
            (None, Some(loopback(7))),
            (Some(String::new()), None),
            (Some("-O2 -DZMQ_HAVE_EVENTFD".to_owned()), Some(loopback(9))),
        ] {
            let addresses = Addresses {
                frontend: loopback(1),
                backend: loopback(65535),
                administrative,
                cxxflags,
            };
            assert_eq!(Addresses::parse(&addresses.line()), Some(addresses));
        }
        assert_eq!(Addresses::parse("warning: something"), None);
        assert_eq!(Addresses::parse("ready frontend=x backend=y"), None);
    }
}
