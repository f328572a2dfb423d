//! The interactive shell: the commands of the command line, one a line, with history and
//! completion. Without a terminal it reads commands from standard input; then the exit code says
//! whether all were answered.

use super::CliError;
use super::args::{Options, ShellCommand, ShellLine, shell_words};
use super::session::{Interrupt, Session, write};
use super::table::harmless;
use crate::settings::state_dir;
use clap::Parser;
use clap::error::ErrorKind;
use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::{FileHistory, History};
use rustyline::validate::Validator;
use rustyline::{Context, Editor, Helper};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;

/// Lines of history kept.
const HISTORY_LINES_MAX: usize = 1_000;

/// Completes the first word of a line, and after it options.
struct Words(Vec<String>);

impl Helper for Words {}
impl Highlighter for Words {}
impl Validator for Words {}
impl Hinter for Words {
    type Hint = String;
}

impl Completer for Words {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        pos: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let before = &line[..pos];
        let start = before.rfind(' ').map_or(0, |at| at + 1);
        let word = &before[start..];
        let first = before.split_whitespace().next().unwrap_or_default();
        let options = ["--json".to_owned(), "--timeout".to_owned()];
        let all: &[String] = match start {
            0 => &self.0,
            _ if first == "help" || first == "watch" => &self.0,
            _ => &options,
        };
        let pairs = all
            .iter()
            .filter(|known| known.starts_with(word))
            .map(|known| Pair {
                display: known.clone(),
                replacement: format!("{known} "),
            });
        Ok((start, pairs.collect()))
    }
}

/// Where the history is kept; `None` without a place for it.
fn history_file() -> Option<PathBuf> {
    let variables: Vec<_> = ["STATE_DIRECTORY", "XDG_STATE_HOME", "HOME"]
        .into_iter()
        .filter_map(|name| Some((name, std::env::var_os(name)?)))
        .collect();
    let variable = |name: &str| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.as_os_str())
    };
    let dir = state_dir(variable)?;
    std::fs::create_dir_all(&dir).ok()?;
    Some(dir.join("emq-cli-history"))
}

/// What became of a line.
enum Outcome {
    Done,
    Failed,
    Quit,
}

/// Runs the shell to its end.
pub(super) fn run(options: &Options, out: &mut impl Write) -> Result<(), CliError> {
    let terminal = |error: ReadlineError| CliError::Terminal(error.to_string());
    let interactive = std::io::stdin().is_terminal();
    let interrupt = match interactive {
        true => Interrupt::watch().map_err(|error| CliError::Terminal(error.to_string()))?,
        false => Interrupt::none(),
    };
    let mut session = Session::new(options.clone(), interrupt);
    let config = rustyline::Config::builder()
        .max_history_size(HISTORY_LINES_MAX)
        .map_err(terminal)?
        .auto_add_history(true)
        .build();
    let history = FileHistory::with_config(&config);
    let mut editor: Editor<Words, FileHistory> =
        Editor::with_history(config, history).map_err(terminal)?;
    editor.set_helper(Some(Words(shell_words())));
    let history = history_file().filter(|_| interactive);
    if let Some(file) = &history {
        // Not there at the first time.
        let _ = editor.load_history(file);
    }
    if interactive {
        greet(&mut session, out)?;
    }
    let mut failed = 0;
    loop {
        let prompt = match (interactive, session.is_connected(), session.admin_addr()) {
            (false, ..) => String::new(),
            (true, true, Ok(addr)) => format!("{addr}> "),
            (true, ..) => "(not connected)> ".to_owned(),
        };
        match editor.readline(&prompt) {
            Ok(line) => {
                session.interrupt.clear();
                match line_outcome(&mut session, &line, out)? {
                    Outcome::Done => {}
                    Outcome::Failed => failed += 1,
                    Outcome::Quit => break,
                }
            }
            Err(ReadlineError::Interrupted) => {}
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(terminal(error)),
        }
    }
    if let Some(file) = &history
        && !editor.history().is_empty()
    {
        // A full disk does not make the answers wrong.
        let _ = editor.append_history(file);
    }
    match failed {
        n if n > 0 && !interactive => {
            Err(CliError::Missing(format!("{n} commands were not answered")))
        }
        _ => Ok(()),
    }
}

fn greet(session: &mut Session, out: &mut impl Write) -> Result<(), CliError> {
    let text = match session.connect(None) {
        Ok(()) => "Type help for commands, quit to leave.\n".to_owned(),
        Err(error) => format!("{error}\nType connect ADDRESS, or help for commands.\n"),
    };
    write(out, text.as_bytes())
}

fn line_outcome(
    session: &mut Session,
    line: &str,
    out: &mut impl Write,
) -> Result<Outcome, CliError> {
    let Some(words) = shlex::split(line) else {
        return complain("a quote is not closed");
    };
    if words.is_empty() || words[0].starts_with('#') {
        return Ok(Outcome::Done);
    }
    let parsed = match ShellLine::try_parse_from(&words) {
        Ok(parsed) => parsed,
        Err(error) if error.kind() == ErrorKind::DisplayHelp => {
            write(out, error.to_string().as_bytes())?;
            return Ok(Outcome::Done);
        }
        Err(error) => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            return complain(first.trim_start_matches("error: "));
        }
    };
    let result = match &parsed.command {
        ShellCommand::Quit => return Ok(Outcome::Quit),
        ShellCommand::Connect { address } => session.connect(address.as_ref()),
        ShellCommand::Disconnect => {
            session.disconnect();
            Ok(())
        }
        ShellCommand::Shared(command) => session.run(command, &parsed.options, out),
    };
    match result {
        Ok(()) => Ok(Outcome::Done),
        Err(error @ CliError::Output(_)) => Err(error),
        Err(error) => complain(&error.to_string()),
    }
}

fn complain(what: &str) -> Result<Outcome, CliError> {
    eprintln!("emq-cli: {}", harmless(what));
    Ok(Outcome::Failed)
}
