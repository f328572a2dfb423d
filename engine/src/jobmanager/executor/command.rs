//! Jobs that run a command.

use super::super::outcome::Ending;
use super::super::process::{GroupLeader, Streams};
use super::CommandConfig;
use mio::unix::pipe;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::{self, Read as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};

/// Longest argument list, in bytes; the kernel takes about 2 MiB.
const ARGS_BYTES_MAX: usize = 1 << 20;

/// One output of a running command.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) pipe: pipe::Receiver,
    kept: Vec<u8>,
    /// More came than is kept.
    cut: bool,
}

/// A running command.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) leader: GroupLeader,
    /// Standard output and standard error.
    pub(super) outputs: [Output; 2],
    output_bytes_max: usize,
    name: String,
}

/// Finds the allowed program that a job names, and reads its arguments.
///
/// # Errors
/// How the job ends if it may not or cannot be run.
pub(super) fn check(
    config: &CommandConfig,
    program: &str,
    args: &[Value],
) -> Result<(PathBuf, Vec<OsString>), Ending> {
    let allowed = config.allowed.iter().find(|path| {
        path.as_os_str() == program || path.file_name().is_some_and(|name| name == program)
    });
    let Some(path) = allowed else {
        let message = format!("{program:?} is not among the commands allowed by exec_allowed");
        return Err(Ending::failure("CommandNotAllowed", &message, ""));
    };
    let mut words = Vec::with_capacity(args.len());
    let mut bytes = 0;
    for arg in args {
        let word = match arg {
            Value::String(text) if !text.contains('\0') => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => {
                let message = "arguments are texts without NUL, and numbers";
                return Err(Ending::failure("ArgumentError", message, ""));
            }
        };
        bytes += word.len() + 1;
        words.push(OsString::from(word));
    }
    if bytes > ARGS_BYTES_MAX {
        let message = format!("the arguments have {bytes} bytes, at most {ARGS_BYTES_MAX} go");
        return Err(Ending::failure("ArgumentError", &message, ""));
    }
    Ok((path.clone(), words))
}

impl Command {
    /// Starts it, without standard input.
    ///
    /// # Errors
    /// If no process can be made.
    pub(super) fn start(
        config: &CommandConfig,
        program: &std::path::Path,
        args: &[OsString],
    ) -> io::Result<Command> {
        let streams = Streams {
            stdin: Stdio::null(),
            stdout: Stdio::piped(),
            stderr: Stdio::piped(),
        };
        let mut leader = GroupLeader::start(program.as_os_str(), args, streams, false)?;
        let (Some(stdout), Some(stderr)) = leader.take_outputs() else {
            return Err(io::Error::other("the outputs are not pipes"));
        };
        let (stdout, stderr) = (pipe::Receiver::from(stdout), pipe::Receiver::from(stderr));
        stdout.set_nonblocking(true)?;
        stderr.set_nonblocking(true)?;
        let output = |pipe| Output {
            pipe,
            kept: Vec::new(),
            cut: false,
        };
        Ok(Command {
            leader,
            outputs: [output(stdout), output(stderr)],
            output_bytes_max: config.output_bytes_max,
            name: program.display().to_string(),
        })
    }

    /// Reads what there is, at most so many buffers; true if there may be more.
    pub(super) fn read(&mut self, which: usize, buffer: &mut [u8], mut turns: usize) -> bool {
        let max = self.output_bytes_max;
        let output = &mut self.outputs[which];
        loop {
            if turns == 0 {
                return true;
            }
            turns -= 1;
            match output.pipe.read(buffer) {
                Ok(0) => return false,
                Ok(len) => {
                    let keep = len.min(max - output.kept.len());
                    output.kept.extend_from_slice(&buffer[..keep]);
                    output.cut |= keep < len;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Nothing more just now, or for ever.
                Err(_) => return false,
            }
        }
    }

    /// How the job ends whose command ended like this.
    pub(super) fn ending(&self, status: ExitStatus) -> Ending {
        let [stdout, stderr] = &self.outputs;
        let text = |output: &Output| String::from_utf8_lossy(&output.kept).into_owned();
        if status.signal().is_some() {
            return Ending::Died(super::super::process::ended(status));
        }
        let told = json!({
            "code": status.code(),
            "stdout": text(stdout),
            "stderr": text(stderr),
            "truncated": stdout.cut || stderr.cut,
        });
        if status.success() {
            return Ending::Value(json!({ "value": told }).to_string().into_bytes());
        }
        let message = format!(
            "{} ended with exit code {}",
            self.name,
            status.code().unwrap_or(-1)
        );
        let error = json!({"type": "CommandFailed", "message": message, "traceback": text(stderr)});
        Ending::Error(
            json!({"value": told, "error": error})
                .to_string()
                .into_bytes(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_allowed_commands_with_plain_arguments() {
        let config = CommandConfig {
            allowed: vec![PathBuf::from("/bin/echo")],
            ..CommandConfig::default()
        };
        let words = |program: &str, args: Value| {
            let args = args.as_array().unwrap().clone();
            check(&config, program, &args).map(|(path, words)| (path, words.len()))
        };
        let echo = PathBuf::from("/bin/echo");
        assert_eq!(words("echo", json!(["a", 1])), Ok((echo.clone(), 2)));
        assert_eq!(words("/bin/echo", json!([])), Ok((echo, 0)));
        let nothing = CommandConfig::default();
        assert!(check(&nothing, "echo", &[]).is_err());
        for program in [
            "",
            "/bin/sh",
            "../bin/echo",
            "/bin/../bin/echo",
            "bin/echo",
            "ECHO",
        ] {
            assert!(words(program, json!([])).is_err(), "{program}");
        }
        for args in [
            json!([null]),
            json!([["a"]]),
            json!(["a\0b"]),
            json!(["x".repeat(2 << 20)]),
        ] {
            assert!(words("echo", args).is_err());
        }
    }
}
