//! The loop of `podmeter top`: polls the agent, draws, handles keys and signals.
//!
//! In: where the agent is. Out: screens in a terminal, or text once.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{Event, EventStream, KeyEventKind};
use crossterm::style::{Attribute, Color, ContentStyle, Print, ResetColor, SetStyle};
use crossterm::terminal::{self, Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{execute, queue};
use futures_util::StreamExt as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use super::screen::Screen;
use super::{Line, Style, text};
use crate::clock::Clock;
use crate::commands::client::{self, AgentTarget, ClientError};
use crate::domain::model::Snapshot;

/// How often ages are redrawn without other changes.
const REDRAW: Duration = Duration::from_millis(500);
/// One of 256 colours, readable on light and dark backgrounds, and with every common form of colour blindness.
const VERMILION: Color = Color::AnsiValue(166);

#[derive(Clone, Debug)]
pub struct TopSettings {
    pub target: AgentTarget,
    /// The time between two requests.
    pub interval: Duration,
    /// Whether to print text once, also in a terminal.
    pub once: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum TopError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("this terminal cannot be used: {0}; `podmeter top --once` prints plain text")]
    Terminal(#[from] io::Error),
}

/// Runs in a terminal until the user quits; otherwise returns the text once.
pub async fn run(settings: TopSettings) -> Result<Option<String>, TopError> {
    let dumb = std::env::var_os("TERM").is_some_and(|kind| kind == "dumb");
    if settings.once || dumb || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Ok(Some(text(&client::json(&settings.target, NODE).await?)));
    }
    let mut signals = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()].map(signal);
    let [Ok(terminate), Ok(interrupt), Ok(hangup)] = &mut signals else {
        return Err(io::Error::other("signal handlers cannot be installed").into());
    };
    let _restored = Restored;
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        restore();
        hook(panic);
    }));
    terminal::enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen, Hide)?;
    live(settings, [terminate, interrupt, hangup]).await?;
    Ok(None)
}

const NODE: &str = "/api/v1/node";

struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal. Where that fails there is no terminal for a message.
fn restore() {
    let _ = execute!(io::stdout(), ResetColor, Show, LeaveAlternateScreen);
    let _ = terminal::disable_raw_mode();
}

async fn live(settings: TopSettings, [terminate, interrupt, hangup]: [&mut Signal; 3]) -> io::Result<()> {
    let clock = Clock::start();
    let colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut screen = Screen::new(settings.target.to_string(), settings.interval, clock.now().monotonic);
    let (responded, mut responses) = mpsc::channel(1);
    let polling = poll(settings, responded);
    tokio::pin!(polling);
    let mut events = EventStream::new();
    let mut redraw = tokio::time::interval(REDRAW);
    redraw.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let (width, height) = terminal::size()?;
        draw(&screen.lines(clock.now().monotonic, width.into(), height.into()), colours)?;
        tokio::select! {
            () = &mut polling => return Ok(()),
            Some(response) = responses.recv() => match response {
                Ok(node) => screen.update(node, clock.now().monotonic),
                Err(error) => screen.failure = Some(error.to_string()),
            },
            event = events.next() => match event.transpose()? {
                Some(Event::Key(key)) if key.kind != KeyEventKind::Release => {
                    if !screen.press(key) {
                        return Ok(());
                    }
                }
                Some(Event::Resize(..)) => execute!(io::stdout(), Clear(ClearType::All))?,
                Some(_) => {}
                None => return Ok(()),
            },
            _ = redraw.tick() => {}
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = hangup.recv() => return Ok(()),
        }
    }
}

/// Polls until nothing receives the responses.
async fn poll(settings: TopSettings, responses: mpsc::Sender<Result<Snapshot, ClientError>>) {
    let mut due = tokio::time::interval(settings.interval);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        due.tick().await;
        if responses.send(client::json(&settings.target, NODE).await).await.is_err() {
            return;
        }
    }
}

/// Draws in one write, each line over the earlier one, so that nothing flickers.
fn draw(lines: &[Line], colours: bool) -> io::Result<()> {
    let mut output = vec![];
    for (row, line) in (0..).zip(lines) {
        let mut style = ContentStyle::new();
        match line.style {
            Style::Plain => {}
            Style::Heading => style.attributes.set(Attribute::Bold),
            Style::Quiet => style.attributes.set(Attribute::Dim),
            Style::Selected => style.attributes.set(Attribute::Reverse),
            Style::Alarm => {
                style.attributes.set(Attribute::Bold);
                style.foreground_color = colours.then_some(VERMILION);
            }
        }
        queue!(output, MoveTo(0, row), SetStyle(style), Print(&line.text), ResetColor, Clear(ClearType::UntilNewLine))?;
    }
    io::stdout().write_all(&output)?;
    io::stdout().flush()
}
