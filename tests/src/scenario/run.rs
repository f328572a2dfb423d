//! Runs a scenario against a broker of its own.

use super::parse::{Action, Scenario, Side, Socket, Step};
use super::pattern::{Frame, Names, compare, json_matches};
use crate::PATIENCE;
use crate::dealer::{Dealer, admin, show};
use crate::router::{Router, Start, Target};
use serde_json::Value;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use zmq::Context;

/// Runs `scenario` against a fresh broker. `Ok(false)`: the original is missing (said so already).
///
/// Fails with file, line and what happened instead.
pub fn run(scenario: &Scenario, target: Target) -> Result<bool, String> {
    let mut start = Start::new(target);
    for (name, value) in &scenario.env {
        start = start.env(name, value);
    }
    let Some(router) = start.start() else {
        return Ok(false);
    };
    let mut run = Run {
        context: Context::new(),
        router,
        peers: HashMap::new(),
        crowd: Vec::new(),
        names: Names::new(),
        probes: 0,
    };
    for step in scenario
        .steps
        .iter()
        .filter(|step| applies(step.only, target))
    {
        run.step(step).map_err(|error| {
            let file = scenario.place.split(':').next().unwrap_or_default();
            let log = run.router.process().log_tail();
            format!("{file}:{}: {error}\nthe broker logged:\n{log}", step.line)
        })?;
    }
    Ok(true)
}

/// Whether something for one side only is meant for `target`.
pub(crate) fn applies(only: Option<Side>, target: Target) -> bool {
    match only {
        None => true,
        Some(Side::Ours) => target.is_ours(),
        Some(Side::Original) => !target.is_ours(),
    }
}

struct Run {
    context: Context,
    router: Router,
    peers: HashMap<String, (Socket, Dealer)>,
    crowd: Vec<Dealer>,
    names: Names,
    probes: usize,
}

impl Run {
    fn step(&mut self, step: &Step) -> Result<(), String> {
        match &step.action {
            Action::Open { peer, socket, id } => {
                let dealer = Dealer::connect(&self.context, self.address(*socket), id.as_deref());
                self.peers.insert(peer.clone(), (*socket, dealer));
                Ok(())
            }
            Action::Close { peer } => self
                .peers
                .remove(peer)
                .map(drop)
                .ok_or_else(|| format!("no peer {peer}")),
            Action::Send { peer, frames } => {
                let frames = self.bytes(frames)?;
                self.peer(peer)?.send_raw(&frames);
                Ok(())
            }
            Action::Receive { peer, frames } => self.receive(peer, frames),
            Action::ReceiveOneOf {
                peers,
                name,
                frames,
            } => self.one_of(peers, name, frames),
            Action::Beat { peer } => self.beat(peer),
            Action::Quiet { peers } => self.quiet(peers),
            Action::Slots { peer, count } => self.eventually(|shown| {
                let got = &shown["connected_workers"][peer]["available_slots"];
                (got.as_u64() == Some(*count))
                    .then_some(())
                    .ok_or_else(|| format!("{count} free slots of {peer} expected, got {got}"))
            }),
            Action::Listed { peer, listed } => self.eventually(|shown| {
                let is = shown["connected_queues"].as_object().is_some_and(|queues| {
                    queues
                        .values()
                        .filter_map(Value::as_array)
                        .flatten()
                        .any(|entry| entry[1].as_str() == Some(peer))
                });
                let not = if *listed { "not " } else { "" };
                (is == *listed)
                    .then_some(())
                    .ok_or_else(|| format!("{peer} is {not}listed"))
            }),
            Action::AdminMatches { command, pattern } => self.admin_matches(command, pattern),
            Action::AdminEquals { command, bytes } => {
                let answer = admin(&self.context, &self.router.addresses().admin, command)?;
                (answer == *bytes)
                    .then_some(())
                    .ok_or_else(|| format!("{} expected, got {}", one(bytes), one(&answer)))
            }
            Action::Crowd {
                count,
                socket,
                frames,
            } => {
                for _ in 0..*count {
                    let frames = self.bytes(frames)?;
                    let dealer = Dealer::connect(&self.context, self.address(*socket), None);
                    dealer.send_raw(&frames);
                    self.crowd.push(dealer);
                }
                Ok(())
            }
            Action::Pause { ms } => {
                std::thread::sleep(Duration::from_millis(*ms));
                Ok(())
            }
            Action::Alive => self.alive(),
            Action::Dies { code } => {
                let got = self.router.process().wait_code(PATIENCE);
                (got == *code)
                    .then_some(())
                    .ok_or_else(|| format!("exit {code} wanted, got {got}"))
            }
        }
    }

    fn address(&self, socket: Socket) -> &str {
        let addresses = self.router.addresses();
        match socket {
            Socket::Frontend => &addresses.frontend,
            Socket::Backend => &addresses.backend,
            Socket::Admin => &addresses.admin,
        }
    }

    fn peer(&self, name: &str) -> Result<&Dealer, String> {
        self.peers
            .get(name)
            .map(|(_, dealer)| dealer)
            .ok_or_else(|| format!("no peer {name}"))
    }

    fn bytes(&mut self, frames: &[Frame]) -> Result<Vec<Vec<u8>>, String> {
        frames
            .iter()
            .map(|frame| frame.to_send(&mut self.names))
            .collect()
    }

    fn receive(&mut self, peer: &str, expected: &[Frame]) -> Result<(), String> {
        let frames = self
            .peer(peer)?
            .receive(PATIENCE)
            .ok_or_else(|| format!("{peer}: nothing received, expected {expected:?}"))?;
        compare(expected, &frames, &mut self.names).map_err(|e| format!("{peer}: {e}"))
    }

    fn one_of(&mut self, peers: &[String], name: &str, expected: &[Frame]) -> Result<(), String> {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            for peer in peers {
                if let Some(frames) = self.peer(peer)?.receive(Duration::from_millis(2)) {
                    compare(expected, &frames, &mut self.names)
                        .map_err(|e| format!("{peer}: {e}"))?;
                    self.names
                        .insert(name.to_owned(), peer.clone().into_bytes());
                    return Ok(());
                }
            }
        }
        Err(format!(
            "none of {peers:?} received anything, expected {expected:?}"
        ))
    }

    fn beat(&mut self, peer: &str) -> Result<(), String> {
        let frames = self
            .peer(peer)?
            .receive_any(PATIENCE)
            .ok_or_else(|| format!("{peer}: no HEARTBEAT"))?;
        match frames.as_slice() {
            [empty, version, command, _msgid, time]
                if empty.is_empty()
                    && version == b"eMQP/1.0"
                    && command == b"HEARTBEAT"
                    && is_time(time) =>
            {
                Ok(())
            }
            _ => Err(format!(
                "{peer}: HEARTBEAT with a time expected, got {}",
                show(&frames)
            )),
        }
    }

    /// Nothing but HEARTBEATs may be there for `peers`. What the broker was told before is behind
    /// it once a later admin request is answered; a client of ours also gets a REJECT on its own
    /// connection, behind which nothing of before can come.
    fn quiet(&mut self, peers: &[String]) -> Result<(), String> {
        self.answers_status()?;
        let ours = self.router.target().is_ours();
        let mut rest = Duration::from_millis(if ours { 60 } else { 200 });
        for name in peers {
            let (socket, dealer) = self
                .peers
                .get(name)
                .ok_or_else(|| format!("no peer {name}"))?;
            if ours && *socket == Socket::Frontend {
                self.probes += 1;
                let msgid = format!("probe-{}", self.probes);
                dealer.send(&["REQUEST", &msgid]);
                let frames = dealer
                    .receive(PATIENCE)
                    .ok_or("the probe is not answered")?;
                if frames
                    .get(4)
                    .is_none_or(|answered| answered != msgid.as_bytes())
                {
                    return Err(format!("{name}: nothing expected, got {}", show(&frames)));
                }
            } else {
                if let Some(frames) = dealer.receive(rest) {
                    return Err(format!("{name}: nothing expected, got {}", show(&frames)));
                }
                // The time that one peer was waited for counts for the others.
                rest = Duration::from_millis(1);
            }
        }
        Ok(())
    }

    fn answers_status(&mut self) -> Result<(), String> {
        if let Some(status) = self.router.process().ended() {
            return Err(format!("the broker has ended: {status}"));
        }
        admin(&self.context, &self.router.addresses().admin, "STATUS").map(drop)
    }

    fn alive(&mut self) -> Result<(), String> {
        // The original works on one message of each socket in turn: what could end it may still
        // be behind this one.
        self.answers_status()?;
        std::thread::sleep(Duration::from_millis(50));
        self.answers_status()
    }

    fn eventually(&self, check: impl Fn(&Value) -> Result<(), String>) -> Result<(), String> {
        self.until("ROUTER_SHOW_WORKERS", check)
    }

    fn admin_matches(&self, command: &str, pattern: &Value) -> Result<(), String> {
        self.until(command, |answer| json_matches(pattern, answer))
    }

    fn until(
        &self,
        command: &str,
        check: impl Fn(&Value) -> Result<(), String>,
    ) -> Result<(), String> {
        let end = Instant::now() + PATIENCE;
        loop {
            let json = admin(&self.context, &self.router.addresses().admin, command)?;
            let value =
                serde_json::from_slice(&json).map_err(|e| format!("{e}: {}", one(&json)))?;
            match check(&value) {
                Err(e) if Instant::now() >= end => return Err(format!("{command}: {e}")),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
                Ok(()) => return Ok(()),
            }
        }
    }
}

fn one(bytes: &[u8]) -> String {
    show(&[bytes.to_vec()])
}

/// Ten digits, a point, at least one digit: Python's `str(time.time())`.
fn is_time(bytes: &[u8]) -> bool {
    let digits = |bytes: &[u8]| !bytes.is_empty() && bytes.iter().all(u8::is_ascii_digit);
    match bytes.iter().position(|b| *b == b'.') {
        Some(10) => digits(&bytes[..10]) && digits(&bytes[11..]),
        _ => false,
    }
}
