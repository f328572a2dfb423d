use super::*;
use std::net::TcpListener;
use std::thread;

/// A listener whose first connection is answered with `bytes` and held open until it is read.
fn peer_that_sends(bytes: &'static [u8]) -> Addr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(bytes).unwrap();
        let mut seen = Vec::new();
        let _ = stream.read_to_end(&mut seen);
    });
    Addr::Tcp {
        host: "127.0.0.1".into(),
        port,
    }
}

fn line_of(addr: &Addr) -> String {
    connect(addr, b"id").unwrap_err().to_string()
}

#[test]
fn both_sides_finish_and_register() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = Addr::Tcp {
        host: "127.0.0.1".into(),
        port: listener.local_addr().unwrap().port(),
    };
    let server = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut opened = accept(Blocking::Tcp(stream)).unwrap();
        let until = Instant::now() + Duration::from_secs(STEP_SECS_MAX);
        let inform = opened.next_message("INFORM", until).unwrap();
        assert_eq!(
            inform[2..],
            [&b"INFORM"[..], b"id", b"[[10,\"q\"]]", b"worker"]
        );
        opened
            .send(&message(&[b"ACK", b"other", &inform[3]]))
            .unwrap();
    });
    connect(&addr, b"w")
        .unwrap()
        .register_worker("q", b"id")
        .unwrap();
    server.join().unwrap();
}

#[test]
fn unreachable_address_says_so() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let line = line_of(&Addr::Tcp {
        host: "127.0.0.1".into(),
        port,
    });
    assert!(
        line.contains("cannot connect") && line.contains("is a broker listening"),
        "{line}"
    );
}

#[test]
fn http_server_is_not_a_broker() {
    let line = line_of(&peer_that_sends(b"HTTP/1.1 400 Bad Request\r\n\r\n"));
    assert!(
        line.contains("does not speak ZMTP") && line.contains("HTTP/1.1 400"),
        "{line}"
    );
}

#[test]
fn error_command_is_shown() {
    let mut bytes = greeting().to_vec();
    bytes.extend_from_slice(b"\x04\x0b\x05ERROR\x04busy");
    let line = line_of(&peer_that_sends(bytes.leak()));
    assert!(
        line.contains("refuses the handshake") && line.contains("busy"),
        "{line}"
    );
}

#[test]
fn early_close_names_what_was_due() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || drop(listener.accept()));
    let line = line_of(&Addr::Tcp {
        host: "127.0.0.1".into(),
        port,
    });
    // Closing with unread input is a reset on some kernels, an end of file on others.
    assert!(
        line.contains("ZMTP greeting") || line.contains("reset"),
        "{line}"
    );
}
