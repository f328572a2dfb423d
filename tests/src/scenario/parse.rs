//! Scenario files to steps.

use super::lexer::{Word, words};
use super::pattern::{Frame, parse_json};
use serde_json::Value;

/// Which broker a scenario or a step is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Only ours, in both threadings.
    Ours,
    /// Only EventMQ 0.3.13.
    Original,
}

/// A scenario and where it is written.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Its name, unique among all files.
    pub name: String,
    /// Its file and line.
    pub place: String,
    /// What it shows.
    pub doc: String,
    /// The broker's environment.
    pub env: Vec<(String, String)>,
    /// The only side it is for.
    pub only: Option<Side>,
    /// What happens, in order.
    pub steps: Vec<Step>,
}

/// One thing that happens.
#[derive(Debug, Clone)]
pub struct Step {
    /// Line of the file.
    pub line: usize,
    /// The only side it is for.
    pub only: Option<Side>,
    /// What happens.
    pub action: Action,
}

/// The socket of the broker that a peer connects to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Socket {
    /// Clients and schedulers.
    Frontend,
    /// Workers.
    Backend,
    /// Admin tools.
    Admin,
}

/// What a step does. The module documentation of [`scenario`](super) has the syntax.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "named as in the syntax")]
pub enum Action {
    Open {
        peer: String,
        socket: Socket,
        id: Option<Vec<u8>>,
    },
    Close {
        peer: String,
    },
    Send {
        peer: String,
        frames: Vec<Frame>,
    },
    Receive {
        peer: String,
        frames: Vec<Frame>,
    },
    ReceiveOneOf {
        peers: Vec<String>,
        name: String,
        frames: Vec<Frame>,
    },
    Beat {
        peer: String,
    },
    Quiet {
        peers: Vec<String>,
    },
    Slots {
        peer: String,
        count: u64,
    },
    Listed {
        peer: String,
        listed: bool,
    },
    AdminMatches {
        command: String,
        pattern: Value,
    },
    AdminEquals {
        command: String,
        bytes: Vec<u8>,
    },
    Crowd {
        count: usize,
        socket: Socket,
        frames: Vec<Frame>,
    },
    Pause {
        ms: u64,
    },
    Alive,
    Dies {
        code: i32,
    },
}

/// Reads one file. Fails with file, line and what is wrong.
pub fn parse(file: &str, text: &str) -> Result<Vec<Scenario>, String> {
    let mut scenarios: Vec<Scenario> = Vec::new();
    let mut side = None;
    for (n, raw) in text.lines().enumerate() {
        let line = n + 1;
        let place = format!("{file}:{line}");
        let fail = |e: String| format!("{place}: {e}");
        let trimmed = raw.trim();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            continue;
        }
        if let Some(rest) = raw.strip_prefix("scenario ") {
            scenarios.push(header(rest, place.clone()).map_err(fail)?);
            side = None;
            continue;
        }
        let scenario = scenarios
            .last_mut()
            .ok_or_else(|| fail("no scenario yet".into()))?;
        if let Some(doc) = trimmed.strip_prefix('|') {
            scenario.doc.push_str(doc);
            continue;
        }
        if let Some(setting) = trimmed.strip_prefix("set ") {
            let (name, value) = setting
                .split_once('=')
                .ok_or_else(|| fail("NAME=VALUE expected".into()))?;
            scenario.env.push((name.to_owned(), value.to_owned()));
            continue;
        }
        match trimmed {
            "ours:" => side = Some(Side::Ours),
            "original:" => side = Some(Side::Original),
            _ => {
                if !raw.starts_with(' ') {
                    side = None;
                } else if side.is_none() {
                    return Err(fail(
                        "indented, but not behind `ours:` or `original:`".into(),
                    ));
                }
                let steps = scenario.steps.len();
                for action in statement(trimmed, steps).map_err(fail)? {
                    scenario.steps.push(Step {
                        line,
                        only: side,
                        action,
                    });
                }
            }
        }
    }
    Ok(scenarios)
}

fn header(rest: &str, place: String) -> Result<Scenario, String> {
    let mut parts = rest.split_whitespace();
    let name = parts.next().ok_or("a scenario has a name")?.to_owned();
    let only = match parts.next() {
        None => None,
        Some("ours") => Some(Side::Ours),
        Some("original") => Some(Side::Original),
        Some(other) => return Err(format!("`ours` or `original` expected, got {other}")),
    };
    let (doc, env, steps) = (String::new(), Vec::new(), Vec::new());
    Ok(Scenario {
        name,
        place,
        doc,
        env,
        only,
        steps,
    })
}

/// The actions of one line; `serial` tells apart the names that `worker` and the like make up.
fn statement(line: &str, serial: usize) -> Result<Vec<Action>, String> {
    let all = words(line)?;
    let text = |n: usize| all.get(n).and_then(Word::bare).unwrap_or_default();
    let peer = || match text(1) {
        "" => Err("a peer is missing".to_owned()),
        name => Ok(name.to_owned()),
    };
    if let Some(actions) = message(&all)? {
        return Ok(actions);
    }
    Ok(match text(0) {
        "open" => vec![open(&all)?],
        "client" => vec![Action::Open {
            peer: peer()?,
            socket: Socket::Frontend,
            id: Some(peer()?.into_bytes()),
        }],
        "worker" => worker(&all, serial)?,
        "scheduler" => scheduler(&all, serial)?,
        "close" => vec![Action::Close { peer: peer()? }],
        "one" => vec![one_of(&all)?],
        "beat" => vec![Action::Beat { peer: peer()? }],
        "quiet" => {
            peer()?;
            vec![Action::Quiet {
                peers: (1..all.len()).map(|n| text(n).to_owned()).collect(),
            }]
        }
        "slots" => vec![Action::Slots {
            peer: peer()?,
            count: number(text(2))?,
        }],
        "listed" => vec![Action::Listed {
            peer: peer()?,
            listed: true,
        }],
        "unlisted" => vec![Action::Listed {
            peer: peer()?,
            listed: false,
        }],
        "admin" => vec![admin(&all)?],
        "crowd" => {
            if text(3) != ">" {
                return Err("crowd COUNT SOCKET > FRAMES".into());
            }
            let frames = emqp(frames(&all[4..])?);
            let count = number(text(1))?;
            vec![Action::Crowd {
                count,
                socket: socket(text(2))?,
                frames,
            }]
        }
        "pause" => vec![Action::Pause {
            ms: number(text(1))?,
        }],
        "alive" => vec![Action::Alive],
        "dies" => vec![Action::Dies {
            code: number(text(1))?,
        }],
        other => return Err(format!("unknown statement {other:?}")),
    })
}

/// `PEER > FRAMES` and its three sisters.
fn message(all: &[Word]) -> Result<Option<Vec<Action>>, String> {
    let [Word::Bare(peer), Word::Bare(arrow), rest @ ..] = all else {
        return Ok(None);
    };
    let peer = peer.clone();
    Ok(Some(vec![match arrow.as_str() {
        ">" => Action::Send {
            peer,
            frames: emqp(frames(rest)?),
        },
        ">>" => Action::Send {
            peer,
            frames: frames(rest)?,
        },
        "<" => Action::Receive {
            peer,
            frames: emqp(frames(rest)?),
        },
        "<<" => Action::Receive {
            peer,
            frames: frames(rest)?,
        },
        _ => return Ok(None),
    }]))
}

fn frames(words: &[Word]) -> Result<Vec<Frame>, String> {
    words.iter().map(Frame::from_word).collect()
}

fn emqp(frames: Vec<Frame>) -> Vec<Frame> {
    let mut all = vec![Frame::Bytes(Vec::new()), Frame::Bytes(b"eMQP/1.0".to_vec())];
    all.extend(frames);
    all
}

fn socket(text: &str) -> Result<Socket, String> {
    match text {
        "frontend" => Ok(Socket::Frontend),
        "backend" => Ok(Socket::Backend),
        "admin" => Ok(Socket::Admin),
        _ => Err(format!("frontend, backend or admin expected, got {text:?}")),
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("a number expected, got {text:?}"))
}

/// `open PEER SOCKET [as ID | nameless]`
fn open(all: &[Word]) -> Result<Action, String> {
    let text = |n: usize| all.get(n).and_then(Word::bare).unwrap_or_default();
    let peer = text(1).to_owned();
    let id = match (text(3), all.get(4)) {
        ("", None) => Some(peer.clone().into_bytes()),
        ("nameless", None) => None,
        ("as", Some(word)) => match Frame::from_word(word)? {
            Frame::Bytes(bytes) => Some(bytes),
            _ => return Err("a routing id expected behind `as`".into()),
        },
        _ => return Err("open PEER SOCKET [as ID | nameless]".into()),
    };
    Ok(Action::Open {
        peer,
        socket: socket(text(2))?,
        id,
    })
}

/// `worker PEER QUEUES [slots N] [with CAPABILITIES]`
fn worker(all: &[Word], serial: usize) -> Result<Vec<Action>, String> {
    let (peer, queues) = match all {
        [_, Word::Bare(peer), queues, ..] => (peer.clone(), Frame::from_word(queues)?),
        _ => return Err("worker PEER QUEUES [slots N] [with CAPABILITIES]".into()),
    };
    let (slots, with) = options(&all[3..])?;
    let mut actions = vec![Action::Open {
        peer: peer.clone(),
        socket: Socket::Backend,
        id: Some(peer.clone().into_bytes()),
    }];
    actions.extend(inform(&peer, queues, "worker", with, serial));
    for n in 0..slots {
        let frames = vec![
            text_frame("READY"),
            Frame::Name(format!("ready {peer} {serial} {n}")),
        ];
        actions.push(Action::Send {
            peer: peer.clone(),
            frames: emqp(frames),
        });
    }
    if slots > 0 {
        actions.push(Action::Slots { peer, count: slots });
    }
    Ok(actions)
}

/// `scheduler PEER [with CAPABILITIES]`
fn scheduler(all: &[Word], serial: usize) -> Result<Vec<Action>, String> {
    let Some(Word::Bare(peer)) = all.get(1) else {
        return Err("scheduler PEER [with CAPABILITIES]".into());
    };
    let (_, with) = options(&all[2..])?;
    let id = Some(peer.clone().into_bytes());
    let mut actions = vec![Action::Open {
        peer: peer.clone(),
        socket: Socket::Frontend,
        id,
    }];
    actions.extend(inform(
        peer,
        Frame::Bytes(Vec::new()),
        "scheduler",
        with,
        serial,
    ));
    Ok(actions)
}

fn options(rest: &[Word]) -> Result<(u64, Option<Frame>), String> {
    let (mut slots, mut with) = (0, None);
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        match (word.bare(), words.next()) {
            (Some("slots"), Some(value)) => slots = number(value.bare().unwrap_or_default())?,
            (Some("with"), Some(value)) => with = Some(Frame::from_word(value)?),
            _ => return Err("slots N or with CAPABILITIES expected".into()),
        }
    }
    Ok((slots, with))
}

fn inform(
    peer: &str,
    queues: Frame,
    kind: &str,
    with: Option<Frame>,
    serial: usize,
) -> [Action; 2] {
    let msgid = Frame::Name(format!("inform {peer} {serial}"));
    let mut frames = vec![
        text_frame("INFORM"),
        msgid.clone(),
        queues,
        text_frame(kind),
    ];
    frames.extend(with);
    let answer = vec![text_frame("ACK"), Frame::Any, msgid];
    [
        Action::Send {
            peer: peer.to_owned(),
            frames: emqp(frames),
        },
        Action::Receive {
            peer: peer.to_owned(),
            frames: emqp(answer),
        },
    ]
}

fn text_frame(text: &str) -> Frame {
    Frame::Bytes(text.as_bytes().to_vec())
}

/// `one of PEERS as NAME < FRAMES`
fn one_of(all: &[Word]) -> Result<Action, String> {
    let position = |wanted: &str| all.iter().position(|w| w.bare() == Some(wanted));
    let (Some(r#as), Some(arrow)) = (position("as"), position("<")) else {
        return Err("one of PEERS as NAME < FRAMES".into());
    };
    let name = all
        .get(r#as + 1)
        .and_then(Word::bare)
        .unwrap_or_default()
        .to_owned();
    let peers = all[2..r#as]
        .iter()
        .filter_map(Word::bare)
        .map(str::to_owned)
        .collect();
    Ok(Action::ReceiveOneOf {
        peers,
        name,
        frames: emqp(frames(&all[arrow + 1..])?),
    })
}

/// `admin COMMAND -> PATTERN` or `admin COMMAND == BYTES`
fn admin(all: &[Word]) -> Result<Action, String> {
    match all {
        [
            _,
            Word::Bare(command),
            Word::Bare(arrow),
            Word::Brackets(json),
        ] if arrow == "->" => {
            let pattern = parse_json(json)?;
            Ok(Action::AdminMatches {
                command: command.clone(),
                pattern,
            })
        }
        [
            _,
            Word::Bare(command),
            Word::Bare(equals),
            Word::Quoted(bytes),
        ] if equals == "==" => Ok(Action::AdminEquals {
            command: command.clone(),
            bytes: bytes.clone(),
        }),
        _ => Err("admin COMMAND -> {pattern} or admin COMMAND == 'bytes'".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_end_with_their_indentation() {
        let text =
            "scenario a\n| doc\nset X=1\nclient c1\nours:\n  alive\noriginal:\n  dies 1\nalive";
        let scenarios = parse("f", text).unwrap();
        let sides: Vec<_> = scenarios[0].steps.iter().map(|s| s.only).collect();
        assert_eq!(sides, [None, Some(Side::Ours), Some(Side::Original), None]);
        assert_eq!(scenarios[0].env, [("X".to_owned(), "1".to_owned())]);
    }

    #[test]
    fn mistakes_name_their_line() {
        for (text, line) in [
            ("alive", "f:1:"),
            ("scenario a\nopen x nowhere", "f:2:"),
            ("scenario a\n\nfrobnicate", "f:3:"),
            ("scenario a\n  alive", "f:2:"),
            ("scenario a\nadmin STATUS -> {", "f:2:"),
            ("scenario a both", "f:1:"),
        ] {
            let error = parse("f", text).unwrap_err();
            assert!(error.starts_with(line), "{text:?}: {error}");
        }
    }
}
