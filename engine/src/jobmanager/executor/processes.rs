//! The worker processes as the poll sees them: a socket, a pidfd, bytes in both directions.

use super::super::frame::{BadFrame, FrameBuffer, Kind, head};
use super::super::process::{GroupLeader, Streams};
use super::PythonConfig;
use crate::limits::FRAME_BYTES_MAX;
use mio::net::UnixStream;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, IoSlice, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::Stdio;

/// What runs inside a worker process.
const RUNNER: &str = include_str!("../runner.py");
/// Reads the runner from standard input, which is a socket, and leaves the rest there. So nothing
/// needs to lie on a disk, and the command line stays short.
const BOOTSTRAP: &str = "\
import os, sys
left, parts = int(sys.argv[1]), []
while left:
    part = os.read(0, left)
    if not part:
        sys.exit(1)
    parts.append(part)
    left -= len(part)
exec(compile(b''.join(parts), '<emq-jobmanager>', 'exec'))
";
/// Largest result as JSON: with the other frames of a REPLY it fits a message.
pub(super) const RESULT_BYTES_MAX: usize = FRAME_BYTES_MAX;
/// Largest body of a frame of a worker process: a result, or a failure with its bounded texts.
const BODY_BYTES_MAX: usize = RESULT_BYTES_MAX;

/// A worker process.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) leader: GroupLeader,
    /// `None` once it was closed.
    pub(super) socket: Option<UnixStream>,
    output: VecDeque<Vec<u8>>,
    /// Bytes of the first item that are written.
    written: usize,
    input: FrameBuffer,
}

/// What reading found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// Nothing more just now.
    Drained,
    /// There may be more.
    More,
    /// The other end is closed.
    End,
}

impl Process {
    /// Starts the interpreter.
    ///
    /// # Errors
    /// If no process or socket can be made.
    pub(super) fn start(config: &PythonConfig) -> io::Result<Process> {
        let (own, theirs) = std::os::unix::net::UnixStream::pair()?;
        own.set_nonblocking(true)?;
        let streams = Streams {
            stdin: Stdio::from(OwnedFd::from(theirs)),
            stdout: Stdio::inherit(),
            stderr: Stdio::inherit(),
        };
        let args = ["-c", BOOTSTRAP, &RUNNER.len().to_string()].map(OsString::from);
        let leader = GroupLeader::start(&config.python, &args, streams, true)?;
        let settings = serde_json::json!({
            "result_max": RESULT_BYTES_MAX,
            "subprocess_setup_func": config.subprocess_setup_func,
            "setup_path": config.setup_path,
            "setup_callable": config.setup_callable,
            "job_entry_func": config.job_entry_func,
            "job_exit_func": config.job_exit_func,
        });
        let mut process = Process {
            leader,
            socket: Some(UnixStream::from_std(own)),
            output: VecDeque::new(),
            written: 0,
            input: FrameBuffer::default(),
        };
        process.output.push_back(RUNNER.as_bytes().to_vec());
        process.queue(Kind::Settings, settings.to_string().into_bytes());
        Ok(process)
    }

    /// Puts a frame behind what waits to be written.
    pub(super) fn queue(&mut self, kind: Kind, body: Vec<u8>) {
        self.output.push_back(head(kind, body.len()).to_vec());
        self.output.push_back(body);
    }

    /// Writes what the socket takes. What cannot be written does not matter: the end of the
    /// process, or of its input, is seen elsewhere.
    pub(super) fn write(&mut self) {
        let Some(socket) = &mut self.socket else {
            return;
        };
        while !self.output.is_empty() {
            let mut slices = [IoSlice::new(&[]); 4];
            let mut skip = self.written;
            for (slice, item) in slices.iter_mut().zip(&self.output) {
                *slice = IoSlice::new(&item[std::mem::take(&mut skip)..]);
            }
            match socket.write_vectored(&slices) {
                Ok(mut len) => {
                    while let Some(first) = self.output.front() {
                        let left = first.len() - self.written;
                        if len < left {
                            self.written += len;
                            break;
                        }
                        len -= left;
                        self.written = 0;
                        self.output.pop_front();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// Reads at most so many buffers.
    pub(super) fn read(&mut self, buffer: &mut [u8], turns: usize) -> Input {
        let Some(socket) = &mut self.socket else {
            return Input::Drained;
        };
        for _ in 0..turns {
            match socket.read(buffer) {
                Ok(0) => return Input::End,
                // Less than there is room for: the socket is empty, and new bytes are reported.
                Ok(len) if len < buffer.len() => {
                    self.input.extend(&buffer[..len]);
                    return Input::Drained;
                }
                Ok(len) => self.input.extend(&buffer[..len]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Input::Drained,
                Err(_) => return Input::End,
            }
        }
        Input::More
    }

    /// Throws away what was read and not taken.
    pub(super) fn forget_input(&mut self) {
        self.input = FrameBuffer::default();
    }

    /// The next frame that was read.
    ///
    /// # Errors
    /// [`BadFrame`]: the process is to be killed.
    pub(super) fn next_frame(&mut self) -> Result<Option<(Kind, Vec<u8>)>, BadFrame> {
        self.input.next(BODY_BYTES_MAX)
    }
}
