//! Sources, precedence and checks.

use super::catalogue::{Applies, Component, Key};
use super::ini::{self, IniFile};
use super::value::{Value, shown};
use std::ffi::OsString;
use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The file read if none is named.
pub const DEFAULT_CONFIG_FILE: &str = "/etc/eventmq.conf";

const PREFIX: &str = "EVENTMQ_";
/// The one section that applies to every component, and Python's name for defaults.
const SHARED_SECTIONS: [&str; 2] = ["DEFAULT", "global"];

/// Where settings are looked for.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The file named on the command line (`-C`); it must exist.
    pub config_file: Option<PathBuf>,
    /// Environment variables; those that do not begin with `EVENTMQ_` are not looked at.
    pub environment: Vec<(OsString, OsString)>,
    /// Settings given on the command line, as text.
    pub command_line: Vec<(Key, String)>,
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The catalogue.
    Default,
    /// A file, with the line of the name.
    File(PathBuf, usize),
    /// The environment variable of the setting.
    Environment,
    /// The command line.
    CommandLine,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File(path, line) => write!(f, "{}:{line}", path.display()),
            Origin::Environment => f.write_str("environment"),
            Origin::CommandLine => f.write_str("command line"),
        }
    }
}

/// Why settings cannot be used. Prints as one line that says where, what, and what is expected.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct SettingsError(String);

/// A setting that a reload changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Which.
    pub key: Key,
    /// Value so far, as printed; hidden for secrets.
    pub old: String,
    /// New value, as printed; hidden for secrets.
    pub new: String,
    /// When it counts.
    pub applies: Applies,
}

/// One valid value for every key of the catalogue, as one component sees them.
#[derive(Debug, Clone)]
pub struct Settings {
    component: Component,
    /// Indexed by key.
    values: Vec<(Value, Origin)>,
    file: Option<PathBuf>,
    warnings: Vec<String>,
}

impl Sources {
    /// The environment of this process and nothing else.
    pub fn from_process() -> Sources {
        Sources {
            environment: std::env::vars_os().collect(),
            ..Sources::default()
        }
    }

    fn variable(&self, name: &str) -> Option<&OsString> {
        self.environment
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value)
    }
}

impl Settings {
    /// Reads all sources.
    ///
    /// # Errors
    /// Everything that is wrong, one line each: first the file by line, then the environment,
    /// the command line, and values that do not fit together.
    pub fn load(component: Component, sources: &Sources) -> Result<Settings, Vec<SettingsError>> {
        let values = Key::ALL
            .iter()
            .map(|k| (k.info().default_value(), Origin::Default));
        let mut settings = Settings {
            component,
            values: values.collect(),
            file: None,
            warnings: Vec::new(),
        };
        let mut errors = Vec::new();
        settings.read_file(sources, &mut errors);
        settings.read_environment(sources, &mut errors);
        for (key, text) in &sources.command_line {
            settings.take(*key, text, Origin::CommandLine, &mut errors);
        }
        // super_debug of earlier versions is a weaker way to give the level.
        let (debug, origin) = settings.values[Key::SuperDebug as usize].clone();
        if debug == Value::Bool(true) && *settings.origin(Key::LogLevel) == Origin::Default {
            settings.values[Key::LogLevel as usize] = (Value::Text("debug".to_owned()), origin);
        }
        if errors.is_empty() {
            settings.check_relations(&mut errors);
        }
        if errors.is_empty() {
            Ok(settings)
        } else {
            Err(errors)
        }
    }

    /// The component they are for.
    pub fn component(&self) -> Component {
        self.component
    }

    /// The value of a key.
    pub fn value(&self, key: Key) -> &Value {
        &self.values[key as usize].0
    }

    /// Where the value comes from.
    pub fn origin(&self, key: Key) -> &Origin {
        &self.values[key as usize].1
    }

    /// The value as text that can be read back; `(hidden)` for secrets that are set.
    pub fn text(&self, key: Key) -> String {
        let text = key.info().kind.print(self.value(key));
        if key.is_secret() && !text.is_empty() {
            "(hidden)".to_owned()
        } else {
            text
        }
    }

    /// The file that was read, if there is one.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Things worth a warning: unknown names, values without effect, a missing file.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The keys its component reads, in catalogue order.
    pub fn keys(&self) -> impl Iterator<Item = Key> + use<> {
        let component = self.component;
        Key::ALL
            .iter()
            .copied()
            .filter(move |key| key.info().is_used_by(component))
    }

    /// What a reload from `self` to `new` changes, in catalogue order.
    pub fn changes(&self, new: &Settings) -> Vec<Change> {
        self.keys()
            .filter(|key| *key != Key::ConfigFile && self.value(*key) != new.value(*key))
            .map(|key| Change {
                key,
                old: self.text(key),
                new: new.text(key),
                applies: key.info().applies,
            })
            .collect()
    }

    /// These settings with the values of `running` where a change needs a restart: what a reload
    /// takes into use. Compared with later ones, they go on to tell what waits for a restart.
    pub fn without_restart(&self, running: &Settings) -> Settings {
        let mut taken = self.clone();
        for key in Key::ALL
            .iter()
            .filter(|key| key.info().applies == Applies::Restart)
        {
            taken.values[*key as usize] = running.values[*key as usize].clone();
        }
        taken
    }

    fn read_file(&mut self, sources: &Sources, errors: &mut Vec<SettingsError>) {
        let (path, origin) = match (
            &sources.config_file,
            sources.variable("EVENTMQ_CONFIG_FILE"),
        ) {
            (Some(path), _) => (path.clone(), Origin::CommandLine),
            (None, Some(path)) => (PathBuf::from(path), Origin::Environment),
            (None, None) => (PathBuf::from(DEFAULT_CONFIG_FILE), Origin::Default),
        };
        let shown_path = path.display().to_string();
        self.values[Key::ConfigFile as usize] = (Value::Text(shown_path), origin.clone());
        match read_bounded(&path) {
            Ok(bytes) => {
                self.file = Some(path.clone());
                match IniFile::parse(&bytes) {
                    Ok(file) => self.take_file(&path, &file, errors),
                    Err(error) => errors.push(SettingsError(format!(
                        "{}:{}: {}",
                        path.display(),
                        error.line,
                        error.what
                    ))),
                }
            }
            Err(error) => {
                let named = match origin {
                    Origin::CommandLine => "named by -C",
                    _ => "named by EVENTMQ_CONFIG_FILE",
                };
                let missing = error.kind() == std::io::ErrorKind::NotFound;
                match origin {
                    Origin::CommandLine => errors.push(SettingsError(format!(
                        "{}: cannot read the settings file {named}: {error}",
                        path.display()
                    ))),
                    Origin::Default if missing => {}
                    Origin::Default => self.warnings.push(format!(
                        "{}: cannot read the settings file: {error}",
                        path.display()
                    )),
                    _ => self.warnings.push(format!(
                        "{}: cannot read the settings file {named}: {error}",
                        path.display()
                    )),
                }
            }
        }
    }

    fn take_file(&mut self, path: &Path, file: &IniFile, errors: &mut Vec<SettingsError>) {
        let known = |name: &str| {
            SHARED_SECTIONS.contains(&name) || Component::ALL.iter().any(|c| c.section() == name)
        };
        for (name, line) in file.sections.iter().filter(|(name, _)| !known(name)) {
            self.warn(
                path,
                *line,
                format_args!("unknown section [{}]", plain(name)),
            );
        }
        // Weakest section first, so that a later one overrides. Errors are sorted by line below.
        let own = self.component.section();
        let mut found: Vec<(usize, SettingsError)> = Vec::new();
        for section in [SHARED_SECTIONS[0], SHARED_SECTIONS[1], own] {
            for entry in file.entries.iter().filter(|entry| entry.section == section) {
                let mut wrong = Vec::new();
                self.take_entry(path, entry, section == own, &mut wrong);
                found.extend(wrong.into_iter().map(|error| (entry.line, error)));
            }
        }
        found.sort_by_key(|(line, _)| *line);
        errors.extend(found.into_iter().map(|(_, error)| error));
        for entry in &file.entries {
            let foreign = known(&entry.section)
                && entry.section != own
                && !SHARED_SECTIONS.contains(&entry.section.as_str());
            if foreign && Key::by_name(&entry.name).is_none() {
                self.warn_unknown(path, entry);
            }
        }
    }

    fn take_entry(
        &mut self,
        path: &Path,
        entry: &ini::Entry,
        own_section: bool,
        errors: &mut Vec<SettingsError>,
    ) {
        let Some(key) = Key::by_name(&entry.name) else {
            return self.warn_unknown(path, entry);
        };
        if key == Key::ConfigFile {
            let text = format_args!("config_file has no effect in a file");
            return self.warn(path, entry.line, text);
        }
        let info = key.info();
        if info.is_used_by(self.component) {
            let origin = Origin::File(path.to_path_buf(), entry.line);
            self.take(key, &entry.value, origin, errors);
        } else if own_section {
            let text = format_args!("{} has no effect in [{}]", info.name, entry.section);
            self.warn(path, entry.line, text);
        }
    }

    fn read_environment(&mut self, sources: &Sources, errors: &mut Vec<SettingsError>) {
        let mut variables: Vec<(String, String)> = sources
            .environment
            .iter()
            .filter_map(|(name, value)| {
                // A value that is not UTF-8 has no valid form: what replaces its bytes shows it.
                let name = name.to_str()?.strip_prefix(PREFIX)?.to_owned();
                Some((name, value.to_string_lossy().into_owned()))
            })
            .collect();
        variables.sort_unstable();
        for (name, value) in variables {
            let lower = name.to_ascii_lowercase();
            match Key::by_name(&lower) {
                Some(Key::ConfigFile) => {}
                Some(key) if key.info().env_name()[PREFIX.len()..] == name => {
                    if key.info().is_used_by(self.component) {
                        self.take(key, &value, Origin::Environment, errors);
                    }
                }
                _ => self
                    .warnings
                    .push(format!("environment: unknown setting {PREFIX}{name}")),
            }
        }
    }

    /// Checks one value and lets it override what was there.
    fn take(&mut self, key: Key, text: &str, origin: Origin, errors: &mut Vec<SettingsError>) {
        match key.info().kind.parse(text) {
            Some(value) => self.values[key as usize] = (value, origin),
            None => {
                let text = if key.is_secret() {
                    "(hidden)".to_owned()
                } else {
                    shown(text)
                };
                errors.push(bad_value(key, &text, &origin, &key.info().kind.expected()));
            }
        }
    }

    /// Relations between values; only keys its component reads.
    fn check_relations(&mut self, errors: &mut Vec<SettingsError>) {
        let addrs = match self.component {
            Component::Router => [Key::FrontendAddr, Key::BackendAddr, Key::AdministrativeAddr],
            Component::Publisher => [
                Key::PublisherIncomingAddr,
                Key::PublisherOutgoingAddr,
                Key::PublisherAdministrativeAddr,
            ],
            _ => return,
        };
        self.check_addresses(addrs, errors);
        if self.component == Component::Router
            && self.int(Key::ClientBufferBytes) > self.int(Key::ClientResultBytes)
        {
            // Named is the one that was given; if both were, the smaller bound.
            let (key, relation, other) = match self.origin(Key::ClientResultBytes) {
                Origin::Default => (Key::ClientBufferBytes, "at most", Key::ClientResultBytes),
                _ => (Key::ClientResultBytes, "at least", Key::ClientBufferBytes),
            };
            self.relation(key, relation, other, errors);
        }
    }

    /// Addresses that are listened on differ.
    fn check_addresses(&self, addrs: [Key; 3], errors: &mut Vec<SettingsError>) {
        for (n, first) in addrs.iter().enumerate() {
            for second in &addrs[n + 1..] {
                let Value::Addr(addr) = self.value(*first) else {
                    continue;
                };
                let free_port = matches!(addr, crate::addr::Addr::Tcp { port: 0, .. });
                if !free_port && self.value(*first) == self.value(*second) {
                    let both_given = *self.origin(*second) != Origin::Default;
                    let (key, other) = if both_given {
                        (*second, *first)
                    } else {
                        (*first, *second)
                    };
                    self.relation(key, "an address other than that of", other, errors);
                }
            }
        }
    }

    fn relation(&self, key: Key, relation: &str, other: Key, errors: &mut Vec<SettingsError>) {
        let expected = format!(
            "{relation} {} ({}, {})",
            other.name(),
            self.text(other),
            self.origin(other)
        );
        errors.push(bad_value(
            key,
            &shown(&self.text(key)),
            self.origin(key),
            &expected,
        ));
    }

    pub(super) fn int(&self, key: Key) -> u64 {
        match self.value(key) {
            Value::Int(value) => *value,
            Value::Ms(ms) => *ms,
            other => unreachable!("{} is not a number: {other:?}", key.name()),
        }
    }

    fn warn(&mut self, path: &Path, line: usize, what: fmt::Arguments<'_>) {
        self.warnings
            .push(format!("{}:{line}: {what}", path.display()));
    }

    fn warn_unknown(&mut self, path: &Path, entry: &ini::Entry) {
        let what = format_args!(
            "unknown setting {} in [{}]",
            plain(&entry.name),
            entry.section
        );
        self.warn(path, entry.line, what);
    }
}

fn bad_value(key: Key, text: &str, origin: &Origin, expected: &str) -> SettingsError {
    let info = key.info();
    let name = match origin {
        Origin::Environment => info.env_name(),
        Origin::CommandLine => format!("--{}", info.name.replace('_', "-")),
        _ => info.name.to_owned(),
    };
    SettingsError(format!("{origin}: {name} = {text}: expected {expected}"))
}

/// A name from a file, harmless in a log line.
fn plain(name: &str) -> String {
    shown(name).trim_matches('"').to_owned()
}

fn read_bounded(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = ini::FILE_BYTES_MAX as u64 + 1;
    std::fs::File::open(path)?
        .take(limit)
        .read_to_end(&mut bytes)?;
    if bytes.len() > ini::FILE_BYTES_MAX {
        let what = format!("larger than {} bytes", ini::FILE_BYTES_MAX);
        return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, what));
    }
    Ok(bytes)
}
