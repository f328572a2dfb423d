//! How a client is set up.

use super::error::StartError;
use crate::addr::Addr;
use std::time::Duration;

/// The environment variable with the broker's address, as for 0.3.13; several addresses are
/// separated by commas or spaces.
pub const BROKER_ADDR_ENV: &str = "EMQ_BROKER_ADDR";

/// Where the publisher listens unless another address is given.
const PUBLISHER_ADDR_DEFAULT: &str = "tcp://127.0.0.1:47298";
/// Time for an acceptance.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a result: the job manager's `global_timeout`, and some for waiting.
const RESULT_TIMEOUT: Duration = Duration::from_secs(330);
/// Messages that may be outstanding.
const OUTSTANDING_MAX: usize = 100_000;
/// Bytes of messages that are not accepted yet.
const OUTSTANDING_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Settings of a [`Client`](super::Client).
///
/// ```
/// use eventmq::client::{Client, ClientConfig};
/// use std::time::Duration;
///
/// let config = ClientConfig::new("tcp://broker-1:47291, tcp://broker-2:47291")?
///     .accept_timeout(Duration::from_secs(3));
/// let client = Client::start_with(config)?;
/// # drop(client);
/// # Ok::<(), eventmq::client::StartError>(())
/// ```
#[derive(Debug, Clone)]
pub struct ClientConfig {
    pub(super) brokers: Vec<Addr>,
    pub(super) publishers: Vec<Addr>,
    pub(super) accept_timeout: Duration,
    pub(super) result_timeout: Duration,
    pub(super) outstanding_max: usize,
    pub(super) outstanding_bytes_max: usize,
}

fn addresses(text: &str) -> Result<Vec<Addr>, StartError> {
    let mut all: Vec<Addr> = Vec::new();
    for word in text.split([',', ' ', '\t', '\n']).filter(|w| !w.is_empty()) {
        let addr = word.parse()?;
        if !all.contains(&addr) {
            all.push(addr);
        }
    }
    if all.is_empty() {
        return Err(StartError::NoAddress);
    }
    Ok(all)
}

impl ClientConfig {
    /// A client of one broker, or of several, of which the first that can be reached is used; the
    /// addresses are separated by commas or spaces.
    ///
    /// # Errors
    /// [`StartError::NoAddress`], [`StartError::Address`].
    pub fn new(brokers: &str) -> Result<ClientConfig, StartError> {
        Ok(ClientConfig {
            brokers: addresses(brokers)?,
            publishers: addresses(PUBLISHER_ADDR_DEFAULT)?,
            accept_timeout: ACCEPT_TIMEOUT,
            result_timeout: RESULT_TIMEOUT,
            outstanding_max: OUTSTANDING_MAX,
            outstanding_bytes_max: OUTSTANDING_BYTES_MAX,
        })
    }

    /// Takes the brokers' addresses from the environment: [`BROKER_ADDR_ENV`].
    ///
    /// # Errors
    /// As [`ClientConfig::new`].
    pub fn from_env() -> Result<ClientConfig, StartError> {
        ClientConfig::new(&std::env::var(BROKER_ADDR_ENV).unwrap_or_default())
    }

    /// Where to publish, instead of `tcp://127.0.0.1:47298`: one address, or several of which the
    /// first that can be reached is used. It is connected to when something is published.
    ///
    /// # Errors
    /// [`StartError::NoAddress`], [`StartError::Address`].
    pub fn publishers(mut self, publishers: &str) -> Result<ClientConfig, StartError> {
        self.publishers = addresses(publishers)?;
        Ok(self)
    }

    /// How long a message may wait for its acceptance, connecting included (10 s).
    #[must_use]
    pub fn accept_timeout(mut self, timeout: Duration) -> ClientConfig {
        self.accept_timeout = timeout;
        self
    }

    /// How long a call waits for its result (330 s).
    #[must_use]
    pub fn result_timeout(mut self, timeout: Duration) -> ClientConfig {
        self.result_timeout = timeout;
        self
    }

    /// Messages (100,000) and bytes (256 MiB) that may be outstanding. Calls that block wait for
    /// room, those that do not fail with `Full`. One message always may.
    #[must_use]
    pub fn outstanding_max(mut self, messages: usize, bytes: usize) -> ClientConfig {
        self.outstanding_max = messages;
        self.outstanding_bytes_max = bytes;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_a_list() {
        let config = ClientConfig::new(" tcp://a:1, tcp://b:2 tcp://a:1,,").unwrap();
        let shown: Vec<_> = config.brokers.iter().map(Addr::to_string).collect();
        assert_eq!(shown, ["tcp://a:1", "tcp://b:2"]);
        for none in ["", " ", ","] {
            let error = ClientConfig::new(none).unwrap_err();
            assert!(error.to_string().contains("EMQ_BROKER_ADDR"), "{error}");
        }
        assert!(matches!(
            ClientConfig::new("a:1"),
            Err(StartError::Address(_))
        ));
    }
}
