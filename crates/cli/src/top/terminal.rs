//! The terminal: raw mode, keys, resizing, and the way back.

use super::app::{Action, App};
use super::draw;
use super::sample::{QpId, Sample, Sampler};
use crate::failure::Failure;
use crate::signals;
use crossterm::event::{self, Event, KeyEventKind};
use crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use crossterm::{cursor, execute};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use std::io::{self, Stdout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

/// How long the loop sleeps at most: an answer or a signal waits no longer.
const TICK: Duration = Duration::from_millis(50);

/// Raw mode and the alternate screen, until it is dropped, also by a panic.
struct RawScreen;

impl RawScreen {
    fn enter() -> io::Result<RawScreen> {
        enable_raw_mode()?;
        let screen = RawScreen;
        execute!(io::stdout(), EnterAlternateScreen, cursor::Hide)?;
        Ok(screen)
    }
}

impl Drop for RawScreen {
    fn drop(&mut self) {
        // A terminal that is gone needs no restoring.
        let _ = execute!(io::stdout(), LeaveAlternateScreen, cursor::Show);
        let _ = disable_raw_mode();
    }
}

/// Queries the processes on a thread of its own: a process that does not answer takes a while, and keys must not wait.
struct SampleThread {
    wanted: Sender<Option<QpId>>,
    samples: Receiver<Sample>,
    /// A sample is on its way.
    is_busy: bool,
    next: Instant,
}

impl SampleThread {
    fn start() -> SampleThread {
        let (wanted, requests) = channel();
        let (answers, samples) = channel();
        std::thread::spawn(move || {
            let mut sampler = Sampler::default();
            while let Ok(history_of) = requests.recv() {
                if answers.send(sampler.take(history_of)).is_err() {
                    return;
                }
            }
        });
        SampleThread { wanted, samples, is_busy: false, next: Instant::now() }
    }

    /// Requests a sample if one is due, and returns one that has arrived.
    fn poll(&mut self, app: &App, interval: Duration) -> Result<Option<Sample>, Failure> {
        if !self.is_busy && !app.is_paused && Instant::now() >= self.next {
            self.is_busy = self.wanted.send(app.history_of()).is_ok();
            self.next = Instant::now() + interval;
        }
        match self.samples.try_recv() {
            Ok(sample) => {
                self.is_busy = false;
                Ok(Some(sample))
            }
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => {
                Err(Failure::new("the thread that queries the processes has ended"))
            }
        }
    }
}

/// Runs until the user quits or the terminal is gone.
pub(super) fn run(app: App, interval: Duration) -> Result<(), Failure> {
    let ended = signals::note_end();
    let failed = |error: io::Error| Failure::io("the terminal cannot be used", error);
    let screen = RawScreen::enter().map_err(failed)?;
    let mut terminal = Terminal::new(CrosstermBackend::new(io::stdout())).map_err(failed)?;
    let outcome = watch(app, interval, &mut terminal, ended);
    drop(screen);
    outcome
}

fn watch(
    mut app: App,
    interval: Duration,
    terminal: &mut Terminal<CrosstermBackend<Stdout>>,
    ended: &AtomicBool,
) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::io("the terminal cannot be used", error);
    let mut sampling = SampleThread::start();
    let mut is_stale = true;
    while !ended.load(Ordering::Relaxed) {
        if let Some(sample) = sampling.poll(&app, interval)? {
            app.update(sample);
            is_stale = true;
        }
        if std::mem::take(&mut is_stale) {
            terminal.draw(|frame| draw::frame(&mut app, frame)).map_err(failed)?;
        }
        if !event::poll(TICK).map_err(failed)? {
            continue;
        }
        is_stale = true;
        if let Event::Key(key) = event::read().map_err(failed)?
            && key.kind != KeyEventKind::Release
        {
            match app.key(key) {
                Action::Quit => return Ok(()),
                Action::Refresh => sampling.next = Instant::now(),
                Action::None => {}
            }
        }
    }
    Ok(())
}
