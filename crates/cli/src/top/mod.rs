//! `terrace top`: the terraces of a running server, or of a program under `terrace run`, live in a terminal, or as text or JSON for
//! scripts. It asks a server (`source`) or a program (`program`) what it counts, makes of two answers what happens in a second
//! (`screen`), and shows it (`view`). Never: changes anything there, but for a connection.

mod program;
mod screen;
mod source;
mod view;

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use clap::Args;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use terrace_server::auth::Password;

use crate::Failure;
use program::Program;
use screen::Screen;
use source::{Sample, Source};

/// The longest time between two looks.
const INTERVAL_MAX_S: f64 = 3_600.0;
/// The shortest one.
const INTERVAL_MIN_S: f64 = 0.1;
/// How long a key press may wait to be noticed.
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

/// Who is asked.
enum Asked {
    Server(SocketAddr, Source),
    Program(Program),
}

impl Asked {
    fn sample(&mut self) -> anyhow::Result<Sample> {
        match self {
            Asked::Server(_, source) => source.sample(),
            Asked::Program(program) => program.sample(),
        }
    }

    fn name(&self) -> String {
        match self {
            Asked::Server(addr, _) => addr.to_string(),
            // Its number comes with the answer.
            Asked::Program(_) => String::new(),
        }
    }
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
    let mut asked = match args.pid {
        Some(pid) => Asked::Program(Program::new(pid)),
        None => {
            let source = Source::connect(args.addr, args.requirepass_file.as_deref())?;
            Asked::Server(args.addr, source)
        }
    };
    let interval = Duration::from_secs_f64(args.interval);
    let live = !args.once && !args.json && std::io::stdout().is_terminal();
    match live {
        true => show_live(&mut asked, interval)?,
        false => print(&mut asked, args, interval)?,
    }
    Ok(0)
}

/// Looks again after `interval`.
fn next(asked: &mut Asked, before: &Sample) -> anyhow::Result<(Sample, Screen)> {
    let now = asked.sample()?;
    let screen = Screen::between(before, &now, asked.name());
    Ok((now, screen))
}

fn print(asked: &mut Asked, args: &TopArgs, interval: Duration) -> anyhow::Result<()> {
    let mut before = asked.sample()?;
    loop {
        std::thread::sleep(interval);
        let (now, screen) = next(asked, &before)?;
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

fn show_live(asked: &mut Asked, interval: Duration) -> anyhow::Result<()> {
    let mut before = asked.sample()?;
    let mut screen = Screen::between(&before, &before, asked.name());
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let ended = (|| -> anyhow::Result<()> {
        loop {
            terminal.draw(|frame| view::draw(frame, &screen))?;
            let until = Instant::now() + interval;
            while Instant::now() < until {
                if event::poll(KEY_LOOK.min(interval))? {
                    match event::read()? {
                        event if ends(&event) => return Ok(()),
                        Event::Resize(..) => {
                            terminal.draw(|frame| view::draw(frame, &screen))?;
                        }
                        _ => {}
                    }
                }
            }
            let (now, shown) = next(asked, &before)?;
            (before, screen) = (now, shown);
        }
    })();
    ratatui::restore();
    ended
}

fn ends(event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    let control_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind == KeyEventKind::Press
        && (control_c || matches!(key.code, KeyCode::Char('q' | 'Q') | KeyCode::Esc))
}
