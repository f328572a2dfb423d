//! Every scenario of `tests/scenarios` against our broker in both threadings and against the
//! original, each with a broker of its own.

use eventmq_tests::router::Target;
use eventmq_tests::scenario::{Scenario, Side, parse, run};
use libtest_mimic::{Arguments, Failed, Trial};
use std::collections::HashSet;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // They wait more than they work.
    arguments.test_threads.get_or_insert(6);
    let scenarios = match load() {
        Ok(scenarios) => scenarios,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let mut trials = Vec::new();
    for target in [Target::Inline, Target::Dedicated, Target::Original] {
        for scenario in &scenarios {
            let meant = match scenario.only {
                None => true,
                Some(Side::Ours) => target.is_ours(),
                Some(Side::Original) => !target.is_ours(),
            };
            if meant {
                let name = format!("{}::{}", target.name(), scenario.name);
                let scenario = scenario.clone();
                trials.push(Trial::test(name, move || trial(&scenario, target)));
            }
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(scenario: &Scenario, target: Target) -> Result<(), Failed> {
    match run(scenario, target) {
        // SKIPPED and the reason were printed.
        Ok(_) => Ok(()),
        Err(error) => Err(format!("{error}\n{}", scenario.doc).into()),
    }
}

fn load() -> Result<Vec<Scenario>, String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut files: Vec<_> = std::fs::read_dir(&dir)
        .map_err(|e| format!("{}: {e}", dir.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|ext| ext == "emq"))
        .collect();
    files.sort();
    let mut scenarios = Vec::new();
    for file in files {
        let text =
            std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        let name = file
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        scenarios.extend(parse(&name, &text)?);
    }
    let mut names = HashSet::new();
    for scenario in &scenarios {
        if !names.insert(&scenario.name) {
            return Err(format!(
                "{}: a second scenario {}",
                scenario.place, scenario.name
            ));
        }
    }
    if scenarios.is_empty() {
        return Err(format!("no scenarios in {}", dir.display()));
    }
    Ok(scenarios)
}
