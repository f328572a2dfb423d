//! A publisher in process: addresses, reload, end. What it does with messages is tested in `state`
//! and, with real peers, in the system tests.

use super::{INCOMING, OUTGOING, PubSubServer, ServerConfig};
use crate::addr::Addr;
use crate::ids::Socket;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(20);

fn accepts(addr: &Addr) -> bool {
    let Addr::Tcp { host, port } = addr else {
        panic!("tests bind TCP")
    };
    TcpStream::connect((host.as_str(), *port)).is_ok()
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_reload_changes_all_addresses_or_none() {
    let server = PubSubServer::start(ServerConfig::default()).unwrap();
    let old = Socket::ALL.map(|socket| server.addr(socket));
    assert!(old.iter().all(accepts));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = ServerConfig::default();
    config.addrs[INCOMING as usize] = Addr::Tcp {
        host: "localhost".to_owned(),
        port: 0,
    };
    config.addrs[OUTGOING as usize] = Addr::Tcp {
        host: "127.0.0.1".to_owned(),
        port: taken.local_addr().unwrap().port(),
    };
    let error = server.reload(config.clone()).unwrap_err().to_string();
    assert!(error.starts_with("cannot bind outgoing address"), "{error}");
    assert_eq!(Socket::ALL.map(|socket| server.addr(socket)), old);
    assert!(old.iter().all(accepts), "nothing has changed");

    config.addrs[OUTGOING as usize] = ServerConfig::default().addrs[OUTGOING as usize].clone();
    server.reload(config).unwrap();
    let new = server.addr(INCOMING);
    assert_ne!(new, old[INCOMING as usize]);
    assert_eq!(server.addr(OUTGOING), old[OUTGOING as usize]);
    wait_until("the old address is closed", || {
        !accepts(&old[INCOMING as usize])
    });
    wait_until("the new address accepts", || accepts(&new));
    assert!(accepts(&old[OUTGOING as usize]));
}

#[test]
fn it_ends_when_asked_and_when_dropped() {
    let server = PubSubServer::start(ServerConfig::default()).unwrap();
    let addr = server.addr(OUTGOING);
    server.shutdown();
    let report = server.wait().unwrap();
    assert_eq!(report.figures.subscribers, 0);
    assert!(!accepts(&addr));
    let server = PubSubServer::start(ServerConfig::default()).unwrap();
    let addr = server.addr(OUTGOING);
    drop(server);
    assert!(!accepts(&addr));
}
