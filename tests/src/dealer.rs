//! DEALER sockets of the real libzmq, with deadlines.

use crate::PATIENCE;
use std::time::{Duration, Instant};
use zmq::{Context, DEALER, POLLIN, Socket};

/// The frames of one message.
pub type Frames = Vec<Vec<u8>>;

/// Frame 1 of every eMQP message.
pub const VERSION: &[u8] = b"eMQP/1.0";

/// A DEALER connected to one socket of a broker.
pub struct Dealer {
    socket: Socket,
}

impl std::fmt::Debug for Dealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dealer").finish_non_exhaustive()
    }
}

impl Dealer {
    /// Connects to `address`; without `id` libzmq chooses none and the broker makes one.
    ///
    /// # Panics
    ///
    /// If libzmq refuses the id or the address.
    pub fn connect(context: &Context, address: &str, id: Option<&[u8]>) -> Dealer {
        Dealer::connect_with(context, address, id, |_| {})
    }

    /// As [`Dealer::connect`], with `configure` called before connecting.
    pub fn connect_with(
        context: &Context,
        address: &str,
        id: Option<&[u8]>,
        configure: impl FnOnce(&Socket),
    ) -> Dealer {
        let socket = context.socket(DEALER).expect("a DEALER");
        socket.set_linger(0).expect("linger");
        socket
            .set_sndhwm(0)
            .expect("no limit on what waits to be sent");
        socket
            .set_rcvhwm(0)
            .expect("no limit on what waits to be read");
        if let Some(id) = id {
            socket
                .set_identity(id)
                .expect("a routing id of 1-255 bytes");
        }
        configure(&socket);
        socket
            .connect(address)
            .unwrap_or_else(|e| panic!("connect {address}: {e}"));
        Dealer { socket }
    }

    /// The socket itself.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Sends frames exactly as given.
    ///
    /// # Panics
    ///
    /// If libzmq cannot take them.
    pub fn send_raw<F: AsRef<[u8]>>(&self, frames: &[F]) {
        let (last, head) = frames.split_last().expect("at least one frame");
        for frame in head {
            self.socket
                .send(frame.as_ref(), zmq::SNDMORE)
                .expect("send");
        }
        self.socket.send(last.as_ref(), 0).expect("send");
    }

    /// Sends `['', 'eMQP/1.0', frames...]`.
    pub fn send<F: AsRef<[u8]>>(&self, frames: &[F]) {
        self.socket.send(&b""[..], zmq::SNDMORE).expect("send");
        self.socket.send(VERSION, zmq::SNDMORE).expect("send");
        self.send_raw(frames);
    }

    /// The next message, whatever it is, or `None` after `patience`.
    pub fn receive_any(&self, patience: Duration) -> Option<Frames> {
        let end = Instant::now() + patience;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let ms = i64::try_from(left.as_millis()).unwrap_or(i64::MAX);
            match self.socket.poll(POLLIN, ms) {
                Ok(0) if left.is_zero() => return None,
                Ok(0) | Err(zmq::Error::EINTR) => {}
                Ok(_) => return Some(self.socket.recv_multipart(0).expect("a readable message")),
                Err(error) => panic!("poll: {error}"),
            }
        }
    }

    /// The next message that is no HEARTBEAT, or `None` after `patience`.
    pub fn receive(&self, patience: Duration) -> Option<Frames> {
        let end = Instant::now() + patience;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let frames = self.receive_any(left)?;
            if frames.get(2).is_none_or(|command| command != b"HEARTBEAT") {
                return Some(frames);
            }
        }
    }

    /// The next message with this command, which must come before any other (HEARTBEATs aside).
    ///
    /// # Panics
    ///
    /// If nothing or something else comes.
    #[track_caller]
    pub fn expect(&self, command: &str) -> Frames {
        let frames = self
            .receive(PATIENCE)
            .unwrap_or_else(|| panic!("nothing received, {command} expected"));
        assert!(
            frames.get(2).is_some_and(|c| c == command.as_bytes()),
            "{command} expected, got {}",
            show(&frames)
        );
        frames
    }

    /// Registers as a worker of `queues` (JSON) and waits for the ACK.
    #[track_caller]
    pub fn inform_worker(&self, queues: &str) {
        self.send(&["INFORM", "inform-1", queues, "worker"]);
        self.expect("ACK");
    }

    /// Says READY `count` times.
    pub fn ready(&self, count: usize) {
        for n in 0..count {
            self.send(&["READY".to_owned(), format!("ready-{n}")]);
        }
    }
}

/// One admin request on a socket of its own; the JSON frame of the answer.
pub fn admin(context: &Context, address: &str, command: &str) -> Result<Vec<u8>, String> {
    let dealer = Dealer::connect(
        context,
        address,
        Some(uuid::Uuid::new_v4().to_string().as_bytes()),
    );
    dealer.send(&[command, "admin-1"]);
    let frames = dealer
        .receive(PATIENCE)
        .ok_or_else(|| format!("{command} is not answered"))?;
    match frames.as_slice() {
        [empty, version, reply, _msgid, json]
            if empty.is_empty() && version == VERSION && reply == b"REPLY" =>
        {
            Ok(json.clone())
        }
        _ => Err(format!("{command} is answered {}", show(&frames))),
    }
}

/// Frames as people read them.
pub fn show(frames: &[Vec<u8>]) -> String {
    let mut text = String::from("[");
    for (n, frame) in frames.iter().enumerate() {
        if n > 0 {
            text.push_str(", ");
        }
        let cut = &frame[..frame.len().min(200)];
        match std::str::from_utf8(cut) {
            Ok(utf8) => text.push_str(&format!("{utf8:?}")),
            Err(_) => text.push_str(&format!("0x{}", hex(cut))),
        }
        if cut.len() < frame.len() {
            text.push_str(&format!("... {} bytes", frame.len()));
        }
    }
    text.push(']');
    text
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
