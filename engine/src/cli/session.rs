//! One command after the other, on one connection as long as it lasts.

use super::args::{
    ADMIN_ADDR, Command, FRONTEND_ADDR, INCOMING_ADDR, OUTGOING_ADDR, Options, SCHEDULER_ADDR,
};
use super::{AdminClient, CliError, client, jobs, messages, repeat, schedules, show, top};
use crate::addr::Addr;
use crate::admin_api::AdminCommand;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

const TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);
/// How often a long wait looks whether it was interrupted.
const LOOK: Duration = Duration::from_millis(50);

/// Whether Ctrl-C was pressed. One-shot commands end by the signal itself.
#[derive(Debug, Clone, Default)]
pub(super) struct Interrupt(Option<Arc<AtomicBool>>);

impl Interrupt {
    pub(super) fn none() -> Interrupt {
        Interrupt(None)
    }

    /// From now on SIGINT only interrupts what is being waited for.
    pub(super) fn watch() -> io::Result<Interrupt> {
        let flag = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(&flag))?;
        Ok(Interrupt(Some(flag)))
    }

    pub(super) fn clear(&self) {
        if let Some(flag) = &self.0 {
            flag.store(false, Ordering::Relaxed);
        }
    }

    pub(super) fn is_set(&self) -> bool {
        self.0
            .as_ref()
            .is_some_and(|flag| flag.load(Ordering::Relaxed))
    }

    /// Waits until `deadline`; true if interrupted before.
    pub(super) fn wait_until(&self, deadline: Instant) -> bool {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if self.is_set() || left.is_zero() {
                return self.is_set();
            }
            std::thread::sleep(match self.0 {
                Some(_) => left.min(LOOK),
                None => left,
            });
        }
    }
}

/// The address of a command that has none: from the environment, else the default.
pub(super) fn default_addr(variable: &str, default: &str) -> Result<Addr, CliError> {
    let text = match std::env::var(variable) {
        Ok(text) if !text.is_empty() => text,
        _ => return Ok(default.parse().expect("defaults are addresses")),
    };
    text.parse()
        .map_err(|error| CliError::Missing(format!("environment: {variable}: {error}")))
}

/// Where jobs go: the variable of the client library comes first.
fn broker_addr() -> Result<Addr, CliError> {
    match std::env::var("EMQ_BROKER_ADDR") {
        Ok(text) if !text.is_empty() => default_addr("EMQ_BROKER_ADDR", FRONTEND_ADDR),
        _ => default_addr("EVENTMQ_FRONTEND_ADDR", FRONTEND_ADDR),
    }
}

/// What commands share.
#[derive(Debug)]
pub(super) struct Session {
    options: Options,
    admin: Option<AdminClient>,
    /// Only `connect` connects again.
    disconnected: bool,
    pub(super) interrupt: Interrupt,
}

impl Session {
    pub(super) fn new(options: Options, interrupt: Interrupt) -> Session {
        Session {
            options,
            admin: None,
            disconnected: false,
            interrupt,
        }
    }

    /// The administrative address that commands without `--addr` go to.
    pub(super) fn admin_addr(&self) -> Result<Addr, CliError> {
        match &self.options.addr {
            Some(addr) => Ok(addr.clone()),
            None => default_addr("EVENTMQ_ADMINISTRATIVE_ADDR", ADMIN_ADDR),
        }
    }

    pub(super) fn connect(&mut self, addr: Option<&Addr>) -> Result<(), CliError> {
        if let Some(addr) = addr {
            self.options.addr = Some(addr.clone());
        }
        self.admin = None;
        self.disconnected = false;
        self.with_admin(&self.options.clone(), |_| Ok(()))
    }

    pub(super) fn disconnect(&mut self) {
        self.admin = None;
        self.disconnected = true;
    }

    pub(super) fn is_connected(&self) -> bool {
        self.admin.is_some()
    }

    pub(super) fn timeout(&self, options: &Options) -> Duration {
        let timeout = options.timeout.or(self.options.timeout);
        timeout.unwrap_or(TIMEOUT_DEFAULT)
    }

    /// Calls `ask` with the connection, made if it is missing; it does not outlive an error.
    pub(super) fn with_admin<T>(
        &mut self,
        options: &Options,
        ask: impl FnOnce(&mut AdminClient) -> Result<T, CliError>,
    ) -> Result<T, CliError> {
        let timeout = self.timeout(options);
        let addr = match &options.addr {
            Some(addr) => addr.clone(),
            None if self.disconnected => return Err(CliError::NotConnected),
            None => self.admin_addr()?,
        };
        let kept = self.admin.take().filter(|client| *client.addr() == addr);
        let mut client = match kept {
            Some(client) => client,
            None => AdminClient::connect(&addr, timeout)?,
        };
        client.set_timeout(timeout);
        let answer = ask(&mut client)?;
        self.admin = Some(client);
        Ok(answer)
    }

    /// Carries out a command.
    pub(super) fn run(
        &mut self,
        command: &Command,
        options: &Options,
        out: &mut impl Write,
    ) -> Result<(), CliError> {
        let json = options.json || self.options.json;
        match command {
            Command::Ping { count, interval } => {
                repeat::ping(self, options, json, *count, *interval, out)
            }
            Command::Watch {
                interval,
                count,
                what,
            } => repeat::watch(self, options, json, *interval, *count, what, out),
            Command::Top { interval } => {
                let addr = match &options.addr {
                    Some(addr) => addr.clone(),
                    None => self.admin_addr()?,
                };
                top::run(&addr, self.timeout(options), *interval)
            }
            Command::Send { .. } | Command::Schedule { .. } | Command::Unschedule { .. } => {
                let addr = options.addr.clone().map_or_else(broker_addr, Ok)?;
                jobs::run(command, &addr, self.timeout(options), json, out)
            }
            Command::Schedules { limit } => {
                let chosen = options.addr.clone().or_else(|| self.options.addr.clone());
                let addr = chosen.map_or_else(
                    || default_addr("EVENTMQ_SCHEDULER_ADMINISTRATIVE_ADDR", SCHEDULER_ADDR),
                    Ok,
                )?;
                let options = Options {
                    addr: Some(addr),
                    ..options.clone()
                };
                self.with_admin(&options, |client| {
                    schedules::print(client, *limit, json, SystemTime::now(), out)
                })
            }
            Command::Publish { topic, message } => {
                let addr = options.addr.clone().map_or_else(
                    || default_addr("EVENTMQ_PUBLISHER_INCOMING_ADDR", INCOMING_ADDR),
                    Ok,
                )?;
                messages::publish(&addr, self.timeout(options), json, topic, message, out)
            }
            Command::Subscribe {
                topics,
                count,
                wait,
            } => {
                let addr = options.addr.clone().map_or_else(
                    || default_addr("EVENTMQ_PUBLISHER_OUTGOING_ADDR", OUTGOING_ADDR),
                    Ok,
                )?;
                let what = messages::Subscription {
                    topics,
                    count: *count,
                    wait: *wait,
                    json,
                };
                messages::subscribe(&addr, self.timeout(options), &what, &self.interrupt, out)
            }
            Command::Completions { shell } => write(out, &super::completions(*shell)),
            Command::Man { dir: None } => {
                let text = super::manual().map_err(CliError::Output)?;
                write(out, &text)
            }
            Command::Man { dir: Some(dir) } => {
                let command = <super::Args as clap::CommandFactory>::command();
                clap_mangen::generate_to(command, dir).map_err(CliError::Output)
            }
            _ => {
                let text = self.answer(command, options, json)?;
                write(out, text.as_bytes())
            }
        }
    }

    /// The answer to an administrative command as it is printed.
    pub(super) fn answer(
        &mut self,
        command: &Command,
        options: &Options,
        json: bool,
    ) -> Result<String, CliError> {
        let asked = match command {
            Command::ShowWorkers => AdminCommand::ShowWorkers,
            Command::ShowSchedulers => AdminCommand::ShowSchedulers,
            Command::Latency { .. } => AdminCommand::Latency,
            Command::Counters { .. } => AdminCommand::Counters,
            Command::Shutdown => AdminCommand::Disconnect,
            _ => AdminCommand::Status,
        };
        self.with_admin(options, |client| {
            if asked == AdminCommand::Disconnect {
                client.request(asked)?;
                return Ok(match json {
                    true => "{\"acknowledged\": true}\n".to_owned(),
                    false => format!("{}: acknowledged, it is shutting down\n", client.addr()),
                });
            }
            if json {
                let text = client.request(asked)?.unwrap_or_default();
                client::read(client.addr(), &text)?;
                return Ok(text + "\n");
            }
            let value = client.json(asked)?;
            Ok(match command {
                Command::ShowWorkers => show::workers(&value),
                Command::ShowSchedulers => show::schedulers(&value),
                Command::Latency { interval } => show::latency(&value, *interval),
                Command::Counters { all } => show::counters(&value, *all),
                _ => show::status(&value),
            })
        })
    }
}

/// Writes and flushes.
pub(super) fn write(out: &mut impl Write, text: &[u8]) -> Result<(), CliError> {
    out.write_all(text)
        .and_then(|()| out.flush())
        .map_err(CliError::Output)
}
