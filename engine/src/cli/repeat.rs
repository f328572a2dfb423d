//! Asking again and again: `ping` and `watch`.

use super::CliError;
use super::args::{Options, Watched};
use super::session::{Session, write};
use crate::admin_api::AdminCommand;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Asks for STATUS and tells how long the answer took.
pub(super) fn ping(
    session: &mut Session,
    options: &Options,
    json: bool,
    count: u32,
    interval: Duration,
    out: &mut impl Write,
) -> Result<(), CliError> {
    let mut times = Vec::new();
    let mut last = None;
    for seq in 1..=count {
        let began = Instant::now();
        let asked = session.with_admin(options, |client| {
            // The connection is there: only the question and its answer count.
            let began = Instant::now();
            client.request(AdminCommand::Status)?;
            Ok((began.elapsed(), client.addr().clone()))
        });
        let line = match asked {
            Ok((time, addr)) => {
                times.push(time);
                let us = time.as_micros();
                match json {
                    true => format!(
                        "{}\n",
                        serde_json::json!({"seq": seq, "time_us": us as u64})
                    ),
                    false => format!("{addr}: seq {seq}, {:.3} ms\n", us as f64 / 1e3),
                }
            }
            Err(error) => {
                let line = match json {
                    true => format!(
                        "{}\n",
                        serde_json::json!({"seq": seq, "error": error.to_string()})
                    ),
                    false => format!("seq {seq}: {error}\n"),
                };
                last = Some(error);
                line
            }
        };
        write(out, line.as_bytes())?;
        if seq < count && session.interrupt.wait_until(began + interval) {
            break;
        }
    }
    if !json && let (Some(min), Some(max)) = (times.iter().min(), times.iter().max()) {
        let mean = times.iter().sum::<Duration>() / times.len() as u32;
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let text = format!(
            "{count} asked, {} answered, min {:.3} ms, mean {:.3} ms, max {:.3} ms\n",
            times.len(),
            ms(*min),
            ms(mean),
            ms(*max),
        );
        write(out, text.as_bytes())?;
    }
    match last {
        // The line has been written.
        Some(_) => Err(CliError::Missing(format!(
            "{} of {count} not answered",
            count as usize - times.len()
        ))),
        None => Ok(()),
    }
}

/// Prints an answer again and again. It goes on over errors; the last answer decides how it ends.
pub(super) fn watch(
    session: &mut Session,
    options: &Options,
    json: bool,
    interval: Duration,
    count: Option<u32>,
    what: &Watched,
    out: &mut impl Write,
) -> Result<(), CliError> {
    let clear = !json && std::io::stdout().is_terminal() && count != Some(1);
    let command = what.command();
    let begun = Instant::now();
    let mut number = 0;
    loop {
        number += 1;
        let looked = Instant::now();
        let answer = session.answer(&command, options, json);
        let mut text = String::new();
        if clear {
            // Home, and everything below cleared.
            text.push_str("\x1b[H\x1b[2J");
        }
        if !json {
            text += &format!(
                "{} every {} s, {:.0} s\n\n",
                what.name(),
                interval.as_secs_f64(),
                begun.elapsed().as_secs_f64()
            );
        }
        let last = match answer {
            Ok(answer) => {
                text += &answer;
                None
            }
            Err(error) => {
                text += &match json {
                    true => format!("{}\n", serde_json::json!({"error": error.to_string()})),
                    false => format!("{error}\n"),
                };
                Some(error)
            }
        };
        if !json && !clear {
            text.push('\n');
        }
        write(out, text.as_bytes())?;
        let done = count.is_some_and(|count| number >= count);
        if done || session.interrupt.wait_until(looked + interval) {
            return last.map_or(Ok(()), Err);
        }
    }
}
