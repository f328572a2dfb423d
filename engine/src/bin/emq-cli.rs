//! The command-line client: `emq-cli --help`.

use clap::Parser;
use eventmq::cli;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args = cli::Args::parse();
    match cli::run(&args, &mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads has seen enough (`emq-cli status | head -1`).
        Err(cli::CliError::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("emq-cli: {error}");
            ExitCode::FAILURE
        }
    }
}
