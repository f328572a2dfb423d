//! The thread.

use super::super::call::{Route, route};
use super::super::frame::Kind;
use super::super::outcome::Ending;
use super::super::pool::{Action, JobId, Pool, PoolConfig, Warning, WorkerId};
use super::super::process::{Keeper, ended};
use super::command::{self, Command};
use super::functions::FunctionThreads;
use super::processes::{Input, Process};
use super::{CommandConfig, ExecutorConfig, Job, Order, Orders, PythonConfig, Report, WAKE};
use crate::log_limit::LogLimit;
use crossbeam::channel::Receiver;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

/// Time for a worker process to come up; a setup function may take its time.
const START_TIMEOUT_MS: u64 = 120_000;
/// Time for a worker process to end by itself.
const RETIRE_TIMEOUT_MS: u64 = 5_000;
/// How long the rest of a killed process group is waited for.
const GROUP_TIMEOUT: Duration = Duration::from_secs(1);
/// How often it is looked at.
const GROUP_LOOK: Duration = Duration::from_millis(10);
/// A process whose channel has ended is given this long to end as well.
const LINGER: Duration = Duration::from_millis(500);
/// Bytes read at once, and how often in one turn.
const READ_BYTES: usize = 256 * 1024;
const READ_TURNS: usize = 16;

const SOCKET: usize = 1;
const PROCESS_END: usize = 2;
const STDOUT: usize = 3;
const COMMAND_END: usize = 5;
const KINDS: usize = 8;

fn token(id: u64, kind: usize) -> Token {
    // Ids count up from 0: they do not get near the end.
    Token(id as usize * KINDS + kind)
}

/// A process that has ended while others of its group may be left.
struct Remains {
    group: GroupOf,
    status: ExitStatus,
    until: Instant,
}

enum GroupOf {
    Worker(WorkerId, Process),
    Command(JobId, Box<Running>),
}

struct Running {
    command: Command,
    deadline: Option<Instant>,
    timeout_ms: u64,
    /// Why it was killed.
    killed: Option<Ending>,
}

pub(super) struct Shell {
    poll: Poll,
    orders: Receiver<Order>,
    report: Box<dyn FnMut(Report) + Send>,
    python: Option<PythonConfig>,
    commands_allowed: CommandConfig,
    pool: Pool,
    processes: BTreeMap<WorkerId, Process>,
    commands: BTreeMap<JobId, Running>,
    functions: FunctionThreads,
    remains: Vec<Remains>,
    /// Processes whose channel has ended.
    lingering: BTreeMap<WorkerId, Instant>,
    /// To be read again without a new event.
    again: BTreeSet<Token>,
    keeper: Keeper,
    start: Instant,
    buffer: Vec<u8>,
    closing: bool,
    warnings: LogLimit<{ Warning::COUNT }>,
}

impl Shell {
    pub(super) fn new(
        config: ExecutorConfig,
        poll: Poll,
        orders: Receiver<Order>,
        own: Orders,
        report: Box<dyn FnMut(Report) + Send>,
    ) -> Shell {
        let start = Instant::now();
        let python = config.python;
        let pool = PoolConfig {
            processes: if python.is_some() { config.slots } else { 0 },
            max_job_count: python.as_ref().map_or(1, |python| python.max_job_count),
            start_timeout_ms: START_TIMEOUT_MS,
            retire_timeout_ms: RETIRE_TIMEOUT_MS,
        };
        let mut shell = Shell {
            poll,
            orders,
            report,
            commands_allowed: config.commands,
            pool: Pool::new(pool, 0),
            processes: BTreeMap::new(),
            commands: BTreeMap::new(),
            functions: FunctionThreads::new(config.functions, config.slots, own),
            remains: Vec::new(),
            lingering: BTreeMap::new(),
            again: BTreeSet::new(),
            keeper: Keeper::default(),
            start,
            buffer: vec![0; READ_BYTES],
            closing: false,
            warnings: LogLimit::default(),
            python,
        };
        if shell.python.is_none() {
            (shell.report)(Report::Capacity(config.slots));
        }
        shell.carry_out();
        shell
    }

    pub(super) fn run(&mut self) {
        let mut events = Events::with_capacity(256);
        loop {
            let timeout = self.timeout();
            match self.poll.poll(&mut events, timeout) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => panic!("the poll of the job processes failed: {error}"),
            }
            let mut tokens: BTreeSet<Token> = std::mem::take(&mut self.again);
            let mut writable = BTreeSet::new();
            for event in &events {
                tokens.insert(event.token());
                if event.is_writable() {
                    writable.insert(event.token());
                }
            }
            for token in tokens {
                self.handle(token, writable.contains(&token));
            }
            self.take_orders();
            self.look_at_times();
            if self.closing && self.is_done() {
                return (self.report)(Report::Closed);
            }
        }
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn is_done(&self) -> bool {
        self.pool.is_empty()
            && self.processes.is_empty()
            && self.commands.is_empty()
            && self.remains.is_empty()
            && self.functions.is_idle()
    }

    fn timeout(&self) -> Option<Duration> {
        if !self.again.is_empty() {
            return Some(Duration::ZERO);
        }
        let pool = self
            .pool
            .poll_timeout()
            .map(|due_ns| self.start + Duration::from_nanos(due_ns));
        let commands = self
            .commands
            .values()
            .filter_map(|running| running.deadline)
            .min();
        let lingering = self.lingering.values().min().copied();
        let functions = self.functions.poll_timeout();
        let remains = (!self.remains.is_empty()).then(|| Instant::now() + GROUP_LOOK);
        let next = [pool, commands, lingering, functions, remains]
            .into_iter()
            .flatten()
            .min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    fn handle(&mut self, token: Token, writable: bool) {
        if token == WAKE {
            return;
        }
        let (id, kind) = ((token.0 / KINDS) as u64, token.0 % KINDS);
        match kind {
            SOCKET => {
                if writable && let Some(process) = self.processes.get_mut(&id) {
                    process.write();
                }
                self.read_process(id);
            }
            PROCESS_END => self.process_ended(id),
            COMMAND_END => self.command_ended(id),
            _ => {
                let which = kind - STDOUT;
                if let Some(running) = self.commands.get_mut(&id)
                    && running.command.read(which, &mut self.buffer, READ_TURNS)
                {
                    self.again.insert(token);
                }
            }
        }
    }

    fn take_orders(&mut self) {
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::Run(job) => self.run_job(job),
                Order::Reload(new) => {
                    let (python, commands) = *new;
                    self.commands_allowed = commands;
                    if let (Some(own), Some(new)) = (&mut self.python, python) {
                        let max_job_count = new.max_job_count;
                        *own = new;
                        self.pool.replace_all(max_job_count, self.now_ns());
                    }
                }
                Order::Close => {
                    self.closing = true;
                    self.pool.close(self.now_ns());
                }
                Order::KillAll => self.kill_all(),
                Order::FunctionEnded(id, ending) => {
                    if self.functions.ended(id) {
                        (self.report)(Report::Ended(id, ending));
                    }
                }
            }
            self.carry_out();
        }
    }

    fn run_job(&mut self, job: Job) {
        let id = job.id;
        if self.closing {
            return (self.report)(Report::Ended(id, Ending::NotStarted));
        }
        let failed = match route(&job.payload) {
            Route::Command { program, args } if !self.functions.has("exec", &program) => {
                self.start_command(&job, &program, &args)
            }
            Route::Named { path, callable } if self.functions.has(&path, &callable) => {
                self.functions.run(&path, &callable, job)
            }
            _ if self.python.is_some() => {
                let now_ns = self.now_ns();
                self.pool.submit(job.into(), now_ns);
                Ok(())
            }
            Route::Named { path, callable } if self.functions.any() => {
                self.functions.run(&path, &callable, job)
            }
            _ => {
                let message = "the message is not [\"run\", {...}] with path and callable";
                Err(Ending::failure("MessageError", message, ""))
            }
        };
        if let Err(ending) = failed {
            (self.report)(Report::Ended(id, ending));
        }
    }

    fn start_command(
        &mut self,
        job: &Job,
        program: &str,
        args: &[serde_json::Value],
    ) -> Result<(), Ending> {
        let (path, args) = command::check(&self.commands_allowed, program, args)?;
        let failure = |error: io::Error| {
            let message = format!("cannot start {}: {error}", path.display());
            Ending::failure("CommandNotStarted", &message, "")
        };
        let mut command = Command::start(&self.commands_allowed, &path, &args).map_err(failure)?;
        self.keeper.add(command.leader.id());
        let registry = self.poll.registry();
        let [stdout, stderr] = &mut command.outputs;
        let registered = registry
            .register(&mut stdout.pipe, token(job.id, STDOUT), Interest::READABLE)
            .and_then(|()| {
                registry.register(
                    &mut stderr.pipe,
                    token(job.id, STDOUT + 1),
                    Interest::READABLE,
                )
            })
            .and_then(|()| {
                let pidfd = command.leader.pidfd();
                registry.register(
                    &mut SourceFd(&pidfd),
                    token(job.id, COMMAND_END),
                    Interest::READABLE,
                )
            });
        if let Err(error) = registered {
            self.keeper.remove(command.leader.id());
            return Err(failure(error));
        }
        let running = Running {
            command,
            deadline: Instant::now().checked_add(Duration::from_millis(job.timeout_ms)),
            timeout_ms: job.timeout_ms,
            killed: None,
        };
        self.commands.insert(job.id, running);
        Ok(())
    }

    fn kill_all(&mut self) {
        self.pool.kill_all(self.now_ns());
        for running in self.commands.values_mut() {
            running.killed.get_or_insert(Ending::Killed);
            running.command.leader.kill();
        }
        for id in self.functions.give_up_all() {
            (self.report)(Report::Ended(id, Ending::Killed));
        }
    }

    /// Carries out what the pool wants.
    fn carry_out(&mut self) {
        while let Some(action) = self.pool.poll_action() {
            match action {
                Action::Spawn(id) => self.spawn(id),
                Action::Send(id, payload) => {
                    if let Some(process) = self.processes.get_mut(&id) {
                        process.queue(Kind::Job, payload);
                        process.write();
                    }
                }
                Action::Close(id) => {
                    if let Some(process) = self.processes.get_mut(&id) {
                        process.socket = None;
                    }
                }
                Action::Kill(id) => {
                    if let Some(process) = self.processes.get(&id) {
                        process.leader.kill();
                    }
                }
                Action::Ended(job, ending) => (self.report)(Report::Ended(job, ending)),
                Action::Capacity(capacity) => (self.report)(Report::Capacity(capacity)),
                Action::Warn(warning, text) => self.warn(warning, &text),
            }
        }
    }

    fn spawn(&mut self, id: WorkerId) {
        let Some(python) = &self.python else { return };
        let started = Process::start(python).and_then(|mut process| {
            let registry = self.poll.registry();
            if let Some(socket) = &mut process.socket {
                let both = Interest::READABLE | Interest::WRITABLE;
                registry.register(socket, token(id, SOCKET), both)?;
            }
            let pidfd = process.leader.pidfd();
            registry.register(
                &mut SourceFd(&pidfd),
                token(id, PROCESS_END),
                Interest::READABLE,
            )?;
            Ok(process)
        });
        match started {
            Ok(mut process) => {
                self.keeper.add(process.leader.id());
                process.write();
                self.processes.insert(id, process);
            }
            Err(error) => {
                let now_ns = self.now_ns();
                self.pool
                    .handle_spawn_failed(id, &error.to_string(), now_ns);
            }
        }
    }

    fn read_process(&mut self, id: WorkerId) {
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        match process.read(&mut self.buffer, READ_TURNS) {
            Input::Drained => {}
            Input::More => drop(self.again.insert(token(id, SOCKET))),
            Input::End => {
                let until = Instant::now() + LINGER;
                self.lingering.entry(id).or_insert(until);
            }
        }
        self.take_frames(id);
    }

    fn take_frames(&mut self, id: WorkerId) {
        while let Some(process) = self.processes.get_mut(&id) {
            let frame = process.next_frame();
            let now_ns = self.now_ns();
            match frame {
                Ok(None) => return,
                Ok(Some((kind, body))) => match kind {
                    Kind::Up => self.pool.handle_up(id, now_ns),
                    Kind::Value => self.pool.handle_result(id, Ending::Value(body), now_ns),
                    Kind::Failure => self.pool.handle_result(id, Ending::Error(body), now_ns),
                    Kind::Warning => self.warn(Warning::Told, &String::from_utf8_lossy(&body)),
                    Kind::NoProgram => {
                        let text = String::from_utf8_lossy(&body).into_owned();
                        self.pool.handle_no_program(id, text);
                    }
                    Kind::Settings | Kind::Job => {
                        self.pool
                            .violation(id, "it sent what only the job manager sends", now_ns);
                    }
                },
                Err(bad) => {
                    self.pool.violation(id, &bad.to_string(), now_ns);
                    process_silence(self.processes.get_mut(&id));
                }
            }
            self.carry_out();
        }
    }

    fn process_ended(&mut self, id: WorkerId) {
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        match process.leader.wait() {
            Ok(Some(status)) => {
                // What it said before its end counts.
                self.read_process(id);
                if let Some(process) = self.processes.remove(&id) {
                    self.lingering.remove(&id);
                    self.bury(GroupOf::Worker(id, process), status);
                }
            }
            Ok(None) => {}
            Err(error) => self.warn(
                Warning::System,
                &format!("cannot wait for a worker process: {error}"),
            ),
        }
    }

    fn command_ended(&mut self, id: JobId) {
        let Some(running) = self.commands.get_mut(&id) else {
            return;
        };
        match running.command.leader.wait() {
            Ok(Some(status)) => {
                for which in 0..2 {
                    while running.command.read(which, &mut self.buffer, READ_TURNS) {}
                }
                if let Some(running) = self.commands.remove(&id) {
                    self.bury(GroupOf::Command(id, Box::new(running)), status);
                }
            }
            Ok(None) => {}
            Err(error) => self.warn(
                Warning::System,
                &format!("cannot wait for a command: {error}"),
            ),
        }
    }

    /// Reports the end at once if nothing of the group is left, else when it is gone.
    fn bury(&mut self, group: GroupOf, status: ExitStatus) {
        let until = Instant::now() + GROUP_TIMEOUT;
        let remains = Remains {
            group,
            status,
            until,
        };
        if remains.leader_group_exists() {
            self.remains.push(remains);
        } else {
            self.report_end(remains);
        }
    }

    fn report_end(&mut self, remains: Remains) {
        match remains.group {
            GroupOf::Worker(id, process) => {
                self.keeper.remove(process.leader.id());
                drop(process);
                let now_ns = self.now_ns();
                self.pool.handle_exit(id, &ended(remains.status), now_ns);
                self.carry_out();
            }
            GroupOf::Command(id, running) => {
                self.keeper.remove(running.command.leader.id());
                let ending = running
                    .killed
                    .unwrap_or_else(|| running.command.ending(remains.status));
                (self.report)(Report::Ended(id, ending));
            }
        }
    }

    fn look_at_times(&mut self) {
        let now = Instant::now();
        if self.pool.poll_timeout().is_some() {
            let now_ns = self.now_ns();
            self.pool.handle_timeout(now_ns);
            self.carry_out();
        }
        for running in self.commands.values_mut() {
            if running.deadline.is_some_and(|deadline| deadline <= now) {
                running.deadline = None;
                let after_ms = running.timeout_ms;
                running.killed.get_or_insert(Ending::TimedOut { after_ms });
                running.command.leader.kill();
            }
        }
        let late: Vec<WorkerId> = self
            .lingering
            .iter()
            .filter(|(_, until)| **until <= now)
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            self.lingering.remove(&id);
            let now_ns = self.now_ns();
            self.pool.violation(id, "it closed its channel", now_ns);
            self.carry_out();
        }
        for (id, ending) in self.functions.expired(now) {
            (self.report)(Report::Ended(id, ending));
        }
        for remains in std::mem::take(&mut self.remains) {
            if remains.until > now && remains.leader_group_exists() {
                self.remains.push(remains);
            } else {
                self.report_end(remains);
            }
        }
    }

    /// Logs at a bounded rate: what worker processes say is not ours to bound.
    fn warn(&mut self, warning: Warning, text: &str) {
        let now_ns = self.now_ns();
        if let Some(repeats) = self.warnings.admit(warning as usize, now_ns) {
            tracing::warn!(repeats, "{text}");
        }
    }
}

impl Remains {
    fn leader_group_exists(&self) -> bool {
        match &self.group {
            GroupOf::Worker(_, process) => process.leader.group_exists(),
            GroupOf::Command(_, running) => running.command.leader.group_exists(),
        }
    }
}

/// What cannot be understood is not read any further.
fn process_silence(process: Option<&mut Process>) {
    if let Some(process) = process {
        process.socket = None;
        process.forget_input();
    }
}
