//! The text of docs/settings.md.

use super::catalogue::{Component, Key, KeyInfo};
use std::fmt::Write as _;

const INTRODUCTION: &str = "\
# Settings

This file is generated from the catalogue in `engine/src/settings/catalogue.rs`; a test fails when
it is stale. To write it anew: `EVENTMQ_UPDATE_DOCS=1 cargo test -p eventmq settings_document`.

## Sources

From strongest to weakest:

1. the command line;
2. the environment, `EVENTMQ_` and the name in upper case: `EVENTMQ_HWM=500`;
3. the section of the component in the settings file: `[router]`, `[jobmanager]`, `[scheduler]`,
   `[publisher]`;
4. its section `[global]`, then `[DEFAULT]`;
5. the default.

The settings file is the one named by `--config`/`-C` (it must exist), else by
`EVENTMQ_CONFIG_FILE` (a warning if it is missing), else /etc/eventmq.conf (nothing is said if it is
missing). It is an INI file as Python's `configparser` reads it: `name = value` or `name: value`,
comments on lines of their own that begin with `#` or `;`, long values continued on indented lines.
There is no interpolation; `%` is an ordinary character.

A bad value ends the start with exit code 2 and one line that says where it stands and what is
expected; also one that a stronger source overrides. An unknown name is a warning with its line.
`--check-config` does only these checks; `--print-config` prints every effective value with its
origin, in a form that is a settings file itself. Every daemon has both.

## Forms

| type | form |
|---|---|
| boolean | true/false, t/f, yes/no, on/off, 1/0, in any case |
| number | decimal digits |
| seconds | decimal digits, with up to three decimals |
| bytes | a number, with an optional suffix K, M or G (1024, 1024², 1024³) |
| address | `tcp://HOST:PORT` (`*` = every interface, port 0 = a free one, IPv6 in brackets) or `ipc://PATH` |
| addresses | one or several of these with commas between them |
| paths | absolute paths with commas between them |
| cores | core numbers and ranges, `2,3` or `0-3`, or `auto` |

\"Reload\" says when a changed value counts after SIGHUP: *now*, for *new connections*, after a
*restart*, or never (*no effect*: accepted so that files of EventMQ 0.3.13 can be kept).
";

/// The whole document.
pub fn settings_markdown() -> String {
    let mut out = INTRODUCTION.to_owned();
    for component in Component::ALL {
        let section = component.section();
        let _ = write!(out, "\n## `[{section}]`\n\n");
        out.push_str(
            "| name | type | values | default | reload | meaning |\n|---|---|---|---|---|---|\n",
        );
        for key in Key::ALL
            .iter()
            .filter(|key| key.info().is_used_by(component))
        {
            row(&mut out, key.info());
        }
    }
    out
}

fn row(out: &mut String, info: &KeyInfo) {
    let default = match info.default {
        "" => "empty".to_owned(),
        text => format!("`{text}`"),
    };
    let _ = writeln!(
        out,
        "| `{}` | {} | {} | {default} | {} | {} |",
        info.name,
        info.kind.type_name(),
        info.kind.bounds(),
        info.applies.text(),
        info.help,
    );
}
