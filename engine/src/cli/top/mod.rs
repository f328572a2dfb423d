//! `top`: a live view. Leaves the terminal as it found it, however it ends.

mod model;
mod view;

use super::{AdminClient, CliError};
use crate::addr::Addr;
use crate::admin_api::AdminCommand;
use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{self, Event, KeyCode, KeyModifiers};
use crossterm::style::Print;
use crossterm::terminal::{
    Clear, ClearType, DisableLineWrap, EnableLineWrap, EnterAlternateScreen, LeaveAlternateScreen,
    disable_raw_mode, enable_raw_mode, size,
};
use crossterm::{execute, queue};
use model::{Model, Sample};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::{Duration, Instant};

/// How often keys and signals are looked at.
const LOOK: Duration = Duration::from_millis(100);

/// True while the terminal is ours.
static ENTERED: AtomicBool = AtomicBool::new(false);

/// The terminal while the view has it.
struct Screen;

impl Screen {
    fn enter() -> io::Result<Screen> {
        static HOOK: std::sync::Once = std::sync::Once::new();
        HOOK.call_once(|| {
            // A panic may end the process without unwinding.
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                leave();
                before(info);
            }));
        });
        enable_raw_mode()?;
        ENTERED.store(true, Ordering::SeqCst);
        // From here on dropping it gives everything back.
        let screen = Screen;
        execute!(io::stdout(), EnterAlternateScreen, Hide, DisableLineWrap)?;
        Ok(screen)
    }

    fn draw(&self, lines: &[String]) -> io::Result<()> {
        let (width, height) = size()?;
        let mut out = io::stdout().lock();
        for (row, line) in (0..height).zip(lines) {
            let shown: String = line.chars().take(width.into()).collect();
            queue!(
                out,
                MoveTo(0, row),
                Print(shown),
                Clear(ClearType::UntilNewLine)
            )?;
        }
        let used = u16::try_from(lines.len()).unwrap_or(u16::MAX);
        if used < height {
            queue!(out, MoveTo(0, used), Clear(ClearType::FromCursorDown))?;
        }
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave();
    }
}

fn leave() {
    if ENTERED.swap(false, Ordering::SeqCst) {
        // The terminal may be gone; then there is nothing to give back.
        let _ = execute!(io::stdout(), EnableLineWrap, Show, LeaveAlternateScreen);
        let _ = disable_raw_mode();
    }
}

/// The last signal that asked for the end.
struct Signals {
    seen: Arc<AtomicUsize>,
    ids: Vec<signal_hook::SigId>,
}

impl Signals {
    fn watch() -> io::Result<Signals> {
        let seen = Arc::new(AtomicUsize::new(0));
        let mut ids = Vec::new();
        for signal in [SIGTERM, SIGHUP, SIGINT] {
            let number = usize::try_from(signal).unwrap_or_default();
            ids.push(signal_hook::flag::register_usize(
                signal,
                Arc::clone(&seen),
                number,
            )?);
        }
        Ok(Signals { seen, ids })
    }

    fn seen(&self) -> Option<i32> {
        match self.seen.load(Ordering::SeqCst) {
            0 => None,
            signal => i32::try_from(signal).ok(),
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for id in self.ids.drain(..) {
            signal_hook::low_level::unregister(id);
        }
    }
}

/// Shows the view until q, Escape, Ctrl-C or a signal.
pub(super) fn run(addr: &Addr, timeout: Duration, interval: Duration) -> Result<(), CliError> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let text = "top needs a terminal; watch prints the same figures anywhere";
        return Err(CliError::Missing(text.to_owned()));
    }
    // No terminal is touched for a broker that cannot be reached.
    let client = AdminClient::connect(addr, timeout)?;
    let samples = sample(client, addr.clone(), timeout, interval);
    let terminal = |error: io::Error| CliError::Terminal(error.to_string());
    let signals = Signals::watch().map_err(terminal)?;
    let screen = Screen::enter().map_err(terminal)?;
    let shown = show(&screen, addr, &samples, &signals);
    drop(screen);
    let signal = signals.seen();
    drop(signals);
    if let Some(signal) = signal.filter(|signal| *signal != SIGINT) {
        // Ends the process the way the signal would have.
        let _ = signal_hook::low_level::emulate_default_handler(signal);
    }
    shown.map_err(terminal)
}

fn show(
    screen: &Screen,
    addr: &Addr,
    samples: &Receiver<Sample>,
    signals: &Signals,
) -> io::Result<()> {
    let mut model = Model::default();
    let mut fresh = true;
    while signals.seen().is_none() {
        while let Ok(sample) = samples.try_recv() {
            model.take(sample);
            fresh = true;
        }
        if std::mem::take(&mut fresh) {
            screen.draw(&view::lines(&addr.to_string(), &model))?;
        }
        if !event::poll(LOOK)? {
            continue;
        }
        match event::read()? {
            Event::Key(key) => {
                let control = key.modifiers.contains(KeyModifiers::CONTROL);
                match key.code {
                    KeyCode::Char('c') if control => return Ok(()),
                    KeyCode::Char('q' | 'Q') | KeyCode::Esc => return Ok(()),
                    _ => {}
                }
            }
            Event::Resize(..) => fresh = true,
            _ => {}
        }
    }
    Ok(())
}

/// Asks on a thread of its own, so that keys are never waited for. It ends with the receiver.
fn sample(
    client: AdminClient,
    addr: Addr,
    timeout: Duration,
    interval: Duration,
) -> Receiver<Sample> {
    let (sender, samples) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let mut asker = Asker {
            client: Some(client),
            addr,
            timeout,
            only_status: false,
        };
        asker.run(&sender, interval);
    });
    samples
}

struct Asker {
    client: Option<AdminClient>,
    addr: Addr,
    timeout: Duration,
    /// A broker of version 0.3.13 answers nothing else.
    only_status: bool,
}

impl Asker {
    fn run(&mut self, sender: &SyncSender<Sample>, interval: Duration) {
        loop {
            let began = Instant::now();
            let sample = match self.ask() {
                Ok(sample) => sample,
                Err(error) => {
                    self.client = None;
                    Sample::failed(error.to_string())
                }
            };
            if sender.send(sample).is_err() {
                return;
            }
            std::thread::sleep(interval.saturating_sub(began.elapsed()));
        }
    }

    fn ask(&mut self) -> Result<Sample, CliError> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => AdminClient::connect(&self.addr, self.timeout)?,
        };
        let mut sample = Sample::new(client.json(AdminCommand::Status)?);
        if !self.only_status {
            match client.json(AdminCommand::Counters) {
                Ok(counters) => sample.counters = counters,
                Err(CliError::Timeout { .. }) => {
                    self.only_status = true;
                    return Ok(sample);
                }
                Err(error) => return Err(error),
            }
            if sample.status["component"].is_null() {
                sample.latency = client.json(AdminCommand::Latency)?;
                sample.workers = client.json(AdminCommand::ShowWorkers)?;
            }
        }
        self.client = Some(client);
        Ok(sample)
    }
}
