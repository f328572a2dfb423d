//! Settings: file, environment and command line become one validated [`Settings`].
//!
//! Owns: the [catalogue](Key) of settings, their sources and precedence, errors that name where a
//! bad value stands, `--print-config`, the text of docs/settings.md, and plain structs of
//! effective values ([`RouterSettings`], [`JobManagerSettings`], [`PublisherSettings`],
//! [`SchedulerSettings`]). May import layers 0-4. Invariant: a [`Settings`] holds a valid value for
//! every key of the catalogue, with its origin.
//!
//! Precedence: command line, environment (`EVENTMQ_<NAME>`), the component's section, `[global]`,
//! `[DEFAULT]` (which Python's `configparser` merges into every section), default. Every value
//! given for the component is checked, also one that another source overrides.

mod catalogue;
mod docs;
mod ini;
mod jobmanager;
mod load;
mod print;
mod publisher;
mod router;
mod scheduler;
mod value;

pub use catalogue::{Applies, Component, Key, KeyInfo};
pub use docs::settings_markdown;
pub use jobmanager::JobManagerSettings;
pub use load::{Change, DEFAULT_CONFIG_FILE, Origin, Settings, SettingsError, Sources};
pub use publisher::PublisherSettings;
pub use router::{Idle, LogFormat, LogLevel, RouterSettings, Threading, state_dir};
pub use scheduler::{MisfireRule, ScheduleStore, SchedulerSettings};
pub use value::{Kind, MemoryLimit, Value};

#[cfg(test)]
mod tests;
