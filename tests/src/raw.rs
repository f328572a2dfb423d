//! ZMTP 3.0 by hand over plain TCP: what a test needs to say things that libzmq never would.
//! Deliberately independent of the engine's own `zmtp`.

use crate::dealer::{Frames, VERSION};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// The greeting of a ZMTP 3.0 peer with the NULL mechanism, 64 bytes.
pub fn greeting() -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[0] = 0xff;
    bytes[8] = 1;
    bytes[9] = 0x7f;
    bytes[10] = 3;
    bytes[12..16].copy_from_slice(b"NULL");
    bytes
}

/// A READY command with these properties.
pub fn ready_command(properties: &[(&str, &[u8])]) -> Vec<u8> {
    let mut body = vec![5];
    body.extend_from_slice(b"READY");
    for (name, value) in properties {
        body.push(u8::try_from(name.len()).expect("a short name"));
        body.extend_from_slice(name.as_bytes());
        body.extend_from_slice(
            &u32::try_from(value.len())
                .expect("a short value")
                .to_be_bytes(),
        );
        body.extend_from_slice(value);
    }
    command(&body)
}

/// A command frame around `body` (which starts with the length-prefixed name).
pub fn command(body: &[u8]) -> Vec<u8> {
    let mut wire = Vec::with_capacity(body.len() + 9);
    match u8::try_from(body.len()) {
        Ok(length) => wire.extend_from_slice(&[4, length]),
        Err(_) => {
            wire.push(6);
            wire.extend_from_slice(&(body.len() as u64).to_be_bytes());
        }
    }
    wire.extend_from_slice(body);
    wire
}

/// Frames on the wire.
pub fn message<F: AsRef<[u8]>>(frames: &[F]) -> Vec<u8> {
    let mut wire = Vec::new();
    for (n, frame) in frames.iter().enumerate() {
        let frame = frame.as_ref();
        let more = u8::from(n + 1 < frames.len());
        match u8::try_from(frame.len()) {
            Ok(length) => wire.extend_from_slice(&[more, length]),
            Err(_) => {
                wire.push(more | 2);
                wire.extend_from_slice(&(frame.len() as u64).to_be_bytes());
            }
        }
        wire.extend_from_slice(frame);
    }
    wire
}

/// `['', 'eMQP/1.0', frames...]` on the wire.
pub fn emqp<F: AsRef<[u8]>>(frames: &[F]) -> Vec<u8> {
    let mut all: Vec<&[u8]> = vec![b"", VERSION];
    all.extend(frames.iter().map(AsRef::as_ref));
    message(&all)
}

/// A DEALER (or another socket) spelled by hand, after its handshake.
#[derive(Debug)]
pub struct RawDealer {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl RawDealer {
    /// Connects to `address` (host:port) and finishes the handshake. `properties` come behind
    /// Socket-Type.
    pub fn connect(address: &str, properties: &[(&str, &[u8])]) -> io::Result<RawDealer> {
        RawDealer::connect_as(address, "DEALER", 0, properties)
    }

    /// The same for a peer that says it has a socket of this type and speaks ZMTP 3.`minor`.
    pub fn connect_as(
        address: &str,
        socket_type: &str,
        minor: u8,
        properties: &[(&str, &[u8])],
    ) -> io::Result<RawDealer> {
        let mut dealer = RawDealer::begin(address, socket_type, minor, properties)?;
        let (flags, body) = dealer.read_frame()?;
        if flags & 4 == 0 || !body.starts_with(b"\x05READY") {
            return Err(io::Error::other(format!(
                "READY expected, got {flags} {body:?}"
            )));
        }
        Ok(dealer)
    }

    /// The same without the answer to our READY: for a peer that will be refused, which may hear
    /// of it before that answer.
    pub fn begin(
        address: &str,
        socket_type: &str,
        minor: u8,
        properties: &[(&str, &[u8])],
    ) -> io::Result<RawDealer> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(crate::PATIENCE))?;
        stream.set_write_timeout(Some(crate::PATIENCE))?;
        stream.set_nodelay(true)?;
        let mut ours = greeting();
        ours[11] = minor;
        stream.write_all(&ours)?;
        let mut theirs = [0; 64];
        stream.read_exact(&mut theirs)?;
        let mut all: Vec<(&str, &[u8])> = vec![("Socket-Type", socket_type.as_bytes())];
        all.extend_from_slice(properties);
        stream.write_all(&ready_command(&all))?;
        Ok(RawDealer {
            stream,
            unread: Vec::new(),
        })
    }

    /// The stream, to write bytes of any kind.
    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// Sends `['', 'eMQP/1.0', frames...]`.
    pub fn send<F: AsRef<[u8]>>(&mut self, frames: &[F]) -> io::Result<()> {
        self.stream.write_all(&emqp(frames))
    }

    /// The next message, HEARTBEATs aside; PINGs of the broker are answered. Fails with
    /// `WouldBlock` or `TimedOut` after `patience`, with `UnexpectedEof` at the end.
    pub fn receive(&mut self, patience: Duration) -> io::Result<Frames> {
        self.stream.set_read_timeout(Some(patience))?;
        loop {
            let mut frames = Vec::new();
            loop {
                let (flags, body) = self.read_frame()?;
                if flags & 4 != 0 {
                    if body.starts_with(b"\x04PING") && body.len() >= 7 {
                        let mut pong = b"\x04PONG".to_vec();
                        pong.extend_from_slice(&body[7..]);
                        self.stream.write_all(&command(&pong))?;
                    }
                    continue;
                }
                frames.push(body);
                if flags & 1 == 0 {
                    break;
                }
            }
            if frames.get(2).is_none_or(|c| c != b"HEARTBEAT") {
                return Ok(frames);
            }
        }
    }

    /// The flags and the body of the next frame or command.
    pub fn read_frame(&mut self) -> io::Result<(u8, Vec<u8>)> {
        loop {
            if let Some((flags, from, to)) = frame_at(&self.unread) {
                let body = self.unread[from..to].to_vec();
                self.unread.drain(..to);
                return Ok((flags, body));
            }
            let mut buffer = [0; 16 * 1024];
            match self.stream.read(&mut buffer)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => self.unread.extend_from_slice(&buffer[..n]),
            }
        }
    }
}

/// Flags, start and end of the body of the frame at the front of `bytes`, if it is whole.
fn frame_at(bytes: &[u8]) -> Option<(u8, usize, usize)> {
    let flags = *bytes.first()?;
    let (from, length) = if flags & 2 == 0 {
        (2, usize::from(*bytes.get(1)?))
    } else {
        let length: [u8; 8] = bytes.get(1..9)?.try_into().expect("eight bytes");
        (
            9,
            usize::try_from(u64::from_be_bytes(length)).expect("a length of ours"),
        )
    };
    let to = from + length;
    (bytes.len() >= to).then_some((flags, from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_back_as_written() {
        let long = vec![b'x'; 300];
        let wire = message(&[b"".as_slice(), b"a", &long]);
        assert_eq!(frame_at(&wire), Some((1, 2, 2)));
        assert_eq!(frame_at(&wire[2..]), Some((1, 2, 3)));
        assert_eq!(frame_at(&wire[5..]), Some((2, 9, 309)));
        assert_eq!(frame_at(&wire[5..200]), None);
    }
}
