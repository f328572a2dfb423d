//! The step between the job manager and a program it starts: our own binary, run again, asks the
//! kernel to end it together with the job manager and then becomes the program.
//!
//! It cannot be done in the child between fork and exec (that takes unsafe code), nor in the
//! parent (it would concern the parent).

use super::super::frame::{Kind, head};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// First argument of our binary when it is run as the shim.
const SHIM: &str = "--eventmq-start-program";
/// First argument of our binary when it is run as the keeper of process groups.
const KEEPER: &str = "--eventmq-keep-groups";
/// Exit code if the program cannot be started, as in a shell.
const EXIT_NO_PROGRAM: i32 = 127;

/// True once [`run_if_started_by_job_manager`] was called: without it a program that starts a
/// process would only start itself again.
static ASKED: AtomicBool = AtomicBool::new(false);

/// True if this program can be started as the shim.
pub(crate) fn processes_can_be_started() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// The binary that is running, also when its file has been replaced since.
const SELF: &str = "/proc/self/exe";

/// A command that becomes `program` and ends by SIGKILL when the thread that starts it ends. With
/// `channel`, standard input is told when the program cannot be started.
pub(super) fn command(program: &OsStr, channel: bool) -> Command {
    let mut command = Command::new(SELF);
    command
        .arg0("emq-jobmanager")
        .arg(SHIM)
        .arg(std::process::id().to_string())
        .arg(if channel { "channel" } else { "plain" })
        .arg(program);
    command
}

/// A command that runs [`super::keeper`].
pub(super) fn keeper_command() -> Command {
    let mut command = Command::new(SELF);
    command.arg0("emq-jobmanager").arg(KEEPER);
    command
}

/// Programs that embed the job manager and have it run Python jobs or commands call this first
/// in `main`: it returns at once, unless the process has been started by the job manager to run
/// one of those, and then never.
pub fn run_if_started_by_job_manager() {
    ASKED.store(true, Ordering::Relaxed);
    let mut args = std::env::args_os().skip(1);
    let Some(first) = args.next() else { return };
    if first == SHIM {
        let args: Vec<OsString> = args.collect();
        std::process::exit(become_program(&args));
    }
    if first == KEEPER {
        super::keeper::run();
        std::process::exit(0);
    }
}

/// Returns only if the program cannot be started.
fn become_program(args: &[OsString]) -> i32 {
    let [parent, channel, program, args @ ..] = args else {
        return EXIT_NO_PROGRAM;
    };
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return tell(channel, program, &error.into());
    }
    // If the parent had ended before the kernel was asked, nobody will end this process.
    let parent: Option<i32> = parent.to_str().and_then(|text| text.parse().ok());
    if getppid().map(Pid::as_raw_nonzero).map(|pid| pid.get()) != parent {
        return EXIT_NO_PROGRAM;
    }
    let error = Command::new(program).args(args).exec();
    tell(channel, program, &error)
}

fn tell(channel: &OsStr, program: &OsStr, error: &std::io::Error) -> i32 {
    let text = format!("cannot start {}: {error}", program.display());
    if channel == "channel" {
        // Standard input is a socket; its other end reads frames, or has gone.
        let _ = write_to_stdin(&text);
    } else {
        let _ = writeln!(std::io::stderr(), "{text}");
    }
    EXIT_NO_PROGRAM
}

fn write_to_stdin(text: &str) -> rustix::io::Result<()> {
    let mut frame = head(Kind::NoProgram, text.len()).to_vec();
    frame.extend_from_slice(text.as_bytes());
    // Short enough for the empty buffer of a socket.
    rustix::io::write(std::io::stdin(), &frame).map(|_| ())
}
