//! The command line. Its options for settings come from the catalogue; their values are checked
//! with those of the other sources, so that all errors read the same.

use clap::builder::{PathBufValueParser, StyledStr};
use clap::{Arg, ArgAction, ArgMatches, Command};
use eventmq::settings::{Applies, Component, Key, Kind, Sources};
use std::path::PathBuf;

/// What the command line says.
#[derive(Debug)]
pub(crate) struct Args {
    /// Where settings come from, the command line included.
    pub(crate) sources: Sources,
    /// Only check.
    pub(crate) check_config: bool,
    /// Only print.
    pub(crate) print_config: bool,
    /// Print `listening NAME ADDRESS` for each socket on standard output.
    pub(crate) print_addresses: bool,
}

/// Settings shown by `-h`; `--help` shows all.
const MAIN: [Key; 9] = [
    Key::FrontendAddr,
    Key::BackendAddr,
    Key::AdministrativeAddr,
    Key::Threading,
    Key::Hwm,
    Key::MaxMemory,
    Key::DrainTimeout,
    Key::LogFormat,
    Key::LogLevel,
];

impl Args {
    /// Reads the command line; wrong ones, `--help` and `--version` end the process.
    pub(crate) fn from_command_line() -> Args {
        Args::from_matches(&command().get_matches(), Sources::from_process())
    }

    fn from_matches(matches: &ArgMatches, sources: Sources) -> Args {
        let given = |key: Key| {
            matches
                .get_one::<String>(key.name())
                .cloned()
                .map(|v| (key, v))
        };
        Args {
            sources: Sources {
                config_file: matches.get_one::<PathBuf>("config").cloned(),
                command_line: options().filter_map(given).collect(),
                ..sources
            },
            check_config: matches.get_flag("check-config"),
            print_config: matches.get_flag("print-config"),
            print_addresses: matches.get_flag("print-addresses"),
        }
    }
}

/// The settings that are options: those of the broker that have an effect.
fn options() -> impl Iterator<Item = Key> {
    Key::ALL.iter().copied().filter(|key| {
        let info = key.info();
        info.is_used_by(Component::Router)
            && info.applies != Applies::Never
            && !matches!(key, Key::ConfigFile | Key::SuperDebug)
    })
}

fn command() -> Command {
    let flag = |name: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .action(ArgAction::SetTrue)
            .help(help)
    };
    Command::new("emq-router")
        .version(env!("CARGO_PKG_VERSION"))
        .about("The EventMQ broker")
        .after_help("Settings also come from the environment (EVENTMQ_HWM=500) and a file; see docs/settings.md.")
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
        .args(options().map(option))
}

fn option(key: Key) -> Arg {
    let info = key.info();
    let arg = Arg::new(info.name)
        .long(info.name.replace('_', "-"))
        .value_name(info.kind.type_name().to_uppercase().replace(' ', "-"))
        .help_heading("Settings")
        .help(help(key))
        .hide_short_help(!MAIN.contains(&key));
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

    fn parse(words: &[&str]) -> Result<Args, clap::Error> {
        let words = std::iter::once("emq-router").chain(words.iter().copied());
        let matches = command().try_get_matches_from(words)?;
        Ok(Args::from_matches(&matches, Sources::default()))
    }

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
        assert!(
            MAIN.iter()
                .all(|key| options().any(|option| option == *key))
        );
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
