//! `emq-bench report`: result files as one HTML page that needs nothing else.

mod chart;
mod data;
mod html;

use crate::environment::Environment;
use crate::failure::{Failure, Result};
use clap::Args;
use data::Source;
use std::path::PathBuf;

/// Options of `report`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Results that run, rate, soak or compare have written with --json; several are compared
    #[arg(required = true, value_name = "RESULT")]
    results: Vec<PathBuf>,
    /// The page to write
    #[arg(long, short, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
    /// Its headline
    #[arg(long, value_name = "TEXT", default_value = "EventMQ measurements")]
    title: String,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<()> {
    let sources: Vec<Source> = options
        .results
        .iter()
        .map(|path| data::read(path))
        .collect::<Result<_>>()?;
    let page = html::page(&options.title, &sources, &Environment::now())?;
    let path = options.output.display();
    std::fs::write(&options.output, page)
        .map_err(|error| Failure::run(format!("cannot write {path}: {error}")))?;
    println!("{path}");
    Ok(())
}
