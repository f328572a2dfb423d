//! Starting the program as a user does.

#![allow(dead_code, reason = "each test program uses its part of this")]

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

/// Runs `emq-bench` with these words.
pub(crate) fn emq_bench(line: &str) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_emq-bench"))
        .args(line.split_whitespace())
        .output();
    output.expect("emq-bench starts")
}

/// What it said on standard error.
pub(crate) fn error_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs it, and what it prints if it ends well.
#[track_caller]
pub(crate) fn printed(line: &str) -> String {
    let output = emq_bench(line);
    assert!(output.status.success(), "{line}: {}", error_of(&output));
    String::from_utf8(output.stdout).expect("it prints UTF-8")
}

/// Reads a result file.
#[track_caller]
pub(crate) fn json(path: &Path) -> Value {
    let bytes = std::fs::read(path).expect("the result file is there");
    serde_json::from_slice(&bytes).expect("the result file is JSON")
}
