//! Types of settings: how text becomes a value, what form is expected, and how a value is printed
//! so that it can be read back.

use crate::addr::Addr;
use std::collections::{BTreeSet, HashSet};
use std::fmt::Write as _;
use std::path::PathBuf;

/// Longest text shown of a value in an error.
const SHOWN_CHARS_MAX: usize = 80;
/// Highest core number that is accepted (the size of the kernel's `cpu_set_t`).
const CORE_MAX: usize = 1_023;
/// Most addresses in a list.
const ADDRS_MAX: usize = 16;

/// The type of a setting with its bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// `true`/`false` and the usual other words.
    Bool,
    /// A whole number between the two bounds.
    Int(u64, u64),
    /// Seconds, decimals allowed, between the two bounds given in milliseconds.
    Secs(u64, u64),
    /// Bytes with an optional suffix K, M or G (powers of 1024), between the two bounds.
    Bytes(u64, u64),
    /// Bytes as above, or a percentage of the memory of the machine.
    Memory,
    /// One line of text; may be empty.
    Text,
    /// Text of 1 to 255 bytes.
    Name,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// `tcp://HOST:PORT` or `ipc://PATH`.
    Addr,
    /// One or several addresses with commas between them.
    Addrs,
    /// Absolute paths with commas between them; may be empty.
    Paths,
    /// JSON `[[weight, "name"], ...]`.
    Queues,
    /// A JSON object.
    Dict,
    /// Core numbers such as `2,3` or `0-3`, or `auto`.
    Cores,
    /// One core number, or `auto`.
    Core,
}

/// A value of one of the types of [`Kind`].
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// [`Kind::Bool`].
    Bool(bool),
    /// [`Kind::Int`] and [`Kind::Bytes`].
    Int(u64),
    /// [`Kind::Secs`], in milliseconds.
    Ms(u64),
    /// [`Kind::Memory`].
    Memory(MemoryLimit),
    /// [`Kind::Text`], [`Kind::Name`], [`Kind::Choice`]; [`Kind::Dict`] as JSON on one line.
    Text(String),
    /// [`Kind::Addr`].
    Addr(Addr),
    /// [`Kind::Addrs`].
    Addrs(Vec<Addr>),
    /// [`Kind::Paths`].
    Paths(Vec<PathBuf>),
    /// [`Kind::Queues`].
    Queues(Vec<(f64, String)>),
    /// [`Kind::Cores`] and [`Kind::Core`]; `None` = `auto`.
    Cores(Option<Vec<usize>>),
}

/// A bound on memory that may depend on the machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MemoryLimit {
    /// So many bytes.
    Bytes(u64),
    /// Hundredths of a percent of min(RAM, cgroup limit): 1 to 10,000.
    Share(u32),
}

impl MemoryLimit {
    /// The limit in bytes on a machine with `total_bytes` of usable memory.
    pub fn resolve(self, total_bytes: u64) -> u64 {
        match self {
            MemoryLimit::Bytes(bytes) => bytes,
            MemoryLimit::Share(share) => {
                let bytes = u128::from(total_bytes) * u128::from(share) / 10_000;
                u64::try_from(bytes).unwrap_or(u64::MAX)
            }
        }
    }
}

impl Kind {
    /// Reads a value, or `None` if the text does not have the form [`Kind::expected`] describes.
    pub fn parse(self, text: &str) -> Option<Value> {
        let text = text.trim();
        let json = matches!(self, Kind::Queues | Kind::Dict);
        if !json && text.chars().any(char::is_control) {
            return None;
        }
        match self {
            Kind::Bool => parse_bool(text).map(Value::Bool),
            Kind::Int(min, max) => {
                let number = parse_digits(text)?;
                (min..=max).contains(&number).then_some(Value::Int(number))
            }
            Kind::Secs(min, max) => {
                let ms = parse_milli(text)?;
                (min..=max).contains(&ms).then_some(Value::Ms(ms))
            }
            Kind::Bytes(min, max) => {
                let bytes = parse_bytes(text)?;
                (min..=max).contains(&bytes).then_some(Value::Int(bytes))
            }
            Kind::Memory => parse_memory(text).map(Value::Memory),
            Kind::Text => Some(Value::Text(text.to_owned())),
            Kind::Name => (1..=255)
                .contains(&text.len())
                .then(|| Value::Text(text.to_owned())),
            Kind::Choice(words) => {
                let word = words.iter().find(|word| word.eq_ignore_ascii_case(text))?;
                Some(Value::Text((*word).to_owned()))
            }
            Kind::Addr => text.parse().ok().map(Value::Addr),
            Kind::Addrs => parse_addrs(text).map(Value::Addrs),
            Kind::Paths => parse_paths(text).map(Value::Paths),
            Kind::Queues => parse_queues(text).map(Value::Queues),
            Kind::Dict => {
                let object: serde_json::Map<String, serde_json::Value> =
                    serde_json::from_str(text).ok()?;
                Some(Value::Text(serde_json::Value::Object(object).to_string()))
            }
            Kind::Cores | Kind::Core if text.eq_ignore_ascii_case("auto") => {
                Some(Value::Cores(None))
            }
            Kind::Cores => parse_cores(text).map(|cores| Value::Cores(Some(cores))),
            Kind::Core => {
                let core = usize::try_from(parse_digits(text)?).ok()?;
                (core <= CORE_MAX).then(|| Value::Cores(Some(vec![core])))
            }
        }
    }

    /// The expected form, as it stands in errors behind "expected ".
    pub fn expected(self) -> String {
        match self {
            Kind::Bool => "true or false (also yes/no, on/off, 1/0)".to_owned(),
            Kind::Int(min, max) => format!("a whole number from {min} to {max}"),
            Kind::Secs(min, max) => {
                format!(
                    "seconds from {} to {}, decimals allowed",
                    milli(min),
                    milli(max)
                )
            }
            Kind::Bytes(min, max) => format!(
                "bytes from {} to {}, with an optional suffix K, M or G",
                bytes(min),
                bytes(max)
            ),
            Kind::Memory => "bytes (from 1M) with an optional suffix K, M or G, or a percentage \
                             from 0.01% to 100%"
                .to_owned(),
            Kind::Text => "one line of text".to_owned(),
            Kind::Name => "a name of 1 to 255 bytes".to_owned(),
            Kind::Choice(words) => {
                let (last, rest) = words.split_last().expect("a choice has words");
                format!("{} or {last}", rest.join(", "))
            }
            Kind::Addr => "tcp://HOST:PORT or ipc://PATH".to_owned(),
            Kind::Addrs => format!(
                "1 to {ADDRS_MAX} different addresses tcp://HOST:PORT or ipc://PATH with commas \
                 between them"
            ),
            Kind::Paths => "absolute paths with commas between them, or nothing".to_owned(),
            Kind::Queues => "JSON [[weight, \"name\"], ...] with finite weights, 1 to 1024 queues \
                             and names of 1 to 255 bytes"
                .to_owned(),
            Kind::Dict => "a JSON object".to_owned(),
            Kind::Cores => "core numbers such as 2,3 or 0-3, or auto".to_owned(),
            Kind::Core => "one core number, or auto".to_owned(),
        }
    }

    /// The type in one word, for the documentation.
    pub fn type_name(self) -> &'static str {
        match self {
            Kind::Bool => "boolean",
            Kind::Int(..) => "number",
            Kind::Secs(..) => "seconds",
            Kind::Bytes(..) => "bytes",
            Kind::Memory => "bytes or percent",
            Kind::Text | Kind::Name => "text",
            Kind::Choice(_) => "choice",
            Kind::Addr => "address",
            Kind::Addrs => "addresses",
            Kind::Paths => "paths",
            Kind::Queues => "JSON list",
            Kind::Dict => "JSON object",
            Kind::Cores => "cores",
            Kind::Core => "core",
        }
    }

    /// Bounds or words, for the documentation; empty if the type says it all.
    pub fn bounds(self) -> String {
        match self {
            Kind::Int(min, max) => format!("{min} to {max}"),
            Kind::Secs(min, max) => format!("{} to {}", milli(min), milli(max)),
            Kind::Bytes(min, max) => format!("{} to {}", bytes(min), bytes(max)),
            Kind::Memory => "1M and more, 0.01% to 100%".to_owned(),
            Kind::Name => "1 to 255 bytes".to_owned(),
            Kind::Choice(words) => words.join(", "),
            Kind::Queues => "`[[weight, \"name\"], ...]`, 1 to 1024 queues".to_owned(),
            _ => String::new(),
        }
    }

    /// Prints a value of this type on one line, in a form that [`Kind::parse`] reads back.
    pub fn print(self, value: &Value) -> String {
        match value {
            Value::Bool(value) => value.to_string(),
            Value::Int(value) if matches!(self, Kind::Bytes(..)) => bytes(*value),
            Value::Int(value) => value.to_string(),
            Value::Ms(ms) => milli(*ms),
            Value::Memory(MemoryLimit::Bytes(value)) => bytes(*value),
            Value::Memory(MemoryLimit::Share(share)) => {
                format!("{}%", decimal(u64::from(*share), 2))
            }
            Value::Text(text) => text.clone(),
            Value::Addr(addr) => addr.to_string(),
            Value::Addrs(addrs) => joined(addrs.iter()),
            Value::Paths(paths) => joined(paths.iter().map(|path| path.display())),
            Value::Queues(queues) => print_queues(queues),
            Value::Cores(None) => "auto".to_owned(),
            Value::Cores(Some(cores)) => cores
                .iter()
                .map(usize::to_string)
                .collect::<Vec<_>>()
                .join(","),
        }
    }
}

/// A value as given, on one line and at most 80 characters long, for errors.
pub(super) fn shown(text: &str) -> String {
    let mut shown = String::new();
    for (n, c) in text.chars().enumerate() {
        if n == SHOWN_CHARS_MAX {
            shown.push_str("...");
            break;
        }
        match c {
            '"' | '\\' => shown.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(shown, "{}", c.escape_default());
            }
            c => shown.push(c),
        }
    }
    format!("\"{shown}\"")
}

fn parse_bool(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "t" | "yes" | "on" | "1" => Some(true),
        "false" | "f" | "no" | "off" | "0" => Some(false),
        _ => None,
    }
}

/// ASCII digits only: no sign, no separators.
fn parse_digits(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// A decimal number in units of 10^-`places`. Further digits must be zeros.
fn parse_decimal(text: &str, places: usize) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let whole = parse_digits(whole)?;
    parse_digits(fraction.get(..fraction.len().min(18))?)?;
    let mut scaled = whole;
    let mut digits = fraction.bytes();
    for _ in 0..places {
        let digit = u64::from(digits.next().unwrap_or(b'0').wrapping_sub(b'0'));
        scaled = scaled.checked_mul(10)?.checked_add(digit)?;
    }
    digits.all(|b| b == b'0').then_some(scaled)
}

fn parse_milli(text: &str) -> Option<u64> {
    parse_decimal(text, 3)
}

fn parse_bytes(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()?.to_ascii_uppercase() {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    parse_digits(digits.trim_end())?.checked_mul(1 << shift)
}

fn parse_memory(text: &str) -> Option<MemoryLimit> {
    if let Some(percent) = text.strip_suffix('%') {
        let share = u32::try_from(parse_decimal(percent.trim_end(), 2)?).ok()?;
        return (1..=10_000)
            .contains(&share)
            .then_some(MemoryLimit::Share(share));
    }
    let bytes = parse_bytes(text)?;
    (bytes >= 1 << 20).then_some(MemoryLimit::Bytes(bytes))
}

fn parse_addrs(text: &str) -> Option<Vec<Addr>> {
    let addrs: Option<Vec<Addr>> = text.split(',').map(|one| one.trim().parse().ok()).collect();
    let addrs = addrs.filter(|addrs| addrs.len() <= ADDRS_MAX)?;
    let distinct: HashSet<_> = addrs.iter().collect();
    (distinct.len() == addrs.len()).then_some(addrs)
}

fn parse_paths(text: &str) -> Option<Vec<PathBuf>> {
    let items = text.split(',').map(str::trim).filter(|one| !one.is_empty());
    let paths: Vec<PathBuf> = items.map(PathBuf::from).collect();
    paths.iter().all(|path| path.is_absolute()).then_some(paths)
}

fn joined<T: ToString>(items: impl Iterator<Item = T>) -> String {
    items
        .map(|item| item.to_string())
        .collect::<Vec<_>>()
        .join(",")
}

fn parse_queues(text: &str) -> Option<Vec<(f64, String)>> {
    let queues: Vec<(f64, String)> = serde_json::from_str(text).ok()?;
    let fits = !queues.is_empty()
        && queues.len() <= crate::limits::INFORM_QUEUES_MAX
        && queues.iter().all(|(weight, name)| {
            weight.is_finite() && (1..=crate::limits::QUEUE_NAME_BYTES_MAX).contains(&name.len())
        });
    fits.then_some(queues)
}

fn print_queues(queues: &[(f64, String)]) -> String {
    let entries: Vec<String> = queues
        .iter()
        .map(|(weight, name)| format!("[{weight}, {}]", serde_json::Value::from(name.as_str())))
        .collect();
    format!("[{}]", entries.join(", "))
}

fn parse_cores(text: &str) -> Option<Vec<usize>> {
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first = usize::try_from(parse_digits(first.trim())?).ok()?;
        let last = usize::try_from(parse_digits(last.trim())?).ok()?;
        if first > last || last > CORE_MAX {
            return None;
        }
        cores.extend(first..=last);
        if cores.len() > CORE_MAX + 1 {
            return None;
        }
    }
    // The same core twice would put two pinned threads onto one core.
    let distinct: BTreeSet<_> = cores.iter().collect();
    (distinct.len() == cores.len()).then_some(cores)
}

/// `scaled` in units of 10^-`places`, without needless zeros.
fn decimal(scaled: u64, places: usize) -> String {
    let unit = 10_u64.pow(places as u32);
    let (whole, rest) = (scaled / unit, scaled % unit);
    if rest == 0 {
        return whole.to_string();
    }
    format!(
        "{whole}.{}",
        format!("{rest:0places$}").trim_end_matches('0')
    )
}

fn milli(ms: u64) -> String {
    decimal(ms, 3)
}

/// Bytes with the largest suffix that loses nothing.
fn bytes(value: u64) -> String {
    for (shift, suffix) in [(30, "G"), (20, "M"), (10, "K")] {
        if value != 0 && value.is_multiple_of(1_u64 << shift) {
            return format!("{}{suffix}", value >> shift);
        }
    }
    value.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BYTES: Kind = Kind::Bytes(0, u64::MAX);
    const SECS: Kind = Kind::Secs(0, u64::MAX);

    #[test]
    fn values_in_their_forms() {
        for text in ["true", "T", "YES", "on", "1"] {
            assert_eq!(Kind::Bool.parse(text), Some(Value::Bool(true)), "{text}");
        }
        for text in ["False", "no", "OFF", "0"] {
            assert_eq!(Kind::Bool.parse(text), Some(Value::Bool(false)), "{text}");
        }
        assert_eq!(Kind::Int(0, 9).parse(" 7 "), Some(Value::Int(7)));
        assert_eq!(SECS.parse("2.5"), Some(Value::Ms(2_500)));
        assert_eq!(SECS.parse("0.001000"), Some(Value::Ms(1)));
        assert_eq!(BYTES.parse("8 M"), Some(Value::Int(8 << 20)));
        assert_eq!(BYTES.parse("3k"), Some(Value::Int(3 << 10)));
        assert_eq!(
            Kind::Memory.parse("50%"),
            Some(Value::Memory(MemoryLimit::Share(5_000)))
        );
        assert_eq!(
            Kind::Memory.parse("2G"),
            Some(Value::Memory(MemoryLimit::Bytes(2 << 30)))
        );
        assert_eq!(
            Kind::Cores.parse("4, 0-2"),
            Some(Value::Cores(Some(vec![4, 0, 1, 2])))
        );
        assert_eq!(Kind::Core.parse("auto"), Some(Value::Cores(None)));
        for (kind, text, printed) in [
            (Kind::Addrs, "tcp://a:1", "tcp://a:1"),
            (Kind::Addrs, "tcp://a:1, ipc:///b", "tcp://a:1,ipc:///b"),
            (Kind::Paths, "", ""),
            (Kind::Paths, " /bin/a , /b", "/bin/a,/b"),
        ] {
            let value = kind.parse(text).unwrap();
            assert_eq!(kind.print(&value), printed);
        }
        assert_eq!(
            Kind::Queues.parse("[[10, \"a\"],\n [2.5, \"b\"]]"),
            Some(Value::Queues(vec![(10.0, "a".into()), (2.5, "b".into())]))
        );
    }

    #[test]
    fn wrong_values_are_refused() {
        for (kind, texts) in [
            (Kind::Bool, &["", "truly", "2", "not"][..]),
            (
                Kind::Int(1, 10),
                &["", "0", "11", "+1", "-1", "1.0", "0x1", "1_0"],
            ),
            (
                Kind::Secs(1, 10),
                &["", "0", ".5", "1.", "-1", "0.0005", "1e3", "0.011", "nan"],
            ),
            (
                Kind::Bytes(1, 10),
                &["", "K", "0", "11", "1T", "99999999999G", "-1K"],
            ),
            (Kind::Memory, &["", "%", "0%", "101%", "1K", "0.001%"]),
            (Kind::Name, &["", "a\nb"]),
            (Kind::Choice(&["a", "b"]), &["", "c", "ab"]),
            (
                Kind::Addr,
                &["", "47291", "udp://a:1", "tcp://a:1,tcp://b:1"],
            ),
            (
                Kind::Addrs,
                &[
                    "",
                    ",",
                    "tcp://a:1,",
                    "tcp://a:1 tcp://b:1",
                    "tcp://a:1,tcp://a:1",
                ],
            ),
            (Kind::Paths, &["bin/a", "/bin/a,b", "."]),
            (
                Kind::Queues,
                &["", "[]", "[[10]]", "[[1e999, \"a\"]]", "[[1, \"\"]]", "{}"],
            ),
            (Kind::Dict, &["", "[]", "{"]),
            (Kind::Cores, &["", "1,", "3-1", "1,1", "0-9999", "a"]),
            (Kind::Core, &["", "1,2", "4096"]),
        ] {
            for text in texts {
                assert_eq!(kind.parse(text), None, "{kind:?} {text:?}");
            }
        }
    }

    #[test]
    fn shown_values_stay_on_one_short_line() {
        assert_eq!(shown("a\n\"b\"\\"), "\"a\\n\\\"b\\\"\\\\\"");
        let long = shown(&"x\n".repeat(1000));
        assert!(!long.contains('\n') && long.len() < 200, "{long}");
    }

    #[test]
    fn memory_shares_do_not_overflow() {
        assert_eq!(MemoryLimit::Share(5_000).resolve(1_000), 500);
        assert_eq!(MemoryLimit::Share(10_000).resolve(u64::MAX), u64::MAX);
        assert_eq!(MemoryLimit::Bytes(7).resolve(1), 7);
    }

    proptest! {
        #[test]
        fn printed_values_read_back(ms in 0_u64..1 << 50, n in any::<u64>(), share in 1_u32..=10_000,
                                    weight in -1e300_f64..1e300, name in "[^\\x00]{1,60}") {
            for (kind, value) in [
                (SECS, Value::Ms(ms)),
                (BYTES, Value::Int(n)),
                (BYTES, Value::Int(n & !0xfffff)),
                (Kind::Memory, Value::Memory(MemoryLimit::Share(share))),
                (Kind::Queues, Value::Queues(vec![(weight, name.clone())])),
            ] {
                let printed = kind.print(&value);
                prop_assert!(!printed.contains('\n'));
                prop_assert_eq!(kind.parse(&printed), Some(value), "{}", printed);
            }
        }

        #[test]
        fn arbitrary_text_never_panics(text in "\\PC{0,20}") {
            for kind in [Kind::Bool, Kind::Int(0, 5), SECS, BYTES, Kind::Memory, Kind::Text,
                         Kind::Name, Kind::Addr, Kind::Addrs, Kind::Paths, Kind::Queues, Kind::Dict, Kind::Cores, Kind::Core] {
                if let Some(value) = kind.parse(&text) {
                    prop_assert_eq!(kind.parse(&kind.print(&value)), Some(value));
                }
            }
        }
    }
}
