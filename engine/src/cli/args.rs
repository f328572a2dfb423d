//! The command line: what one-shot commands, the shell, completions and manual pages come from.

use crate::addr::Addr;
use clap::{Args as ClapArgs, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use std::path::PathBuf;
use std::time::Duration;

/// Default of `--addr` for administrative commands.
pub(super) const ADMIN_ADDR: &str = "tcp://127.0.0.1:47293";
/// Default of `--addr` for the schedules of a scheduler.
pub(super) const SCHEDULER_ADDR: &str = "tcp://127.0.0.1:47296";
/// Default of `--addr` for jobs and schedules.
pub(super) const FRONTEND_ADDR: &str = "tcp://127.0.0.1:47291";
/// Default of `--addr` for publish.
pub(super) const INCOMING_ADDR: &str = "tcp://127.0.0.1:47298";
/// Default of `--addr` for subscribe.
pub(super) const OUTGOING_ADDR: &str = "tcp://127.0.0.1:47299";

/// Command line of `emq-cli`.
#[derive(Debug, Parser)]
#[command(
    name = "emq-cli",
    version,
    about = "Asks a running EventMQ broker or publisher, and talks to it",
    long_about = "Asks a running EventMQ broker or publisher, and talks to it.\n\nWithout a command \
                  it is a shell that takes the same commands, one a line.",
    after_help = "Exit codes: 0 = answered, 1 = no answer or no broker, 2 = command line."
)]
pub struct Args {
    #[command(flatten)]
    pub(super) options: Options,
    #[command(subcommand)]
    pub(super) command: Option<Command>,
}

/// Options of every command.
#[derive(Debug, Clone, ClapArgs)]
pub(super) struct Options {
    /// Where to connect: the administrative address [default: $EVENTMQ_ADMINISTRATIVE_ADDR, else
    /// tcp://127.0.0.1:47293]; for schedules the scheduler's
    /// [default: $EVENTMQ_SCHEDULER_ADMINISTRATIVE_ADDR, else tcp://127.0.0.1:47296]; for send,
    /// schedule and unschedule the broker's frontend
    /// [default: $EMQ_BROKER_ADDR, $EVENTMQ_FRONTEND_ADDR, else tcp://127.0.0.1:47291]; for publish
    /// and subscribe the publisher's
    /// [default: $EVENTMQ_PUBLISHER_INCOMING_ADDR, $EVENTMQ_PUBLISHER_OUTGOING_ADDR, else
    /// tcp://127.0.0.1:47298, 47299]
    #[arg(short, long, global = true, value_name = "ADDR")]
    pub(super) addr: Option<Addr>,
    /// Longest wait for an answer, in seconds [default: 5]
    #[arg(long, global = true, value_name = "S", value_parser = timeout_from_text)]
    pub(super) timeout: Option<Duration>,
    /// Print answers as they come: JSON, one object a line
    #[arg(long, global = true)]
    pub(super) json: bool,
}

/// Commands of the command line and of the shell.
#[derive(Debug, Clone, Subcommand)]
pub(super) enum Command {
    /// Jobs by queue and worker; of a publisher: subscribers and who does not read
    Status,
    /// Registered workers, and who serves each queue
    #[command(alias = "show_workers")]
    ShowWorkers,
    /// Registered schedulers
    #[command(alias = "show_schedulers")]
    ShowSchedulers,
    /// What a scheduler runs, and when next
    Schedules {
        /// At most so many [default: all]
        #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        limit: Option<u64>,
    },
    /// How long jobs wait and run, by queue
    Latency {
        /// The last whole interval instead of everything since start
        #[arg(long)]
        interval: bool,
    },
    /// Counters, memory, connections, agents
    Counters {
        /// Also counters that are 0
        #[arg(long)]
        all: bool,
    },
    /// Shut the broker or publisher down in good order
    Shutdown,
    /// Measure how long an answer takes
    Ping {
        /// How often
        #[arg(short, long, default_value_t = 4, value_name = "N",
              value_parser = clap::value_parser!(u32).range(1..))]
        count: u32,
        /// Seconds between two
        #[arg(short, long, default_value = "1", value_name = "S", value_parser = interval_from_text)]
        interval: Duration,
    },
    /// Ask again and again
    Watch {
        /// Seconds between two
        #[arg(short, long, default_value = "2", value_name = "S", value_parser = interval_from_text)]
        interval: Duration,
        /// How often [default: until interrupted]
        #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        count: Option<u32>,
        #[command(subcommand)]
        what: Watched,
    },
    /// Live view: queues, slots, rates, latency; q ends it
    Top {
        /// Seconds between two looks
        #[arg(short, long, default_value = "1", value_name = "S", value_parser = interval_from_text)]
        interval: Duration,
    },
    /// Send a job, and wait for its result if asked
    Send {
        #[command(flatten)]
        job: Job,
        /// Further runs after a failure
        #[arg(long, value_name = "N", default_value_t = 0)]
        retry_count: u32,
        /// Accepted only when durable, run at least once
        #[arg(long)]
        guarantee: bool,
        /// Seconds until the job is killed [default: the job manager's]
        #[arg(long, value_name = "S", default_value_t = 0)]
        job_timeout: u32,
        /// Seconds for which the broker holds the job first
        #[arg(long, value_name = "S", default_value_t = 0)]
        delay: u32,
        /// While the same job waits or runs: one more run at most, so many seconds later
        #[arg(long, value_name = "S", default_value_t = 0)]
        debounce: u32,
        /// Wait for the result, at most so many seconds
        #[arg(short, long, value_name = "S", value_parser = timeout_from_text,
              num_args = 0..=1, default_missing_value = "60", require_equals = true)]
        wait: Option<Duration>,
    },
    /// Have a job run again and again
    #[command(group(clap::ArgGroup::new("when").required(true).args(["every", "cron"])))]
    Schedule {
        #[command(flatten)]
        job: Job,
        /// Seconds between two runs
        #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..))]
        every: Option<u32>,
        /// Cron expression of five or six fields
        #[arg(long, value_name = "EXPRESSION")]
        cron: Option<String>,
        /// First run after one interval instead of at once
        #[arg(long)]
        nohaste: bool,
        /// Runs in all [default: no end]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        run_count: Option<u32>,
        /// Time zone of the cron expression, as Europe/Berlin [default: the scheduler's]
        #[arg(long, value_name = "ZONE")]
        time_zone: Option<String>,
    },
    /// End a schedule: the same job, arguments and queue as given to schedule
    Unschedule {
        #[command(flatten)]
        job: Job,
    },
    /// Publish a message
    Publish {
        /// Topic; subscribers name a prefix of it
        topic: String,
        /// Text
        message: String,
    },
    /// Print published messages
    Subscribe {
        /// Prefixes of topics [default: everything]
        topics: Vec<String>,
        /// End after so many messages
        #[arg(short, long, value_name = "N")]
        count: Option<u64>,
        /// End with exit code 1 after so many seconds without a message; 0 = never
        #[arg(short, long, default_value = "60", value_name = "S", value_parser = wait_from_text)]
        wait: Duration,
    },
    /// Print the completions of a shell (bash, zsh, fish, elvish, powershell)
    Completions {
        /// Which
        shell: Shell,
    },
    /// Print the manual page, or write those of all commands
    Man {
        /// Write one file for each command into this directory
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

/// Which job, with which arguments.
#[derive(Debug, Clone, ClapArgs)]
pub(super) struct Job {
    /// Whole name: module.function, or module:Class.method
    pub(super) name: String,
    /// Arguments: JSON, or text as it is
    #[arg(allow_negative_numbers = true)]
    pub(super) args: Vec<String>,
    /// Keyword argument; the value is JSON, or text as it is
    #[arg(short, long = "kwarg", value_name = "NAME=VALUE")]
    pub(super) kwargs: Vec<String>,
    /// Argument of the class of a method
    #[arg(long = "class-arg", value_name = "VALUE")]
    pub(super) class_args: Vec<String>,
    /// Keyword argument of the class of a method
    #[arg(long = "class-kwarg", value_name = "NAME=VALUE")]
    pub(super) class_kwargs: Vec<String>,
    /// Queue
    #[arg(short, long, value_name = "NAME", default_value = "default")]
    pub(super) queue: String,
}

/// What can be watched.
#[derive(Debug, Clone, Subcommand)]
pub(super) enum Watched {
    /// Jobs by queue and worker
    Status,
    /// Registered workers
    #[command(alias = "show_workers")]
    ShowWorkers,
    /// Registered schedulers
    #[command(alias = "show_schedulers")]
    ShowSchedulers,
    /// How long jobs wait and run in the last whole interval
    Latency,
    /// Counters, memory, connections, agents
    Counters,
}

impl Watched {
    pub(super) fn command(&self) -> Command {
        match self {
            Watched::Status => Command::Status,
            Watched::ShowWorkers => Command::ShowWorkers,
            Watched::ShowSchedulers => Command::ShowSchedulers,
            Watched::Latency => Command::Latency { interval: true },
            Watched::Counters => Command::Counters { all: false },
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Watched::Status => "status",
            Watched::ShowWorkers => "show-workers",
            Watched::ShowSchedulers => "show-schedulers",
            Watched::Latency => "latency",
            Watched::Counters => "counters",
        }
    }
}

/// One line of the shell.
#[derive(Debug, Parser)]
#[command(
    no_binary_name = true,
    disable_version_flag = true,
    disable_help_flag = true,
    override_usage = "COMMAND [OPTIONS]",
    help_template = "{subcommands}\n\nhelp COMMAND tells more; every command takes --json and --timeout S\n"
)]
pub(super) struct ShellLine {
    #[command(flatten)]
    pub(super) options: Options,
    #[command(subcommand)]
    pub(super) command: ShellCommand,
}

/// What the shell understands.
#[derive(Debug, Clone, Subcommand)]
pub(super) enum ShellCommand {
    #[command(flatten)]
    Shared(Command),
    /// Connect to an administrative address
    Connect {
        /// tcp://HOST:PORT or ipc://PATH [default: the last one]
        address: Option<Addr>,
    },
    /// Close the connection
    Disconnect,
    /// End the shell
    #[command(alias = "exit")]
    Quit,
}

/// Words that may begin a line of the shell, in order.
pub(super) fn shell_words() -> Vec<String> {
    let command = ShellLine::command();
    let mut words: Vec<String> = command
        .get_subcommands()
        .flat_map(|sub| {
            // Of two spellings that of earlier versions.
            let underscored = sub.get_all_aliases().find(|alias| alias.contains('_'));
            [underscored.unwrap_or(sub.get_name()).to_owned()]
        })
        .chain(["help".to_owned()])
        .collect();
    words.sort();
    words
}

fn seconds(text: &str, min: f64) -> Option<Duration> {
    let seconds = text
        .parse()
        .ok()
        .filter(|s: &f64| (min..=86_400.0).contains(s));
    seconds.map(Duration::from_secs_f64)
}

fn timeout_from_text(text: &str) -> Result<Duration, &'static str> {
    seconds(text, 0.001).ok_or("expected seconds from 0.001 to 86400")
}

fn interval_from_text(text: &str) -> Result<Duration, &'static str> {
    seconds(text, 0.01).ok_or("expected seconds from 0.01 to 86400")
}

fn wait_from_text(text: &str) -> Result<Duration, &'static str> {
    seconds(text, 0.0).ok_or("expected seconds from 0 to 86400")
}
