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
use crate::client::{self, ClientError, Node, Target};
use crate::clock::Clock;

/// How often ages are drawn anew though nothing else has happened.
const REDRAW: Duration = Duration::from_millis(500);
/// How often the thread that reads keys looks whether it is still wanted.
const KEY_WAIT: Duration = Duration::from_millis(200);

#[derive(Clone, Debug)]
pub struct TopSettings {
    pub target: Target,
    /// From one answer to the next question.
    pub interval: Duration,
    /// Text, also in a terminal.
    pub once: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum TopError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("this terminal cannot be used: {0}; `podmeter top --once` prints plain text")]
    Terminal(#[from] io::Error),
}

/// In a terminal until the user has had enough; elsewhere once, as the text that comes back.
pub async fn run(settings: TopSettings) -> Result<Option<String>, TopError> {
    let dumb = std::env::var_os("TERM").is_some_and(|kind| kind == "dumb");
    if settings.once || dumb || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Ok(Some(plain::text(&first(&settings.target).await?)));
    }
    let look = Look::of(|name| std::env::var(name).ok());
    let mut signals = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()].map(signal);
    let [Ok(terminate), Ok(interrupt), Ok(hangup)] = &mut signals else {
        return Err(io::Error::other("signals cannot be received").into());
    };
    // Also sets a hook that restores the terminal before a panic is told.
    let terminal = ratatui::try_init()?;
    let _restored = Restored;
    live(terminal, settings, look, [terminate, interrupt, hangup]).await?;
    Ok(None)
}

/// Who watches is told what takes so long.
async fn first(target: &Target) -> Result<Node, ClientError> {
    let asked = client::node(target);
    tokio::pin!(asked);
    tokio::select! {
        answer = &mut asked => return answer,
        () = tokio::time::sleep(Duration::from_secs(1)) => {}
    }
    if io::stderr().is_terminal() {
        let _ = writeln!(io::stderr(), "podmeter: asking {target}");
    }
    asked.await
}

struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        // Where that fails there is no terminal left to say so on.
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
    let (answered, mut answers) = mpsc::channel(1);
    let asking = ask(settings, answered);
    tokio::pin!(asking);
    let mut redraw = tokio::time::interval(REDRAW);
    redraw.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        terminal.draw(|frame| view::draw(frame, &state, look, clock.now().monotonic))?;
        tokio::select! {
            () = &mut asking => return Ok(()),
            Some(answer) = answers.recv() => match answer {
                Ok(node) => state.answered(node, clock.now().monotonic),
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

/// Asks for ever.
async fn ask(settings: TopSettings, answers: mpsc::Sender<Result<Node, ClientError>>) {
    let mut due = tokio::time::interval(settings.interval);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        due.tick().await;
        if answers.send(client::node(&settings.target).await).await.is_err() {
            return;
        }
    }
}

enum Pressed {
    Key(Key),
    Redraw,
    /// A resize, or a key that means nothing.
    Other,
}

/// What is typed, from a thread that ends when nobody listens any more.
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
