//! Redis, in the layout of EventMQ 0.3.13.
//!
//! | key | what |
//! |---|---|
//! | `interval_jobs` | list of identities, cron schedules among them |
//! | *identity* | JSON of the five body frames, runs left in its headers |
//! | `eventmq:scheduler:timing` | hash: identity to next due time and time of writing |
//! | `eventmq:scheduler:lease`, `:standby`, `:version` | who fires, who waits for it, and a count of changes made by others than who fires |
//! | `eventmq:scheduler:fire:`*identity*`:`*due time* | who has sent this run; for a day |
//!
//! The first two are all that 0.3.13 knows.

use super::Store;
use crate::scheduler::identity::Identity;
use crate::scheduler::ledger::{Batch, LEASE_MS, Lease, Loaded};
use crate::scheduler::record::{Record, Timing};
use redis::{Client, Connection, ConnectionAddr, IntoConnectionInfo, RedisResult};
use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

const LIST: &str = "interval_jobs";
const TIMING: &str = "eventmq:scheduler:timing";
const LEASE: &str = "eventmq:scheduler:lease";
const STANDBY: &str = "eventmq:scheduler:standby";
const VERSION: &str = "eventmq:scheduler:version";
/// A due time is not claimed again after this time.
const FIRE_SECS: u64 = 86_400;
/// Schedules read at a time.
const CHUNK: usize = 500;
/// Longest wait for a connection, and for an answer.
const TIMEOUTS: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(5));

/// Takes or renews the lease if it is free or ours, else notes that somebody waits for it. Gives:
/// whether it is ours, the count of changes, whether somebody else waits.
const TAKE_LEASE: &str = "
local holder = redis.call('GET', KEYS[1])
local ours = 0
if not holder or holder == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  ours = 1
else
  redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
end
local waits = redis.call('GET', KEYS[2])
local other = 0
if waits and waits ~= ARGV[1] then other = 1 end
return {ours, tonumber(redis.call('GET', KEYS[3]) or '0'), other}";

/// Gives the lease up if it is ours.
const GIVE_LEASE_UP: &str = "
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
if redis.call('GET', KEYS[2]) == ARGV[1] then redis.call('DEL', KEYS[2]) end
return 0";

/// Where Redis is.
#[derive(Clone)]
pub struct RedisConfig {
    /// Name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Number of the database.
    pub db: u64,
    /// Empty: none.
    pub password: String,
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "redis {}:{}/{}", self.host, self.port, self.db)
    }
}

/// See the module.
pub struct RedisStore {
    config: RedisConfig,
    /// Who we are in leases and claims; another one for each process.
    instance: String,
    connection: Option<Connection>,
    /// What is in the list as far as we know.
    listed: HashSet<Identity>,
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.config.fmt(f)
    }
}

impl RedisStore {
    /// Not connected yet.
    pub fn new(config: RedisConfig, instance: String) -> RedisStore {
        RedisStore {
            config,
            instance,
            connection: None,
            listed: HashSet::new(),
        }
    }

    /// Tries to connect. `Ok(Err)`: it answers and refuses us (password, number of the database).
    ///
    /// # Errors
    /// It cannot be reached now.
    pub fn probe(&mut self) -> Result<Result<(), String>, String> {
        match self.connected() {
            Ok(_) => Ok(Ok(())),
            Err(error) if error.is_io_error() || error.is_timeout() => Err(error.to_string()),
            Err(error) if error.is_connection_refusal() => Err(error.to_string()),
            Err(error) => Ok(Err(error.to_string())),
        }
    }

    fn connected(&mut self) -> RedisResult<&mut Connection> {
        if self.connection.is_none() {
            let config = &self.config;
            let addr = ConnectionAddr::Tcp(config.host.clone(), config.port);
            let mut info = addr.into_connection_info()?;
            let mut settings = info.redis_settings().clone();
            settings = settings.set_db(i64::try_from(config.db).unwrap_or(i64::MAX));
            if !config.password.is_empty() {
                settings = settings.set_password(&config.password);
            }
            info = info.set_redis_settings(settings);
            let connection = Client::open(info)?.get_connection_with_timeout(TIMEOUTS.0)?;
            connection.set_read_timeout(Some(TIMEOUTS.1))?;
            connection.set_write_timeout(Some(TIMEOUTS.1))?;
            self.connection = Some(connection);
        }
        Ok(self.connection.as_mut().expect("made above"))
    }

    /// Does something with the connection; after an error the next call makes a new one.
    fn with<T>(
        &mut self,
        act: impl FnOnce(&mut Connection) -> RedisResult<T>,
    ) -> Result<T, String> {
        let result = self.connected().and_then(act);
        if result.is_err() {
            self.connection = None;
        }
        result.map_err(|error| format!("{:?}: {error}", self.config))
    }

    fn read(connection: &mut Connection) -> RedisResult<Loaded> {
        let mut loaded = Loaded::default();
        let list: Vec<Vec<u8>> = redis::cmd("LRANGE")
            .arg(LIST)
            .arg(0)
            .arg(-1)
            .query(connection)?;
        let (mut seen, mut folded) = (HashSet::new(), HashSet::new());
        let mut identities: Vec<Identity> = Vec::new();
        for entry in list {
            let text = String::from_utf8_lossy(&entry);
            match text.parse::<Identity>() {
                Err(error) => loaded.bad.push(format!("{LIST}: {error}")),
                Ok(identity) if seen.insert(identity) => identities.push(identity),
                Ok(identity) => {
                    loaded.folded += 1;
                    folded.insert(identity);
                }
            }
        }
        for chunk in identities.chunks(CHUNK) {
            let keys: Vec<String> = chunk.iter().map(ToString::to_string).collect();
            let bodies: Vec<Option<Vec<u8>>> = redis::cmd("MGET").arg(&keys).query(connection)?;
            let timings: Vec<Option<String>> = redis::cmd("HMGET")
                .arg(TIMING)
                .arg(&keys)
                .query(connection)?;
            for ((identity, body), timing) in chunk.iter().zip(bodies).zip(timings) {
                match body.map(String::from_utf8) {
                    Some(Ok(body)) => loaded.records.push(Record {
                        identity: *identity,
                        body,
                        timing: timing.as_deref().and_then(Timing::parse),
                    }),
                    Some(Err(_)) => loaded.bad.push(format!("{identity}: not UTF-8")),
                    None => loaded
                        .bad
                        .push(format!("{identity}: in the list without a body")),
                }
            }
        }
        for identity in folded {
            let key = identity.to_string();
            let mut once = redis::pipe();
            once.atomic()
                .cmd("LREM")
                .arg(LIST)
                .arg(0)
                .arg(&key)
                .ignore();
            once.cmd("LPUSH").arg(LIST).arg(&key).ignore();
            once.query::<()>(connection)?;
        }
        Ok(loaded)
    }
}

impl Store for RedisStore {
    fn load(&mut self) -> Result<Loaded, String> {
        let loaded = self.with(RedisStore::read)?;
        self.listed = loaded
            .records
            .iter()
            .map(|record| record.identity)
            .collect();
        Ok(loaded)
    }

    fn write(&mut self, batch: &Batch) -> Result<Vec<(Identity, u64)>, String> {
        let mut pipe = redis::pipe();
        pipe.atomic();
        for (identity, due_ms) in &batch.fires {
            let key = format!("eventmq:scheduler:fire:{identity}:{due_ms}");
            let set = pipe.cmd("SET").arg(key).arg(&self.instance);
            set.arg("NX").arg("EX").arg(FIRE_SECS);
        }
        for record in &batch.put {
            let key = record.identity.to_string();
            pipe.cmd("SET").arg(&key).arg(&record.body).ignore();
            if let Some(timing) = record.timing {
                let set = pipe.cmd("HSET").arg(TIMING).arg(&key);
                set.arg(timing.to_text()).ignore();
            }
            if !self.listed.contains(&record.identity) {
                pipe.cmd("LREM").arg(LIST).arg(0).arg(&key).ignore();
                pipe.cmd("LPUSH").arg(LIST).arg(&key).ignore();
            }
        }
        for identity in &batch.delete {
            let key = identity.to_string();
            pipe.cmd("LREM").arg(LIST).arg(0).arg(&key).ignore();
            pipe.cmd("DEL").arg(&key).ignore();
            pipe.cmd("HDEL").arg(TIMING).arg(&key).ignore();
        }
        if batch.announce {
            pipe.cmd("INCR").arg(VERSION).ignore();
        }
        let taken: Vec<Option<String>> = self.with(|connection| pipe.query(connection))?;
        self.listed
            .extend(batch.put.iter().map(|record| record.identity));
        for identity in &batch.delete {
            self.listed.remove(identity);
        }
        let denied = batch
            .fires
            .iter()
            .zip(taken)
            .filter(|(_, ours)| ours.is_none());
        Ok(denied.map(|(fire, _)| *fire).collect())
    }

    fn lease(&mut self) -> Result<Lease, String> {
        let instance = self.instance.clone();
        let (ours, version, others): (u8, u64, u8) = self.with(|connection| {
            let mut eval = redis::cmd("EVAL");
            eval.arg(TAKE_LEASE)
                .arg(3)
                .arg(LEASE)
                .arg(STANDBY)
                .arg(VERSION);
            eval.arg(instance).arg(LEASE_MS).query(connection)
        })?;
        Ok(Lease {
            ours: ours == 1,
            version,
            others: others == 1,
        })
    }

    fn release(&mut self) {
        let instance = self.instance.clone();
        let released = self.with(|connection| {
            let mut eval = redis::cmd("EVAL");
            eval.arg(GIVE_LEASE_UP).arg(2).arg(LEASE).arg(STANDBY);
            eval.arg(instance).query::<()>(connection)
        });
        if let Err(error) = released {
            tracing::warn!("the lease could not be given up: {error}");
        }
    }
}
