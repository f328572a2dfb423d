//! The original Python package, in a virtual environment that `tests/setup-peers` makes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The directory of the workspace.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ lies in the workspace")
}

/// Where the virtual environment is: `EMQ_PEERS_DIR`, else `target/peers` of the workspace.
pub fn directory() -> PathBuf {
    std::env::var_os("EMQ_PEERS_DIR")
        .map_or_else(|| workspace().join("target").join("peers"), PathBuf::from)
}

/// A program of the original's virtual environment (`emq-router`, `python`, ...), or `None` after
/// SKIPPED and the reason were printed.
///
/// # Panics
///
/// With `CI=true` when it is missing: there, a peer that cannot be had is a failure.
pub fn original(program: &str) -> Option<PathBuf> {
    static STAMP: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let bin = STAMP.get_or_init(|| {
        let bin = directory().join("venv").join("bin");
        let stamp = directory().join("stamp");
        if stamp.exists() {
            Ok(bin)
        } else {
            Err(format!(
                "{} is missing; run tests/setup-peers",
                stamp.display()
            ))
        }
    });
    let reason = match bin {
        Ok(bin) if bin.join(program).exists() => return Some(bin.join(program)),
        Ok(bin) => format!("{} has no {program}; run tests/setup-peers", bin.display()),
        Err(reason) => reason.clone(),
    };
    skip("the original eventmq 0.3.13", &reason);
    None
}

/// Prints SKIPPED and why.
///
/// # Panics
///
/// With `CI=true`.
pub fn skip(what: &str, reason: &str) {
    assert!(
        std::env::var("CI").as_deref() != Ok("true"),
        "{what}: {reason}, and CI=true"
    );
    eprintln!("SKIPPED ({what}): {reason}");
}

/// One of our own binaries, built in the profile of the running test.
///
/// `EMQ_BIN_DIR` names a directory that has them already (set by `tests/run`). Otherwise cargo is
/// asked once for each test process, so that a test never runs yesterday's binary.
///
/// # Panics
///
/// If cargo cannot build it.
pub fn our_binary(name: &str) -> PathBuf {
    if let Some(dir) = std::env::var_os("EMQ_BIN_DIR") {
        return PathBuf::from(dir).join(name);
    }
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let dir = BUILT.get_or_init(|| {
        // .../target/<profile>/deps/<test>
        let exe = std::env::current_exe().expect("a test has a path");
        let dir = exe
            .parent()
            .and_then(Path::parent)
            .expect("target/<profile>/deps/<test>");
        let profile = match dir.file_name().and_then(|n| n.to_str()) {
            Some("debug") | None => "dev",
            Some(profile) => profile,
        };
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let status = Command::new(cargo)
            .args([
                "build",
                "--quiet",
                "--package",
                "eventmq",
                "--bins",
                "--profile",
                profile,
            ])
            .arg("--target-dir")
            .arg(
                dir.parent()
                    .expect("a profile lies in the target directory"),
            )
            .current_dir(workspace())
            .status()
            .expect("cargo runs");
        assert!(
            status.success(),
            "cargo cannot build our binaries: {status}"
        );
        dir.to_owned()
    });
    let program = dir.join(name);
    assert!(program.exists(), "{} is missing", program.display());
    program
}
