//! Endpoint addresses: `tcp://host:port` and `ipc://path`, parsed but not resolved.
//!
//! Accepted hosts: IPv4, `[IPv6]`, names, and `*` (every interface) for binding. Port 0 binds a
//! free port. Resolution is the shell's (`io`).

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use thiserror::Error;

/// Longest path of a Unix-domain socket on Linux, the final NUL included.
pub const IPC_PATH_BYTES_MAX: usize = 107;

/// An endpoint address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Addr {
    /// `tcp://host:port`.
    Tcp {
        /// Host as written, without brackets; `*` = every interface.
        host: String,
        /// Port; 0 = a free one.
        port: u16,
    },
    /// `ipc://path`.
    Ipc(PathBuf),
}

/// Why an address was not understood.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AddrError {
    /// Neither tcp:// nor ipc://.
    #[error("{0:?}: expected tcp://HOST:PORT or ipc://PATH")]
    Scheme(String),
    /// No host.
    #[error("{0:?}: the host is missing (expected tcp://HOST:PORT)")]
    Host(String),
    /// No port, or not a number from 0 to 65535.
    #[error(
        "{0:?}: the port is missing or not a number from 0 to 65535 (expected tcp://HOST:PORT)"
    )]
    Port(String),
    /// An IPv6 host without brackets, or brackets around something else.
    #[error("{0:?}: an IPv6 address is written in brackets, as in tcp://[::1]:47291")]
    Brackets(String),
    /// Empty or over-long path.
    #[error("{0:?}: the path of an ipc address has 1 to {IPC_PATH_BYTES_MAX} bytes")]
    Path(String),
}

impl Addr {
    /// The host, for a TCP address.
    pub fn host(&self) -> Option<&str> {
        match self {
            Addr::Tcp { host, .. } => Some(host),
            Addr::Ipc(_) => None,
        }
    }

    /// The path, for a Unix-domain address.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Addr::Tcp { .. } => None,
            Addr::Ipc(path) => Some(path),
        }
    }
}

impl FromStr for Addr {
    type Err = AddrError;

    fn from_str(text: &str) -> Result<Self, AddrError> {
        if let Some(path) = text.strip_prefix("ipc://") {
            if path.is_empty() || path.len() > IPC_PATH_BYTES_MAX || path.contains('\0') {
                return Err(AddrError::Path(text.to_owned()));
            }
            return Ok(Addr::Ipc(PathBuf::from(path)));
        }
        let rest = text
            .strip_prefix("tcp://")
            .ok_or_else(|| AddrError::Scheme(text.to_owned()))?;
        let (host, port) = rest
            .rsplit_once(':')
            .ok_or_else(|| AddrError::Port(text.to_owned()))?;
        let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
        let port = match port.parse::<u16>() {
            Ok(port) if digits => port,
            _ if port == "*" => 0,
            _ => return Err(AddrError::Port(text.to_owned())),
        };
        let host = match (host.strip_prefix('['), host.contains(':')) {
            (Some(inner), _) => match inner.strip_suffix(']') {
                Some(v6) if v6.parse::<std::net::Ipv6Addr>().is_ok() => v6,
                _ => return Err(AddrError::Brackets(text.to_owned())),
            },
            (None, true) => return Err(AddrError::Brackets(text.to_owned())),
            (None, false) => host,
        };
        if host.is_empty() || host.contains(['/', ' ', '\0']) {
            return Err(AddrError::Host(text.to_owned()));
        }
        Ok(Addr::Tcp {
            host: host.to_owned(),
            port,
        })
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Addr::Tcp { host, port } if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            Addr::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
            Addr::Ipc(path) => write!(f, "ipc://{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_parse_and_print() {
        for text in [
            "tcp://127.0.0.1:47291",
            "tcp://*:0",
            "tcp://[::1]:5",
            "tcp://broker.example:65535",
            "ipc:///run/emq/front",
        ] {
            assert_eq!(text.parse::<Addr>().unwrap().to_string(), text);
        }
        assert_eq!(
            "tcp://*:*".parse::<Addr>().unwrap().to_string(),
            "tcp://*:0"
        );
    }

    #[test]
    fn wrong_addresses_say_what_is_expected() {
        for (text, word) in [
            ("127.0.0.1:1", "expected tcp://"),
            ("udp://1.2.3.4:5", "expected tcp://"),
            ("tcp://:5", "host is missing"),
            ("tcp://a", "port is missing"),
            ("tcp://a:65536", "port is missing"),
            ("tcp://a:-1", "port is missing"),
            ("tcp://a:+1", "port is missing"),
            ("tcp://::1:5", "brackets"),
            ("tcp://[a]:5", "brackets"),
            ("ipc://", "path"),
        ] {
            let error = text.parse::<Addr>().unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
