use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use super::state::{Key, State};
use super::style::Look;
use super::{plain, view};
use crate::client::{self, ClientError, History, Node, Target};
use crate::clock::Clock;

/// How often ages are redrawn without other changes.
const REDRAW: Duration = Duration::from_millis(500);
/// How often the thread that reads keys checks whether it must end.
const KEY_WAIT: Duration = Duration::from_millis(200);

#[derive(Clone, Debug)]
pub struct TopSettings {
    pub target: Target,
    /// Between two requests.
    pub interval: Duration,
    /// Print text, also in a terminal.
    pub once: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum TopError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("this terminal cannot be used: {0}; `podmeter top --once` prints plain text")]
    Terminal(#[from] io::Error),
}

/// In a terminal until the user quits; otherwise once, as the text returned.
pub async fn run(settings: TopSettings) -> Result<Option<String>, TopError> {
    let dumb = std::env::var_os("TERM").is_some_and(|kind| kind == "dumb");
    if settings.once || dumb || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Ok(Some(plain::text(&first(&settings.target).await?)));
    }
    let look = Look::of(|name| std::env::var(name).ok());
    let mut signals = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()].map(signal);
    let [Ok(terminate), Ok(interrupt), Ok(hangup)] = &mut signals else {
        return Err(io::Error::other("signal handlers cannot be installed").into());
    };
    // Also sets a hook that restores the terminal before a panic message.
    let terminal = ratatui::try_init()?;
    let _restored = Restored;
    live(terminal, settings, look, [terminate, interrupt, hangup]).await?;
    Ok(None)
}

/// Names the target on standard error where the response takes long.
async fn first(target: &Target) -> Result<Node, ClientError> {
    let request = client::node(target);
    tokio::pin!(request);
    tokio::select! {
        response = &mut request => return response,
        () = tokio::time::sleep(Duration::from_secs(1)) => {}
    }
    if io::stderr().is_terminal() {
        let _ = writeln!(io::stderr(), "podmeter: waiting for {target}");
    }
    request.await
}

struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        // Where that fails there is no terminal for a message.
        let _ = ratatui::try_restore();
    }
}

async fn live(
    mut terminal: DefaultTerminal,
    settings: TopSettings,
    look: Look,
    [terminate, interrupt, hangup]: [&mut Signal; 3],
) -> io::Result<()> {
    let clock = Clock::start();
    let mut state = State::new(settings.target.to_string(), settings.interval, clock.now().monotonic);
    let mut keys = keys()?;
    let (responded, mut responses) = mpsc::channel(1);
    let polling = poll(settings, responded);
    tokio::pin!(polling);
    let mut redraw = tokio::time::interval(REDRAW);
    redraw.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        terminal.draw(|frame| view::draw(frame, &state, look, clock.now().monotonic))?;
        tokio::select! {
            () = &mut polling => return Ok(()),
            Some(response) = responses.recv() => match response {
                Ok((node, history)) => {
                    if let Some(history) = history {
                        state.begin(&node, &history);
                    }
                    state.update(node, clock.now().monotonic);
                }
                Err(error) => state.failed(error.to_string()),
            },
            pressed = keys.recv() => match pressed {
                Some(Ok(Pressed::Key(key))) if !state.press(key) => return Ok(()),
                Some(Ok(Pressed::Redraw)) => terminal.clear()?,
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error),
                None => return Ok(()),
            },
            _ = redraw.tick() => {}
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = hangup.recv() => return Ok(()),
        }
    }
}

type Response = Result<(Node, Option<History>), ClientError>;

/// Polls until nothing receives the responses. The first one has the agent's history.
async fn poll(settings: TopSettings, responses: mpsc::Sender<Response>) {
    let mut is_first = true;
    let mut due = tokio::time::interval(settings.interval);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        due.tick().await;
        let response = match client::node(&settings.target).await {
            Ok(node) if std::mem::take(&mut is_first) => Ok((node, client::history(&settings.target).await.ok())),
            Ok(node) => Ok((node, None)),
            Err(error) => Err(error),
        };
        if responses.send(response).await.is_err() {
            return;
        }
    }
}

enum Pressed {
    Key(Key),
    Redraw,
    /// A resize, or a key without a function.
    Other,
}

/// Key presses, from a thread that ends when the receiver is dropped.
fn keys() -> io::Result<mpsc::Receiver<io::Result<Pressed>>> {
    let (sender, receiver) = mpsc::channel(64);
    let read = move || {
        while !sender.is_closed() {
            let pressed = match event::poll(KEY_WAIT) {
                Ok(false) => continue,
                Ok(true) => event::read().map(pressed),
                Err(error) => Err(error),
            };
            let broken = pressed.is_err();
            if sender.blocking_send(pressed).is_err() || broken {
                return;
            }
        }
    };
    std::thread::Builder::new().name("keys".into()).spawn(read)?;
    Ok(receiver)
}

fn pressed(event: Event) -> Pressed {
    match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => key_pressed(key),
        _ => Pressed::Other,
    }
}

fn key_pressed(key: KeyEvent) -> Pressed {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    let other = key.modifiers.intersects(KeyModifiers::ALT | KeyModifiers::SUPER | KeyModifiers::META);
    Pressed::Key(match key.code {
        KeyCode::Char('c') if control => Key::Interrupt,
        KeyCode::Char('l') if control => return Pressed::Redraw,
        KeyCode::Char(letter) if !control && !other => Key::Letter(letter),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Tab | KeyCode::BackTab => Key::Tab,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        _ => return Pressed::Other,
    })
}
