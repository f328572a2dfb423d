//! The command line. Its options for settings come from the catalogue; their values are checked
//! with those of the other sources, so that all errors read the same.

use super::Program;
use crate::settings::{Applies, Component, Key, Kind, Sources};
use clap::builder::{PathBufValueParser, StyledStr};
use clap::{Arg, ArgAction, ArgMatches, Command};
use clap_complete::Shell;
use std::path::PathBuf;

/// What the command line says.
#[derive(Debug)]
pub(super) struct Args {
    /// Where settings come from, the command line included.
    pub(super) sources: Sources,
    /// Only check.
    pub(super) check_config: bool,
    /// Only print.
    pub(super) print_config: bool,
    /// Print `listening NAME ADDRESS` for each socket on standard output.
    pub(super) print_addresses: bool,
    /// Only print the manual page.
    pub(super) man: bool,
    /// Only print the completions of this shell.
    pub(super) completions: Option<Shell>,
}

impl Args {
    /// Takes what was read of the command line; wrong ones have ended the process.
    pub(super) fn from_matches(program: &Program, matches: &ArgMatches, sources: Sources) -> Args {
        let given = |key: Key| {
            let values: Vec<&String> = matches.get_many(key.name())?.collect();
            match values[..] {
                [value] if key != Key::Queues || value.trim_start().starts_with('[') => {
                    Some((key, value.clone()))
                }
                _ => Some((key, queues(&values))),
            }
        };
        Args {
            sources: Sources {
                config_file: matches.get_one::<PathBuf>("config").cloned(),
                command_line: options(program).filter_map(given).collect(),
                ..sources
            },
            check_config: matches.get_flag("check-config"),
            print_config: matches.get_flag("print-config"),
            print_addresses: matches.get_flag("print-addresses"),
            man: matches.get_flag("man"),
            completions: matches.get_one::<Shell>("completions").copied(),
        }
    }
}

/// The settings that are options: those of the component that have an effect.
fn options(program: &Program) -> impl Iterator<Item = Key> + use<> {
    let component = program.component;
    Key::ALL.iter().copied().filter(move |key| {
        let info = key.info();
        info.is_used_by(component)
            && info.applies != Applies::Never
            && !matches!(key, Key::ConfigFile | Key::SuperDebug)
    })
}

/// Options of 0.3.13 that have another name than the setting, or a letter.
const OTHER_NAMES: [(Component, Key, char, &str); 4] = [
    (Component::JobManager, Key::WorkerAddr, 'B', "broker-addr"),
    (Component::JobManager, Key::Queues, 'Q', "queues"),
    (Component::JobManager, Key::ConcurrentJobs, 'J', "jobs"),
    (Component::JobManager, Key::Name, 'n', "name"),
];

/// Names of queues as words become the setting; all have the usual weight.
fn queues(names: &[&String]) -> String {
    let queues: Vec<(u32, &&String)> = names.iter().map(|name| (10, name)).collect();
    serde_json::to_string(&queues).expect("numbers and texts are JSON")
}

/// The command line of a program, from which also its help, manual page and shell completions come.
pub fn command(program: &Program) -> Command {
    let flag = |name: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .action(ArgAction::SetTrue)
            .help(help)
    };
    Command::new(program.name)
        .version(env!("CARGO_PKG_VERSION"))
        .about(program.about)
        .after_help("Settings also come from the environment (EVENTMQ_LOG_LEVEL=debug) and a file; see docs/settings.md.")
        .arg(
            Arg::new("config")
                .short('C')
                .long("config")
                .value_name("FILE")
                .value_parser(PathBufValueParser::new())
                .help("Settings file [default: $EVENTMQ_CONFIG_FILE, else /etc/eventmq.conf]"),
        )
        .arg(flag("check-config", "Check the settings and end: exit code 0, or 2 with the errors"))
        .arg(flag("print-config", "Print every setting with its origin and end"))
        .arg(flag(
            "print-addresses",
            "Print `listening NAME ADDRESS` for each socket on standard output",
        ))
        .arg(flag("man", "Print the manual page").hide_short_help(true))
        .arg(
            Arg::new("completions")
                .long("completions")
                .value_name("SHELL")
                .value_parser(clap::value_parser!(Shell))
                .hide_short_help(true)
                .help("Print the completions of a shell"),
        )
        .args(options(program).map(|key| option(program, key)))
}

/// The manual page, or the completions of a shell, if they are asked for.
pub(super) fn generated(mut command: Command, args: &Args) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    if args.man {
        // Writing into a Vec does not fail.
        let _ = clap_mangen::Man::new(command).render(&mut text);
    } else {
        let shell = args.completions?;
        let name = command.get_name().to_owned();
        clap_complete::generate(shell, &mut command, name, &mut text);
    }
    Some(text)
}

fn option(program: &Program, key: Key) -> Arg {
    let info = key.info();
    let arg = Arg::new(info.name)
        .long(info.name.replace('_', "-"))
        .value_name(info.kind.type_name().to_uppercase().replace(' ', "-"))
        .help_heading("Settings")
        .help(help(key))
        .hide_short_help(!program.main.contains(&key));
    let other = OTHER_NAMES
        .iter()
        .find(|(component, other, ..)| (*component, *other) == (program.component, key));
    let arg = match other {
        Some((.., letter, name)) if *name == info.name => arg.short(*letter),
        Some((.., letter, name)) => arg.short(*letter).visible_alias(*name),
        None => arg,
    };
    if key == Key::Queues {
        return arg.num_args(1..).value_name("NAME...|JSON-LIST");
    }
    // `--disable-heartbeats` alone means yes.
    if info.kind == Kind::Bool {
        arg.num_args(0..=1).default_missing_value("true")
    } else {
        arg
    }
}

fn help(key: Key) -> StyledStr {
    let info = key.info();
    let mut help = info.help.to_owned();
    let bounds = info.kind.bounds();
    if !bounds.is_empty() {
        help += &format!(" ({})", bounds.replace('`', ""));
    }
    if !info.default.is_empty() {
        help += &format!(" [default: {}]", info.default);
    }
    help.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTER: Program = Program {
        name: "emq-router",
        about: "The EventMQ broker",
        component: Component::Router,
        main: &[Key::FrontendAddr, Key::Hwm],
    };

    fn parse(words: &[&str]) -> Result<Args, clap::Error> {
        let words = std::iter::once("emq-router").chain(words.iter().copied());
        let matches = command(&ROUTER).try_get_matches_from(words)?;
        Ok(Args::from_matches(&ROUTER, &matches, Sources::default()))
    }

    #[test]
    fn the_command_line_is_consistent() {
        for component in Component::ALL {
            command(&Program {
                component,
                ..ROUTER
            })
            .debug_assert();
        }
    }

    #[test]
    fn settings_are_taken_as_text() {
        let args = parse(&[
            "-C",
            "/x",
            "--hwm",
            "many",
            "--disable-heartbeats",
            "--io-cores=0-1",
        ]);
        let sources = args.unwrap().sources;
        assert_eq!(sources.config_file, Some(PathBuf::from("/x")));
        let text = |text: &str| text.to_owned();
        assert_eq!(
            sources.command_line,
            [
                (Key::Hwm, text("many")),
                (Key::DisableHeartbeats, text("true")),
                (Key::IoCores, text("0-1")),
            ]
        );
        let args = parse(&["--disable-heartbeats", "off", "--print-config"]).unwrap();
        assert_eq!(
            args.sources.command_line,
            [(Key::DisableHeartbeats, text("off"))]
        );
        assert!(args.print_config && !args.check_config);
    }

    #[test]
    fn manual_page_and_completions_name_the_settings() {
        for words in [&["--man"][..], &["--completions", "bash"]] {
            let args = parse(words).unwrap();
            let text = String::from_utf8(generated(command(&ROUTER), &args).unwrap()).unwrap();
            assert!(text.replace('\\', "").contains("--max-memory"), "{words:?}");
        }
        assert_eq!(generated(command(&ROUTER), &parse(&[]).unwrap()), None);
    }

    #[test]
    fn options_of_the_original_job_manager() {
        let program = Program {
            component: Component::JobManager,
            ..ROUTER
        };
        let parse = |words: &[&str]| {
            let words = std::iter::once("emq-jobmanager").chain(words.iter().copied());
            let matches = command(&program).try_get_matches_from(words).unwrap();
            Args::from_matches(&program, &matches, Sources::default()).sources
        };
        let text = |text: &str| text.to_owned();
        let short = [
            "-B",
            "tcp://a:1",
            "-J",
            "2",
            "-n",
            "me",
            "-C",
            "/x",
            "-Q",
            "email",
            "de fault",
        ];
        let long = [
            "--broker-addr",
            "tcp://a:1",
            "--jobs",
            "2",
            "--name",
            "me",
            "--config",
            "/x",
            "--queues",
            "email",
            "de fault",
        ];
        for words in [short, long] {
            let sources = parse(&words);
            assert_eq!(sources.config_file, Some(PathBuf::from("/x")));
            let mut given = sources.command_line;
            given.sort();
            let mut expected = vec![
                (Key::WorkerAddr, text("tcp://a:1")),
                (Key::Queues, text(r#"[[10,"email"],[10,"de fault"]]"#)),
                (Key::ConcurrentJobs, text("2")),
                (Key::Name, text("me")),
            ];
            expected.sort();
            assert_eq!(given, expected);
        }
        let one = parse(&["-Q", "email"]).command_line;
        assert_eq!(one, [(Key::Queues, text(r#"[[10,"email"]]"#))]);
        let json = parse(&["--queues", "[[5, \"a\"]]"]).command_line;
        assert_eq!(json, [(Key::Queues, text("[[5, \"a\"]]"))]);
    }

    #[test]
    fn a_wrong_command_line_has_exit_code_2() {
        for words in [
            &["--nope"][..],
            &["extra"],
            &["--hwm"],
            &["--hwm", "1", "--hwm", "2"],
        ] {
            assert_eq!(parse(words).unwrap_err().exit_code(), 2, "{words:?}");
        }
    }
}
