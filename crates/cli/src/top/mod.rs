//! `terrace top`: the terraces of a running server, or of a program under `terrace run`, live in a terminal, or as text or JSON for
//! scripts. It asks (`asker`) a server (`source`) or a program (`program`) what it counts, makes of two answers what happens in a second
//! (`screen`), and shows it (`view`). Never: changes anything there, but for a connection.

mod asker;
mod program;
mod screen;
mod source;
mod view;

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use terrace_server::auth::Password;

use crate::Failure;
use asker::{Asker, Whom};
use screen::Screen;
use source::Sample;

/// The longest time between two looks.
const INTERVAL_MAX_S: f64 = 3_600.0;
/// The shortest one.
const INTERVAL_MIN_S: f64 = 0.1;
/// How long a key press or a signal may wait to be noticed.
const KEY_LOOK: Duration = Duration::from_millis(100);

/// Whose terraces, and how.
#[derive(Args)]
pub struct TopArgs {
    /// Address of the server's Redis protocol
    #[arg(default_value = "127.0.0.1:6380")]
    addr: SocketAddr,
    /// Number of a process under `terrace run`, instead of a server
    #[arg(long, conflicts_with_all = ["addr", "requirepass_file"], value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,
    /// Seconds between two looks
    #[arg(long, default_value_t = 1.0, value_name = "S")]
    interval: f64,
    /// File (mode 600) whose first line is the server's password
    #[arg(long, value_name = "FILE")]
    requirepass_file: Option<PathBuf>,
    /// Show once, as text, and end
    #[arg(long)]
    once: bool,
    /// Print JSON, a line for each look
    #[arg(long)]
    json: bool,
}

/// Runs until it is told to end, or the server or program does.
///
/// # Errors
/// `Misuse` for settings that make no sense; `Failed` when the server or program does not answer.
pub fn run(args: &TopArgs) -> Result<u8, Failure> {
    if !(INTERVAL_MIN_S..=INTERVAL_MAX_S).contains(&args.interval) {
        return Err(Failure::Misuse(anyhow!(
            "--interval is {} s; allowed are {INTERVAL_MIN_S} to {INTERVAL_MAX_S}",
            args.interval
        )));
    }
    if let Some(path) = &args.requirepass_file {
        // The same rules as for the server: who may read the file, and what is in it.
        Password::from_file(path).map_err(|why| Failure::Misuse(anyhow!(why)))?;
    }
    let (whom, name) = match args.pid {
        // Its number comes with the answer.
        Some(pid) => (Whom::Program(pid), String::new()),
        None => (
            Whom::Server(args.addr, args.requirepass_file.clone()),
            args.addr.to_string(),
        ),
    };
    let mut asker = Asker::start(whom)?;
    let interval = Duration::from_secs_f64(args.interval);
    let live = !args.once && !args.json && std::io::stdout().is_terminal();
    match live {
        true => show_live(&mut asker, &name, interval)?,
        false => print(&mut asker, &name, args, interval)?,
    }
    Ok(0)
}

fn print(asker: &mut Asker, name: &str, args: &TopArgs, interval: Duration) -> anyhow::Result<()> {
    let mut before = asker.sample()?;
    loop {
        std::thread::sleep(interval);
        let now = asker.sample()?;
        let screen = Screen::between(&before, &now, name.to_string());
        before = now;
        let text = match args.json {
            true => serde_json::to_string(&screen)? + "\n",
            false => screen.text(),
        };
        if !crate::print(&text)? || args.once {
            return Ok(());
        }
    }
}

fn show_live(asker: &mut Asker, name: &str, interval: Duration) -> anyhow::Result<()> {
    let before = asker.sample()?;
    // By default they would end it with the terminal as it is then.
    let told_to_end = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        let heard = signal_hook::flag::register(signal, told_to_end.clone());
        heard.context("cannot listen to signals")?;
    }
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let ended = look_live(asker, name, interval, before, &mut terminal, &told_to_end);
    ratatui::restore();
    ended
}

fn look_live(
    asker: &mut Asker,
    name: &str,
    interval: Duration,
    mut before: Sample,
    terminal: &mut DefaultTerminal,
    told_to_end: &AtomicBool,
) -> anyhow::Result<()> {
    let mut screen = Screen::between(&before, &before, name.to_string());
    terminal.draw(|frame| view::draw(frame, &screen))?;
    // Of the next look; none while an answer is waited for.
    let mut due = Some(Instant::now() + interval);
    while !told_to_end.load(Ordering::Relaxed) {
        let wait = due.map_or(Duration::ZERO, |due| {
            due.saturating_duration_since(Instant::now()).min(KEY_LOOK)
        });
        if event::poll(wait)? {
            match event::read()? {
                event if ends(&event) => return Ok(()),
                Event::Resize(..) => {
                    terminal.draw(|frame| view::draw(frame, &screen))?;
                }
                _ => {}
            }
        }
        if due.is_some_and(|due| Instant::now() >= due) {
            asker.ask();
            due = None;
        }
        if due.is_none()
            && let Some(now) = asker.told(KEY_LOOK)?
        {
            screen = Screen::between(&before, &now, name.to_string());
            before = now;
            terminal.draw(|frame| view::draw(frame, &screen))?;
            due = Some(Instant::now() + interval);
        }
    }
    Ok(())
}

fn ends(event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    let control_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind == KeyEventKind::Press
        && (control_c || matches!(key.code, KeyCode::Char('q' | 'Q') | KeyCode::Esc))
}
