//! The one error type of the harness: a line that says what happened and what to do.

use std::fmt;

/// Why a command ended without a result. Printed as one line; `code` is the exit status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    line: String,
    code: u8,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// Something went wrong while running (exit 1).
    pub(crate) fn run(line: impl Into<String>) -> Self {
        Failure {
            line: line.into(),
            code: 1,
        }
    }

    /// The command line asks for something that cannot be (exit 2).
    pub(crate) fn usage(line: impl Into<String>) -> Self {
        Failure {
            line: line.into(),
            code: 2,
        }
    }

    /// A measurement ended well, and what was demanded of it does not hold.
    pub(crate) fn with_code(line: impl Into<String>, code: u8) -> Self {
        Failure {
            line: line.into(),
            code,
        }
    }

    /// Exit status.
    pub(crate) fn code(&self) -> u8 {
        self.code
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}
